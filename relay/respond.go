// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
)

// created makes the answer 201 instead of 200.
type created struct{ body any }

// reply sends a handler's answer.
func (c *call) reply(body any) {
	code := http.StatusOK
	switch b := body.(type) {
	case created:
		code, body = http.StatusCreated, b.body
	case noContent:
		c.w.WriteHeader(http.StatusNoContent)
		return
	}
	c.send(code, "application/json", body)
}

// noContent is the answer of a deletion.
type noContent struct{}

func (c *call) fail(ctx context.Context, err error) {
	p := c.server.problem(ctx, err)
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		c.w.Header().Set("Retry-After", "1")
	}
	c.send(p.Status, "application/problem+json", p)
}

func (c *call) send(code int, contentType string, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		c.server.log.Error("answer not encoded", "path", c.r.URL.Path, "error", err)
		http.Error(c.w, "internal error", http.StatusInternalServerError)
		return
	}
	c.w.Header().Set("Content-Type", contentType)
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(code)
	_, _ = c.w.Write(append(data, '\n')) // a caller that has hung up needs no answer
}

// status is the only place that knows HTTP's numbers for our kinds of fault.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Denied:
		return http.StatusForbidden
	case fault.Exhausted:
		return http.StatusTooManyRequests
	case fault.Unsupported:
		return http.StatusNotImplemented
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Internal:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// problem makes the body of an error. What is not meant for callers is logged and not shown; the
// step at which a box failed to start is.
func (s *Server) problem(ctx context.Context, err error) *api.Problem {
	kind := fault.KindOf(err)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		kind, err = fault.Unavailable, fault.Errorf(fault.Unavailable, "the request was canceled")
	}
	p := &api.Problem{
		Type: api.ProblemType + kind.String(), Title: titles()[kind], Status: statusOf(kind), Detail: err.Error(),
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		p.Field, p.Value, p.Allowed, p.Hint = f.Field, f.Value, f.Allowed, f.Hint
	}
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case ok:
		p.Failure = startFailure(step)
		if kind == fault.Internal {
			p.Title, p.Hint = "the box could not start", "boxctl doctor examines the host"
		}
	case kind == fault.Internal:
		s.log.ErrorContext(ctx, "request failed", "error", err)
		p.Detail, p.Hint = "boxd failed; its log has the reason", "journalctl -u boxd"
	}
	return p
}

func titles() map[fault.Kind]string {
	return map[fault.Kind]string{
		fault.Internal: "internal error", fault.Invalid: "invalid request", fault.NotFound: "not found",
		fault.Conflict: "conflict", fault.Denied: "not allowed", fault.Exhausted: "limit reached",
		fault.Unsupported: "not supported here", fault.Unavailable: "not available",
	}
}

func startFailure(s *isolation.StepError) *api.StartFailure {
	f := &api.StartFailure{Step: s.Step.String(), Item: s.Item, Text: s.Error()}
	if s.Refused == nil {
		f.Errno = unix.ErrnoName(s.Errno)
	}
	return f
}
