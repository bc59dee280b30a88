// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
)

// Program is one program started in a box.
type Program struct {
	box       *Box
	id        uint32
	output    isolation.Output
	durable   bool
	terminal  bool
	direct    bool
	stdin     bool          // it has a standard input that boxd writes to
	continued *Program      // the program it continues
	started   chan struct{} // closed when a durable program runs or has ended
	exited    chan struct{} // closed when the program has ended
	filesErr  error         // why its files did not arrive; belongs to the receiver
	closeOnce sync.Once

	// Set before started is closed.
	pid        uint32
	input      *Input
	log        *output.Log
	event      *os.File // wakes log; nil once the program has ended
	far        []*os.File
	inputTaken int64    // for an adopted program: how many bytes of standard input it has had
	private    *os.File // for an adopted program: what Files.Private was
	// Set before exited is closed.
	rings [2]int // for a program that is not durable; -1 if it has written nothing
	exit  *isolation.Exit
	err   error
}

func (b *Box) newProgram(cmd *isolation.Command) *Program {
	return &Program{
		box: b, output: cmd.Output, durable: cmd.Durable, terminal: cmd.Terminal != nil, direct: cmd.Direct, stdin: cmd.Stdin == isolation.StdinPipe, rings: [2]int{-1, -1},
		started: make(chan struct{}), exited: make(chan struct{}),
	}
}

// start takes the files of a durable program. input says whether those of standard input are
// among them.
func (p *Program) start(pid uint32, input bool, files []int) error {
	select {
	case <-p.started:
		return isolation.ErrMalformed
	default:
	}
	want := 0
	if input {
		want = 2
	}
	if p.direct {
		want = 3
	}
	if p.log == nil { // unless it continues another program's output
		want += 4
	}
	if !p.durable || len(files) != want {
		return isolation.ErrMalformed
	}
	// Check all of them before taking any: after an error they stay the caller's.
	var stdin []int
	if input {
		stdin, files = files[:2], files[2:]
	}
	var far []int
	if p.direct {
		far, files = files[:3], files[3:]
	}
	if stdin != nil && (!output.IsMemory(stdin[1]) || !isKind(stdin[0], p.terminal) || unix.SetNonblock(stdin[0], true) != nil) {
		return isolation.ErrMalformed
	}
	for _, fd := range far {
		if !isKind(fd, false) {
			return isolation.ErrMalformed
		}
	}
	if p.log == nil {
		log, err := output.NewLog(files[0], files[1], files[2], p.output.Tail)
		if err != nil || unix.SetNonblock(files[3], true) != nil {
			return isolation.ErrMalformed
		}
		p.log, p.event = log, os.NewFile(uintptr(files[3]), "event")
		go wakeReaders(p.event, p.log) // ends with Close
	}
	if stdin != nil {
		p.input = newInput(p, stdin[0], stdin[1])
	}
	for _, fd := range far {
		p.far = append(p.far, os.NewFile(uintptr(fd), "stdio"))
	}
	p.pid = pid
	close(p.started)
	return nil
}

// isKind reports whether fd is a pipe, or a terminal.
func isKind(fd int, terminal bool) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	if !terminal {
		return st.Mode&unix.S_IFMT == unix.S_IFIFO
	}
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && err == nil
}

// returnOutput returns the output to the program that this one should have continued.
func (p *Program) returnOutput() {
	if p.continued != nil {
		p.continued.log, p.continued.event, p.log, p.event = p.log, p.event, nil, nil
	}
}

func (p *Program) end(exit *isolation.Exit, err error) {
	p.exit, p.err = exit, err
	neverStarted := false
	select {
	case <-p.started:
	default:
		neverStarted = true
		p.returnOutput()
	}
	log := p.log // another program may continue it as soon as this one has ended
	close(p.exited)
	if neverStarted { // after exited is closed: callers waiting for the start find the end
		close(p.started)
	}
	if p.terminal && p.input != nil {
		p.input.hangUp()
	}
	if log != nil {
		log.Wake() // readers may be waiting for more, and no more will come
	}
}

// ID returns the number of the program in its box; a number is never used twice.
func (p *Program) ID() uint32 { return p.id }

// PID returns the PID of a durable program in its box. It is valid after Started.
func (p *Program) PID() uint32 { return p.pid }

// Started waits until a durable program runs. It returns an error if the program could not start,
// and none if it has already ended.
func (p *Program) Started(ctx context.Context) error {
	select {
	case <-p.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.exited:
		return p.err
	default:
		return nil
	}
}

// Exited is closed when the program has ended.
func (p *Program) Exited() <-chan struct{} { return p.exited }

// Wait waits for the end of the program. The error is a *isolation.StepError if it could not start,
// ErrBoxLost if the box is gone, or ctx's.
func (p *Program) Wait(ctx context.Context) (*isolation.Exit, error) {
	select {
	case <-p.exited:
		return p.exit, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Input returns the standard input of a durable program, nil if that is no pipe or terminal. It
// is valid after Started.
func (p *Program) Input() *Input { return p.input }

// Far returns boxd's ends of a direct program's standard input, output and error. The caller owns them, and may call it once,
// after Started. An adopted program has none.
func (p *Program) Far() []*os.File {
	far := p.far
	p.far = nil
	return far
}

// Taken returns how many bytes of standard input an adopted program had been given when it was
// adopted.
func (p *Program) Taken() int64 { return p.inputTaken }

// Private returns what Files.Private was when an adopted program was started, nil if there was
// none. It is the caller's.
func (p *Program) Private() *os.File { return p.private }

// Group returns the name of the program's cgroup below the box's, if the box has cgroups.
func (p *Program) Group() string { return isolation.ProgramGroup(p.id) }

// Signal sends a signal to the program's process group.
func (p *Program) Signal(sig syscall.Signal) error {
	return p.send(&isolation.BoxRequest{ID: p.id, Signal: int(sig)})
}

// Resize changes the size of the program's terminal. Without a terminal it does nothing.
func (p *Program) Resize(rows, cols uint16) error {
	if !p.terminal || p.input == nil {
		return nil
	}
	return p.input.resize(rows, cols)
}

// Kill ends the program and everything it has started. Wait returns when that is done.
func (p *Program) Kill() error { return p.send(&isolation.BoxRequest{ID: p.id, Kill: true}) }

// Pace makes a durable program wait when it is Output.Tail bytes of a stream ahead of taken. With
// nil it never waits.
func (p *Program) Pace(taken *[2]int64) error {
	pace := isolation.Pace{}
	if taken != nil {
		pace = isolation.Pace{Wait: true, Taken: [2]uint64{uint64(taken[0]), uint64(taken[1])}}
	}
	return p.send(&isolation.BoxRequest{ID: p.id, Pace: &pace})
}

// Forget makes PID 1 drop what it holds of a durable program that has ended. What this boxd has
// of it stays until Close.
func (p *Program) Forget() error { return p.send(&isolation.BoxRequest{ID: p.id, Forget: true}) }

func (p *Program) send(req *isolation.BoxRequest) error {
	if err := p.box.send(req); err != nil {
		return ErrBoxLost
	}
	return nil
}

// Close releases the descriptors of a program that has ended, or that is left to the next boxd.
// No reads or writes may be in progress.
func (p *Program) Close() { p.closeOnce.Do(p.close) }

func (p *Program) close() {
	if p.input != nil {
		p.input.close()
	}
	if p.event != nil {
		p.event.Close()
	}
	if p.log != nil {
		p.log.Close()
	}
	for _, f := range p.far {
		f.Close()
	}
	for _, fd := range p.rings {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
