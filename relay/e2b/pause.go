// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Labels of sandboxes that are paused when their time is over, and of those that are resumed by whoever uses them.
const (
	labelEnd    = "e2b.end"         // when that is, in seconds since 1970
	labelMemory = "e2b.end.memory"  // "true": what its programs have in memory stays
	labelResume = "e2b.auto_resume" // "true"
)

// isPaused reports whether a session is a paused sandbox: its programs are frozen, or it is stopped and has its files alone.
func isPaused(info *session.Info) bool {
	return info.Frozen && !info.Asleep || info.State == session.StateStopped || info.State == session.StateStopping
}

// pause has a sandbox do nothing until it is resumed: with its programs where they are, or with its files alone. It lives for as
// long as it is paused, as far as its owner's policy goes.
func (s *Server) pause(ctx context.Context, sess *session.Session, memory bool) error {
	if info := sess.Info(); isPaused(&info) {
		return refusal(http.StatusConflict, "sandbox "+sess.ID+" is already paused")
	}
	if !memory {
		_, err := s.cfg.Sup.Stop(ctx, sess)
		return err
	}
	if !sess.Grouped() {
		return unsupported("pause with memory", noMemory)
	}
	ctx = context.WithoutCancel(ctx) // between the two it would have no end
	never, before := quantity.Duration(0), sess.Current().MaxLifetime
	if err := s.cfg.Sup.Update(ctx, sess, &policy.Request{Patch: limits.Patch{MaxLifetime: &never}}); err != nil && fault.KindOf(err) != fault.Denied {
		return err
	}
	err := sess.Freeze(ctx, true)
	if err != nil && sess.Current().MaxLifetime != before { // it goes on, and is to end as it was
		err = errors.Join(err, s.cfg.Sup.Update(ctx, sess, &policy.Request{Patch: limits.Patch{MaxLifetime: &before}}))
	}
	return err
}

// noMemory is why programs cannot stay in memory, and what can be asked for instead, as the SDKs call it.
const noMemory = "this host has no cgroup v2 for boxes (boxctl doctor says why); ask for keepMemory: false (keep_memory=False), which keeps only the files"

// resume has a paused sandbox go on, and reports whether it was one. The session is another one then.
func (s *Server) resume(ctx context.Context, sess *session.Session) (now *session.Session, resumed bool, err error) {
	info := sess.Info()
	switch {
	case !isPaused(&info):
		return sess, false, nil
	case info.Frozen:
		return sess, true, sess.Freeze(ctx, false)
	}
	now, err = s.cfg.Sup.Start(ctx, sess, nil)
	return now, true, err
}

// endOf is when a sandbox is paused.
func endOf(labels map[string]string) (time.Time, bool) {
	seconds, err := strconv.ParseInt(labels[labelEnd], 10, 64)
	return time.Unix(seconds, 0), err == nil
}

// pausing has what is asked of boxd be a sandbox that is paused when its time is over.
func pausing(req *policy.Request, seconds int64, memory bool) {
	never := quantity.Duration(0)
	req.MaxLifetime = &never
	req.Labels[labelEnd] = strconv.FormatInt(time.Now().Unix()+seconds, 10)
	if memory {
		req.Labels[labelMemory] = "true"
	}
}

// pauseEvery is how often it is looked whether the time of a sandbox is over.
const pauseEvery = time.Second

// pauses are the sandboxes that are being paused since their time is over. Each takes as long as its programs have to end.
type pauses struct {
	mu  sync.Mutex
	all map[string]bool // by session key
	run sync.WaitGroup
}

// maxPauses is how many of them are paused at the same time: boxd may have been away for long.
const maxPauses = 16

// begin reports whether a sandbox may be paused now, and is not being paused yet; done must follow then.
func (p *pauses) begin(key string) (done func(), first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] || len(p.all) >= maxPauses {
		return nil, false
	}
	if p.all == nil {
		p.all = map[string]bool{}
	}
	p.all[key] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.all, key)
	}, true
}

// pauseDue pauses the sandboxes whose time is over.
func (s *Server) pauseDue(ctx context.Context) {
	for _, sess := range s.index.all() {
		labels := sess.Current().Labels
		info := sess.Info()
		if at, ok := endOf(labels); !ok || time.Now().Before(at) || isPaused(&info) || info.State != session.StateReady {
			continue
		}
		done, first := s.due.begin(sess.Key)
		if !first {
			continue
		}
		s.due.run.Go(func() {
			defer done()
			err := s.pause(ctx, sess, labels[labelMemory] != "" && sess.Grouped())
			if now := sess.Info(); err != nil && ctx.Err() == nil && !isPaused(&now) { // its client may have been faster
				s.cfg.Log.Warn("cannot pause an expired sandbox; it is ended", "session", sess.ID, "owner", sess.Owner.Name, "error", err)
				_ = s.cfg.Sup.End(ctx, sess, session.EndLifetime) // it goes on ending, and logs what resists
			}
		})
	}
}

// withEnd are labels with another time.
func withEnd(labels map[string]string, seconds int64) map[string]string {
	labels = maps.Clone(labels)
	labels[labelEnd] = strconv.FormatInt(time.Now().Unix()+seconds, 10)
	return labels
}
