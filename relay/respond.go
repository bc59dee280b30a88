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
	"github.com/boxd-dev/boxd/supervisor"
)

// Created makes the status 201 instead of 200. What was made is undone if the caller cannot be told.
type Created struct {
	Body any
	Undo func() // nil: nothing is undone
}

// Reply sends a handler's answer.
func (c *Call) Reply(body any) {
	switch b := body.(type) {
	case Created:
		if c.Context().Err() != nil && b.Undo != nil { // the caller has gone, or boxd stops
			b.Undo()
			c.Fail(c.Context(), supervisor.Stopping())
			return
		}
		if c.send(http.StatusCreated, "application/json", b.Body) != nil && b.Undo != nil {
			b.Undo()
		}
	case Answer:
		_ = c.send(b.Status, "application/json", b.Body) // as below
	case noContent:
		c.recordResponse(http.StatusNoContent, nil)
		c.limitReadTime()
		c.W.WriteHeader(http.StatusNoContent)
	default:
		_ = c.send(http.StatusOK, "application/json", body) // the caller may have gone
	}
}

// Answer is a response with a status of its own.
type Answer struct {
	Status int
	Body   any
}

// noContent is the response to a deletion.
type noContent struct{}

// Fail sends an error as a problem.
func (c *Call) Fail(ctx context.Context, err error) {
	p := c.problem(ctx, err)
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		c.W.Header().Set("Retry-After", later(p))
	}
	if m, ok := errors.AsType[*methodError](err); ok {
		c.W.Header().Set("Allow", m.allowed)
	}
	switch p.Status {
	case http.StatusUnauthorized:
		c.W.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusForbidden:
		p.By = c.Caller.Name
	}
	_ = c.send(p.Status, problemMedia, p) // as in Reply
}

// send writes a response, and reports whether the caller's socket has taken it.
func (c *Call) send(code int, contentType string, body any) error {
	c.recordResponse(code, body)
	w := responseWriter{call: c, code: code, contentType: contentType}
	if err := json.NewEncoder(&w).Encode(body); err != nil {
		if !w.started {
			c.Log.Error("cannot encode an answer", "path", c.R.URL.Path, "error", err)
			c.limitReadTime()
			http.Error(c.W, "internal error", http.StatusInternalServerError)
		}
		return err
	}
	return http.NewResponseController(c.W).Flush()
}

// responseWriter sends what a JSON Encoder writes, which is a whole response at once with a newline. So a response with
// megabytes of output is not copied.
type responseWriter struct {
	call        *Call
	code        int
	contentType string
	started     bool
}

// Write sends the header and the response.
func (w *responseWriter) Write(data []byte) (int, error) {
	c := w.call
	if !w.started {
		w.started = true
		c.W.Header().Set("Content-Type", w.contentType)
		c.W.Header().Set("Content-Length", strconv.Itoa(len(data)))
		c.W.Header().Set("X-Content-Type-Options", "nosniff")
		c.limitReadTime()
		c.W.WriteHeader(w.code)
	}
	return c.W.Write(data)
}

// limitReadTime limits the time for the caller to read the response, which takes memory until then, and before that to
// send the rest of its body, which net/http reads first. The next request on the connection starts without a deadline.
func (c *Call) limitReadTime() {
	if c.R.ContentLength != 0 && !c.read {
		_ = http.NewResponseController(c.W).SetReadDeadline(time.Now().Add(c.Answers))
	}
	_ = http.NewResponseController(c.W).SetWriteDeadline(time.Now().Add(c.Answers)) // every connection has deadlines
}

// problem returns the problem for an error.
func (c *Deps) problem(ctx context.Context, err error) *api.Problem {
	p := problemAnswer(ctx, c.Log, err)
	if _, ok := errors.AsType[*methodError](err); ok {
		p.Status = http.StatusMethodNotAllowed
	}
	return p
}
