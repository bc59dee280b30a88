// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor"
)

// Times of a stream.
const (
	startPatience = 10 * time.Second // for the first message
	drainPatience = time.Minute      // for a client to take the rest of the output of an ended program
)

// executeStream runs a program in a session and relays its input and output.
func executeStream(c *call) (any, error) {
	if _, err := c.session(); err != nil {
		return nil, err // before the upgrade, so that it is an ordinary answer
	}
	return nil, c.stream(func(start *api.StreamStart, _ *supervisor.ExecRequest) (*supervisor.Session, func(), error) {
		if start.Session != nil {
			return nil, nil, fault.Field("start.session", "given", "left out: the path names the session")
		}
		s, err := c.session()
		return s, func() {}, err
	})
}

// oneShotStream does the same in a session that lives as long as the stream.
func oneShotStream(c *call) (any, error) {
	return nil, c.stream(func(start *api.StreamStart, req *supervisor.ExecRequest) (*supervisor.Session, func(), error) {
		if start.Session == nil {
			start.Session = &api.SessionRequest{}
		}
		s, err := c.makeOneShot(start.Session, req)
		if err != nil {
			return nil, nil, err
		}
		return s, func() { c.server.end(s, supervisor.EndOneShot) }, nil
	})
}

// opener finds the session of a stream, and says how to let go of it.
type opener func(*api.StreamStart, *supervisor.ExecRequest) (*supervisor.Session, func(), error)

// stream is one WebSocket from its upgrade to its end. An error is for an answer in plain HTTP.
func (c *call) stream(open opener) error {
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		return fault.Field("Upgrade", c.r.Header.Get("Upgrade"), "websocket: a stream is one (RFC 6455)")
	}
	c.server.streams.Add(1)
	defer c.server.streams.Done()
	// A browser on the host cannot reach a Unix socket; on any other the Origin must be the host.
	ws, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // Accept has answered
	}
	defer ws.CloseNow() //nolint:errcheck // a closed one is fine
	ctx, cancel := context.WithCancel(c.context())
	st := &stream{server: c.server, load: c.load, ws: ws}
	result, err := st.run(ctx, cancel, open)
	if !st.cutOff.Load() { // or else receive closes, and says why
		end := api.ServerControl{Exit: result}
		if err != nil {
			end = api.ServerControl{Error: c.server.problem(ctx, err)}
		}
		st.control(ctx, end)
		_ = ws.Close(websocket.StatusNormalClosure, "")
		cancel() // ends receive if the close did not
	}
	st.tasks.Wait()
	cancel()
	return nil
}

// stream relays one program.
type stream struct {
	server *Server
	load   *load // of the caller
	ws     *websocket.Conn
	tasks  sync.WaitGroup
	cutOff atomic.Bool // the client has broken the rules
}

// run starts the program and returns its result. When the client goes, ctx ends, and with it the
// program.
func (st *stream) run(ctx context.Context, hangUp func(), open opener) (*api.ExecResult, error) {
	start, err := st.receiveStart(ctx)
	if err != nil {
		return nil, err
	}
	req, err := streamRequest(start)
	if err != nil {
		return nil, err
	}
	session, release, err := open(start, req)
	if err != nil {
		return nil, err
	}
	defer release()
	e, err := st.server.sup.Start(ctx, session, req)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if err := e.Started(ctx); err != nil {
		return nil, err
	}
	st.control(ctx, api.ServerControl{Started: &api.StreamStarted{Session: session.ID, Clamped: clamped(e.Clamped())}})
	in := newInput(start.Stdin, e.Stdin())
	defer in.close()
	st.tasks.Go(func() { // ends with the connection
		defer hangUp()
		st.receive(ctx, e, in)
	})
	st.tasks.Go(func() { // ends with the input, or with the pipe that e.Close closes
		in.pump(func(taken uint64) { st.control(ctx, api.ServerControl{StdinTaken: taken}) })
	})
	return st.follow(ctx, session, e)
}

// streamRequest is the request of a start.
func streamRequest(start *api.StreamStart) (*supervisor.ExecRequest, error) {
	x := &start.Exec
	for field, given := range map[string]bool{
		"stdin": x.Stdin != "", "stdin_encoding": x.StdinEncoding != "", "encoding": x.Encoding != "", "output_limit": x.OutputLimit != nil,
	} {
		if given {
			return nil, fault.Field("start.exec."+field, "given", "left out: in a stream input and output are frames")
		}
	}
	req, err := execRequest(x)
	if err != nil {
		return nil, err
	}
	req.Follow, req.StdinPipe = true, start.Stdin
	return req, nil
}

// follow relays the output and returns the result when there is no more of it.
func (st *stream) follow(ctx context.Context, session *supervisor.Session, e *supervisor.Execution) (*api.ExecResult, error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan struct{})
	st.tasks.Go(func() { // an ended program's output is not kept for ever for a client that does not take it
		select {
		case <-e.Exited():
		case <-drained:
			return
		}
		timer := time.NewTimer(drainPatience)
		defer timer.Stop()
		select {
		case <-timer.C:
			stop()
		case <-drained:
		}
	})
	frame := make([]byte, 1, api.MaxFrame)
	err := e.Follow(reading, func(stream int, data []byte) error {
		frame = append(frame[:1], data...)
		frame[0] = api.ChannelStdout + byte(stream)
		return st.ws.Write(reading, websocket.MessageBinary, frame)
	})
	close(drained)
	if err != nil {
		_ = e.Kill() // nobody reads on
	}
	r, werr := e.Wait(ctx)
	if werr != nil {
		return nil, werr
	}
	st.server.log.Debug("stream ended", "session", session.ID, "status", exitText(r))
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("relay output: %w", err)
	}
	res := execResult(session, r, "")
	return &res, nil
}

