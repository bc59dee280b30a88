// SPDX-License-Identifier: Apache-2.0

// The Model Context Protocol over HTTP: each client that opens an MCP session has boxes and tools of its own, as with
// boxctl mcp. Its tools call the API as the caller, so roles, policies, quotas and the audit log apply.

package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/mcp"
)

// Limits of conversations.
const (
	maxOwn = 8  // of one principal
	maxAll = 64 // of all principals together
	// maxCalls is how many tools of one conversation run at a time; others wait.
	maxCalls = 16
	// idle is how long a conversation lives without a request.
	idle = 10 * time.Minute
	// Limits of stored long output for one conversation.
	maxStream, maxHeld = 1 << 20, 4 << 20
)

// conversations has all conversations. Close ends them.
type conversations struct {
	version string
	log     *slog.Logger
	idle    time.Duration
	none    http.Handler // answers requests that belong to no conversation
	wg      sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	open   map[string]*conversation
	closed bool
}

// newConversations returns conversations without any. The version is that of boxd.
func newConversations(version string, log *slog.Logger) *conversations {
	unauthenticated := sdk.NewServer(&sdk.Implementation{Name: "boxd", Version: version}, &sdk.ServerOptions{GetSessionID: func() string { return "" }})
	quiet := slog.New(slog.DiscardHandler)
	return &conversations{
		version: version, log: log, idle: idle, open: map[string]*conversation{},
		none: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return unauthenticated }, options(quiet)),
	}
}

// options returns those of an SDK handler: its requests are already authenticated and limited in length.
func options(log *slog.Logger) *sdk.StreamableHTTPOptions {
	return &sdk.StreamableHTTPOptions{DisableLocalhostProtection: true, MaxRequestBodyBytes: MaxBody, Logger: log}
}

// owner is the owner of a conversation: a token may permit less than its principal may do.
type owner struct{ principal, token string }

func ownerOf(c *Call) owner { return owner{c.Caller.Name, c.Token} }

// find returns a conversation of the caller. Those of others do not exist for it.
func (m *conversations) find(c *Call, id string) (*conversation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.open[id]
	if v == nil || v.owner != ownerOf(c) {
		return nil, fault.Field(sessionHeader, id, "the id of an open MCP connection").Of(fault.NotFound).
			WithHint("send initialize again (unused connections end after %v)", m.idle)
	}
	return v, nil
}

// begin makes a conversation, which has no MCP session yet.
func (m *conversations) begin(c *Call, opts *mcp.SessionsOptions) (*conversation, error) {
	v := &conversation{owner: ownerOf(c), id: rand.Text(), done: make(chan struct{}), client: client.Over("boxd", c.Dial)}
	v.client.Token = bearer(c.R.Header)
	v.ctx, v.cancel = context.WithCancel(context.Background())
	if err := m.add(v); err != nil {
		return nil, err
	}
	server, err := mcp.NewServer(c.Context(), v.client, &mcp.Options{
		Version: m.version, Sessions: *opts, Outputs: mcp.OutputLimits{Stream: maxStream, Total: maxHeld}, ID: func() string { return v.id },
	})
	if err != nil {
		m.remove(v)
		return nil, mcpRefused(err)
	}
	v.server = server
	v.toolSem = make(chan struct{}, maxCalls)
	server.AddReceivingMiddleware(v.middleware)
	v.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server.Server }, options(slog.New(slog.DiscardHandler)))
	return v, nil
}

func (m *conversations) add(v *conversation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := 0
	for _, other := range m.open {
		if other.owner.principal == v.owner.principal {
			own++
		}
	}
	switch {
	case m.closed:
		return fault.Errorf(fault.Unavailable, "boxd is stopping").WithHint("send initialize again when it is back")
	case own >= maxOwn:
		return fault.Errorf(fault.Exhausted, "you have %d connections to /mcp, the limit", own).WithHint("end one with DELETE (unused ones end after %v)", m.idle)
	case len(m.open) >= maxAll:
		return fault.Errorf(fault.Exhausted, "there are %d connections to /mcp, the limit", maxAll).WithHint("wait for one of them to end")
	}
	m.open[v.id] = v
	return nil
}

func (m *conversations) remove(v *conversation) {
	m.mu.Lock()
	delete(m.open, v.id)
	m.mu.Unlock()
	v.cancel()
	v.client.Close()
}

// store keeps a new conversation until its MCP session ends; its boxes end then.
func (m *conversations) store(v *conversation) {
	for session := range v.server.Sessions() {
		v.startIdleTimer(m.idle, func() { _ = session.Close() })
	}
	m.wg.Go(func() {
		for session := range v.server.Sessions() {
			_ = session.Wait()
		}
		v.stopIdleTimer()
		// A box that cannot be ended now, as boxd itself ends, is ended by its ttl.
		if err := v.server.Boxes.Close(v.ctx); err != nil && !m.ending() {
			m.log.Warn("cannot end the boxes of a connection to /mcp", "principal", v.owner.principal, "error", err)
		}
		m.remove(v)
		close(v.done)
	})
}

func (m *conversations) ending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// Close ends all conversations. Their boxes live until their ttl: nothing is left that can end them now.
func (m *conversations) Close() {
	m.mu.Lock()
	m.closed = true
	var open []*conversation
	for _, v := range m.open {
		open = append(open, v)
	}
	m.mu.Unlock()
	for _, v := range open {
		v.cancel()
		v.closeSession()
	}
	m.wg.Wait()
}

// mcpRefused turns boxd's answer to an internal call back into an error for the client.
func mcpRefused(err error) error {
	p, ok := errors.AsType[*client.Error](err)
	if !ok {
		return fault.Errorf(fault.Unavailable, "internal request of boxd failed: %w", err).WithHint("send initialize again; details are in the log of boxd")
	}
	f := fault.Errorf(fault.Invalid, "%s", p.Detail)
	f.Field, f.Allowed, f.Hint = p.Field, p.Allowed, p.Hint
	switch p.Status {
	case http.StatusForbidden:
		f.Kind = fault.Denied
	case http.StatusNotFound:
		f.Kind = fault.NotFound
	case http.StatusTooManyRequests:
		f.Kind = fault.Exhausted
	case http.StatusServiceUnavailable:
		f.Kind = fault.Unavailable
	}
	return f
}
