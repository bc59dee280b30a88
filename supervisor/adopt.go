// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/failure"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/records"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func (v *Supervisor) writeRecord(s *Session) error {
	live, mounting := s.Mounting()
	return v.records.Write(&records.Record{
		ID: s.ID, Key: s.Key, Owner: records.OwnerOf(s.Owner), Created: s.Created, Settings: s.Current(), Enforced: s.Enforced(),
		Box: boxOf(s), Asleep: s.Asleep(), OneShot: s.OneShot, Live: live, Mounting: mounting, Skills: s.Skills(), Drives: s.Drives(),
	})
}

// boxOf is what a record has of the key of the box.
func boxOf(s *Session) string {
	if s.BoxKey() == s.Key {
		return ""
	}
	return s.BoxKey()
}

func (v *Supervisor) removeRecord(s *Session) {
	if err := v.records.Remove(s.Key); err != nil {
		v.log.Error("record not removed", "session", s.ID, "error", err)
	}
}

// bequeath tells the box of a session how long to live without this boxd, and gives it what the next needs.
// The record is there by then.
func (v *Supervisor) bequeath(s *Session, box *client.Box, env []string, waiting []json.RawMessage) error {
	if v.grace == 0 && !v.keep { // it ends with this boxd, whatever an earlier one has told it
		return box.SetTimes(isolation.Times{})
	}
	file, err := records.EnvironmentFile(env, waiting)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := box.SetPrivate(file); err != nil {
		return err
	}
	return box.SetTimes(v.times(s, time.Now()))
}

// times are how long the box of a session lives without a boxd.
func (v *Supervisor) times(s *Session, now time.Time) isolation.Times {
	settings := s.Current()
	t := isolation.Times{Grace: v.grace, Idle: time.Duration(settings.TTL)}
	if life := time.Duration(settings.MaxLifetime); life > 0 {
		t.End = max(s.Created.Add(life).Sub(now), time.Millisecond)
	}
	return t
}

// park leaves a session to the next boxd.
func (v *Supervisor) park(s *Session) {
	<-s.Started()
	if !s.BeginEnd(EndShutdown) {
		<-s.Ended() // or it does not end, and this boxd is given up
		return
	}
	times := v.times(s, time.Now())
	times.Parked = true
	box := s.Box()
	_ = box.SetTimes(times) // a box that is lost is found to be by the next boxd
	box.Close()
	s.DropProcesses()
	s.FinishEnd()
}

// adoptAtOnce is how many boxes are taken over at a time.
const adoptAtOnce = 16

