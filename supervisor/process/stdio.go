// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// stdioTimeout is how long the descriptors of a direct program are kept for a caller to take.
const stdioTimeout = 30 * time.Second

// Why there are no descriptors to take.
const (
	goneTaken   = "have been taken"
	goneLate    = "were closed: not taken in time"
	goneEnded   = "were closed when it ended: not taken before"
	goneEarlier = "belonged to an earlier boxd"
)

// stdio holds the far ends of a direct program's stdin, stdout and stderr until they are taken or time out. When they are
// closed, the program sees pipes whose other end is closed.
type stdio struct {
	mu     sync.Mutex
	files  []*os.File
	reason string // why there are none; "": there are, or will be
	timer  *time.Timer
}

// setFiles takes over the files of a program that has started. There are none for a program of an earlier boxd.
func (s *stdio) setFiles(files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(files) == 0 {
		s.reason = goneEarlier
		return
	}
	s.files = files
	s.timer = time.AfterFunc(stdioTimeout, func() { s.drop(goneLate) })
}

// take returns the files, once, or says why there are none.
func (s *stdio) take() (files []*os.File, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != "" {
		return nil, s.reason
	}
	s.timer.Stop()
	files, s.files, s.reason = s.files, nil, goneTaken
	return files, ""
}

// drop closes files that were not taken.
func (s *stdio) drop(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != "" {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, f := range s.files {
		f.Close()
	}
	s.files, s.reason = nil, why
}

// TakeStdio hands out the far ends of a direct process's stdin, stdout and stderr, once: the caller owns them, and boxd sees
// nothing of what goes through them. It renews the lease.
func (p *Process) TakeStdio(ctx context.Context) ([]*os.File, error) {
	if !p.spec.Command.Direct {
		return nil, fault.Errorf(fault.Conflict, "process %s was not started with stdio = \"direct\"", fault.Show(p.spec.ID)).
			WithHint("attach to it instead")
	}
	select {
	case <-p.up:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	files, reason := p.stdio.take()
	if reason != "" {
		return nil, fault.Errorf(fault.Conflict, "the descriptors of process %s %s", fault.Show(p.spec.ID), reason).
			WithHint("they can be taken once, within %v of the start, and not after boxd has restarted", stdioTimeout)
	}
	p.mu.Lock()
	p.seen = true
	p.mu.Unlock()
	p.Renew()
	return files, nil
}

// Attachable refuses a process that cannot be attached to.
func (p *Process) Attachable() error {
	if !p.spec.Command.Direct {
		return nil
	}
	return fault.Errorf(fault.Conflict, "cannot attach to process %s: it has stdio = \"direct\", and boxd does not see its input and output", fault.Show(p.spec.ID)).
		WithHint("use the descriptors taken from it; signal, stop and wait still work")
}

// validateDirect refuses options of a direct process that require boxd to see or keep its streams.
func (s *Spec) validateDirect() error {
	switch allowed := "left out with stdio = \"direct\""; {
	case !s.Command.Direct:
		return nil
	case s.Command.Terminal != nil:
		return fault.Field("terminal", fault.Word("given"), allowed)
	case s.Command.Stdin != isolation.StdinNull:
		return fault.Field("stdin", fault.Word("given"), allowed)
	case s.Command.Merged:
		return fault.Field("merge_output", true, allowed)
	case s.Command.Spool:
		return fault.Field("spool", fault.Word("given"), allowed)
	case s.Ready != nil && s.Ready.Line != nil:
		return fault.Field("ready.line", *s.Ready.Line, allowed)
	case s.Restart.Policy != RestartNo:
		return fault.Field("restart.policy", s.Restart.Policy, RestartNo+" with stdio = \"direct\"")
	}
	return nil
}
