// SPDX-License-Identifier: Apache-2.0

// Package host runs an MCP server of somebody else's in a box, with standard input and output as its client expects them.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/cmd/boxctl/mcp/project"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/mcp/boxes"
)

// Failed is a server that has ended otherwise than with exit code 0.
type Failed struct{ Result *api.ExecResult }

// Error says how.
func (f *Failed) Error() string {
	r := f.Result
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
	Plan   *project.Plan
	// Within bounds the installing of dependencies, and Greeting how long the server may take to answer the handshake.
	Within, Greeting time.Duration

	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

type runner struct{ *Options }

// Run makes a box, brings the project in, runs the server and connects the three streams with it, until it has ended or
// ctx does. The box ends then. What fails is said with the phase it failed in: session, dependencies, process, relay,
// handshake, tool call or run time.
func Run(ctx context.Context, o *Options) error {
	b := boxes.New(o.Client, boxes.Options{Ask: o.Ask})
	err := runner{o}.run(ctx, b)
	if ctx.Err() != nil { // told to end, as hosts do
		err = nil
	}
	return errors.Join(err, b.Close(ctx))
}

func (r runner) run(ctx context.Context, b *boxes.Boxes) error {
	id, err := b.ID(ctx, "")
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := r.prepare(ctx, id); err != nil {
		return fmt.Errorf("dependencies: %w", err)
	}
	s := &r.Plan.Server
	req := &api.ProcessRequest{Argv: append([]string{s.Command}, s.Args...), Env: s.Env, Cwd: s.Cwd, Stdin: true, Lease: b.Lease(id, r.Name)}
	p, _, err := r.Client.StartProcess(ctx, id, r.Name, req)
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	if p.Result != nil && p.Result.Status == "start_failed" {
		return fmt.Errorf("process: %w", &Failed{p.Result})
	}
	return r.relay(ctx, id)
}

var errSilent = errors.New("the server does not answer initialize")

// relay connects the streams. A server that does not answer the handshake in time is ended.
func (r runner) relay(ctx context.Context, id string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var late *time.Timer
	w := newWatch(func() {
		late = time.AfterFunc(r.Greeting, func() { cancel(fmt.Errorf("%w within %v", errSilent, r.Greeting)) })
	})
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	all.Go(func() {
		select {
		case <-w.greeted:
			w.mu.Lock()
			defer w.mu.Unlock()
			late.Stop()
		case <-ctx.Done():
		}
	})
	result, err := r.Client.Attach(ctx, id, r.Name, client.AttachOptions{Replay: true, Write: true, Lossless: true, Lines: true}, client.Stdio{
		Stdin: &reader{r.Stdin, lines{see: w.line}}, Stdout: &writer{r.Stdout, lines{see: w.line}}, Stderr: r.Stderr,
	}, nil)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent):
		return fmt.Errorf("handshake: %w", cause)
	case err != nil:
		return fmt.Errorf("relay: %w", err)
	case result.Status != "exited" || *result.ExitCode != 0:
		return fmt.Errorf("%s: %w", w.phase(), &Failed{result})
	}
	return nil
}
