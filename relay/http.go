// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/mcp"
)

// Headers of MCP, and of boxd.
const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	requestHeader = "X-Request-Id"
)

// statelessVersion is the first version of MCP with stateless requests. Over HTTP boxd speaks the versions before it.
const statelessVersion = "2026-07-28"

// Serve answers a request: a message, the stream of server messages, or the end of a conversation.
func (m *conversations) Serve(c *Call) (any, error) {
	release, err := c.Limits.Stream()
	if err != nil {
		return nil, err
	}
	defer release()
	options, err := mcpOptions(c.R.URL.Query())
	if err != nil {
		return nil, err
	}
	var message json.RawMessage
	if c.R.Method == http.MethodPost {
		if err := c.decodeBody(&message, MaxBody); err != nil {
			return nil, err
		}
		c.R.Body = io.NopCloser(bytes.NewReader(message))
	}
	traced := trace.Of(c.Context()) // the API calls of the tools belong to it
	c.R.Header.Set(requestHeader, traced.ID)
	c.R.Header.Set(trace.HeaderParent, traced.Parent)
	w := &deadlineWriter{c.W, c.Answers}
	id, method := c.R.Header.Get(sessionHeader), methodOf(message)
	switch {
	case id != "":
		v, err := m.find(c, id)
		if err != nil {
			return nil, err
		}
		defer v.beginRequest()()
		if c.R.Method == http.MethodDelete {
			v.cancel()
		}
		v.handler.ServeHTTP(w, c.R)
		if c.R.Method == http.MethodDelete {
			v.wait(c.Context())
		}
	case method == "initialize":
		v, err := m.begin(c, options)
		if err != nil {
			return nil, err
		}
		v.handler.ServeHTTP(w, c.R)
		m.store(v)
	case method == "server/discover" || method != "" && c.R.Header.Get(versionHeader) >= statelessVersion:
		m.none.ServeHTTP(w, c.R)
	default:
		return nil, fault.Field(sessionHeader, "", "the id in the answer to initialize").WithHint("send initialize first")
	}
	return nil, nil //nolint:nilnil // it has been answered
}

// methodOf returns the method of a message; "" if it is invalid or a batch.
func methodOf(message []byte) string {
	var m struct {
		Method string `json:"method"`
	}
	if json.Unmarshal(message, &m) != nil {
		return ""
	}
	return m.Method
}

// mcpOptions reads from the query which box the conversation is to have.
func mcpOptions(query url.Values) (*mcp.SessionsOptions, error) {
	o := &mcp.SessionsOptions{Ask: api.SessionRequest{ID: query.Get("session"), Template: query.Get("template"), Profile: query.Get("profile")}}
	if text := query.Get("variables"); text != "" {
		o.Ask.Variables = map[string]string{}
		for pair := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok || name == "" {
				return nil, fault.Field("variables", text, "NAME=VALUE, separated by commas")
			}
			o.Ask.Variables[name] = value
		}
	}
	return o, nil
}

// bearer returns the token of a request, "" if it has none.
func bearer(h http.Header) string {
	if scheme, token, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

// conversation is an MCP session with its boxes.
type conversation struct {
	id      string
	owner   owner
	client  *client.Client // calls boxd as the owner
	server  *mcp.Server
	handler http.Handler
	toolSem chan struct{}   // one entry for each running tool
	ctx     context.Context //nolint:containedctx // of all its tools
	cancel  context.CancelFunc
	done    chan struct{} // closed when everything has ended

	mu          sync.Mutex // guards the fields below
	requests    int        // in progress
	idleTimer   *time.Timer
	idleTimeout time.Duration
	close       func()
}

// wait returns when the conversation has ended completely, or ctx has.
func (v *conversation) wait(ctx context.Context) {
	select {
	case <-v.done:
	case <-ctx.Done():
	}
}

// middleware wraps all calls of tools.
func (v *conversation) middleware(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(v.ctx, cancel)() //nolint:contextcheck // the call ends with its conversation too
		if extra := req.GetExtra(); extra != nil {
			ctx = trace.With(ctx, trace.New(extra.Header.Get(requestHeader), extra.Header.Get(trace.HeaderParent)))
		}
		if method == "tools/call" {
			select {
			case v.toolSem <- struct{}{}:
				defer func() { <-v.toolSem }()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return next(ctx, method, req)
	}
}

// beginRequest counts a request; release ends it. Without requests the conversation is unused.
func (v *conversation) beginRequest() (release func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.requests++
	if v.idleTimer != nil {
		v.idleTimer.Stop()
	}
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.requests--; v.requests == 0 && v.idleTimer != nil {
			v.idleTimer.Reset(v.idleTimeout)
		}
	}
}

// startIdleTimer makes closeSession close the conversation when it has been unused for that long.
func (v *conversation) startIdleTimer(timeout time.Duration, closeSession func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.idleTimeout, v.close = timeout, closeSession
	v.idleTimer = time.AfterFunc(timeout, closeSession)
	if v.requests > 0 {
		v.idleTimer.Stop()
	}
}

// stopIdleTimer stops the idle timer of a conversation that has ended.
func (v *conversation) stopIdleTimer() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.idleTimer != nil {
		v.idleTimer.Stop()
		v.idleTimer = nil
	}
}

// closeSession closes its MCP session, if it has one.
func (v *conversation) closeSession() {
	v.mu.Lock()
	closeSession := v.close
	v.mu.Unlock()
	if closeSession != nil {
		closeSession()
	}
}

// deadlineWriter gives the client a new write deadline for each piece of a response.
type deadlineWriter struct {
	http.ResponseWriter

	timeout time.Duration
}

func (p *deadlineWriter) extendDeadline() {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.timeout)) // every connection has deadlines
}

// Write writes a piece.
func (p *deadlineWriter) Write(b []byte) (int, error) {
	p.extendDeadline()
	return p.ResponseWriter.Write(b)
}

// Flush sends what was written.
func (p *deadlineWriter) Flush() {
	p.extendDeadline()
	_ = http.NewResponseController(p.ResponseWriter).Flush() // the next Write returns the error
}

// Unwrap returns the underlying writer.
func (p *deadlineWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
