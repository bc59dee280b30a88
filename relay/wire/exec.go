// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Opener finds the session of a start, and says how to let go of it.
type Opener func(*api.StreamStart, *session.ExecRequest) (*session.Session, func(), error)

// Exec runs a program and relays its input and output. When the client goes, so does the program, unless
// it has an id. An error is for an answer in plain HTTP.
func (o *Opening) Exec(ctx context.Context, open Opener) error {
	return o.serve(ctx, func(ctx context.Context, hangUp func(), c *conn) (*api.ExecResult, error) {
		first, err := c.first(ctx)
		if err != nil {
			return nil, err
		}
		start := first.Start
		if start == nil {
			return nil, fault.Field("start", fault.Word("missing"), "an object in the first message")
		}
		if o.Asked != nil {
			o.Asked(start)
		}
		req, err := streamRequest(start)
		if err != nil {
			return nil, err
		}
		asked, err := Changes(&start.Exec)
		if err != nil {
			return nil, err
		}
		session, release, err := open(start, req)
		if err != nil {
			return nil, err
		}
		defer release()
		if err := sessionfiles.PrepareOutputs(ctx, session, start.Exec.OutputVersion); err != nil {
			return nil, err
		}
		looked, err := sessionfiles.BeginChanges(ctx, session, asked)
		if err != nil {
			return nil, err
		}
		if start.Exec.ID != "" || start.Terminal != nil {
			return c.execProcess(ctx, hangUp, session, start, req, looked)
		}
		req.Follow, req.StdinPipe = true, start.Stdin
		r, err := c.exec(ctx, hangUp, session, req)
		if r != nil {
			r.Changes = Changed(looked.End(ctx))
		}
		return r, err
	})
}

// streamRequest is the request of a start.
func streamRequest(start *api.StreamStart) (*session.ExecRequest, error) {
	x := &start.Exec
	for field, given := range map[string]bool{
		"stdin": x.Stdin != "", "stdin_encoding": x.StdinEncoding != "", "encoding": x.Encoding != "", "output_limit": x.OutputLimit != nil,
	} {
		if given {
			return nil, fault.Field("start.exec."+field, fault.Word("given"), "left out: in a stream input and output are frames")
		}
	}
	if x.Detach {
		return nil, fault.Field("start.exec.detach", "true", "left out: closing a stream of an execution with an id leaves it alone")
	}
	if err := CheckTerminal("start.terminal.", start.Terminal); err != nil {
		return nil, err
	}
	return ExecRequest(x)
}

// exec runs a program that ends with ctx.
func (c *conn) exec(ctx context.Context, hangUp func(), session *session.Session, req *session.ExecRequest) (*api.ExecResult, error) {
	e, err := session.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if err := e.Started(ctx); err != nil {
		return nil, err
	}
	c.control(ctx, api.ServerControl{Started: &api.StreamStarted{Session: session.ID, Clamped: Clamped(e.Clamped())}})
	var refusal error
	if !req.StdinPipe {
		refusal = errNoInput
	}
	c.in = newInput(refusal, false, pipeWriter(e.Stdin()))
	defer c.in.close()
	c.tasks.Go(func() { // ends with the connection
		defer hangUp()
		c.receive(ctx, func(msg *api.ClientControl) error {
			sig, err := signalOf(msg)
			if err == nil && msg.Resize != nil {
				err = fault.Field("resize", fault.Word("given"), "left out: the program has no terminal")
			}
			if err == nil {
				_ = e.Signal(sig) // a program that has ended needs none
			}
			return err
		}, func() { _ = e.Kill() })
	})
	c.tasks.Go(func() { // ends with the input, or with the pipe that e.Close closes
		c.in.pump(func(taken uint64) { c.control(ctx, api.ServerControl{StdinTaken: taken}) })
	})
	return c.follow(ctx, session, e)
}

var errNoInput = errors.New("the start did not ask for stdin")

