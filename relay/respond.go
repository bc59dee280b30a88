// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/wire"
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
	case answer:
		_ = c.send(b.status, "application/json", b.body) // as below
	case noContent:
		c.expectReader()
		c.w.WriteHeader(http.StatusNoContent)
	default:
		_ = c.send(http.StatusOK, "application/json", body) // a caller that has hung up needs no answer
	}
}

// answer is one with a status of its own.
type answer struct {
	status int
	body   any
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

// problem is what an answer says about an error.
func (s *Server) problem(ctx context.Context, err error) *api.Problem {
	p := wire.Problem(ctx, s.log, err)
	if _, ok := errors.AsType[*methodError](err); ok {
		p.Status = http.StatusMethodNotAllowed
	}
	return p
}
