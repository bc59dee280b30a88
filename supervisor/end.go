// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/boxd-dev/boxd/isolation/client"
)

// End ends a session and waits until nothing is left of it, or ctx ends; the ending goes on anyway.
// Ending one that is ending already only waits.
func (v *Supervisor) End(ctx context.Context, s *Session, reason EndReason) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	first := s.state == StateReady
	if first {
		_ = s.advanceLocked(StateEnding) // legal from ready
		s.reason = reason
	}
	s.mu.Unlock()
	if first {
		v.work.Go(func() { v.release(s) }) //nolint:contextcheck // goes on when its first caller has gone
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release ends the box and forgets the session. While the box resists it stays in the list.
func (v *Supervisor) release(s *Session) {
	if s.endReason() == EndLost {
		s.box.Close() // whoever waits for a program of it need not wait for the kernel too
	}
	forgotten := make(chan struct{})
	go func() { // waited for below; without a record the workspace itself tells the next boxd
		defer close(forgotten)
		v.removeRecord(s)
	}()
	for {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.life), startPatience)
		err := v.boxes.End(ctx, s.Key, true)
		cancel()
		if err == nil || errors.Is(err, client.ErrKeeperGone) {
			break
		}
		v.log.Error("session does not end", "session", s.ID, "error", err)
		select {
		case <-time.After(endRetry):
			continue
		case <-v.life.Done():
		}
		break
	}
	s.box.Close()
	v.dropProcesses(s)
	<-forgotten
	v.mu.Lock()
	delete(v.sessions, s.Key)
	v.mu.Unlock()
	s.mu.Lock()
	_ = s.advanceLocked(StateEnded) // legal from ending
	reason := s.reason
	s.mu.Unlock()
	close(s.ended)
	v.log.Info("session ended", "session", s.ID, "owner", s.Owner.Name, "reason", string(reason), "executions", s.Info().Executions)
}

// endRetry is how often a box that does not die is tried again.
const endRetry = time.Second
