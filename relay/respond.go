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

// Created makes the answer 201 instead of 200. What was made is undone if the caller cannot be told of it.
type Created struct {
	Body any
	Undo func() // nil: nothing is
}

// Reply sends a handler's answer.
func (c *Call) Reply(body any) {
	switch b := body.(type) {
	case Created:
		if c.Context().Err() != nil && b.Undo != nil { // the caller has gone, or boxd does
			b.Undo()
			c.Fail(c.Context(), supervisor.Stopping())
			return
		}
		if c.send(http.StatusCreated, "application/json", b.Body) != nil && b.Undo != nil {
			b.Undo()
		}
	case Answer:
		_ = c.send(b.Status, "application/json", b.Body) // as below
	case NoContent:
		c.sent(http.StatusNoContent, nil)
		c.ExpectReader()
		c.W.WriteHeader(http.StatusNoContent)
	default:
		_ = c.send(http.StatusOK, "application/json", body) // a caller that has hung up needs no answer
	}
}

// Answer is one with a status of its own.
type Answer struct {
	Status int
	Body   any
}

// NoContent is the answer of a deletion.
type NoContent struct{}

// Fail sends the problem that an error is.
func (c *Call) Fail(ctx context.Context, err error) {
	p := c.Problem(ctx, err)
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		c.W.Header().Set("Retry-After", later(p))
	}
	if m, ok := errors.AsType[*MethodError](err); ok {
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

// send writes an answer, and reports whether the caller's socket has taken it.
func (c *Call) send(code int, contentType string, body any) error {
	c.sent(code, body)
	w := answerWriter{call: c, code: code, contentType: contentType}
	if err := json.NewEncoder(&w).Encode(body); err != nil {
		if !w.begun {
			c.Log.Error("cannot encode an answer", "path", c.R.URL.Path, "error", err)
			c.ExpectReader()
			http.Error(c.W, "internal error", http.StatusInternalServerError)
		}
		return err
	}
	return http.NewResponseController(c.W).Flush()
}

// answerWriter sends what an Encoder of JSON writes, which is a whole answer at once and with a newline. So nothing copies
// one that may have megabytes of output.
type answerWriter struct {
	call        *Call
	code        int
	contentType string
	begun       bool
}

// Write sends the header, and an answer.
func (w *answerWriter) Write(data []byte) (int, error) {
	c := w.call
	if !w.begun {
		w.begun = true
		c.W.Header().Set("Content-Type", w.contentType)
		c.W.Header().Set("Content-Length", strconv.Itoa(len(data)))
		c.W.Header().Set("X-Content-Type-Options", "nosniff")
		c.ExpectReader()
		c.W.WriteHeader(w.code)
	}
	return c.W.Write(data)
}

// ExpectReader gives the caller a while to take the answer, which is memory of ours meanwhile, and before
// that to send what it has announced: net/http wants the rest of a body first. The next request on the
// connection starts without a deadline.
func (c *Call) ExpectReader() {
	if c.R.ContentLength != 0 && !c.read {
		_ = http.NewResponseController(c.W).SetReadDeadline(time.Now().Add(c.Answers))
	}
	_ = http.NewResponseController(c.W).SetWriteDeadline(time.Now().Add(c.Answers)) // every connection of ours has deadlines
}

// Problem is what an answer says about an error.
func (c *Deps) Problem(ctx context.Context, err error) *api.Problem {
	p := problemAnswer(ctx, c.Log, err)
	if _, ok := errors.AsType[*MethodError](err); ok {
		p.Status = http.StatusMethodNotAllowed
	}
	return p
}