func (st *stream) receiveStart(ctx context.Context) (*api.StreamStart, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	st.ws.SetReadLimit(api.MaxStart)
	kind, data, release, err := st.load.readMessage(ctx, st.ws)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "no start: %w", err)
	}
	defer release()
	st.ws.SetReadLimit(api.MaxFrame)
	if kind != websocket.MessageBinary || len(data) == 0 || data[0] != api.ChannelControl {
		return nil, fault.Errorf(fault.Invalid, "the first message is not a binary one on the control channel")
	}
	var msg api.ClientControl
	if err := decode(data[1:], &msg); err != nil {
		return nil, err
	}
	if msg.Start == nil {
		return nil, fault.Field("start", "missing", "the first message to have it")
	}
	return msg.Start, nil
}

// receive takes the client's messages until it hangs up or breaks the rules.
func (st *stream) receive(ctx context.Context, e *supervisor.Execution, in *input) {
	for {
		kind, data, err := st.ws.Read(ctx)
		if err != nil {
			return
		}
		err = errBadFrame
		if kind == websocket.MessageBinary && len(data) > 0 {
			switch data[0] {
			case api.ChannelStdin:
				err = in.add(data[1:])
			case api.ChannelControl:
				err = st.signal(e, data[1:])
			}
		}
		if err != nil {
			st.cutOff.Store(true)
			_ = e.Kill() // at once: the peer may take its time to answer the close
			_ = st.ws.Close(websocket.StatusPolicyViolation, closeReason(err))
			return
		}
	}
}

// maxCloseReason is what of a reason fits into a close frame, in bytes (RFC 6455, 5.5).
const maxCloseReason = 123

func closeReason(err error) string {
	reason := err.Error()
	return strings.ToValidUTF8(reason[:min(len(reason), maxCloseReason)], "")
}

var errBadFrame = errors.New("want binary messages on the stdin or control channel")

func (st *stream) signal(e *supervisor.Execution, data []byte) error {
	var msg api.ClientControl
	if err := decode(data, &msg); err != nil {
		return err
	}
	sig := unix.SignalNum(msg.Signal)
	if sig == 0 || msg.Start != nil {
		return fault.Field("signal", msg.Signal, "the name of a signal, such as SIGINT")
	}
	_ = e.Signal(sig) // a program that has ended needs none
	return nil
}

// control sends a control message. If it does not arrive the client is gone, which receive sees.
func (st *stream) control(ctx context.Context, msg api.ServerControl) {
	data, err := json.Marshal(msg)
	if err != nil {
		st.server.log.Error("control message not encoded", "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	_ = st.ws.Write(ctx, websocket.MessageBinary, append([]byte{api.ChannelControl}, data...))
}

// input carries standard input from the connection to the program, so that a program that does not
// read holds up neither signals nor the notice that the client is gone. The window bounds it.
type input struct {
	asked    bool           // the client said that there would be input
	pipe     io.WriteCloser // nil: there is no program to read it
	queue    chan []byte
	done     chan struct{}
	received uint64        // bytes from the client; add's
	taken    atomic.Uint64 // bytes the program has, or will not read
}

// inputQueue bounds the messages under way, as the window bounds their bytes.
const inputQueue = 1024

func newInput(asked bool, pipe io.WriteCloser) *input {
	return &input{asked: asked, pipe: pipe, queue: make(chan []byte, inputQueue), done: make(chan struct{})}
}

// add queues bytes; none is the end of the input.
func (in *input) add(data []byte) error {
	if !in.asked {
		return errors.New("the start did not ask for stdin")
	}
	if in.pipe == nil {
		return nil // for a program that could not start
	}
	in.received += uint64(len(data))
	if in.received-in.taken.Load() > api.StdinWindow {
		return fmt.Errorf("more than %d bytes of stdin under way", api.StdinWindow)
	}
	select {
	case in.queue <- data:
		return nil
	default:
		return fmt.Errorf("more than %d messages of stdin under way", inputQueue)
	}
}

// pump writes to the program until the end of the input or of the stream. What a program does not
// read any more is dropped and confirmed: whether to go on sending is the client's to decide.
func (in *input) pump(confirm func(taken uint64)) {
	if in.pipe == nil {
		return
	}
	for {
		select {
		case <-in.done:
			return
		case data := <-in.queue:
			if len(data) == 0 {
				in.pipe.Close()
				return
			}
			if _, err := in.pipe.Write(data); err != nil {
				in.pipe.Close() // EPIPE: the program has closed its end
			}
			confirm(in.taken.Add(uint64(len(data))))
		}
	}
}

// close ends pump; the pipe is the execution's and closed with it.
func (in *input) close() { close(in.done) }
