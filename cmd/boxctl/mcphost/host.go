// SPDX-License-Identifier: Apache-2.0

// Package mcphost runs a third-party MCP server in a box, on the standard streams that its client expects.
package mcphost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/mcp"
)

// endedError means that the server has ended otherwise than with exit code 0.
type endedError struct{ result *api.ExecResult }

// Error says how.
func (f *endedError) Error() string {
	r := f.result
	switch {
	case r.Failure != nil:
		return "the server does not start: " + r.Failure.Text
	case r.ExitCode != nil:
		return fmt.Sprintf("the server has ended with exit code %d", *r.ExitCode)
	case r.Signal != "":
		return "the server was ended by " + r.Signal
	}
	return "the server has ended: " + r.Status
}

// Options are what is run, and between which streams.
type Options struct {
	Client *client.Client
	Ask    api.SessionRequest // for the box
	Name   string             // of the server
	Plan   *Plan
	// Within bounds the installing of dependencies, Greeting how long the server may take to answer the handshake, and
	// Health is how often it is asked for a sign of life afterwards; 0 is never.
	Within, Greeting, Health time.Duration

	// Ended is told how the server has ended: err is nil if that was as it should be, and was of no box if it had none.
	Ended func(was *LastState, err error)

	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// LastState is what a server was at when it ended.
type LastState struct {
	Session, Phase, Attempt, Since string // as the labels have them
	Stderr                         string // the last line that it, or what installed for it, has written
}

type runner struct {
	*Options

	record *record
	output *tail // by the server, or what installs for it
}

// phaseError is a failure with the phase it was in.
type phaseError struct {
	phase string
	error
}

// Error begins with the phase.
func (e *phaseError) Error() string { return e.phase + ": " + e.error.Error() }

// Unwrap leads to what has failed.
func (e *phaseError) Unwrap() error { return e.error }

// orphaned is how long a server lives on when its client has gone without a word. It does not pass while boxd is away, and a
// new boxd gives the client half a minute to come back.
const orphaned = 5 * time.Second

// idle is the ttl of the box, where its profile lets us say one.
const idle = 10 * time.Second

// shortLived is the request for a box that ends soon after its client has gone without a word.
func shortLived(ctx context.Context, o *Options) api.SessionRequest {
	req := o.Ask
	if req.TTL != nil {
		return req
	}
	req.TTL = new(quantity.Duration(idle))
	if plan, err := o.Client.PlanSession(ctx, &req); err != nil || plan.Refused != nil {
		return o.Ask
	}
	return req
}

// Run makes a box, brings the project in, runs the server and connects the three streams with it, until it has ended or
// ctx does. The box ends then. What fails is said with the phase it failed in: session, dependencies, process, relay,
// handshake, tool call or run time. How far it has come is in the labels of the box meanwhile.
func Run(ctx context.Context, o *Options) error {
	r := &runner{o, newRecord(o), &tail{}}
	b := mcp.NewSessions(o.Client, mcp.SessionsOptions{Ask: shortLived(ctx, o)})
	err := r.run(ctx, b)
	if ctx.Err() != nil { // told to end, as hosts do
		err = nil
	}
	if o.Ended != nil {
		o.Ended(r.lastState(err), err)
	}
	return errors.Join(err, b.Close(ctx))
}

// lastState is where a failed server was.
func (r *runner) lastState(err error) *LastState {
	l := r.record.labels
	was := &LastState{r.record.id, l[LabelPhase], l[LabelAttempt], l[LabelSince], LastLine(string(r.output.text))}
	if failed, ok := errors.AsType[*phaseError](err); ok {
		was.Phase = failed.phase
	}
	return was
}

func (r *runner) run(ctx context.Context, b *mcp.Sessions) error {
	var id string
	err := r.retry(ctx, "session", "", func() (_ string, again bool, err error) {
		id, err = b.ID(ctx, "")
		return "", transient(err), err
	})
	if err != nil {
		return &phaseError{"session", err}
	}
	r.record.id = id
	if err := r.prepare(ctx, id); err != nil {
		return &phaseError{"dependencies", err}
	}
	s := &r.Plan.Server
	_ = b.Lease(id, r.Name) // it is renewed until we are attached, which is better than any lease
	req := &api.ProcessRequest{Argv: append([]string{s.Command}, s.Args...), Env: s.Env, Cwd: s.Cwd, Stdin: true, Lease: new(quantity.Duration(orphaned))}
	var p api.Process
	err = r.retry(ctx, "process", "", func() (_ string, again bool, err error) {
		p, _, err = r.Client.StartProcess(ctx, id, r.Name, req)
		return "", transient(err), err
	})
	if err != nil {
		return &phaseError{"process", err}
	}
	if p.Result != nil && p.Result.Status == "start_failed" {
		return &phaseError{"process", &endedError{p.Result}}
	}
	return r.relay(ctx, id)
}

// Why a server is ended.
var (
	errSilent       = errors.New("the server did not answer initialize")
	errClientGone   = errors.New("the client has disconnected")
	errUnresponsive = fmt.Errorf("the server did not answer %d pings", maxMissedPings)
)

// relay connects the streams. A server that does not answer the handshake in time is ended, and one that gives no sign of
// life afterwards.
func (r *runner) relay(ctx context.Context, id string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var timer *time.Timer
	w := newWatch(func() {
		timer = time.AfterFunc(r.Greeting, func() { cancel(fmt.Errorf("%w within %v", errSilent, r.Greeting)) })
	})
	m, in := newServerInput(&reader{r.Stdin, lines{handle: func(b []byte) { w.message(b) }}})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = in.Close() }() // cannot fail
	defer cancel(nil)
	r.output.text = nil
	r.record.phase(ctx, "handshake", 1, "")
	wg.Go(func() {
		select {
		case <-w.initialized:
			w.mu.Lock()
			timer.Stop()
			w.mu.Unlock()
			r.watch(ctx, w, m, cancel)
		case <-ctx.Done():
		}
	})
	wg.Go(func() {
		if m.awaitAnswers(ctx, w) {
			cancel(errClientGone)
		}
	})
	out := &writer{Writer: r.Stdout, watch: w}
	result, err := r.Client.Attach(ctx, id, r.Name, client.AttachOptions{Replay: true, Write: true, Lossless: true}, client.Stdio{
		Stdin: in, Stdout: out, Stderr: io.MultiWriter(r.output, r.Stderr),
	}, nil)
	if flushed := out.flush(); err == nil {
		err = flushed
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent):
		return &phaseError{"handshake", cause}
	case errors.Is(cause, errClientGone):
		return nil
	case errors.Is(cause, errUnresponsive):
		return &phaseError{"run time", cause}
	case err != nil:
		return &phaseError{"relay", err}
	case result.Status != "exited" || *result.ExitCode != 0:
		return &phaseError{w.phase(), &endedError{result}}
	}
	return nil
}

// watch looks after a server that runs, until ctx ends or the server seems dead, which ends it.
func (r *runner) watch(ctx context.Context, w *watch, m *serverInput, cancel context.CancelCauseFunc) {
	r.record.phase(ctx, "run time", 1, "")
	if r.Health <= 0 {
		return
	}
	ticker := time.NewTicker(r.Health)
	defer ticker.Stop()
	if pollHealth(ctx, ticker.C, w, m.ping, func(how string) { r.record.health(ctx, how) }) {
		cancel(errUnresponsive)
	}
}
