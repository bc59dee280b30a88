// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Restored completes a session that an earlier boxd has left: its box, whether that is frozen, and the environment found in it.
// Programs adds what runs in it.
func (s *Session) Restored(box *client.Box, frozen bool, env []string) {
	s.mu.Lock()
	s.box, s.frozen, s.env, s.state = box, frozen, env, StateReady
	s.mu.Unlock()
	s.watch()
	close(s.started)
}

// Programs makes processes of the programs that an earlier boxd has left running. One that is no process was for a caller that
// is gone, and is ended.
func (s *Session) Programs(ctx context.Context, programs []*client.Program, log *slog.Logger) {
	for _, p := range programs {
		s.adoptProgram(ctx, p, log)
	}
}

func (s *Session) adoptProgram(ctx context.Context, program *client.Program, log *slog.Logger) {
	p, err := process.Adopt(s.processHooks(ctx), program)
	if err == nil && !s.addAdopted(p) {
		err = fmt.Errorf("two processes have the id %q", p.Spec().ID)
		p.Release()
	}
	if err != nil {
		if !errors.Is(err, process.ErrNotProcess) {
			log.Warn("cannot restore a program; it is ended", "session", s.ID, "error", err)
		}
		s.endUnnamed(program)
		return
	}
	s.mu.Lock()
	entry := s.processes[p.Spec().ID]
	s.mu.Unlock()
	s.drive(ctx, entry)
}

// addAdopted adds a process to the session, unless it has one of that id.
func (s *Session) addAdopted(p *process.Process) bool {
	spec, current := p.Spec(), s.context()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[spec.ID] != nil {
		return false
	}
	entry := &slot{request: spec.Request, managed: spec.Managed, spool: spec.Spooled(), resolved: make(chan struct{}), done: make(chan struct{}), process: p}
	close(entry.resolved)
	s.execs++
	if entry.uncounted = p.Past(); !entry.uncounted {
		s.running++
		entry.release = s.hooks.Accounts.Running(s.Owner.Name, &current.Policy, spec.Managed)
		if entry.managed {
			s.managed++
		}
	}
	if s.processes == nil {
		s.processes = map[string]*slot{}
	}
	s.processes[spec.ID] = entry
	return true
}

// endUnnamed ends a program that no client can ask for.
func (s *Session) endUnnamed(program *client.Program) {
	s.hooks.Work.Go(func() {
		deadline := process.After(process.KillPatience, s.markLost)
		defer deadline.Stop()
		_ = program.Kill() // fails without a box: then it has ended
		<-program.Exited()
		_ = program.Forget()
		program.Close()
		if f := program.Private(); f != nil {
			f.Close()
		}
	})
}
