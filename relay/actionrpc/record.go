// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/events"
)

// recorded performs and counts a request, and audits it if it changes something: such a request is not performed if no
// audit record can be written.
func (s *Server) recorded(ctx context.Context, c *call, a *action) (any, error) {
	owner, err := s.owner()
	if err != nil {
		return nil, wire.Refusef("PermissionError", "%s", err.Error())
	}
	traced := trace.New("", "")
	traced.Principal = owner.Name
	span := s.cfg.Traces.Begin(&traced)
	ctx = trace.With(ctx, traced)
	start := time.Now()
	var data any
	if a.alters {
		err = s.cfg.Audit.Admit(a.ends)
	}
	if err == nil {
		data, err = s.safely(ctx, c, a)
	}
	name := "langbot " + c.Action
	status := http.StatusOK
	if err != nil {
		status = http.StatusBadRequest
	}
	s.cfg.Metrics.Request(name, status)
	session, process := c.named()
	relay.AnswerSpan(span, &traced, name, "", session, status, errorType(err))
	if err != nil {
		s.cfg.Errors.Add(ctx, events.RecentError{Principal: owner.Name, Route: name, Session: session, Status: status, Kind: fault.KindOf(err).String(), Detail: inWords(err).Error()})
	}
	if !a.alters || s.cfg.Audit == nil {
		return data, err
	}
	argv, env := c.argv()
	r := &audit.Record{
		Kind: audit.KindCall, Request: traced.ID, Principal: owner.Name, UID: &owner.UID, Via: "langbot", Route: name, Session: session, Process: process,
		What: &audit.What{Argv: argv, Env: env, Changes: c.changes(a)}, Status: status, Outcome: "done", TookMS: float64(time.Since(start).Microseconds()) / 1000,
	}
	if m, ok := data.(*executionResult); ok && m != nil {
		r.Outcome = m.Status
	}
	if err != nil {
		r.Outcome, r.Error, r.Detail = "failed", fault.KindOf(err).String(), inWords(err).Error()
	}
	s.cfg.Audit.Append(r)
	return data, err
}

// errorType is the error type in a span: the class that LangBot receives, or the kind of an error of boxd itself.
func errorType(err error) string {
	if err == nil {
		return ""
	}
	if r, ok := errors.AsType[*wire.Refusal](err); ok {
		return cmp.Or(r.Class, "refused")
	}
	return fault.KindOf(err).String()
}