// takeOver takes over the boxes of the sessions that an earlier boxd has left, and cleans up what is left of
// all others: a session lives if it has a record and a box. A workspace may be there without either.
func (v *Supervisor) takeOver(ctx context.Context, workspaces string) error {
	recorded, err := v.records.Keys()
	if err != nil {
		return err
	}
	living, err := v.boxes.List(ctx)
	if err != nil {
		return fmt.Errorf("boxes of an earlier boxd: %w", err)
	}
	orphans, err := os.ReadDir(workspaces)
	if err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	sessions := map[string]string{} // by the keys of their boxes
	var errs []error
	all := slices.Clone(living)
	for _, key := range recorded {
		box := key
		r, err := v.records.Read(key)
		if failure.Passing(err) { // which box it is of is not known: it would be ended as nobody's
			return fmt.Errorf("record %s: %w", v.records.Path(key), err)
		}
		if err == nil { // or adopt says what is wrong with it
			if box = r.BoxKey(); r.OneShot { // who waited for it is gone
				errs = append(errs, v.records.Remove(key))
				all = append(all, box)
				continue
			}
			v.Skills.Again(key, r.Settings.Root, r.Skills)
			v.Skills.AgainDrives(key, r.Drives)
			v.Spaces.Again(key, r.ID, r.Owner.Name, &r.Settings)
		}
		sessions[box] = key
	}
	all = slices.Concat(slices.Collect(maps.Keys(sessions)), all)
	for _, o := range orphans {
		all = append(all, o.Name())
	}
	slices.Sort(all)
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		room = make(chan struct{}, adoptAtOnce)
	)
	for _, box := range slices.Compact(all) {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			err := v.takeOverOne(ctx, box, sessions[box], slices.Contains(living, box))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// takeOverOne takes over the session of a box, or cleans up after it; key is "" if there is none.
func (v *Supervisor) takeOverOne(ctx context.Context, box, key string, living bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	recorded := key != ""
	if recorded && living {
		s, err := v.adopt(ctx, key)
		if err == nil {
			s.Tell(ctx, events.Event{Type: events.SessionAdopted, Profile: s.Current().Profile, Detail: fmt.Sprintf("%d processes", len(s.Processes()))})
			return nil
		}
		if ctx.Err() != nil || failure.Passing(err) { // another boxd may have more luck
			return fmt.Errorf("take over session %s, which is left to the next boxd: %w", key, err)
		}
		v.log.Error("session of an earlier boxd is lost", "record", v.records.Path(key), "error", err)
	}
	err := v.Spaces.EndBox(ctx, box)
	if errors.Is(err, syscall.EUCLEAN) { // the others need not wait until somebody has seen to this one
		v.log.Error("session of an earlier boxd is left alone: the keeper does not understand its record", "key", box, "error", err)
		return nil
	}
	if err != nil && (ctx.Err() != nil || failure.Passing(err)) {
		return fmt.Errorf("clean up session %s: %w", box, err)
	}
	if err != nil { // a process that sleeps in the kernel, or a mount in a workspace: all others can be served
		v.log.Error("what an earlier boxd left does not end, and is left to the next boxd", "key", box, "error", err)
		return nil
	}
	if !recorded {
		v.log.Info("removed what an earlier boxd left", "key", box)
		return nil
	}
	if !living {
		v.log.Warn("session of an earlier boxd is lost: its box has ended", "record", v.records.Path(key))
	}
	if r, err := v.records.Read(key); err == nil {
		owner := r.Owner.Principal()
		v.tidy(ctx, key, isolation.Caller{UID: owner.UID, GID: owner.GID, Groups: owner.Groups}, &r.Settings, r.Mounting.Leftovers(r.Live))
	}
	if err := v.records.Remove(key); err != nil {
		return fmt.Errorf("record of session %s: %w", key, err)
	}
	v.Skills.Release(key)
	v.Spaces.Release(key)
	return nil
}

// adopt makes a session of a record and a living box. The record is held against the configuration as a
// request is; the box has what it was given, and mounts nothing anew.
func (v *Supervisor) adopt(ctx context.Context, key string) (*Session, error) {
	r, err := v.records.Read(key)
	if err != nil {
		return nil, err
	}
	cfg := v.cfg.Load()
	profile, err := cfg.Recheck(&r.Settings, r.Enforced)
	if err != nil {
		return nil, err
	}
	s := session.New(&v.sessionHost, &session.Params{
		ID: r.ID, Owner: r.Owner.Principal(), Created: r.Created, Settings: r.Settings, Profile: profile, Made: cfg, Enforced: r.Enforced, Live: r.Live, Skills: r.Skills, Drives: r.Drives,
	})
	s.SetBoxKey(r.Box)
	s.SetMounting(r.Live, r.Mounting)
	v.Skills.Taken(s)
	box, found, err := v.boxes.Adopt(ctx, s.Spec())
	if err != nil {
		return nil, err
	}
	env, waiting, err := records.ReadEnvironment(found.Private)
	if err == nil && s.Grouped() != (box.Group != "") {
		err = errors.New("the record is wrong about control groups")
	}
	if err == nil {
		err = v.bequeath(s, box, env, waiting)
	}
	if err != nil {
		box.Close()
		for _, p := range found.Programs { // which go on in the box, if that does
			p.Close()
			if f := p.Private(); f != nil {
				f.Close()
			}
		}
		return nil, err
	}
	v.book.Restore(s.Owner.Name, key, quota.SizeOf(&r.Settings))
	v.Skills.Adopted(ctx, s)
	s.Adopted(box, found.Frozen, env)
	v.ledger.Resume(s.Owner.Name, key, v.reading(s))
	if r.Asleep {
		s.SetAsleep()
	}
	s.Programs(context.WithoutCancel(ctx), found.Programs, v.log) // they go on when New has returned
	s.Resume(context.WithoutCancel(ctx), waiting, v.log)
	v.settle(ctx, s)
	v.mu.Lock()
	v.sessions[key] = s
	v.mu.Unlock()
	return s, nil
}
