// SPDX-License-Identifier: Apache-2.0

// Package process holds programs that have a name. A process is started once, however many callers ask for it. Clients may
// attach to its streams and detach, it is restarted by its policy, and the next boxd adopts it.
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

// State is the state of a process in its life cycle.
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

// Reasons for the end of a process, other than that its program has ended.
const (
	ReasonStopped   = "stopped"
	ReasonLease     = "lease"
	ReasonRevoked   = "revoked" // its owner has lost access
	ReasonCrashLoop = "crash loop"
	ReasonNotReady  = "not ready"
	ReasonShutdown  = "shutdown" // of its session
)

// Hooks are the callbacks of a process into its session.
type Hooks struct {
	Box *client.Box
	// Lose gives the box up, as it does not work.
	Lose func()
	// Leaving reports whether this boxd is about to leave the box to the next: readers that disconnect then will be back, and
	// the program waits for them.
	Leaving func() bool
	// Tell is called when the process with an id is ready, or else when its program was restarted.
	Tell func(id string, ready bool)
}

// Process is one process. Drive runs it to its end.
type Process struct {
	spec   Spec
	hooks  Hooks
	stop   chan struct{} // closed to request its end
	wakeup chan struct{} // tells Drive that something else is due
	done   chan struct{} // closed when it has ended
	up     chan struct{} // closed when the first start is over, successful or not

	adopted bool // and not seen by Drive yet
	stdio   stdio

	paceMu      sync.Mutex      // held while PID 1 is told the position of readers
	paced       *[2]int64       // guarded by paceMu: the position that PID 1 was told last
	typing      chan struct{}   // semaphore: one writer at a time
	log         *output.Log     // set before up is closed; nil if it has never run
	mu          sync.Mutex      // guards the fields below
	now         *client.Program // the latest program started
	holder      *client.Program // the program whose output is read: the latest one that has run
	file        *os.File        // private file of holder, see private.go
	fresh       *os.File        // private file of now, until that runs
	cancelWrite func()          // cancels the Write that is under way
	found       bool            // the program waits for lossless readers that are yet to attach, or that an earlier boxd had
	at          progress
	state       State
	changed     chan struct{} // closed at the next change of state
	size        *Size
	given       int64 // bytes of standard input taken in all
	exit        *isolation.Exit
	err         error // why the last start failed, or client.ErrBoxLost
	next        time.Time
	used        time.Time // when the last attachment ended or the lease was renewed
	seen        bool      // a client has attached
	users       int       // number of users of log
	closed      bool      // released: no new users
	all         map[*Attachment]struct{}
	writer      *Attachment
}

func newProcess(home Hooks, spec *Spec) *Process {
	p := &Process{
		spec: *spec, hooks: home, stop: make(chan struct{}), wakeup: make(chan struct{}, 1), done: make(chan struct{}), up: make(chan struct{}),
		typing: make(chan struct{}, 1), state: StateStarting, changed: make(chan struct{}), used: time.Now(), all: map[*Attachment]struct{}{}, found: spec.Command.Wait,
	}
	if t := spec.Command.Terminal; t != nil {
		p.size = (*Size)(t)
	}
	return p
}

// Start starts a process from a resolved Spec. If there is no error, the caller must call Drive.
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

// Adopt makes a process of a program that an earlier boxd has left. What that boxd has recorded comes from PID 1 of the box,
// and is validated as a request is. If there is no error, the caller must call Drive.
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
	return hasEnded(p.now) && (!p.at.Ended.IsZero() || p.at.Stopping != "" || p.spec.Restart.Policy == RestartNo)
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
	cmd.Wait = cmd.Wait && old == nil // the next program waits as the last did
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

// launched takes over a program that PID 1 was told to start. It keeps what has happened meanwhile: a Write may have dropped
// bytes, and a stop may have been requested.
func (p *Process) launched(now *client.Program, at *progress, file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at.Input, at.Stopping = p.given, p.at.Stopping
	p.now, p.at, p.fresh, p.exit, p.err = now, *at, file, nil, nil
	if p.at.Stopping != "" {
		p.noteLocked() // the private file of this start does not have it
	}
}

// setState makes a transition, if it is legal, and announces it on changed.
func (p *Process) setState(to State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(moves()[p.state], to) {
		return // it has ended meanwhile
	}
	p.state = to
	close(p.changed)
	p.changed = make(chan struct{})
}

// running reports whether a program runs. p.mu is held.
func (p *Process) running() bool { return p.state == StateRunning || p.state == StateStopping }

// noteLocked records the progress of the process for the next boxd, also of a program that has not started yet. If memory is
// short, the next boxd knows less.
func (p *Process) noteLocked() {
	for _, file := range []*os.File{p.file, p.fresh} {
		if file != nil {
			_ = appendLine(file, &p.at)
		}
	}
}

// use keeps the output open until leave. It returns nil if there is none.
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

// Release drops a process that has ended: PID 1 drops what it keeps, and so does boxd when the last reader has left.
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
		_ = p.holder.Forget() // fails without PID 1, which kept it
		p.holder.Close()
	}
	closeFile(p.file)
	closeFile(p.fresh)
}

// Spec is the Spec of the process. It must not be modified.
func (p *Process) Spec() *Spec { return &p.spec }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Started waits until the first start is over, and returns why it failed.
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

// Wait waits for the end of the process and returns the outcome of its last program. The error is a *isolation.StepError if
// that could not start, client.ErrBoxLost, or ctx's.
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

// Retained returns what is kept of a stream of a process that has ended, or as much of it as fits into a response, see
// client.Program.RetainedWithin.
func (p *Process) Retained(stream int) (head, tail []byte, err error) {
	if p.use() == nil {
		return nil, nil, nil
	}
	defer p.leave()
	return p.holder.RetainedWithin(stream, p.spec.Answer)
}

// Stop asks the program to end, kills it if it does not, and waits for the end of the process.
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

// Revoke asks the program to end, and kills it if it does not, because its owner has lost access.
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

// Resize changes the size of the terminal, also for the next start.
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
