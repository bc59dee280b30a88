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
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// handOver tells a session's box how long to live without this boxd, and gives it what the next boxd needs. The record has been
// written by then.
func (v *Supervisor) handOver(s *session.Session, box *client.Box, env []string, waiting []json.RawMessage) error {
	if v.grace == 0 && !v.keep { // the box ends with this boxd, whatever an earlier one has set
		return box.SetTimes(isolation.Times{})
	}
	file, err := EnvironmentFile(env, waiting)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := box.SetPrivate(file); err != nil {
		return err
	}
	return box.SetTimes(v.times(s, time.Now()))
}

// times returns how long the box of a session lives without a boxd.
func (v *Supervisor) times(s *session.Session, now time.Time) isolation.Times {
	settings := s.Current()
	t := isolation.Times{Grace: v.grace, Idle: time.Duration(settings.TTL)}
	if life := time.Duration(settings.MaxLifetime); life > 0 {
		t.End = max(s.Created.Add(s.Rested()+life).Sub(now), time.Millisecond)
	}
	return t
}

// park leaves a session running for the next boxd.
func (v *Supervisor) park(s *session.Session) {
	<-s.Started()
	if !beginEnd(s, session.EndShutdown) {
		<-s.Ended() // or it does not end, and Close gives up
		return
	}
	times := v.times(s, time.Now())
	times.Parked = true
	box := s.Box()
	_ = box.SetTimes(times) // if the box is lost, the next boxd finds out
	box.Close()
	s.DropProcesses()
	s.FinishEnd()
}

// takeOver adopts the boxes of sessions that an earlier boxd has left, and cleans up after all others: a session lives if it
// has a record and a box. A workspace may exist without either.
func (v *Supervisor) takeOver(ctx context.Context, workspaces string) error {
	l, err := v.records.All(session.Transient)
	if err != nil {
		return err
	}
	v.record.left(l)
	for key, r := range l.Records {
		if !r.Over() {
			v.Attachments.restore(key, r.Settings.Root, r.Skills)
			v.Attachments.restoreDrives(key, r.Drives)
			v.Spaces.Restore(key, r.ID, r.Owner.Name, &r.Settings)
		}
	}
	if l.Living, err = v.boxes.List(ctx); err != nil {
		return fmt.Errorf("restore boxes: %w", err)
	}
	orphans, err := os.ReadDir(workspaces)
	if err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	all := slices.Concat(slices.Collect(maps.Keys(l.Sessions)), l.Living)
	for _, o := range orphans {
		all = append(all, o.Name())
	}
	slices.Sort(all)
	all = slices.Compact(all)
	var (
		mu      sync.Mutex
		adopted []*session.Session
		stopped []*session.Session
		others  []string
	)
	err = AtOnce(all, func(box string) (err error) {
		var s *session.Session
		isStopped := l.Stopped(box)
		switch {
		case isStopped:
			s, err = v.takeOverStopped(ctx, l, box)
		case l.Lives(box):
			s, err = v.takeOverOne(ctx, l.Sessions[box])
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case s == nil:
			others = append(others, box)
		case isStopped:
			stopped = append(stopped, s)
		default:
			adopted = append(adopted, s)
		}
		return err
	})
	if err != nil {
		return err
	}
	// From here on sessions hand over to each other the directories they have created in shared host directories.
	v.record.lost(l, others)
	for _, s := range stopped {
		v.enterStopped(ctx, s)
	}
	_ = AtOnce(adopted, func(s *session.Session) error { v.reconcile(ctx, s); v.resumeAdopted(ctx, l, s); return nil })
	return AtOnce(others, func(box string) error { return v.cleanUp(ctx, l, box) })
}

// takeOverOne adopts the session of a living box; nil: it is lost.
func (v *Supervisor) takeOverOne(ctx context.Context, key string) (*session.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := v.adopt(ctx, key)
	switch {
	case err == nil:
		s.Emit(ctx, events.Event{Type: events.SessionAdopted, Profile: s.Current().Profile, Detail: fmt.Sprintf("%d processes", len(s.Processes()))})
		return s, nil
	case ctx.Err() != nil || session.Transient(err): // the next boxd may succeed
		return nil, fmt.Errorf("restore session %s (the next boxd tries again): %w", key, err)
	}
	v.log.Error("session cannot be restored and is lost", "record", v.records.Path(key), "error", err)
	return nil, nil //nolint:nilnil // it is cleaned up after
}

