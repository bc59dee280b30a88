// SPDX-License-Identifier: Apache-2.0

// Every request leaves its id and trace, a count, an entry in the latest errors if it failed, an event if it was denied,
// and an audit record if it was to change something.

package relay

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/events"
)

// nameRequest gives a request its id: the caller's if it sends exactly one that is valid, otherwise a new one.
func nameRequest(w http.ResponseWriter, r *http.Request) trace.Request {
	q := trace.FromHeader(r.Header)
	w.Header().Set(trace.HeaderID, q.ID)
	return q
}

// accessLog is the access log of one request.
type accessLog struct {
	call     *Call
	route    string
	mutates  bool // changes something
	onlyEnds bool // only ends something
	start    time.Time
	timer    *time.Timer

	request  trace.Request
	span     *trace.Span
	canceled func() bool // the caller has gone, or boxd stops
	cutOff   bool        // the response was cut off
	owner    string      // of the session, if it is not the caller
	once     sync.Once

	mu          sync.Mutex // guards the fields below
	what        *audit.What
	requestedID string // the session to create
}

// longCall is how long a call may take before it is recorded as in progress, in case boxd dies before its end.
const longCall = 5 * time.Second

// beginAccessLog begins the access log of a call whose caller is known; End must follow.
func beginAccessLog(c *Call, rt *Route, q trace.Request) *accessLog {
	q.Principal = c.Caller.Name
	var span *trace.Span
	if recorded(c, rt) {
		span = c.Traces.Begin(&q)
	}
	connCtx := c.R.Context() // that of the connection: the call's own ends before its log does
	c.R = c.R.WithContext(trace.With(c.R.Context(), q))
	t := &accessLog{call: c, route: rt.Pattern, mutates: isMutation(rt.Pattern), onlyEnds: isOnlyEnd(rt.Pattern), start: time.Now(), request: q, span: span, canceled: func() bool { return connCtx.Err() != nil }}
	if c.R.URL.RawQuery != "" {
		if query, err := url.ParseQuery(c.R.URL.RawQuery); err == nil && query.Get("owner") != c.Caller.Name {
			t.owner = query.Get("owner")
		}
	}
	if t.route == "" {
		t.route = "none"
	}
	if t.mutates && c.Audit != nil {
		c.Observe, c.Sending = t.observe, t.write
		t.timer = time.AfterFunc(longCall, func() { c.Audit.Append(t.record(audit.KindUnder)) })
	}
	return t
}

// observe keeps what a record needs of the request, which may be long.
func (t *accessLog) observe(body any) {
	w := t.call.Audit.Shape(auditWhat(body))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.what = w
	switch r := body.(type) {
	case *api.SessionRequest:
		t.requestedID = r.ID
	case *api.OneShotRequest:
		t.requestedID = r.Session.ID
	case *api.StreamStart:
		if r.Session != nil {
			t.requestedID = r.Session.ID
		}
	}
}

// isMutation reports whether a route changes something, so that its calls are audited.
func isMutation(pattern string) bool {
	method, path, _ := strings.Cut(pattern, " ")
	if path == "/mcp" {
		return false // the API calls made for it are audited
	}
	switch method {
	case "":
		return false
	case http.MethodGet:
		return strings.HasSuffix(path, "/stream") || strings.HasSuffix(path, "/stdio") // these start programs, or write to them
	}
	return true
}

// isOnlyEnd reports whether a route only ends something.
func isOnlyEnd(pattern string) bool {
	method, path, _ := strings.Cut(pattern, " ")
	return method == http.MethodDelete || strings.HasSuffix(path, "/stop")
}

// Admit refuses a call that cannot be audited.
func (t *accessLog) Admit() error {
	if !t.mutates {
		return nil
	}
	return t.call.Audit.Admit(t.onlyEnds)
}

// End must be deferred. It runs when a request has been answered, or a handler has cut its response off.
func (t *accessLog) End() {
	if panicked := recover(); panicked != nil {
		t.cutOff = true
		defer panic(panicked) // net/http handles it
	}
	outcome := t.outcome()
	t.call.Metrics.Request(t.route, outcome.Status)
	if t.timer != nil {
		t.write()
	}
	if p := outcome.Problem; p != nil {
		t.describe(p)
	}
	t.endSpan(&outcome)
}

// grantWhat describes a call about a grant if its body does not.
func grantWhat(c *Call) *audit.What {
	if c.Path.Principal == "" {
		return nil
	}
	return &audit.What{Changes: []string{"principal=" + c.Path.Principal}}
}

