// SPDX-License-Identifier: Apache-2.0

package process

import (
	"maps"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// StreamState is how many bytes a stream has had, and from which on they are kept.
type StreamState struct{ Bytes, From int64 }

// Info is a consistent view of a process. It has no values of the environment.
type Info struct {
	ID        string
	State     State
	Ready     bool
	PID       uint32 // in the box, of the last program that has run; 0: none has
	Starts    int
	Argv      []string
	Dir       string
	EnvNames  []string
	Terminal  *Size
	Stdin     bool
	Direct    bool
	Timeout   time.Duration
	Spool     quantity.Size // how much of each stream is kept on disk; 0: the output is in memory
	Restart   Restart
	Stop      Stop
	Lease     *time.Duration
	Readers   int
	Writer    bool
	Output    [2]StreamState
	StartedAt time.Time
	EndedAt   time.Time
	NextStart time.Time
	ExpiresAt time.Time // when its lease ends
	Reason    string
	Labels    map[string]string
	Clamped   []policy.Clamp
}

// Info returns the process as it is now.
func (p *Process) Info() Info {
	p.mu.Lock()
	info := Info{
		ID: p.spec.ID, State: p.state, Ready: p.at.Ready && p.state == StateRunning, Starts: p.at.Starts,
		Argv: slices.Clone(isolation.LimitedProgram(p.spec.Command.Argv)), Dir: p.spec.Command.Dir, EnvNames: slices.Clone(p.spec.EnvNames),
		Stdin: p.spec.Command.Stdin == isolation.StdinPipe, Direct: p.spec.Command.Direct, Timeout: p.spec.Command.Timeout, Restart: p.spec.Restart, Stop: p.spec.Stop, Lease: p.spec.Lease,
		Readers: len(p.all), Writer: p.writer != nil, StartedAt: p.at.First, EndedAt: p.at.Ended, Reason: p.at.Reason,
		Labels: maps.Clone(p.spec.Labels), Clamped: p.spec.Clamped,
	}
	if c := &p.spec.Command; c.Spool {
		info.Spool = quantity.Size(c.Output.Head + c.Output.Tail)
	}
	if p.size != nil {
		info.Terminal = new(*p.size)
	}
	if p.holder != nil {
		info.PID = p.holder.PID()
	}
	if p.state == StateWaiting {
		info.NextStart = p.next
	}
	if p.state != StateEnded {
		info.ExpiresAt, _ = p.leaseEndLocked()
	}
	p.mu.Unlock()
	if log := p.use(); log != nil {
		defer p.leave()
		end, _ := log.End() // the files exist, so no error
		from, _ := log.Oldest()
		for i := range end {
			info.Output[i] = StreamState{Bytes: end[i], From: min(from[i], end[i])}
		}
	}
	return info
}

// FirstStart is when the process was first started, zero before that. Unlike Info, it, PID and Attached do not read the output.
func (p *Process) FirstStart() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at.First
}

// LatestStart is when the last program of the process was started, zero before that.
func (p *Process) LatestStart() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at.Began
}

// PID is the PID in the box of the last program of the process that has run; 0: none has.
func (p *Process) PID() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder == nil {
		return 0
	}
	return p.holder.PID()
}

// Attached reports whether the process lives and a client is attached, or may use its streams without boxd's knowledge.
func (p *Process) Attached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at.Ended.IsZero() && (len(p.all) > 0 || p.spec.Command.Direct)
}

// Keep is how long the process is kept after its end, if others are kept for so long. With a lease of 0 it was for one client,
// which has left, or removes the process when it has the result, or comes back for that after a restart of boxd.
func (p *Process) Keep(others time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.spec.Lease == nil || *p.spec.Lease > 0:
		return others
	case p.seen && len(p.all) == 0 && !p.leaving():
		return 0
	}
	return min(others, firstLease)
}
