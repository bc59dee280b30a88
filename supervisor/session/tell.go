// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Emit logs an event of the session.
func (s *Session) Emit(ctx context.Context, e events.Event) {
	e.Session, e.Owner = s.ID, s.Owner.Name
	s.hooks.Events.Add(ctx, e)
}

// emitResult logs the end of a program, and the limits it has reached.
func (s *Session) emitResult(ctx context.Context, e events.Event, r *Result, err error) {
	e.Reason = string(StatusLost)
	if err == nil {
		e.Reason, e.Took = string(r.Status), cmp.Or(r.Duration, e.Took)
		switch r.Status {
		case StatusExited:
			e.ExitCode, e.Detail = r.ExitCode, fmt.Sprintf("exit code %d", r.ExitCode)
		case StatusSignaled:
			e.Detail = r.Signal
		case StatusStartFailed:
			e.Detail = r.Failed.Error()
		case StatusTimedOut, StatusOOMKilled, StatusCanceled, StatusLost:
		}
	}
	s.Emit(ctx, e)
	if err != nil {
		return
	}
	if r.OOM != nil {
		scope := "session"
		switch {
		case r.OOM.Sign != "":
			scope = "process"
		case r.OOM.Own:
			scope = "execution"
		case r.OOM.Shared:
			scope = "owner"
		}
		detail := "killed: " + strings.Join(r.OOM.Victims, ", ")
		if r.OOM.Sign != "" {
			detail = "probably: " + r.OOM.Sign
		}
		s.Emit(ctx, events.Event{Type: events.OOM, Exec: e.Exec, Process: e.Process, Reason: scope, Detail: fmt.Sprintf("%v used up; %s", r.OOM.Limit, detail)})
	}
	for _, full := range r.Full {
		s.Emit(ctx, events.Event{Type: events.Quota, Exec: e.Exec, Process: e.Process, Reason: full.Kind, Detail: fmt.Sprintf("%v of %v, %d of %d files", full.Used, full.Limit, full.Files, full.FilesLimit)})
	}
}

// programEvent is an event of a process, or of an execution, which may have an id.
func programEvent(spec *process.Spec, ofProcess, ofExec events.Type) events.Event {
	switch {
	case spec.Managed:
		return events.Event{Type: ofProcess, Process: spec.ID}
	case spec.Unlisted:
		return events.Event{Type: ofExec}
	}
	return events.Event{Type: ofExec, Exec: spec.ID}
}

// emitEnd logs the end of a process, unless the next boxd will see it.
func (s *Session) emitEnd(ctx context.Context, p *process.Process) {
	if _, err := p.Wait(ctx); errors.Is(err, client.ErrBoxLost) && s.hooks.Leaving() { // does not wait: it has ended
		return
	}
	r, err := s.ProcessEnd(ctx, p)
	e := programEvent(p.Spec(), events.ProcessEnded, events.ExecEnded)
	if start := p.LatestStart(); e.Type == events.ProcessEnded && err == nil && r.Status == StatusCanceled && !start.IsZero() {
		e.Took = time.Since(start) // of one that ends with its box, which does not tell
	}
	s.emitResult(ctx, e, r, err)
}
