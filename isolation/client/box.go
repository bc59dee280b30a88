// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ErrBoxLost means that PID 1 of the box is gone, and every process of the box with it.
var ErrBoxLost = errors.New("the box is gone")

// Box is a living box. What PID 1 says is checked as if a program had said it.
type Box struct {
	isolation.Launched
	conn  *fdpass.Conn
	pidfd *os.File
	ready chan error    // one word on the setup, or closed with the connection
	done  chan struct{} // closed when the connection to PID 1 has ended

	mu       sync.Mutex // guards the fields below
	next     uint32
	programs map[uint32]*Program
	gone     bool
}

// newBox takes the descriptors over.
func newBox(l isolation.Launched, control, pidfd int) (*Box, error) {
	file := os.NewFile(uintptr(pidfd), "pidfd")
	conn, err := fdpass.FromFD(control, isolation.MaxBoxReply)
	if err != nil {
		file.Close()
		return nil, err
	}
	b := &Box{Launched: l, conn: conn, pidfd: file, ready: make(chan error, 1), done: make(chan struct{}), programs: map[uint32]*Program{}}
	go b.receive()
	return b, nil
}

// setupPatience is what PID 1 gets to make the box, which takes it less than a millisecond.
const setupPatience = 20 * time.Second

// awaitReady waits for PID 1's word that the box is made.
func (b *Box) awaitReady(ctx context.Context) error {
	timer := time.NewTimer(setupPatience)
	defer timer.Stop()
	select {
	case err, ok := <-b.ready:
		if !ok {
			return ErrBoxLost
		}
		return err
	case <-timer.C:
		return &isolation.StepError{Step: isolation.StepSetup, Item: "PID 1 does not answer", Errno: unix.ETIMEDOUT}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done is closed when the box is gone.
func (b *Box) Done() <-chan struct{} { return b.done }

// Gone reports whether the box is gone.
func (b *Box) Gone() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Close ends the box by closing its connection, and waits until PID 1 has let go of its end. The
// keeper's End cleans up after it.
func (b *Box) Close() {
	b.conn.Close()
	<-b.done
	b.pidfd.Close()
}

// Files are what travels with a command into the box. They stay the caller's.
type Files struct {
	Script *os.File // with Command.ScriptArg >= 0
	Stdin  *os.File // with isolation.StdinFile
}

// Start starts a program. It returns when the command is on its way; a program that could not be
// started says so in Wait, and in Started if its output is followed.
func (b *Box) Start(cmd *isolation.Command, files Files) (*Program, error) {
	p := &Program{box: b, output: cmd.Output, started: make(chan struct{}), exited: make(chan struct{})}
	var fds []int
	for _, f := range []*os.File{files.Script, files.Stdin} {
		if f != nil {
			fds = append(fds, int(f.Fd()))
		}
	}
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return nil, ErrBoxLost
	}
	b.next++
	p.id = b.next
	b.programs[p.id] = p
	b.mu.Unlock()
	req := isolation.BoxRequest{ID: p.id, Spawn: cmd}
	if err := b.conn.Send(req.Encode(), fds...); err != nil {
		b.mu.Lock()
		delete(b.programs, p.id)
		b.mu.Unlock()
		if errors.Is(err, fdpass.ErrTooLarge) {
			return nil, &isolation.StepError{Step: isolation.StepCommand, Item: "size", Errno: unix.E2BIG}
		}
		return nil, ErrBoxLost
	}
	return p, nil
}

// receive takes PID 1's messages until the connection ends or makes no sense any more.
func (b *Box) receive() {
	for {
		body, files, err := b.conn.Recv(true)
		var reply *isolation.BoxReply
		if err == nil {
			reply, err = isolation.DecodeBoxReply(body)
		}
		if err == nil {
			err = b.deliver(reply, files)
		}
		if err != nil {
			fdpass.CloseAll(files)
			break
		}
	}
	b.conn.Close()
	b.mu.Lock()
	b.gone = true
	lost := b.programs
	b.programs = nil
	b.mu.Unlock()
	close(b.ready)
	close(b.done) // before any program ends: who hears of that finds the box gone
	for _, p := range lost {
		p.end(nil, ErrBoxLost)
	}
}

// deliver hands a message to the program it is about. On an error the files are still the caller's.
func (b *Box) deliver(reply *isolation.BoxReply, files []int) error {
	if reply.Ready || reply.Failed != nil && reply.ID == 0 {
		var failed error
		if reply.Failed != nil {
			failed = reply.Failed
		}
		if len(files) > 0 {
			return isolation.ErrMalformed
		}
		select {
		case b.ready <- failed:
			return nil
		default:
			return isolation.ErrMalformed // said twice
		}
	}
	b.mu.Lock()
	p := b.programs[reply.ID]
	if p != nil && !reply.Started {
		delete(b.programs, reply.ID)
	}
	b.mu.Unlock()
	switch {
	case p == nil:
		return isolation.ErrMalformed // nothing of that number was started, or it has ended already
	case reply.Started:
		return p.start(reply, files)
	case reply.Failed != nil && len(files) == 0:
		p.end(nil, reply.Failed)
		return nil
	case reply.Exited != nil:
		if err := p.attach(reply, files); err != nil {
			p.end(nil, ErrBoxLost)
			return err
		}
		p.end(reply.Exited, nil)
		return nil
	}
	p.end(nil, ErrBoxLost)
	return isolation.ErrMalformed
}

// Program is one program started in a box.
type Program struct {
	box     *Box
	id      uint32
	output  isolation.Output
	started chan struct{} // closed when it runs and is followed, or has ended
	exited  chan struct{} // closed when it has ended

	// Set before started is closed.
	pid   uint32
	stdin *os.File
	event *os.File
	rings [2]*ring
	// Set before exited is closed.
	exit *isolation.Exit
	err  error
}

// start takes the files of a followed program.
func (p *Program) start(reply *isolation.BoxReply, files []int) error {
	select {
	case <-p.started:
		return isolation.ErrMalformed
	default:
	}
	if !p.output.Follow || len(files) < 3 || len(files) > 4 {
		return isolation.ErrMalformed
	}
	rings := files[len(files)-3:]
	for _, fd := range rings[:2] {
		if !isMemory(fd) {
			return isolation.ErrMalformed
		}
	}
	for _, fd := range files {
		_ = unix.SetNonblock(fd, true)
	}
	if len(files) == 4 {
		p.stdin = os.NewFile(uintptr(files[0]), "stdin")
	}
	p.rings = [2]*ring{newRing(rings[0]), newRing(rings[1])}
	p.event = os.NewFile(uintptr(rings[2]), "event")
	p.pid = reply.PID
	close(p.started)
	return nil
}

// attach takes the output of a program that was not followed, and checks that no more is claimed to
// be kept than was asked for.
func (p *Program) attach(reply *isolation.BoxReply, files []int) error {
	n := 0
	for i, attached := range reply.Attached {
		end := reply.Exited.Streams[i]
		if attached {
			if p.output.Follow || n >= len(files) || !isMemory(files[n]) || end.Total-(end.CutTo-end.CutFrom) > p.output.Head+p.output.Tail {
				return isolation.ErrMalformed
			}
			n++
		} else if !p.output.Follow && end.Total > 0 {
			return isolation.ErrMalformed
		}
	}
	if n != len(files) {
		return isolation.ErrMalformed
	}
	for i, attached := range reply.Attached {
		if attached {
			p.rings[i] = newRing(files[0])
			files = files[1:]
		}
	}
	return nil
}

func (p *Program) end(exit *isolation.Exit, err error) {
	p.exit, p.err = exit, err
	select {
	case <-p.started:
	default:
		close(p.started)
	}
	close(p.exited)
	if p.event != nil { // wake a follower: there may be nothing more to read
		one := [8]byte{1}
		_, _ = p.event.Write(one[:])
	}
}

// Started waits until a followed program runs. It returns the error of one that could not start,
// and nothing special for one that has already ended.
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

// Stdin is the writing end of the program's standard input, nil if that is no pipe. Closing it is
// the program's end of file. It is valid after Started.
func (p *Program) Stdin() *os.File { return p.stdin }

// Signal sends a signal to the program's process group.
func (p *Program) Signal(sig syscall.Signal) error {
	return p.tell(&isolation.BoxRequest{ID: p.id, Signal: int(sig)})
}

// Kill ends the program and everything it started. Wait tells when that is done.
func (p *Program) Kill() error { return p.tell(&isolation.BoxRequest{ID: p.id, Kill: true}) }

func (p *Program) tell(req *isolation.BoxRequest) error {
	if err := p.box.conn.Send(req.Encode()); err != nil {
		return ErrBoxLost
	}
	return nil
}

// Close releases the descriptors of a program that has ended.
func (p *Program) Close() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	if p.event != nil {
		p.event.Close()
	}
	for _, r := range p.rings {
		if r != nil {
			unix.Close(r.fd)
		}
	}
}

// isMemory reports whether fd is a memory file: reading from it cannot block or have effects.
// Only those know seals (fcntl(2), F_GET_SEALS).
func isMemory(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}
