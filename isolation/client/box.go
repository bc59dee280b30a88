// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ErrBoxLost means that PID 1 of the box is gone, and every process of the box with it.
var ErrBoxLost = errors.New("the box is gone")

// Box is a running box. Messages of PID 1 are checked as if a program of the box had sent them.
type Box struct {
	isolation.Launched
	conn   *fdpass.Conn
	recv   *fdpass.Buffers
	pidfd  *os.File
	broken bool          // a message was malformed, or the last one; used only by the message handler
	ready  chan error    // receives the outcome of the set-up, or is closed with the connection
	done   chan struct{} // closed when the connection to PID 1 has ended

	freezeMu    sync.Mutex  // held during a Freeze or a Ping
	freezeReply chan error  // receives the answer
	unanswered  atomic.Bool // PID 1 has yet to answer
	frozen      bool        // the box is frozen; guarded by freezeMu

	adopting        bool                   // guarded by mu
	adoptedPrograms []*Program             // belongs to the receiver until adoptReply has received
	noDescriptors   bool                   // there were no descriptors for the adopted programs; guarded by mu
	private         *os.File               // guarded by mu
	adoptReply      chan isolation.Adopted // receives the last message of an adopted box's report

	mu          sync.Mutex // guards the fields below
	next        uint32
	programs    map[uint32]*Program
	gone        bool
	version     uint32    // of the protocol that PID 1 speaks
	leftRunning bool      // processes outlive their program
	since       time.Time // when the last of those ended
	watcher     func(gone bool)
}

// newBox takes the descriptors over.
func newBox(l isolation.Launched, control, pidfd int, recv *fdpass.Buffers) (*Box, error) {
	file := os.NewFile(uintptr(pidfd), "pidfd")
	conn, err := fdpass.FromFD(control, isolation.MaxBoxReply)
	if err != nil {
		file.Close()
		return nil, err
	}
	conn.Patience = sendTimeout
	b := &Box{Launched: l, conn: conn, recv: recv, pidfd: file, ready: make(chan error, 1), done: make(chan struct{}), freezeReply: make(chan error, 1), adoptReply: make(chan isolation.Adopted, 1), programs: map[uint32]*Program{}, version: isolation.BoxVersion}
	go b.receive()
	return b, nil
}

// sendTimeout is how long a message may wait for a PID 1 that does not receive. The only slow thing it does is to kill, a few
// seconds for each program; a PID 1 that a hostile program has stopped is given up.
const sendTimeout = 10 * time.Second

// setupTimeout is how long PID 1 may take to set the box up, which takes it less than a
// millisecond.
const setupTimeout = 20 * time.Second

// awaitReady waits until PID 1 reports that the box is set up.
func (b *Box) awaitReady(ctx context.Context) error {
	timer := time.NewTimer(setupTimeout)
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

// LeftRunning reports whether processes in the box outlive the program that started them. If not,
// it returns since when: zero if there never were any.
func (b *Box) LeftRunning() (bool, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leftRunning, b.since
}

// Watch sets what is called when the last process that LeftRunning reports has ended, and, with gone, once the box is gone; also
// for what has happened before. The watcher must not wait for the box, nor close it. A goroutine for each box that waits for both
// would cost some KiB.
func (b *Box) Watch(watcher func(gone bool)) {
	b.mu.Lock()
	gone, quiet := b.gone, !b.leftRunning && !b.since.IsZero()
	b.watcher = watcher
	b.mu.Unlock()
	if gone || quiet {
		watcher(gone)
	}
}

// Close ends the box by closing its connection, and waits until PID 1 has closed its end. The
// keeper's End cleans up after it.
func (b *Box) Close() {
	b.conn.Close()
	<-b.done
	b.pidfd.Close()
}

// Files are the files sent with a command into the box. They stay the caller's.
type Files struct {
	Script  *os.File // with Command.ScriptArg >= 0
	Stdin   *os.File // with isolation.StdinFile
	Private *os.File // for a durable program: PID 1 holds it for the next boxd
	// Old is a program of the same box that has ended, whose output the durable one continues.
	// From then on the old one has none.
	Old *Program
}

// Start starts a program. It returns once the command is sent; if the program cannot be started, Wait returns the error, and so
// does Started if the program is durable.
func (b *Box) Start(cmd *isolation.Command, files Files) (*Program, error) {
	p := b.newProgram(cmd)
	if old := files.Old; old != nil {
		next := *cmd
		next.Continue = old.id
		cmd = &next
		p.log, p.event, p.continued, p.output = old.log, old.event, old, old.output
		old.log, old.event = nil, nil
	}
	var fds []int
	for _, f := range []*os.File{files.Script, files.Stdin, files.Private} {
		if f != nil {
			fds = append(fds, int(f.Fd()))
		}
	}
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		p.returnOutput()
		return nil, ErrBoxLost
	}
	if unsupportedErr := unsupported(cmd, b.version); unsupportedErr != nil {
		b.mu.Unlock()
		p.end(nil, unsupportedErr)
		return p, nil
	}
	b.next++
	p.id = b.next
	b.programs[p.id] = p
	b.mu.Unlock()
	req := isolation.BoxRequest{ID: p.id, Spawn: cmd}
	if err := b.send(&req, fds...); err != nil {
		b.mu.Lock()
		registered := b.programs[p.id] == p
		delete(b.programs, p.id)
		b.mu.Unlock()
		if registered {
			p.returnOutput()
		} else {
			<-p.exited // the receiver has lost the box, and gives the old output back
		}
		if errors.Is(err, fdpass.ErrTooLarge) {
			return nil, &isolation.StepError{Step: isolation.StepCommand, Item: "size", Errno: unix.E2BIG}
		}
		for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ETOOMANYREFS} {
			if errors.Is(err, errno) { // this process is short of something, and the box has not received the command
				return nil, &isolation.StepError{Step: isolation.StepCommand, Item: "message", Errno: errno}
			}
		}
		return nil, ErrBoxLost
	}
	return p, nil
}

