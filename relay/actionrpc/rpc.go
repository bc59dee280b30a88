// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/actionrpc/boxes"
	"github.com/boxd-dev/boxd/relay/actionrpc/envelope"
	"github.com/boxd-dev/boxd/relay/actionrpc/fence"
	"github.com/boxd-dev/boxd/relay/actionrpc/model"
	"github.com/boxd-dev/boxd/relay/actionrpc/uploads"
)

// conn is a connection of the action RPC.
type conn struct {
	server   *Server
	instance string
	ws       *websocket.Conn
	calls    sync.WaitGroup
	room     chan struct{} // holds a word for each call under way
	owed     chan struct{} // and for each whose answer the client has not taken
	files    *uploads.Store
}

// call is one request under way.
type call struct {
	*envelope.Request
	conn      *conn
	namespace string       // of the Workspace, if it is for one
	tenant    boxes.Tenant // in its generation
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
	c := &conn{server: s, instance: instance, ws: ws, room: make(chan struct{}, envelope.MaxCalls), owed: make(chan struct{}, maxOwed), files: uploads.New(s.uploads)}
	defer c.files.Close()
	c.serve(ctx)
	cancel() // what is under way ends with its client
	c.calls.Wait()
}

// serve takes requests until the client has gone. What is no text ends the connection. A client that takes no answers
// is not listened to until it does.
func (c *conn) serve(ctx context.Context) {
	for {
		kind, text, err := c.ws.Read(ctx)
		if err != nil {
			return
		}
		if kind != websocket.MessageText {
			_ = c.ws.Close(websocket.StatusNormalClosure, "") // the client may have gone
			return
		}
		size := int64(len(text))
		if c.server.held.Acquire(ctx, size) != nil {
			return
		}
		req, seq, err := envelope.Parse(text)
		if err == nil && req == nil {
			c.server.held.Release(size)
			continue
		}
		c.owed <- struct{}{} // there is room soon: no answer is sent for longer than sendPatience
		if err == nil {
			select {
			case c.room <- struct{}{}:
				c.calls.Go(func() {
					defer c.server.held.Release(size)
					answer := c.server.answer(ctx, &call{Request: req, conn: c})
					<-c.room
					c.send(ctx, answer)
				})
				continue
			default:
				err = envelope.Busy()
			}
		}
		c.server.held.Release(size)
		c.calls.Go(func() { c.send(ctx, envelope.Failure(seq, err)) })
	}
}

// send sends an answer. If it does not arrive the client has gone: serve sees that.
func (c *conn) send(ctx context.Context, answer []byte) {
	defer func() { <-c.owed }()
	ctx, cancel := context.WithTimeout(ctx, sendPatience)
	defer cancel()
	if c.ws.Write(ctx, websocket.MessageText, answer) != nil {
		_ = c.ws.CloseNow() // a closed one is fine
	}
}

// answer does what a request asks for.
func (s *Server) answer(ctx context.Context, c *call) []byte {
	data, err := s.do(ctx, c)
	if err != nil {
		return envelope.Failure(c.Seq, inWords(err))
	}
	return envelope.Success(c.Seq, data)
}

// inWords gives every error a class of the protocol.
func inWords(err error) error {
	if e, ok := errors.AsType[*envelope.Error](err); ok {
		return e
	}
	return envelope.Errorf("BoxError", "%s", err.Error())
}

// do checks whose a request is, and does it.
func (s *Server) do(ctx context.Context, c *call) (any, error) {
	a, ok := s.actions[c.Action]
	if !ok {
		return nil, envelope.Errorf("ValueError", "Action %s not found", c.Action)
	}
	switch {
	case c.Context == nil && !a.host:
		return nil, envelope.Errorf("PermissionError", "Box tenant action requires a trusted Workspace context")
	case c.Context != nil && c.Context.Instance != c.conn.instance:
		return nil, envelope.Errorf("PermissionError", "Box action context does not match the trusted instance")
	case a.host:
		return s.recorded(ctx, c, &a)
	}
	key := fence.Key{Instance: c.Context.Instance, Workspace: c.Context.Workspace}
	c.namespace = model.Namespace(key.Instance, key.Workspace)
	c.tenant.Prefix = model.Prefix(c.namespace, c.Context.Generation)
	watched, entered, err := s.fence.Enter(ctx, key, c.Context.Generation, int(s.told.Load().Limits.MaxAdmissionRecords))
	if err != nil {
		return nil, err
	}
	var data any
	if a.sandbox && s.told.Load().Required {
		err = s.closed()
	} else {
		data, err = s.recorded(watched, c, &a)
	}
	if stale := entered.Leave(); stale != nil {
		return nil, stale
	}
	return data, err
}
