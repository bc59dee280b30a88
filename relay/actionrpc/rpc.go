// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/fault"
)

// conn is a connection of the action RPC.
type conn struct {
	server   *Server
	instance string
	ws       *websocket.Conn
	calls    sync.WaitGroup
	room     chan struct{} // one entry for each call in progress
	owed     chan struct{} // and one for each answer that the client has not received
	files    *Uploads
}

// call is one request in progress.
type call struct {
	*request
	conn      *conn
	namespace string // of the Workspace, if the call is for one
	tenant    Tenant // in its generation
}

// rpc serves a connection from its handshake to its end.
func (s *Server) rpc(w http.ResponseWriter, r *http.Request) {
	instance, why := s.admit(r, true)
	if why != "" {
		s.refuse(w, why)
		return
	}
	s.live.Add(1)
	defer s.live.Done()
	ws := s.upgrade(w, r, &websocket.AcceptOptions{})
	if ws == nil {
		return
	}
	defer ws.CloseNow()                                                                                 //nolint:errcheck // a closed one is fine
	over := context.AfterFunc(r.Context(), func() { _ = ws.Close(websocket.StatusGoingAway, goodbye) }) // boxd ends
	defer over()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	c := &conn{server: s, instance: instance, ws: ws, room: make(chan struct{}, maxCalls), owed: make(chan struct{}, maxOwed), files: NewUploads(s.uploads)}
	defer c.files.Close()
	c.serve(ctx)
	cancel() // calls in progress end with their client
	c.calls.Wait()
}

// serve reads requests until the client has gone. A message that is not text ends the connection. While a client does
// not receive its answers, its requests are not read.
func (c *conn) serve(ctx context.Context) {
	var waits atomic.Bool // unused: this connection sends no pings
	for {
		m, err := c.server.held.Read(ctx, c.ws, &waits)
		if err != nil {
			return
		}
		if m.Kind != websocket.MessageText {
			m.Free()
			_ = c.ws.Close(websocket.StatusNormalClosure, "") // the client may have gone
			return
		}
		if m.Count(ctx) != nil {
			return
		}
		if !fewValues(m.Data) {
			m.Free()
			_ = c.ws.Close(websocket.StatusMessageTooBig, "too many values") // the client may have gone
			return
		}
		req, seq, err := parseRequest(m.Data)
		m.Keep(2, len(m.Data)) // the parsed copy, and what an action makes of it
		m.Data = nil
		if err == nil && req == nil {
			m.Free()
			continue
		}
		c.owed <- struct{}{} // soon frees up: sending is bounded by sendPatience
		if err == nil {
			select {
			case c.room <- struct{}{}:
				c.calls.Go(func() {
					defer m.Free()
					answer := c.server.answer(ctx, &call{request: req, conn: c})
					<-c.room
					c.send(ctx, answer)
				})
				continue
			default:
				err = tooManyCalls()
			}
		}
		m.Free()
		c.calls.Go(func() { c.send(ctx, failure(seq, err)) })
	}
}

// send sends an answer. If that fails, the client has gone, which serve notices.
func (c *conn) send(ctx context.Context, answer []byte) {
	defer func() { <-c.owed }()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.server.cfg.Patience, sendPatience))
	defer cancel()
	if c.ws.Write(ctx, websocket.MessageText, answer) != nil {
		_ = c.ws.CloseNow() // a closed one is fine
	}
}

// answer performs a request.
func (s *Server) answer(ctx context.Context, c *call) (text []byte) {
	defer func() {
		if what := recover(); what != nil {
			text = failure(c.Seq, s.broken(c, what))
		}
	}()
	data, err := s.do(ctx, c)
	if err != nil {
		if fault.DenialOf(err) != nil {
			s.cfg.Sup.Refused(s.cfg.Principal)
		}
		return failure(c.Seq, inWords(err))
	}
	return success(c.Seq, data)
}

// broken logs a panic of a request, as net/http does for all other requests: the rest of boxd continues.
func (s *Server) broken(c *call, what any) error {
	s.cfg.Log.Error("an action of LangBot failed because of a bug in boxd", "action", c.Action, "panic", what, "stack", string(debug.Stack()))
	return refusalf("RuntimeError", "boxd failed because of a bug; details are in its log")
}

// safely performs an action. A panic fails only its own call, which is recorded all the same.
func (s *Server) safely(ctx context.Context, c *call, a *action) (data any, err error) {
	defer func() {
		if what := recover(); what != nil {
			data, err = nil, s.broken(c, what)
		}
	}()
	return a.do(ctx, c)
}

// inWords gives every error a class of the protocol.
func inWords(err error) error {
	if e, ok := errors.AsType[*refusal](err); ok {
		return e
	}
	return refusalf("BoxError", "%s", err.Error())
}

// do checks whose request it is, and performs it.
func (s *Server) do(ctx context.Context, c *call) (any, error) {
	a, ok := s.actions[c.Action]
	if !ok {
		return nil, refusalf("ValueError", "Action %s not found", c.Action)
	}
	switch {
	case c.Context == nil && !a.host:
		return nil, refusalf("PermissionError", "Box tenant action requires a trusted Workspace context")
	case c.Context != nil && c.Context.Instance != c.conn.instance:
		return nil, refusalf("PermissionError", "Box action context does not match the trusted instance")
	case a.host:
		return s.recorded(ctx, c, &a)
	}
	key := FenceKey{Instance: c.Context.Instance, Workspace: c.Context.Workspace}
	c.namespace = Namespace(key.Instance, key.Workspace)
	c.tenant.Prefix = Prefix(c.namespace, c.Context.Generation)
	watched, entered, err := s.fence.Enter(ctx, key, c.Context.Generation, int(s.initConfig.Load().Limits.MaxAdmissionRecords))
	if err != nil {
		return nil, err
	}
	left := false
	defer func() {
		if !left { // it has panicked: nothing must wait for it
			_ = entered.Leave()
		}
	}()
	data, err := s.recorded(watched, c, &a)
	left = true
	if stale := entered.Leave(); stale != nil {
		return nil, stale
	}
	return data, err
}