// cleanUp removes what is left of a box that no longer belongs to a session.
func (v *Supervisor) cleanUp(ctx context.Context, l *Left, box string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key := l.Sessions[box]
	err := v.Spaces.EndBox(ctx, box)
	if errors.Is(err, syscall.EUCLEAN) { // an administrator has to repair it; the other sessions need not wait for that
		v.log.Error("session is not restored: the keeper cannot read its record", "key", box, "error", err)
		return nil
	}
	if err != nil && (ctx.Err() != nil || session.Transient(err)) {
		return fmt.Errorf("clean up session %s: %w", box, err)
	}
	if err != nil { // a process in uninterruptible sleep, or a mount in a workspace: all others can be served
		v.log.Error("cannot clean up a box of an earlier boxd; the next boxd tries again", "key", box, "error", err)
		return nil
	}
	r := l.Of(box)
	switch {
	case key == "", r != nil && r.Over():
		v.log.Info("cleaned up a box of an earlier boxd", "key", box)
	case r == nil && !slices.Contains(l.Living, box): // the key of the box may differ if it came from the pool: only the record would say
		_, err := v.records.Read(key)
		v.log.Error("session cannot be restored and is lost", "record", v.records.Path(key), "error", err)
	case !slices.Contains(l.Living, box):
		v.log.Warn("session cannot be restored: its box has ended", "record", v.records.Path(key))
	}
	if key == "" {
		return nil
	}
	if v.record.MountPoints.End(ctx, key) == nil { // otherwise the record stays, and the next boxd removes them
		if err := v.records.Remove(key); err != nil {
			return fmt.Errorf("record of session %s: %w", key, err)
		}
	}
	v.giveBack(key)
	v.Spaces.Release(key)
	if r != nil && !r.Over() {
		v.tellLost(ctx, key, r)
	}
	return nil
}

// tellLost reports a session whose box ended while no boxd ran, such as after a reboot: a caller that asks for it learns why it
// is gone.
func (v *Supervisor) tellLost(ctx context.Context, key string, r *Record) {
	v.events.Add(ctx, events.Event{
		Type: events.SessionEnded, Session: r.ID, Owner: r.Owner.Name, Profile: r.Settings.Profile, Reason: string(session.EndLost),
		Took: time.Since(r.Created), Detail: "found when boxd started",
	})
	v.ended.Add(key, session.EndLost, time.Now())
}

// adopt makes a session from a record and a living box. The record is checked against the configuration as a request is; the
// box keeps what it has, and nothing is mounted anew.
func (v *Supervisor) adopt(ctx context.Context, key string) (*session.Session, error) {
	r, err := v.records.Read(key)
	if err != nil {
		return nil, err
	}
	cfg := v.cfg.Load()
	profile, err := cfg.Recheck(&r.Settings, r.Enforced)
	if err != nil {
		return nil, err
	}
	s := session.New(&v.sessionHooks, &session.Params{
		ID: r.ID, Owner: r.Owner.Principal(), Created: r.Created, Settings: r.Settings, Profile: profile, Made: cfg, Enforced: r.Enforced, Live: r.Live, Skills: r.Skills, Drives: r.Drives,
		Pushes: r.Pushes, Rested: r.Rested,
	})
	s.Record.Again = r.Again
	s.SetBoxKey(r.Box)
	s.SetMounting(r.Live, r.Mounting)
	v.secrets.restore(s)
	box, found, err := v.boxes.Adopt(ctx, s.Spec())
	if err != nil {
		return nil, err
	}
	env, waiting, err := ReadEnvironment(found.Private)
	if err == nil && s.Grouped() != (box.Group != "") {
		err = errors.New("the record is wrong about cgroups")
	}
	if err == nil {
		err = v.handOver(s, box, env, waiting)
	}
	if err != nil {
		box.Close()
		for _, p := range found.Programs { // they go on in the box, if it does
			p.Close()
			if f := p.Private(); f != nil {
				f.Close()
			}
		}
		return nil, err
	}
	effective := v.cfg.Load().PolicyOf(s.Owner).For(r.Settings.Labels)
	v.accounts.Restore(s.Owner.Name, &effective, key, quota.SizeOf(&r.Settings))
	v.Attachments.adopted(ctx, s)
	s.Restored(box, found.Frozen, env)
	v.ledger.Resume(s.Owner.Name, key, v.reading(s))
	if r.Asleep {
		s.SetAsleep()
	}
	s.Programs(context.WithoutCancel(ctx), found.Programs, v.log) // they go on after New returns
	s.Resume(context.WithoutCancel(ctx), waiting, v.log)
	v.mu.Lock()
	v.enterLocked(s)
	v.mu.Unlock()
	return s, nil
}
