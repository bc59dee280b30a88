// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// execOpener finds the session of a start, and returns how to release it.
type execOpener func(*api.StreamStart, *session.ExecRequest) (*session.Session, func(), error)

// Exec runs a program and relays its input and output. The program ends with the client, unless it has an id. An error
// is for a plain HTTP response.
func (o *streamOpening) Exec(ctx context.Context, open execOpener) error {
	return o.serve(ctx, func(ctx context.Context, hangUp func(), c *conn) (*api.ExecResult, error) {
		first, err := c.first(ctx)
		if err != nil {
			return nil, err
		}
		start := first.Start
		if start == nil {
			return nil, fault.Field("start", fault.Word("missing"), "an object in the first message")
		}
		if o.Observe != nil {
			o.Observe(start)
		}
		req, err := streamRequest(start)
		if err != nil {
			return nil, err
		}
		changes, err := changesRequest(&start.Exec)
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
		looked, err := sessionfiles.BeginChanges(ctx, session, changes)
		if err != nil {
			return nil, err
		}
		c.noInput = errNoInput
		return c.exec(ctx, hangUp, session, start, req, looked)
	})
}

// streamRequest returns the execution request of a start.
func streamRequest(start *api.StreamStart) (*session.ExecRequest, error) {
	x := &start.Exec
	for field, given := range map[string]bool{
		"stdin": x.Stdin != "", "stdin_encoding": x.StdinEncoding != "", "encoding": x.Encoding != "", "output_limit": x.OutputLimit != nil,
	} {
		if given {
			return nil, fault.Field("start.exec."+field, fault.Word("given"), "left out in a stream, where input and output are frames")
		}
	}
	if x.Detach {
		return nil, fault.Field("start.exec.detach", "true", "false in a stream: an execution with an id goes on when its stream closes")
	}
	if err := checkTerminal("start.terminal.", start.Terminal); err != nil {
		return nil, err
	}
	return execRequestOf(x)
}

var errNoInput = errors.New("start.stdin was not set")

// signalOf returns the signal of a control message, which has either a signal or a size.
func signalOf(msg *api.ClientControl) (unix.Signal, error) {
	sig := unix.SignalNum(msg.Signal)
	switch {
	case msg.Forget:
		return 0, fault.Field("forget", "true", "the only field, in the stream of a process")
	case msg.Start != nil || msg.Attach != nil:
		return 0, fault.Field("start", fault.Word("late"), "in the first message, like attach")
	case msg.Resize != nil && msg.Signal != "":
		return 0, fault.Field("signal", fault.Word("not alone"), "in a message without resize")
	case msg.Resize == nil && sig == 0:
		return 0, fault.Field("signal", msg.Signal, "the name of a signal, such as SIGINT")
	}
	return sig, nil
}

// hangUpGrace is the grace period for programs of a terminal that no client can attach to again.
const hangUpGrace = 2 * time.Second

// exec runs a program as a process: one with an id continues when its client goes, and a second start of the same id
// joins it; one without is hung up then if it has a terminal, and killed otherwise.
func (c *conn) exec(ctx context.Context, hangUp func(), s *session.Session, start *api.StreamStart, exec *session.ExecRequest, looked *sessionfiles.ChangesWatch) (*api.ExecResult, error) {
	req := &session.ProcessRequest{ID: start.Exec.ID, Exec: *exec, Terminal: terminalSize(start.Terminal), Stdin: start.Stdin, Awaited: true}
	if start.Lease != nil {
		req.Lease = new(time.Duration(*start.Lease))
	}
	switch {
	case req.ID != "":
	case req.Terminal == nil:
		req.Unlisted, req.Lease = true, nil
	default:
		req.ID = policy.NewID()
		req.Stop = &process.Stop{Signal: "SIGHUP", Grace: new(hangUpGrace)}
		req.Lease = new(drainTimeout) // in case boxd dies meanwhile
	}
	ended := c.Sup.ExpectOutput(s, start.Exec.OutputVersion, req.ID) //nolint:contextcheck // results are taken in the life of boxd
	p, isNew, err := s.StartProcess(ctx, req)
	ended(err == nil && isNew, p)
	if err != nil {
		return nil, err
	}
	if start.Exec.ID == "" {
		defer func() { _ = s.RemoveProcess(context.WithoutCancel(ctx), p) }() // logged where it fails
	}
	// The client has no output yet and has sent no input. If it joins a process, it gets the earlier output, and input
	// that the process has taken is not delivered again.
	r, err := c.attend(ctx, hangUp, s, p, &api.StreamAttach{
		Stdout: new(int64), Stderr: new(int64), Stdin: new(int64), Write: start.Stdin, TakeOver: start.Stdin, Lossless: new(true),
	}, &api.StreamStarted{Session: s.ID, Clamped: clampsAnswer(p.Spec().Clamped)})
	if r != nil {
		r.Changes = changesAnswer(looked.EndProcess(ctx, p, isNew))
	}
	return r, err
}
