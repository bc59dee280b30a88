// SPDX-License-Identifier: Apache-2.0

// Package process holds programs that have a name. One is started once, whoever asks how often, and may be read and
// written to by clients that come and go, started again when it ends, and found by the next boxd.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/output"
)

// State is where a process is in its life.
type State string

// The states of a process.
const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StateWaiting  State = "waiting" // for its next start
	StateStopping State = "stopping"
	StateEnded    State = "ended"
)

// moves is every legal move:
//
//	starting ◄──► waiting ◄── running ──► stopping
//	    ├───────────────────────▲            ▲
//	    └────────────────────────────────────┤
//	   all ──► ended
func moves() map[State][]State {
	return map[State][]State{
		StateStarting: {StateRunning, StateWaiting, StateStopping, StateEnded},
		StateRunning:  {StateWaiting, StateStopping, StateEnded},
		StateWaiting:  {StateStarting, StateEnded},
		StateStopping: {StateEnded},
	}
}

// Reasons of an end that is not the program's own doing.
const (
	ReasonStopped   = "stopped"
	ReasonLease     = "lease"
	ReasonRevoked   = "revoked" // its owner has been shut out
	ReasonCrashLoop = "crash loop"
	ReasonNotReady  = "not ready"
	ReasonShutdown  = "shutdown" // of its session
)

// Hooks is what a process gets from its session.
type Hooks struct {
	Box *client.Box
	// Lose gives the box up: it does not do its work.
	Lose func()
	// Leaving reports whether this boxd is about to leave the box to the next: readers that go then will be
	// back, and the program waits for them.
	Leaving func() bool
	// Tell hears that the process of an id is ready, or else that its program was started again.
	Tell func(id string, ready bool)
}

// Process is one process. Drive sees it through.
type Process struct {
	spec  Spec
	hooks Hooks
	stop  chan struct{} // closed when it is to end
	poke  chan struct{} // tells Drive of another time at which something is due
	done  chan struct{} // closed when it has ended
	up    chan struct{} // closed when the first start is over, well or not

	adopted bool // Drive has not seen it yet
	stdio   stdio

	pacing sync.Mutex      // held while the program is told how far its readers are
	paced  *[2]int64       // guarded by pacing: what it has been told last
	typing chan struct{}   // has room for one who writes to the program
	log    *output.Log     // set before up is closed; nil if it has never run
	mu     sync.Mutex      // guards the fields below
	now    *client.Program // the last one started
	holder *client.Program // who has the output: the last one that has run
	file   *os.File        // of holder, see private.go
	fresh  *os.File        // of now, until that runs
	cut    func()          // ends the Write that is under way
	found  bool            // the program waits for lossless readers who are to come, or whom an earlier boxd had
	at     progress
	state  State
	news   chan struct{} // closed at the next change of state
	size   *Size
	given  int64 // bytes of standard input ever taken
	exit   *isolation.Exit
	err    error // why the last start failed, or client.ErrBoxLost
	next   time.Time
	used   time.Time // when the last attachment went, or somebody renewed the lease
	seen   bool      // somebody has been attached
	users  int       // of log
	closed bool      // nobody may begin to use it
	all    map[*Attachment]struct{}
	writer *Attachment
}

func newProcess(home Hooks, spec *Spec) *Process {
	p := &Process{
		spec: *spec, hooks: home, stop: make(chan struct{}), poke: make(chan struct{}, 1), done: make(chan struct{}), up: make(chan struct{}),
		typing: make(chan struct{}, 1), state: StateStarting, news: make(chan struct{}), used: time.Now(), all: map[*Attachment]struct{}{}, found: spec.Command.Wait,
	}
	if t := spec.Command.Terminal; t != nil {
		p.size = (*Size)(t)
	}
	return p
}

// Start starts a process of a resolved Spec. Drive has to be called if there is no error.
func Start(home Hooks, spec *Spec) (*Process, error) {
	p := newProcess(home, spec)
	p.at.First = time.Now()
	if err := p.launch(); err != nil {
		return nil, err
	}
	return p, nil
}

// ErrNotProcess means that a program was not started as a process.
var ErrNotProcess = errors.New("the program is not a process")