// outcome returns the outcome of the call.
func (t *accessLog) outcome() Outcome {
	outcome := t.call.Outcome()
	switch {
	case t.isCut(&outcome):
		outcome.Status = statusCut
	case outcome.Status == 0:
		outcome.Status = http.StatusOK // a stream, or what a handler has sent itself
	}
	return outcome
}

// For a call whose caller has gone before it had an outcome.
const (
	statusCut  = 499 // not an HTTP status and never sent; other servers log it too
	outcomeCut = "cut_off"
)

// isCut reports whether a call was cut off before it had an outcome.
func (t *accessLog) isCut(outcome *Outcome) bool {
	return outcome.Problem == nil && outcome.Body == nil && (t.cutOff || outcome.Status == 0 && t.canceled())
}

// write writes the audit record of the call, before its caller has the response.
func (t *accessLog) write() {
	t.once.Do(func() {
		t.timer.Stop()
		result := t.outcome()
		r := t.record(audit.KindCall)
		r.Status, r.Outcome, r.TookMS = result.Status, outcome(&result), float64(time.Since(t.start).Microseconds())/1000
		if result.Problem != nil {
			r.Error, r.Detail = kind(result.Problem), result.Problem.Detail
		}
		if r.Principal == "" {
			t.call.Audit.AppendAnonymous(r)
			return
		}
		t.call.Audit.Append(r)
	})
}

// describe records an error.
func (t *accessLog) describe(p *api.Problem) {
	c, ctx := t.call, t.call.R.Context()
	principal := c.Caller.Name
	if principal == "" {
		principal = "unknown"
	}
	c.Errors.Add(ctx, events.RecentError{Principal: principal, Route: t.route, Session: c.Path.Session, Status: p.Status, Kind: kind(p), Detail: p.Detail})
	var layer string
	switch {
	case p.Denial != nil:
		layer = p.Denial.Layer
		if c.Refused != nil && c.Caller.Name != "" {
			c.Refused(c.Caller.Name)
		}
	case kind(p) == fault.Denied.String():
		layer = "access"
	default:
		return
	}
	e := events.Event{Type: events.Denied, Session: c.Path.Session, Owner: c.Caller.Name, Reason: layer, Detail: t.route + ": " + p.Detail}
	if p.Denial != nil && p.Denial.Rule != "" && !strings.Contains(p.Detail, p.Denial.Rule) {
		e.Detail += " (" + p.Denial.Rule + ")"
	}
	c.Events.Add(ctx, e)
}

// kind returns the name of a fault, which ends the type of a problem.
func kind(p *api.Problem) string { return strings.TrimPrefix(p.Type, api.ProblemType) }

// outcome returns the outcome of a call in a word.
func outcome(outcome *Outcome) string {
	switch body := outcome.Body.(type) {
	case *api.ExecResult:
		if body != nil {
			return body.Status
		}
	case api.ExecResult:
		return body.Status
	}
	switch {
	case outcome.Problem != nil:
		return "failed"
	case outcome.Status == statusCut:
		return outcomeCut
	}
	return "done"
}

// record returns the audit record of the call.
func (t *accessLog) record(kind string) *audit.Record {
	c := t.call
	uid := c.Caller.UID
	r := &audit.Record{
		Kind: kind, Request: t.request.ID, Parent: t.request.Parent, Principal: c.Caller.Name, UID: &uid, Via: "tcp", Route: t.route,
		Session: c.Path.Session, Owner: t.owner, Process: c.Path.Process,
	}
	t.mu.Lock()
	r.What = t.what
	requestedID := t.requestedID
	t.mu.Unlock()
	if r.What == nil {
		r.What = grantWhat(c)
	}
	switch {
	case c.Within:
		r.Via = "mcp"
	case c.Socket != nil:
		r.Via, r.PID = "socket", c.pid
	}
	if c.Token != "" {
		r.Via = access.Via(c.Token)
	}
	if r.Session == "" {
		r.Session = cmp.Or(createdSession(c), requestedID)
	}
	return r
}

// createdSession returns the id of the session created by a call that has none in its path.
func createdSession(c *Call) string {
	switch body := c.Outcome().Body.(type) {
	case api.Session:
		return body.ID
	case *api.ExecResult:
		if body != nil {
			return body.Session
		}
	case api.ExecResult:
		return body.Session
	}
	return ""
}