// signalOf is the signal of a control message that has either that or a size.
func signalOf(msg *api.ClientControl) (unix.Signal, error) {
	sig := unix.SignalNum(msg.Signal)
	switch {
	case msg.Forget:
		return 0, fault.Field("forget", "true", "alone, in the stream of a process")
	case msg.Start != nil || msg.Attach != nil:
		return 0, fault.Field("start", fault.Word("late"), "only in the first message, as is attach")
	case msg.Resize != nil && msg.Signal != "":
		return 0, fault.Field("signal", fault.Word("not alone"), "a signal or a resize in one message")
	case msg.Resize == nil && sig == 0:
		return 0, fault.Field("signal", msg.Signal, "the name of a signal, such as SIGINT")
	}
	return sig, nil
}

// pipeWriter writes to a pipe, which is the execution's and closed with it; nil is none.
func pipeWriter(pipe io.WriteCloser) writer {
	if pipe == nil || pipe == io.WriteCloser((*os.File)(nil)) {
		return writer{}
	}
	return writer{
		write: func(data []byte) error {
			_, err := pipe.Write(data)
			if err != nil {
				_ = pipe.Close() // EPIPE: the program has closed its end
			}
			return err
		},
		end: func() { _ = pipe.Close() },
	}
}

// follow relays the output and returns the result when there is no more of it.
func (c *conn) follow(ctx context.Context, session *session.Session, e *session.Execution) (*api.ExecResult, error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan struct{})
	c.tasks.Go(func() { // an ended program's output is not kept for ever for a client that does not take it
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
	err := e.Follow(reading, func(stream int, data []byte) error {
		return c.frames.send(reading, []byte{api.ChannelStdout + byte(stream)}, data)
	})
	close(drained)
	if err != nil {
		_ = e.Kill() // nobody reads on
	}
	r, werr := e.Wait(ctx)
	if werr != nil {
		return nil, werr
	}
	c.Log.Debug("stream ended", "session", session.ID, "status", exitText(r))
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("relay output: %w", err)
	}
	res := ExecResult(session.ID, r, "")
	return &res, nil
}

// exitText is for logs.
func exitText(r *session.Result) string {
	if r.Status == session.StatusExited {
		return fmt.Sprintf("exited %d", r.ExitCode)
	}
	return string(r.Status)
}

// hangUpGrace is what the programs of a terminal get that nobody can attach to again.
const hangUpGrace = 2 * time.Second

// execProcess runs a program that is a process: one with an id, which goes on when its client goes and
// which a second start of the same id joins; or one with a terminal, which is hung up then.
func (c *conn) execProcess(ctx context.Context, hangUp func(), s *session.Session, start *api.StreamStart, exec *session.ExecRequest, looked *sessionfiles.ChangesWatch) (*api.ExecResult, error) {
	req := &session.ProcessRequest{ID: start.Exec.ID, Exec: *exec, Terminal: Terminal(start.Terminal), Stdin: start.Stdin, Awaited: true}
	if start.Lease != nil {
		req.Lease = new(time.Duration(*start.Lease))
	}
	if req.ID == "" {
		req.ID = policy.NewID()
		req.Stop = &process.Stop{Signal: "SIGHUP", Grace: new(hangUpGrace)}
		req.Lease = new(drainPatience) // in case that boxd dies meanwhile
	}
	p, isNew, err := s.StartProcess(ctx, req)
	if err != nil {
		return nil, err
	}
	if start.Exec.ID == "" {
		defer func() { _ = s.RemoveProcess(context.WithoutCancel(ctx), p) }() // logged where it fails
	}
	// The client has nothing yet: neither of the output, nor has it sent any input. Of a process that it
	// joins it gets what there was, and input that this has taken is not given to it again.
	r, err := c.attend(ctx, hangUp, s, p, &api.StreamAttach{
		Stdout: new(int64), Stderr: new(int64), Stdin: new(int64), Write: start.Stdin, TakeOver: start.Stdin, Lossless: new(true),
	}, func(*api.StreamAttached) api.ServerControl {
		return api.ServerControl{Started: &api.StreamStarted{Session: s.ID, Clamped: Clamped(p.Info().Clamped)}}
	})
	if r != nil {
		r.Changes = Changed(looked.EndProcess(ctx, p, isNew))
	}
	return r, err
}
