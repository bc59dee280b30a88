// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// detachable returns the process for a detached program. Options that need the program's end are refused.
func (a *app) detachable(exec *api.ExecRequest, f *terminalFlags, dry bool) (*api.ProcessRequest, error) {
	switch {
	case exec.Changes:
		return nil, &usageError{err: errors.New("-d and --changes: give one of them; the changes are known when the program has ended")}
	case f.noStdin && f.interactive:
		return nil, &usageError{err: errors.New("--interactive and --no-stdin: give one of them")}
	case dry:
		return nil, &usageError{err: errors.New("-d and --dry-run: give one of them")}
	}
	req := processRequest(exec)
	req.Stdin = f.interactive || f.terminal
	if f.terminal {
		a.setTerminal(req)
	}
	return req, nil
}

// execDetached starts a program as a process of a box.
func (a *app) execDetached(ctx context.Context, c *client.Client, id string, exec *api.ExecRequest, f *terminalFlags, dry bool) error {
	req, err := a.detachable(exec, f, dry)
	if err != nil {
		return err
	}
	name, err := freeName(ctx, c, id, req)
	if err != nil {
		return programError{err}
	}
	p, err := a.startDetached(ctx, c, id, name, req)
	if err != nil {
		return err
	}
	return a.answer(p, nil, func() error {
		_, err := fmt.Fprintln(a.stdout, render.Printable(p.ID))
		return err
	})
}

// runDetached makes a box and starts a program in it. If that fails, the box is removed.
func (a *app) runDetached(ctx context.Context, c *client.Client, session *api.SessionRequest, exec *api.ExecRequest, f *terminalFlags, dry bool) error {
	req, err := a.detachable(exec, f, dry)
	if err != nil {
		return err
	}
	s, isNew, err := c.CreateSession(ctx, session)
	if err != nil {
		return programError{err}
	}
	if !isNew {
		return &usageError{err: fmt.Errorf("--name %s: there is a box of that name", render.ShellWord(s.ID)), hint: "boxctl exec -d " + render.ShellWord(s.ID) + " -- PROGRAM runs a program in it"}
	}
	a.showClamped(s.Clamped)
	p, err := a.startDetached(ctx, c, s.ID, programName(req), req)
	if err != nil {
		timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
		defer cancel()
		return errors.Join(err, c.DeleteSession(timeoutCtx, s.ID))
	}
	return a.answer(p, nil, func() error {
		_, err := fmt.Fprintln(a.stdout, render.Printable(s.ID))
		return err
	})
}

// startDetached starts a process, and fails if its program cannot be run.
func (a *app) startDetached(ctx context.Context, c *client.Client, id, name string, req *api.ProcessRequest) (api.Process, error) {
	p, _, err := c.StartProcess(ctx, id, name, req)
	if err != nil {
		return p, programError{err}
	}
	a.showClamped(p.Clamped)
	if p.Result != nil && p.Result.Status == "start_failed" {
		p.Result.Clamped = nil // printed already
		return p, a.conclude(p.Result, nil, 0)
	}
	return p, nil
}
