// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// start gives a claimed session its box, without holding a lock, and undoes the claim if it fails.
func (v *Supervisor) start(ctx context.Context, s *session.Session) error {
	defer v.started()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	start := time.Now()
	var box *client.Box
	var warm bool
	err := v.secrets.Begin(s)
	if err == nil && s.Stopped() == nil { // a stopped session still has them
		err = v.Attachments.Begin(s) // before its record
	}
	if err == nil {
		err = v.Spaces.Hold(s.Key, s.ID, s.Owner.Name, new(s.Current()))
	}
	if err == nil {
		err = v.record.Begin(ctx, s)
	}
	if err == nil {
		box, warm, err = v.box(ctx, s)
	}
	if err == nil {
		if !warm { // box has done it
			err = v.handOver(s, box, s.Environment(), nil)
		}
		if err == nil {
			err = v.secrets.Give(ctx, s, box)
		}
		if err == nil {
			err = v.Attachments.Mount(ctx, s, box)
		}
		if err == nil {
			err = v.startedAgain(s)
		}
		if err != nil {
			err = errors.Join(err, v.boxes.End(ctx, s.BoxKey(), s.Stopped() == nil))
			box.Close()
		}
	}
	if err != nil {
		s.Emit(ctx, events.Event{Type: events.SessionFailed, Profile: s.Current().Profile, Detail: err.Error()})
		box, err = nil, session.StartError(s.ID, &s.Settings, err)
		if s.Stopped() != nil {
			v.startFailed(ctx, s)
		} else {
			v.record.Ending(s)
			v.record.End(ctx, s)
			v.giveBack(s.Key)
			v.Spaces.Release(s.Key)
			v.forget(s)
		}
	}
	if move := s.Launched(box, err); err != nil {
		return err
	} else if move != nil {
		s.FinishStart()
		return move
	}
	event := events.Event{Type: events.SessionStarted, Profile: s.Current().Profile, Took: time.Since(start)}
	if stopped := s.Stopped(); stopped != nil {
		v.ledger.Stop(s.Key, quota.Reading{Space: true})
		v.ledger.Resume(s.Owner.Name, s.Key, v.reading(s))
		event.Detail = fmt.Sprintf("again, after %v", time.Since(stopped.Since).Round(time.Second))
	} else {
		v.ledger.Start(s.Owner.Name, s.Key, v.reading(s))
	}
	if warm {
		event.Detail = "a pre-started box"
	}
	s.Emit(ctx, event) // counted and reported before another caller can end it
	s.FinishStart()
	v.due(s, time.Time{})
	if stopped := s.Stopped(); stopped != nil {
		v.resume(ctx, s, &stopped.Again)
	}
	return nil
}

// box takes the box of a session from the pool, or creates it, and writes the record of the session. After an error there is no
// box.
func (v *Supervisor) box(ctx context.Context, s *session.Session) (box *client.Box, warm bool, err error) {
	spec := s.Spec()
	if spec.Resume { // its record says it is stopped until it has all it needs
		v.pool.Used()
		if box, err = v.boxes.Launch(ctx, spec); isNoRange(err) && v.pool.yield(ctx) {
			box, err = v.boxes.Launch(ctx, spec)
		}
		return box, false, err
	}
	if m := v.pool.Take(s.Current().Profile, spec); m != nil {
		s.SetBoxKey(m.Key)
		err := v.beside(s, func() error { return v.assignPooled(ctx, m, spec) })
		if err == nil {
			err = v.handOver(s, m.Box, s.Environment(), nil) // it may have died meanwhile
		}
		if err == nil {
			return m.Box, true, nil
		}
		v.log.Warn("cannot use a preforked box", "session", s.ID, "error", err)
		v.endWarm(ctx, m.Key, m.Box)
		s.SetBoxKey("")
	}
	v.pool.Used()
	err = v.beside(s, func() (err error) {
		if box, err = v.boxes.Launch(ctx, spec); isNoRange(err) && v.pool.yield(ctx) {
			box, err = v.boxes.Launch(ctx, spec)
		}
		return err
	})
	if err != nil && box != nil { // only writing the record has failed
		err = errors.Join(err, v.boxes.End(ctx, s.BoxKey(), true))
		box.Close()
	}
	return box, false, err
}

