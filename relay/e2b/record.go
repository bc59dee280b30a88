// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/events"
)

// via is what the audit log calls this way in.
const via = "e2b"

// call is what is written down of a request.
type call struct {
	route   string
	session string // "": none yet
	alters  bool   // it is to change something, and is not done where no record of it can be written
	ends    bool   // it only ends something
}

// noted is what a handler has to say of a request under way.
type noted struct {
	http.ResponseWriter

	status  int
	session string
	what    audit.What
}

// notedKey is the context key of what is noted of a request.
type notedKey struct{}

// WriteHeader keeps the status of the answer.
func (n *noted) WriteHeader(status int) {
	if n.status == 0 {
		n.status = status
	}
	n.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the answer.
func (n *noted) Write(b []byte) (int, error) {
	if n.status == 0 {
		n.status = http.StatusOK
	}
	_ = http.NewResponseController(n.ResponseWriter).SetWriteDeadline(time.Now().Add(streamTimeout)) // every connection of ours has deadlines
	return n.ResponseWriter.Write(b)
}

// Flush sends what was written.
func (n *noted) Flush() { _ = http.NewResponseController(n.ResponseWriter).Flush() }

// Unwrap is the connection's.
func (n *noted) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// recorded does what a request asks for, counts it, and writes down what was to change something.
func (s *Server) recorded(w http.ResponseWriter, r *http.Request, pass access.Pass, c call, do func(http.ResponseWriter, *http.Request) error) {
	q := trace.Of(r.Context())
	q.Principal = pass.Name
	span := s.cfg.Traces.Begin(&q)
	name := via + " " + c.route
	if gatewayOf(r.Context()) != nil {
		w.Header().Set(api.RouteHeader, name)
	}
	start := time.Now()
	n := &noted{ResponseWriter: w, session: c.session}
	ctx := context.WithValue(trace.With(r.Context(), q), notedKey{}, n)
	r = r.WithContext(ctx)
	var err error
	if c.alters {
		err = s.cfg.Audit.Admit(c.ends)
	}
	if err == nil {
		err = do(n, r)
	}
	if err != nil && n.status == 0 {
		s.fail(n, r, err)
	}
	s.cfg.Metrics.Request(name, n.status)
	failed := ""
	if err != nil {
		message, kind := s.inWords(ctx, err)
		failed = kind.String()
		s.cfg.Errors.Add(ctx, events.RecentError{Principal: pass.Name, Route: name, Session: n.session, Status: n.status, Kind: kind.String(), Detail: message})
		if fault.DenialOf(err) != nil && s.cfg.Refused != nil {
			s.cfg.Refused(pass.Name)
		}
	}
	relay.AnswerSpan(span, &q, name, r.Method, n.session, n.status, failed)
	if !c.alters || s.cfg.Audit == nil {
		return
	}
	record := &audit.Record{
		Kind: audit.KindCall, Request: q.ID, Principal: pass.Name, UID: &pass.UID, Via: via, Route: name, Session: n.session,
		What: s.cfg.Audit.Shape(&n.what), Status: n.status, Outcome: "done", TookMS: float64(time.Since(start).Microseconds()) / 1000,
	}
	if pass.Token != "" {
		record.Via = via + " " + access.Via(pass.Token)
	}
	if err != nil {
		message, kind := s.inWords(ctx, err)
		record.Outcome, record.Error, record.Detail = "failed", kind.String(), message
	}
	s.cfg.Audit.Append(record)
}
