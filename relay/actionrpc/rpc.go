// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// conn is a connection of the action RPC.
type conn struct {
	server   *Server
	instance string
	files    *wire.Uploads
}

// call is one request in progress.
type call struct {
	*wire.Request
	conn      *conn
	namespace string // of the Workspace, if the call is for one
	tenant    Tenant // in its generation
}

// rpc serves a connection from its handshake to its end.
func (s *Server) rpc(w http.ResponseWriter, r *http.Request) {
	instance, why := s.admit(r, true)
	if why != "" {
		s.refuse(w, r, why)
		return
	}
	s.wg.Add(1)
	defer s.wg.Done()
	ws := wire.Upgrade(w, r, &websocket.AcceptOptions{})
	if ws == nil {
		return
	}
	defer ws.CloseNow()                                                                                      //nolint:errcheck // a closed one is fine
	stop := context.AfterFunc(r.Context(), func() { _ = ws.Close(websocket.StatusGoingAway, wire.Goodbye) }) // boxd ends
	defer stop()
	c := &conn{server: s, instance: instance, files: wire.NewUploads(s.uploads)}
	defer c.files.Close()
	served := &wire.Conn{WS: ws, Budget: s.requestBudget, Patience: s.cfg.Patience, Answer: func(ctx context.Context, r *wire.Request, reply func([]byte)) {
		reply(s.answer(ctx, &call{Request: r, conn: c}))
	}}
	served.Serve(context.WithoutCancel(r.Context()))
}

// answer performs a request.
func (s *Server) answer(ctx context.Context, c *call) (text []byte) {
	defer func() {
		if what := recover(); what != nil {
			text = wire.Failure(c.Seq, s.broken(c, what))
		}
	}()
	data, err := s.do(ctx, c)
	if err != nil {
		if fault.DenialOf(err) != nil {
			s.cfg.Sup.Refused(s.cfg.Principal)
		}
		return wire.Failure(c.Seq, inWords(err))
	}
	return wire.Success(c.Seq, data)
}

// broken logs a panic of a request, as net/http does for all other requests: the rest of boxd continues.
func (s *Server) broken(c *call, what any) error {
	s.cfg.Log.Error("an action of LangBot failed because of a bug in boxd", "action", c.Action, "panic", what, "stack", string(debug.Stack()))
	return wire.Refusef("RuntimeError", "boxd failed because of a bug; details are in its log")
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
	if e, ok := errors.AsType[*wire.Refusal](err); ok {
		return e
	}
	return wire.Refusef("BoxError", "%s", err.Error())
}

// do checks whose request it is, and performs it.
func (s *Server) do(ctx context.Context, c *call) (any, error) {
	a, ok := s.actions[c.Action]
	if !ok {
		return nil, wire.Refusef("ValueError", "Action %s not found", c.Action)
	}
	switch {
	case c.Context == nil && !a.host:
		return nil, wire.Refusef("PermissionError", "Box tenant action requires a trusted Workspace context")
	case c.Context != nil && c.Context.Instance != c.conn.instance:
		return nil, wire.Refusef("PermissionError", "Box action context does not match the trusted instance")
	case a.host:
		return s.recorded(ctx, c, &a)
	}
	key := FenceKey{Instance: c.Context.Instance, Workspace: c.Context.Workspace}
	c.namespace = wire.Namespace(key.Instance, key.Workspace)
	c.tenant.Prefix = wire.Prefix(c.namespace, c.Context.Generation)
	watchedCtx, entered, err := s.fence.Enter(ctx, key, c.Context.Generation, int(s.initConfig.Load().Limits.MaxAdmissionRecords))
	if err != nil {
		return nil, err
	}
	left := false
	defer func() {
		if !left { // it has panicked: nothing must wait for it
			_ = entered.Leave()
		}
	}()
	data, err := s.recorded(watchedCtx, c, &a)
	left = true
	if stale := entered.Leave(); stale != nil {
		return nil, stale
	}
	return data, err
}