// beside calls do while the record of the session is written.
func (v *Supervisor) beside(s *session.Session, do func() error) error {
	written := make(chan error, 1)
	go func() { written <- v.record.Write(s) }() // waited for below
	err := do()
	if werr := <-written; err == nil {
		err = werr
	}
	return err
}

// isNoRange reports whether a box could not be created because all id ranges are in use, maybe by the pool.
func isNoRange(err error) bool {
	step, ok := errors.AsType[*isolation.StepError](err)
	return ok && step.Step == isolation.StepIDRange
}

// assignPooled turns a box of the pool into that of a session.
func (v *Supervisor) assignPooled(ctx context.Context, m *PoolMember, spec *isolation.Spec) error {
	if err := v.boxes.SetHostname(ctx, m.Key, spec.Hostname); err != nil {
		return fmt.Errorf("name the box: %w", err)
	}
	if m.Spec.Limits == spec.Limits && m.Spec.Work == spec.Work {
		return nil
	}
	limits := spec.Limits
	return v.boxes.SetLimits(ctx, m.Key, &limits, spec.Work)
}

// newPool returns a pool that gets its boxes from the keeper.
func (v *Supervisor) newPool() *Pool {
	return NewPool(PoolSource{
		Launch: v.boxes.Launch, End: v.endWarm, Most: v.mostWarm, Quiet: v.quiet, Log: v.log,
		Ping:  func(ctx context.Context, box *client.Box) error { return box.Ping(ctx) },
		Alive: func(box *client.Box) bool { return !box.Gone() },
	})
}

// endWarm ends a box of the pool.
func (v *Supervisor) endWarm(ctx context.Context, key string, box *client.Box) {
	err := v.boxes.End(ctx, key, true)
	box.Close()
	v.Attachments.Ended()
	if err != nil && !errors.Is(err, client.ErrKeeperGone) {
		v.log.Warn("cannot end a preforked box", "key", key, "error", err) // the next boxd finds it
	}
}

// mostWarm is how many preforked boxes are allowed: sessions take precedence, and none is needed while none can start. A session
// that is starting may be about to take one.
func (v *Supervisor) mostWarm() int {
	cfg := v.cfg.Load()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed || v.gate.Check(cfg.Enabled) != nil {
		return 0
	}
	return max(cfg.Sessions.Max-v.livingLocked()+v.starting, 0)
}

// quiet reports whether a box may be preforked now.
func (v *Supervisor) quiet() bool {
	v.mu.Lock()
	starting := v.starting
	v.mu.Unlock()
	return starting == 0 && v.line.Len() == 0 && v.hostRoom() == nil && v.boxes.Present()
}

// SetWarm tells the pool which boxes to prefork.
func (v *Supervisor) SetWarm() {
	cfg := v.cfg.Load()
	host := v.found()
	var kinds []PoolKind
	for name, p := range cfg.Profiles {
		if p.Warm == 0 && p.WarmMax == 0 {
			continue
		}
		settings, _, err := cfg.Merge(&policy.Request{Profile: name})
		var by map[string]policy.Mechanism
		if err == nil {
			settings.Root, err = v.Attachments.Root(settings.Image)
		}
		if err == nil {
			by, err = cfg.Enforcement(&settings, host)
		}
		if err != nil {
			v.log.Warn("cannot prefork boxes", "profile", name, "error", err)
			continue
		}
		kinds = append(kinds, PoolKind{Profile: name, Count: p.Warm, Max: p.WarmMax, Spec: *policy.BoxSpec(&settings, by, "")})
	}
	v.pool.Set(kinds)
}
