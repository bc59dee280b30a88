// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
)

// created makes the answer 201 instead of 200. What was made is undone if the caller cannot be told of it.
type created struct {
	body any
	undo func()
}

// reply sends a handler's answer.
func (c *call) reply(body any) {
	switch b := body.(type) {
	case created:
		gone := c.context().Err() != nil
		if !gone {
			gone = c.send(http.StatusCreated, "application/json", b.body) != nil
		}
		if gone && b.undo != nil {
			b.undo()
		}
	case noContent:
		c.expectReader()
		c.w.WriteHeader(http.StatusNoContent)
	default:
		_ = c.send(http.StatusOK, "application/json", body) // a caller that has hung up needs no answer
	}
}

// noContent is the answer of a deletion.
type noContent struct{}

// Parts of every problem.
const (
	problemType = "application/problem+json"
	retryAfter  = "1" // seconds, where later may work
)

func (c *call) fail(ctx context.Context, err error) {
	p := c.server.problem(ctx, err)
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		c.w.Header().Set("Retry-After", retryAfter)
	}
	if m, ok := errors.AsType[*methodError](err); ok {
		c.w.Header().Set("Allow", m.allowed)
	}
	_ = c.send(p.Status, problemType, p) // as in reply
}

// send writes an answer, and reports whether the caller's socket has taken it.
func (c *call) send(code int, contentType string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		c.server.log.Error("answer not encoded", "path", c.r.URL.Path, "error", err)
		c.expectReader()
		http.Error(c.w, "internal error", http.StatusInternalServerError)
		return err
	}
	data = append(data, '\n')
	c.w.Header().Set("Content-Type", contentType)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	c.expectReader()
	c.w.WriteHeader(code)
	if _, err := c.w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(c.w).Flush()
}

// expectReader gives the caller a while to take the answer, which is memory of ours meanwhile, and before
// that to send what it has announced: net/http wants the rest of a body first. The next request on the
// connection starts without a deadline.
func (c *call) expectReader() {
	if c.r.ContentLength != 0 && !c.read {
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(c.server.answers))
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.server.answers)) // every connection of ours has deadlines
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
	p := problemOf(err)
	if _, ok := errors.AsType[*methodError](err); ok {
		p.Status = http.StatusMethodNotAllowed
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

// problemOf is what a refusal says by itself.
func problemOf(err error) *api.Problem {
	kind := fault.KindOf(err)
	p := &api.Problem{
		Type: api.ProblemType + kind.String(), Title: titles()[kind], Status: statusOf(kind), Detail: err.Error(),
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		p.Field, p.Value, p.Allowed, p.Hint = f.Field, f.Value, f.Allowed, f.Hint
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