// unsupported returns the part of a command that a PID 1 of this version does not support, nil if it supports all of it.
func unsupported(cmd *isolation.Command, version uint32) *isolation.StepError {
	switch {
	case cmd.Existing && version < 2: // it would make the directory
		return &isolation.StepError{Step: isolation.StepDirectory, Item: cmd.Dir, Errno: unix.EOPNOTSUPP}
	case cmd.Merged && version < 3: // it would keep the streams apart
		return &isolation.StepError{Step: isolation.StepStdio, Item: isolation.ItemMerged, Errno: unix.EOPNOTSUPP}
	case cmd.Spool && version < isolation.SpoolVersion: // it would keep all of it in memory, or refuse the message
		return &isolation.StepError{Step: isolation.StepStdio, Item: isolation.ItemSpooled, Errno: unix.EOPNOTSUPP}
	case cmd.Root && version < isolation.RootVersion: // it would refuse the message
		return &isolation.StepError{Step: isolation.StepUser, Item: "root", Errno: unix.EOPNOTSUPP}
	}
	return nil
}

// send sends a message. If PID 1 does not receive it, the connection is closed.
func (b *Box) send(req *isolation.BoxRequest, fds ...int) error {
	err := b.conn.Send(req.Encode(), fds...)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		b.conn.Shutdown() // not Close: this may be on behalf of a message that is being handled
	}
	return err
}

// receive handles PID 1's messages until the connection ends or a message is malformed.
func (b *Box) receive() {
	b.conn.Receive(true, b.recv, b.handle)
	b.conn.Close()
	b.mu.Lock()
	b.gone = true
	lost := b.programs
	b.programs = nil
	watcher := b.watcher
	b.mu.Unlock()
	close(b.ready)
	close(b.done) // before the programs end: their waiters then find the box gone
	for _, p := range lost {
		p.end(nil, ErrBoxLost)
	}
	if watcher != nil {
		watcher(true)
	}
}

// handle handles one message of PID 1. After a malformed message, or none, it stops using the connection.
func (b *Box) handle(body []byte, files []int, err error) (more bool) {
	if b.broken {
		fdpass.CloseAll(files)
		return false
	}
	var reply *isolation.BoxReply
	noRoom := errors.Is(err, fdpass.ErrNoRoom)
	if err == nil || noRoom {
		reply, err = isolation.DecodeBoxReply(body)
	}
	if err == nil && noRoom {
		err = b.handleNoFiles(reply)
	} else if err == nil {
		err = b.deliver(reply, files)
	}
	if err != nil {
		fdpass.CloseAll(files)
		b.broken = true
		b.conn.Shutdown() // so that receive finds the end, whichever goroutine handled this message
	}
	return err == nil
}

// handleNoFiles handles a message for whose files this process had no descriptors left: its program is of no more use to its caller, and
// the others are not affected.
func (b *Box) handleNoFiles(reply *isolation.BoxReply) error {
	b.mu.Lock()
	if b.adopting { // all or nothing: another boxd may have descriptors left
		b.noDescriptors = true
		b.mu.Unlock()
		return fdpass.ErrNoRoom
	}
	p := b.programs[reply.ID]
	if p != nil && reply.Exited != nil {
		delete(b.programs, reply.ID)
		b.leftRunning = b.leftRunning || reply.Exited.LeftRunning
	}
	b.mu.Unlock()
	switch {
	case p != nil && reply.Started && p.filesErr == nil:
		p.filesErr = fdpass.ErrNoRoom
		_ = p.Kill() // its end will be reported; without PID 1, the end of the box is
	case p != nil && reply.Exited != nil:
		p.end(nil, fdpass.ErrNoRoom)
	default:
		return isolation.ErrMalformed // no other message has files
	}
	return nil
}

// deliver passes a message to the program it is about. After an error the files are still the
// caller's.
func (b *Box) deliver(reply *isolation.BoxReply, files []int) error {
	switch {
	case reply.Frozen:
		return b.deliverFrozen(reply, files)
	case reply.Program != nil:
		return b.deliverProgram(reply, files)
	case reply.Adopted != nil:
		return b.deliverAdopted(reply, files)
	}
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
			return isolation.ErrMalformed // sent twice
		}
	}
	if reply.Quiet {
		b.mu.Lock()
		b.leftRunning, b.since = false, time.Now()
		watcher := b.watcher
		b.mu.Unlock()
		if watcher != nil {
			watcher(false)
		}
		fdpass.CloseAll(files)
		return nil
	}
	b.mu.Lock()
	p := b.programs[reply.ID]
	if p != nil && !reply.Started {
		delete(b.programs, reply.ID)
	}
	if reply.Exited != nil && reply.Exited.LeftRunning {
		b.leftRunning = true
	}
	b.mu.Unlock()
	switch {
	case p == nil:
		return isolation.ErrMalformed // no program with that id was started, or it has ended already
	case reply.Started:
		return p.start(reply.PID, p.stdin, files)
	case reply.Failed != nil && len(files) == 0:
		p.end(nil, reply.Failed)
		return nil
	case reply.Exited != nil && p.attach(reply, files) == nil:
		p.end(reply.Exited, p.filesErr)
		return nil
	}
	p.end(nil, ErrBoxLost)
	return isolation.ErrMalformed
}
