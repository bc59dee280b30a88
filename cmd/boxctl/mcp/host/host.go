// SPDX-License-Identifier: Apache-2.0

// Package host runs an MCP server of somebody else's in a box, with standard input and output as its client expects them.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/boxd-dev/boxd/cmd/boxctl/mcp/servers"
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

// Run makes a box, runs the server in it and connects the three streams with it, until it has ended or ctx does. The box
// ends then. What fails is said with the phase it failed in: the session, the process, or the relay of its streams.
func Run(ctx context.Context, c *client.Client, ask api.SessionRequest, name string, s *servers.Server, stdin io.Reader, stdout, stderr io.Writer) error {
	b := boxes.New(c, boxes.Options{Ask: ask})
	err := relay(ctx, c, b, name, s, stdin, stdout, stderr)
	if ctx.Err() != nil { // told to end, as hosts do
		err = nil
	}
	return errors.Join(err, b.Close(ctx))
}

func relay(ctx context.Context, c *client.Client, b *boxes.Boxes, name string, s *servers.Server, stdin io.Reader, stdout, stderr io.Writer) error {
	id, err := b.ID(ctx, "")
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	req := &api.ProcessRequest{Argv: append([]string{s.Command}, s.Args...), Env: s.Env, Cwd: s.Cwd, Stdin: true, Lease: b.Lease(id, name)}
	p, _, err := c.StartProcess(ctx, id, name, req)
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	if p.Result != nil && p.Result.Status == "start_failed" {
		return fmt.Errorf("process: %w", &Failed{p.Result})
	}
	r, err := c.Attach(ctx, id, name, client.AttachOptions{Replay: true, Write: true, Lossless: true, Lines: true}, client.Stdio{Stdin: stdin, Stdout: stdout, Stderr: stderr}, nil)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if r.Status != "exited" || *r.ExitCode != 0 {
		return fmt.Errorf("run time: %w", &Failed{r})
	}
	return nil
}
