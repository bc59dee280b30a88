// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Program is one program started in a box.
type Program struct {
	box     *Box
	id      uint32
	output  isolation.Output
	started chan struct{} // closed when it runs and is followed, or has ended
	exited  chan struct{} // closed when it has ended
	missed  error         // its files did not arrive; the receiver's

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

// Group is the name of the program's control group in the box's, if that has any.
func (p *Program) Group() string { return isolation.ProgramGroup(p.id) }

// Signal sends a signal to the program's process group.
func (p *Program) Signal(sig syscall.Signal) error {
	return p.tell(&isolation.BoxRequest{ID: p.id, Signal: int(sig)})
}

// Kill ends the program and everything it started. Wait tells when that is done.
func (p *Program) Kill() error { return p.tell(&isolation.BoxRequest{ID: p.id, Kill: true}) }

func (p *Program) tell(req *isolation.BoxRequest) error {
	if err := p.box.send(req); err != nil {
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
