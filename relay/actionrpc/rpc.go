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
	room     chan struct{} // holds a word for each call under way
	owed     chan struct{} // and for each whose answer the client has not taken
	files    *Uploads
}

// call is one request under way.
type call struct {
	*request
	conn      *conn
	namespace string // of the Workspace, if it is for one
	tenant    Tenant // in its generation
}

// rpc is a connection from its handshake to its end.
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
	cancel() // what is under way ends with its client
	c.calls.Wait()
}

// serve takes requests until the client has gone. What is no text ends the connection. A client that takes no answers
// is not listened to until it does.
func (c *conn) serve(ctx context.Context) {
	var waits atomic.Bool // nobody asks for signs of life here
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
		m.Keep(2, len(m.Data)) // the copy of it that was parsed, and what an action makes of that
		m.Data = nil
		if err == nil && req == nil {
			m.Free()
			continue
		}
		c.owed <- struct{}{} // there is room soon: no answer is sent for longer than that may take
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

// send sends an answer. If it does not arrive the client has gone: serve sees that.
func (c *conn) send(ctx context.Context, answer []byte) {
	defer func() { <-c.owed }()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.server.cfg.Patience, sendPatience))
	defer cancel()
	if c.ws.Write(ctx, websocket.MessageText, answer) != nil {
		_ = c.ws.CloseNow() // a closed one is fine
	}
}

// answer does what a request asks for.
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

// broken tells the log of a defect of boxd that a request has met, as net/http does for all other requests: the rest of
// boxd goes on.
func (s *Server) broken(c *call, what any) error {
	s.cfg.Log.Error("an action of LangBot failed because of a bug in boxd", "action", c.Action, "panic", what, "stack", string(debug.Stack()))
	return refusalf("RuntimeError", "boxd failed because of a bug; details are in its log")
}

// safely does what an action is for. What it breaks is its own call, which has a record all the same.
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

// do checks whose a request is, and does it.
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
		if !left { // it has broken: nobody is to wait for it
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
