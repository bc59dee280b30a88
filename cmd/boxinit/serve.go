// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/internal/linux"
)

// server is PID 1 once the box is set up: one thread with one epoll loop.
type server struct {
	root, proc int // "/" and the box's procfs, for openat2
	null       int // /dev/null, the standard input of programs that get no other
	epoll      int
	buf        *fdpass.Buffer
	scratch    []byte // buffer for what cannot be spliced; nil until it is needed

	control   int // connection to boxd, -1 while there is none
	token     int32
	conn      uint32 // number of the connection
	stateSent bool   // this boxd has been sent the state of the programs
	listener  int    // where another boxd connects, -1 if the box cannot be adopted
	lifetime  lifeTimer
	private   int // boxd's own data, held for the next boxd; -1 if none

	programs        map[uint32]*program // by the id that boxd chose
	lastID          uint32              // the greatest of these ids that was ever used
	byPID           map[int]*program
	watches         map[int32]watch // by token, which is the data of an epoll event
	tokens          int32           // the last token; none is used twice
	procs           procView
	rootUser        int          // user namespace of programs that run as root, -1 if there is none
	rootUserErr     error        // why there is none
	groups          cgroup.Group // parent of the programs' cgroups; FD is -1 if the box has none
	nonEmpty        []string     // cgroups of ended programs that still have processes
	frozen          bool
	mayHaveChildren bool // a child may exist, a program or an orphan that was reparented to PID 1
	leftRunning     bool // boxd has been told that processes outlive their program
	unkillable      bool // a program cannot be killed, so the box has to end
}

// watch says what a descriptor in the epoll loop belongs to.
type watch struct {
	program  *program // nil: the control socket
	stream   *stream  // nil: the pidfd of the program, or its cgroup.events
	listener bool
}

// A timer that ticks while programs run reaps the orphans that are reparented to PID 1: nothing else wakes the loop for their
// end, since SIGCHLD is not caught (a handler would cost every exec a good part of its time).
const reapInterval = 100 * time.Millisecond

func newServer(b *box, buf *fdpass.Buffer) (*server, error) {
	s := &server{
		root: b.root, proc: b.proc, buf: buf, control: controlFD, stateSent: true, listener: b.listener, private: -1, procs: procView{Proc: b.proc},
		rootUser: b.rootUser, rootUserErr: b.rootUserErr, groups: cgroup.Group{FD: b.group}, programs: map[uint32]*program{}, byPID: map[int]*program{}, watches: map[int32]watch{},
	}
	for _, sig := range linux.InheritedSignals() {
		if err := linux.DefaultSignal(sig); err != nil {
			return nil, stepError(isolation.StepPrivileges, unix.SignalName(sig), err)
		}
	}
	var err error
	if s.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, stepError(isolation.StepStdio, "/dev/null", err)
	}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, stepError(isolation.StepStdio, "epoll", err)
	}
	if s.token, err = s.watch(s.control, watch{}); err != nil {
		return nil, stepError(isolation.StepStdio, "control", err)
	}
	if s.listener >= 0 {
		if _, err = s.watch(s.listener, watch{listener: true}); err != nil {
			return nil, stepError(isolation.StepStdio, "listener", err)
		}
	}
	s.lifetime.Idle(monotonic())
	return s, nil
}

// serve runs until the life of the box is over. When it returns PID 1 exits, and the kernel kills
// every process of the namespace with it (pid_namespaces(7)).
func (s *server) serve() int {
	events := make([]unix.EpollEvent, 32)
	for {
		n, err := unix.EpollWait(s.epoll, events, s.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 1
		}
		for i := range max(n, 0) {
			s.handle(&events[i])
		}
		s.expire()
		s.reap()
		if s.unkillable {
			return 1
		}
		if s.isExpired() {
			return 0
		}
	}
}

func (s *server) handle(event *unix.EpollEvent) {
	w, ok := s.watches[event.Fd]
	switch {
	case !ok: // ended because of an earlier event of this batch
	case w.listener:
		s.accept()
	case w.program == nil:
		if !s.request() {
			s.orphan()
		}
	case w.stream == nil && w.program.events > 0: // its cgroup.events has changed
		if s.emptied(w.program) {
			s.report(w.program)
		}
	case w.stream == nil: // it has ended, and reap collects it
	case event.Events == unix.EPOLLHUP: // no writer is left and there is nothing to read
		s.closePipe(w.stream)
		w.program.notifyReaders()
	default:
		s.readable(w.program, w.stream)
	}
}

// watch adds a descriptor to the epoll loop.
func (s *server) watch(fd int, w watch) (int32, error) { return s.watchFor(fd, w, unix.EPOLLIN) }

func (s *server) watchFor(fd int, w watch, event uint32) (int32, error) {
	s.tokens++
	ev := unix.EpollEvent{Events: event, Fd: s.tokens}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return 0, err
	}
	s.watches[s.tokens] = w
	return s.tokens, nil
}

// unwatch removes a descriptor from the epoll loop and closes it. The explicit removal matters: a
// vfork child that has not reached exec yet holds a copy, and epoll would go on reporting it.
func (s *server) unwatch(fd int, token int32) {
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	delete(s.watches, token)
	unix.Close(fd)
}

// maxSleep fits into the milliseconds that epoll_wait(2) takes.
const maxSleep = time.Hour

