// SPDX-License-Identifier: Apache-2.0

// Spans record when what was done and its outcome, never with what data: no arguments, no environment, no paths.

package relay

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// recorded reports whether a call gets a span. An unauthorized client could send any number of calls, and the health
// routes are called often.
func recorded(c *Call, rt *Route) bool {
	return c.Traces != nil && c.Caller.Is(access.Viewer) && rt.Pattern != "GET /healthz" && rt.Pattern != "GET /readyz"
}

// endSpan ends the span of a call.
func (t *accessLog) endSpan(outcome *Outcome) {
	if t.span == nil {
		return
	}
	c := t.call
	t.mu.Lock()
	named := t.requestedID
	t.mu.Unlock()
	failed := ""
	if p := outcome.Problem; p != nil {
		failed = kind(p)
	}
	AnswerSpan(t.span, &t.request, t.route, c.R.Method, cmp.Or(c.Path.Session, createdSession(c), named), outcome.Status, failed)
}

// AnswerSpan ends the span of an answered request of a route; failed is the name of the fault, "" for none. method is ""
// for a request that did not come over HTTP.
func AnswerSpan(s *trace.Span, q *trace.Request, route, method, session string, status int, failed string) {
	if s == nil {
		return
	}
	if method != "" {
		s.Set("http.request.method", trace.Method(method))
		s.SetNumber("http.response.status_code", status)
	}
	if path := route[strings.LastIndexByte(route, ' ')+1:]; strings.HasPrefix(path, "/") {
		s.Set("http.route", path)
	}
	s.Set("error.type", failed)
	s.Set("boxd.request", q.ID)
	s.Set("boxd.principal", q.Principal)
	s.Set("boxd.session", session)
	if status >= http.StatusInternalServerError {
		s.Fail(failed)
	}
	s.End(route)
}

// ProgramSpans returns an event watcher that records each execution and each process as a child of the request that started it. For
// one that outlives boxd, the next boxd does not know the request. The span of a process that was restarted is that of its last run.
func ProgramSpans(t *trace.Tracer) func(context.Context, *events.Event) {
	return func(_ context.Context, e *events.Event) {
		name := map[events.Type]string{events.ExecEnded: "exec", events.ProcessEnded: "process"}[e.Type]
		if name == "" {
			return
		}
		s := t.Ended(e.Request.Parent, e.Took)
		if s == nil {
			return
		}
		s.Set("boxd.session", e.Session)
		s.Set("boxd.principal", e.Owner)
		s.Set("boxd.process", e.Process)
		s.Set("boxd."+name+".status", e.Reason)
		exited := e.Reason == string(session.StatusExited)
		if exited {
			s.SetNumber("process.exit.code", e.ExitCode)
		}
		// In order, mostly: by whoever stopped it, or with its session.
		stopped := name == "process" && (e.Reason == string(session.StatusSignaled) && e.Detail == "SIGTERM" || e.Reason == string(session.StatusCanceled))
		if !stopped && (!exited || e.ExitCode != 0) {
			s.Fail(e.Reason) // not the detail, which may contain parts of the command
		}
		s.End(name)
	}
}
