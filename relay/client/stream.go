// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// Stdio is the standard input and output of a streamed program. A nil Stdin is empty.
type Stdio struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Terminal gives a program of ExecStream or RunStream a terminal; all its output goes to Stdout.
	Terminal *api.Terminal
	// Resize receives new sizes of the terminal.
	Resize <-chan api.Terminal
}

// ErrStreamEnded means that a stream ended before the program's result came: the fate of the program is unknown.
var ErrStreamEnded = errors.New("the connection to boxd ended before the program did")

// ExecStream runs a program in a session and streams its output. Signals from the channel go to the program; ending ctx
// ends it. A connection that is lost once the program has started, as when boxd restarts, is made again without losing
// or repeating a byte.
func (c *Client) ExecStream(ctx context.Context, id string, req *api.ExecRequest, stdio Stdio, signals <-chan string) (*api.ExecResult, error) {
	start := &api.StreamStart{Exec: *req, Stdin: stdio.Stdin != nil, Terminal: stdio.Terminal}
	if start.Exec.ID == "" { // no other client knows it
		start.Lease = new(quantity.Duration(0))
		start.Exec.ID = strings.ToLower(rand.Text())
	}
	s := newStream(c, stdio, signals)
	s.first = &api.ClientControl{Start: start}
	s.to, s.again = c.session(id, "/exec/stream", nil), c.process(id, start.Exec.ID, "/stream", nil)
	s.attach = api.StreamAttach{Write: start.Stdin, TakeOver: start.Stdin, Lossless: new(true)}
	s.forget = req.ID == ""
	r, err := s.run(ctx)
	if s.forget && s.started && !s.forgotten { // no other client knows it
		c.forget(ctx, id, start.Exec.ID, err != nil)
	}
	return r, err
}

// forgetTimeout is how long boxd may take to end and forget a program whose caller has gone.
const forgetTimeout = 5 * time.Second

// forget removes an execution from a boxd that has not forgotten it at the end of its stream. If that fails, its lease
// does it.
func (c *Client) forget(ctx context.Context, id, p string, kill bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	if kill && c.SignalProcess(ctx, id, p, unix.SignalName(syscall.SIGKILL)) != nil {
		return
	}
	_ = c.DeleteProcess(ctx, id, p)
}

// RunStream is ExecStream in a session made for the purpose and removed before it returns. A lost connection is not made
// again.
func (c *Client) RunStream(ctx context.Context, req *api.OneShotRequest, stdio Stdio, signals <-chan string) (*api.ExecResult, error) {
	s := newStream(c, stdio, signals)
	s.to = target{path: "/v1/exec/stream"}
	s.first = &api.ClientControl{Start: &api.StreamStart{
		Session: &req.Session, Exec: req.Exec, Stdin: stdio.Stdin != nil, Terminal: stdio.Terminal,
	}}
	return s.run(ctx)
}

// ErrProcessGone means that boxd no longer knew a process when its stream was to be resumed. It is an ErrStreamEnded
// too.
var ErrProcessGone error = processGone{}

type processGone struct{}

func (processGone) Error() string { return ErrStreamEnded.Error() + ", which boxd no longer knows" }

// Is makes it an ErrStreamEnded too.
func (processGone) Is(target error) bool { return target == ErrStreamEnded }

// ErrDetached is returned by Read of Attach's Stdin to end the stream and leave the process running; Attach returns it
// too.
var ErrDetached = errors.New("detached")

// AttachOptions are options of Attach. Without any it reads only new output.
type AttachOptions struct {
	From   *[2]int64 // begin at these bytes of stdout and stderr
	Replay bool      // begin with the oldest stored output
	// Write requests to send standard input; TakeOver, to do so in place of another client.
	Write, TakeOver bool
	Lossless        bool // the process waits for the client to read its output
	// Lines makes every Write to Stdout one whole line, and sends Stdin line by line without empty lines, as MCP needs.
	Lines bool
	// Attached is called once, when the stream has begun.
	Attached func(*api.StreamAttached)
	// Gap is called between Writes where output is missing, as it is no longer stored or, in lines mode, is no line of
	// at most api.MaxLine bytes.
	Gap func(api.StreamGap)
	// WriterLost is called when another client has become the writer of standard input.
	WriterLost func()
}

// Attach joins a process until it ends, and returns its result. A connection that is lost, as when boxd restarts, is
// made again without losing or repeating a byte in either direction. Ending ctx leaves the process running.
func (c *Client) Attach(ctx context.Context, id, p string, o AttachOptions, stdio Stdio, signals <-chan string) (*api.ExecResult, error) {
	if !o.Write {
		stdio.Stdin = nil
	}
	s := newStream(c, stdio, signals)
	s.options, s.to = o, c.process(id, p, "/stream", nil)
	s.again = s.to
	s.attach = api.StreamAttach{Write: o.Write, Lossless: &o.Lossless, Lines: o.Lines}
	if o.Write { // to resume after a lost connection before boxd notices the loss
		s.attach.WriterID = rand.Text()
	}
	first := s.attach
	first.Replay, first.TakeOver = o.Replay, o.TakeOver
	if o.From != nil {
		first.Stdout, first.Stderr = &o.From[0], &o.From[1]
	}
	s.first = &api.ClientControl{Attach: &first}
	return s.run(ctx)
}

// nextMessage reads the next message into buf, or a larger buffer if needed.
func nextMessage(ctx context.Context, ws *websocket.Conn, buf []byte) ([]byte, error) {
	_, r, err := ws.Reader(ctx)
	if err != nil {
		return nil, err
	}
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		case len(buf) == cap(buf):
			buf = slices.Grow(buf, cap(buf))
		}
	}
}
