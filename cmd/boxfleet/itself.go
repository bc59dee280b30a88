// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/client"
)

// selfClient is a client of the gateway's own routes, in the name of a caller. No connection is between them, and nothing is signed but what
// goes to nodes.
func (g *gateway) selfClient(c *call) *client.Client {
	return client.Through("the gateway", roundTrip(func(req *http.Request) (*http.Response, error) {
		r := req.Clone(req.Context())
		r.RequestURI = req.URL.RequestURI()
		switch {
		case r.Body == nil:
			r.Body = http.NoBody
		case r.ContentLength == 0: // of a client that is not known, of a server none
			r.ContentLength = -1
		}
		for _, name := range []string{trace.HeaderID, trace.HeaderParent, trace.HeaderState} {
			if v := c.r.Header.Get(name); v != "" {
				r.Header.Set(name, v)
			}
		}
		body, w := io.Pipe()
		a := &pipedAnswer{header: http.Header{}, body: w, response: make(chan *http.Response, 1)}
		go a.serve(g.log, func() { //nolint:contextcheck // the call has its request, and that its context: it ends with that, or when nobody reads the answer
			defer r.Body.Close()
			if err := g.route(&call{w: a, r: r, pass: c.pass}); err != nil {
				fail(a, err)
			}
		})
		select {
		case resp := <-a.response:
			resp.Body, resp.Request = body, req
			return resp, nil
		case <-req.Context().Done():
			body.CloseWithError(req.Context().Err())
			return nil, req.Context().Err()
		}
	}))
}

// pipedAnswer is an http.ResponseWriter whose answer is read while it is written.
type pipedAnswer struct {
	header   http.Header
	body     *io.PipeWriter
	response chan *http.Response // one: the answer without its body
	once     sync.Once
}

var errAnswerCut = errors.New("the answer is cut off")

// serve ends the answer when answer returns. A proxy that cannot go on panics, as net/http expects it to.
func (a *pipedAnswer) serve(log *slog.Logger, answer func()) {
	closeErr := errAnswerCut
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // it is the value itself
			log.Error("a request of the gateway to itself has failed", "panic", p, "stack", string(debug.Stack()))
		}
		a.WriteHeader(http.StatusOK)
		a.body.CloseWithError(closeErr)
	}()
	answer()
	closeErr = nil
}

// Header returns the header of the answer.
func (a *pipedAnswer) Header() http.Header { return a.header }

// WriteHeader begins the answer.
func (a *pipedAnswer) WriteHeader(status int) {
	if status < http.StatusOK {
		return // another follows
	}
	a.once.Do(func() {
		a.response <- &http.Response{StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header.Clone(), ContentLength: -1}
	})
}

// Write writes a part of the body.
func (a *pipedAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}