// timeout returns how long the loop may sleep, in milliseconds; -1 is without limit.
func (s *server) timeout() int {
	wait := time.Duration(-1)
	if s.mayHaveChildren {
		wait = reapInterval
	}
	now := monotonic()
	for _, p := range s.programs {
		if p.deadline > 0 {
			wait = min(wait, max(p.deadline-now, 0)) // a running program is a child, so mayHaveChildren is set
		}
	}
	if end := s.endAt(); end > 0 {
		left := max(end-now, 0)
		if wait < 0 || left < wait {
			wait = left
		}
	}
	if wait < 0 {
		return -1
	}
	return int((min(wait, maxSleep) + time.Millisecond - 1) / time.Millisecond)
}

// request handles one message; false means that boxd has gone.
func (s *server) request() bool {
	body, files, err := fdpass.Recv(s.control, s.buf, false)
	noRoom := errors.Is(err, fdpass.ErrNoRoom)
	if err != nil && !noRoom {
		return errors.Is(err, fdpass.ErrMalformed)
	}
	req, err := isolation.DecodeBoxRequest(body)
	if err != nil {
		fdpass.CloseAll(files)
		return true
	}
	if noRoom && req.ID == 0 { // a file for the next boxd, of which this one waits for no answer: it would take one for a failed set-up
		return true
	}
	if noRoom {
		s.send(&isolation.BoxReply{ID: req.ID, Failed: stepError(isolation.StepCommand, "files", unix.EMFILE)})
		return true
	}
	p := s.programs[req.ID]
	switch {
	case req.Freeze != nil:
		s.freeze(req.Freeze.On)
	case req.Times != nil:
		s.lifetime.Set(req.Times, monotonic())
	case req.Private && len(files) == 1:
		if s.private >= 0 {
			unix.Close(s.private)
		}
		s.private = files[0]
		return true
	case req.Adopt != 0:
		s.adopt(req.Adopt)
	case req.Spawn != nil:
		if serr := s.spawn(req.ID, req.Spawn, files); serr != nil {
			s.send(&isolation.BoxReply{ID: req.ID, Failed: serr})
		}
		return true // spawn has closed the files
	case p == nil: // it has just ended, and boxd will be notified
	case req.Pace != nil:
		s.setPace(p, req.Pace)
	case req.Forget && p.finished:
		s.forget(p)
	case p.exit != nil: // its other processes are being killed already
	case req.CloseInput && p.input.pipe >= 0 && !p.terminal:
		unix.Close(p.input.pipe)
		p.input.pipe = -1
	case req.Signal != 0:
		_ = unix.Kill(-p.pid, syscall.Signal(req.Signal)) // the whole process group, as a terminal does
	case req.Kill:
		s.end(p, isolation.ReasonCanceled)
	}
	fdpass.CloseAll(files)
	return true
}

// sendTimeout is how long PID 1 waits for a boxd that does not receive. It is longer than the
// service manager tolerates a boxd that hangs (WatchdogSec= of boxd.service), and a boxd that
// recovers within it has lost nothing.
const sendTimeout = 40 * time.Second

// send sends a message to boxd. A boxd that does not receive, or for which there is no memory, is treated as gone: the next one
// learns what this one missed.
func (s *server) send(reply *isolation.BoxReply, files ...int) {
	if s.control < 0 || !s.stateSent {
		return
	}
	for deadline := monotonic() + sendTimeout; ; {
		err := fdpass.SendNow(s.control, reply.Encode(), files...)
		if err == nil {
			return
		}
		if left := deadline - monotonic(); left > 0 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)) {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.control), Events: unix.POLLOUT}}, int(min(left, 100*time.Millisecond)/time.Millisecond))
			continue
		}
		_ = unix.Shutdown(s.control, unix.SHUT_RDWR) // the event loop notices
		return
	}
}

// expire ends the programs whose time is up.
func (s *server) expire() {
	now := monotonic()
	for _, p := range s.programs {
		switch {
		case p.deadline == 0 || p.deadline > now || s.unkillable:
		case p.exit != nil: // its processes do not die
			s.checkUnkillable(p)
			s.report(p)
		default:
			s.end(p, isolation.ReasonTimedOut)
		}
	}
}

// reap collects every child that has ended: programs, and orphans that were left to PID 1.
func (s *server) reap() {
	s.clearGroups()
	for s.mayHaveChildren {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			s.mayHaveChildren = false // ECHILD
			if s.leftRunning {
				s.leftRunning = false
				s.send(&isolation.BoxReply{Quiet: true})
			}
		case pid == 0:
			return
		case status.Stopped():
			untrace(pid, status.StopSignal())
		default:
			if p := s.byPID[pid]; p != nil {
				s.finish(p, status, &usage)
			}
		}
	}
}

// untrace lets a child go on that has made PID 1 its tracer (PTRACE_TRACEME, ptrace(2)), as programs do that look for a debugger,
// and has stopped for a signal. It gets the signal, but not that of an execve, which only tracers ask for.
func untrace(pid int, signal unix.Signal) {
	if signal == unix.SIGTRAP {
		signal = 0
	}
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(signal), 0, 0); errno != 0 {
		_ = unix.Kill(pid, unix.SIGKILL) // it would never go on
	}
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return time.Duration(ts.Nano())
}