// Adopt makes a process of a program that an earlier boxd has left. What that has written down comes from
// PID 1 of the box, and is checked as a request is. Drive has to be called if there is no error.
func Adopt(home Hooks, now *client.Program) (*Process, error) {
	file := now.Private()
	if file == nil {
		return nil, ErrNotProcess
	}
	spec, at, err := readPrivate(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	p := newProcess(home, spec)
	p.at, p.now, p.fresh, p.given, p.adopted, p.found = *at, now, file, at.Input, true, true
	if at.Stopping != "" {
		close(p.stop)
	}
	return p, nil
}

// Past reports whether an adopted process has ended before Drive is called.
func (p *Process) Past() bool {
	return over(p.now) && (!p.at.Ended.IsZero() || p.at.Stopping != "" || p.spec.Restart.Policy == RestartNo)
}

// launch starts the program, for the first time or again.
func (p *Process) launch() error {
	files, err := p.spec.Files()
	if err != nil {
		return err
	}
	defer CloseFiles(&files)
	p.mu.Lock()
	at, old, cmd := p.at, p.holder, p.spec.Command
	if p.size != nil {
		cmd.Terminal = new(isolation.Terminal(*p.size))
	}
	cmd.Wait = cmd.Wait && old == nil // the next one waits as the last did
	at.Starts++
	at.Began, at.Input, at.Ready = time.Now(), p.given, false
	p.mu.Unlock()
	if p.log != nil {
		if at.From, err = p.log.End(); err != nil {
			return err
		}
	}
	var file *os.File
	if !p.spec.Unlisted {
		if file, err = newPrivate(&p.spec, &at); err != nil {
			return err
		}
	}
	files.Private, files.Old = file, old
	now, err := p.hooks.Box.Start(&cmd, files)
	if err != nil {
		closeFile(file)
		return err
	}
	p.launched(now, &at, file)
	return nil
}

// launched takes a program that PID 1 has been told to start. What others have done meanwhile stays: a Write may have dropped
// something, and somebody may have asked for the end.
func (p *Process) launched(now *client.Program, at *progress, file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at.Input, at.Stopping = p.given, p.at.Stopping
	p.now, p.at, p.fresh, p.exit, p.err = now, *at, file, nil, nil
	if p.at.Stopping != "" {
		p.noteLocked() // the file of this start does not have it
	}
}

// setState makes a move, and notes what the next boxd must know.
func (p *Process) setState(to State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(moves()[p.state], to) {
		return // it has ended meanwhile
	}
	p.state = to
	close(p.news)
	p.news = make(chan struct{})
}

// running reports whether there is a program. p.mu is held.
func (p *Process) running() bool { return p.state == StateRunning || p.state == StateStopping }

// noteLocked tells the next boxd how far the process has come, also of a program that has not begun yet. Without memory for
// that, it knows less.
func (p *Process) noteLocked() {
	for _, file := range []*os.File{p.file, p.fresh} {
		if file != nil {
			_ = appendLine(file, &p.at)
		}
	}
}

// use keeps the output from being closed until leave. It returns nil if there is none.
func (p *Process) use() *output.Log {
	select {
	case <-p.up:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.log == nil {
		return nil
	}
	p.users++
	return p.log
}

func (p *Process) leave() {
	p.mu.Lock()
	p.users--
	last := p.closed && p.users == 0
	p.mu.Unlock()
	if last {
		p.free()
	}
}

// Release forgets a process that has ended: PID 1 drops what it keeps, and so does boxd when its last
// reader has gone.
func (p *Process) Release() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	idle := p.users == 0
	p.mu.Unlock()
	if first && idle {
		p.free()
	}
}

func (p *Process) free() {
	p.stdio.drop(goneEnded)
	if p.holder != nil {
		_ = p.holder.Forget() // without PID 1 there is nothing to forget
		p.holder.Close()
	}
	closeFile(p.file)
	closeFile(p.fresh)
}

// Spec is what the process was made with. It must not be changed.
func (p *Process) Spec() *Spec { return &p.spec }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Started waits until the first start is over, and returns why it has failed.
func (p *Process) Started(ctx context.Context) error {
	select {
	case <-p.up:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.log != nil {
		return nil
	}
	_, err := p.Wait(ctx)
	return err
}

// Wait waits for the end of the process and returns what its last program has come to. The error is a
// *isolation.StepError if that could not start, client.ErrBoxLost, or ctx's.
func (p *Process) Wait(ctx context.Context) (*isolation.Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Group is the name of the last program's cgroup in the box's.
func (p *Process) Group() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.Group()
}

// Retained returns what is kept of a stream of a process that has ended, or as much of that as goes into an answer, see
// client.Program.RetainedWithin.
func (p *Process) Retained(stream int) (head, tail []byte, err error) {
	if p.use() == nil {
		return nil, nil, nil
	}
	defer p.leave()
	return p.holder.RetainedWithin(stream, p.spec.Answer)
}

// Stop asks the program to end, kills it if it does not, and returns when the process has ended.
func (p *Process) Stop(ctx context.Context) error {
	p.RequestStop()
	_, err := p.Wait(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// RequestStop is Stop that does not wait.
func (p *Process) RequestStop() { p.requestStop(ReasonStopped) }

// Revoke asks the program to end, and kills it if it does not: its owner may not have it any more.
func (p *Process) Revoke() { p.requestStop(ReasonRevoked) }

func (p *Process) requestStop(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == StateEnded || p.at.Stopping != "" {
		return
	}
	p.at.Stopping = reason
	p.noteLocked()
	close(p.stop)
}

// Signal sends a signal to the program's process group.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	state, now := p.state, p.now
	p.mu.Unlock()
	if state != StateRunning && state != StateStopping {
		return p.notRunning(state)
	}
	return p.orNotRunning(now.Signal(sig))
}

// Resize gives the terminal another size, also for the next start.
func (p *Process) Resize(rows, cols uint16) error {
	p.mu.Lock()
	if p.size != nil {
		p.size = &Size{rows, cols}
	}
	state, now := p.state, p.now
	p.mu.Unlock()
	if state != StateRunning && state != StateStopping {
		return nil
	}
	return p.orNotRunning(now.Resize(rows, cols))
}

func (p *Process) notRunning(state State) error {
	return fault.Errorf(fault.Conflict, "process %s is %s", fault.Show(p.spec.ID), state).WithHint("start it again to use it")
}

func (p *Process) orNotRunning(err error) error {
	switch {
	case errors.Is(err, client.ErrBoxLost), errors.Is(err, os.ErrClosed):
		return p.notRunning(StateEnded)
	case err != nil:
		return fmt.Errorf("process %q: %w", p.spec.ID, err)
	}
	return nil
}
