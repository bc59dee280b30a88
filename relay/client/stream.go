// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/api"
)

// Stdio is what a streamed program is connected to. A nil Stdin is an empty one.
type Stdio struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// ErrStreamEnded means that a stream ended before the program's result came: what became of the
// program is not known.
var ErrStreamEnded = errors.New("the connection to boxd ended before the program did")

// ExecStream runs a program in a session with its output as it comes. Signals from the channel go to
// the program; ending ctx ends it.
func (c *Client) ExecStream(ctx context.Context, id string, req *api.ExecRequest, stdio Stdio, signals <-chan string) (*api.ExecResult, error) {
	path, err := c.path(id, "/exec/stream")
	if err != nil {
		return nil, err
	}
	return c.stream(ctx, path, &api.StreamStart{Exec: *req}, stdio, signals)
}

// RunStream does the same in a session made for the purpose and removed before it returns.
func (c *Client) RunStream(ctx context.Context, req *api.OneShotRequest, stdio Stdio, signals <-chan string) (*api.ExecResult, error) {
	return c.stream(ctx, "/v1/exec/stream", &api.StreamStart{Session: &req.Session, Exec: req.Exec}, stdio, signals)
}

func (c *Client) stream(ctx context.Context, path string, start *api.StreamStart, stdio Stdio, signals <-chan string) (*api.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, "ws://boxd"+path, &websocket.DialOptions{HTTPClient: c.http}) //nolint:bodyclose // the library has closed it
	if err != nil {
		return nil, dialError(resp, err)
	}
	defer ws.CloseNow() //nolint:errcheck // a closed one is fine
	ws.SetReadLimit(-1) // boxd is trusted; its frames are small, its last one holds no output
	s := &execStream{ws: ws, stdio: stdio}
	s.room = sync.NewCond(&s.mu)
	start.Stdin = stdio.Stdin != nil
	if err := s.control(ctx, api.ClientControl{Start: start}); err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	go s.forward(ctx, signals) // ends with ctx
	r, err := s.receive(ctx)
	if err == nil {
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}
	if rerr := s.stop(); rerr != nil {
		return nil, rerr
	}
	return r, err
}

func dialError(resp *http.Response, err error) error {
	if e, ok := errors.AsType[*ConnectError](err); ok {
		return e
	}
	if resp == nil || resp.Body == nil {
		return err
	}
	data, rerr := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if rerr != nil {
		return err
	}
	return problemOf(resp, data)
}

// execStream is the client's side of one stream.
type execStream struct {
	ws    *websocket.Conn
	stdio Stdio
	sent  uint64 // bytes of stdin; pump's

	mu    sync.Mutex // guards the fields below
	room  *sync.Cond // signaled when one of them changes
	taken uint64     // bytes of stdin that boxd has confirmed
	over  bool
	input error // why standard input could not be read to its end
}

// receive handles boxd's messages until the result comes.
func (s *execStream) receive(ctx context.Context) (*api.ExecResult, error) {
	for {
		_, data, err := s.ws.Read(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || len(data) == 0 {
			return nil, ErrStreamEnded
		}
		switch data[0] {
		case api.ChannelStdout:
			_, err = s.stdio.Stdout.Write(data[1:])
		case api.ChannelStderr:
			_, err = s.stdio.Stderr.Write(data[1:])
		case api.ChannelControl:
			r, cerr := s.handle(ctx, data[1:])
			if r != nil || cerr != nil {
				return r, cerr
			}
		}
		if err != nil {
			return nil, fmt.Errorf("write output: %w", err)
		}
	}
}

func (s *execStream) handle(ctx context.Context, data []byte) (*api.ExecResult, error) {
	var msg api.ServerControl
	if err := json.Unmarshal(data, &msg); err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	switch {
	case msg.Error != nil:
		return nil, &Error{*msg.Error}
	case msg.Exit != nil:
		return msg.Exit, nil
	case msg.Started != nil && s.stdio.Stdin != nil:
		go s.pump(ctx) // ends with the input or stop, except for a Read that nothing can interrupt
	case msg.StdinTaken > 0:
		s.mu.Lock()
		s.taken = msg.StdinTaken
		s.room.Broadcast()
		s.mu.Unlock()
	}
	return nil, nil //nolint:nilnil // neither result nor error: the stream goes on
}

// pump sends standard input, never more of it than the window allows.
func (s *execStream) pump(ctx context.Context) {
	frame := make([]byte, 1, api.MaxFrame)
	frame[0] = api.ChannelStdin
	for {
		n, err := s.stdio.Stdin.Read(frame[1:api.MaxFrame])
		if n > 0 {
			if !s.await(uint64(n)) || s.ws.Write(ctx, websocket.MessageBinary, frame[:1+n]) != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = s.ws.Write(ctx, websocket.MessageBinary, frame[:1])
			return
		}
		if err != nil { // half of an input is not to be taken for all of it
			s.mu.Lock()
			s.input = fmt.Errorf("read standard input: %w", err)
			s.mu.Unlock()
			_ = s.ws.CloseNow() // ends the program
			return
		}
	}
}

// await waits until n more bytes fit into the window; false means that the stream is over.
func (s *execStream) await(n uint64) bool {
	s.sent += n
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sent-s.taken > api.StdinWindow && !s.over {
		s.room.Wait()
	}
	return !s.over
}

// stop ends pump, and returns what has gone wrong in it.
func (s *execStream) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.room.Broadcast()
	return s.input
}

func (s *execStream) forward(ctx context.Context, signals <-chan string) {
	for {
		select {
		case <-ctx.Done():
			return
		case name, ok := <-signals:
			if !ok {
				return
			}
			if s.control(ctx, api.ClientControl{Signal: name}) != nil {
				return
			}
		}
	}
}

func (s *execStream) control(ctx context.Context, msg api.ClientControl) error {
	data, err := encode(msg)
	if err != nil {
		return err
	}
	return s.ws.Write(ctx, websocket.MessageBinary, append([]byte{api.ChannelControl}, data...))
}
