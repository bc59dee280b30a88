// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// end kills a program and everything it has started. When the program is dead, finish is called.
func (s *server) end(p *program, reason isolation.Reason) {
	p.deadline = 0
	if p.reason == isolation.ReasonExited {
		p.reason = reason
	}
	s.kill(p)
}

// finish ends and counts the processes that a dead program has left behind, and then has its end
// reported.
func (s *server) finish(p *program, status unix.WaitStatus, usage *unix.Rusage) {
	exit := &isolation.Exit{
		Reason: p.reason, Duration: monotonic() - p.started,
		UserTime: time.Duration(usage.Utime.Nano()), SystemTime: time.Duration(usage.Stime.Nano()),
		MaxRSS: uint64(usage.Maxrss) << 10,
	}
	if status.Signaled() {
		exit.Signal = int(status.Signal())
		if exit.Reason == isolation.ReasonExited {
			exit.Reason = isolation.ReasonSignaled
		}
	} else {
		exit.Code = status.ExitStatus()
	}
	p.exit = exit
	delete(s.byPID, p.pid) // the PID may be reused from here on
	p.deadline = 0
	switch others := s.othersAlive(p); {
	case p.keepRunning && !p.killed:
		exit.LeftRunning = others
		s.leftRunning = s.leftRunning || others
	case others:
		s.unwatch(p.pidfd, p.token)
		p.pidfd = -1
		if wasKilled := p.killed; wasKilled {
			s.kill(p)
		} else {
			exit.Leftovers = s.kill(p)
		}
		if !s.isEmpty(p) {
			return // report is called when they are dead
		}
	}
	s.report(p)
}

// report sends the end of a program to boxd, and forgets the program unless it is durable.
func (s *server) report(p *program) {
	exit := p.exit
	if p.group.FD >= 0 {
		exit.Grouped, exit.Use = true, p.group.Use()
		if exit.Reason == isolation.ReasonSignaled && exit.Signal == int(unix.SIGKILL) && exit.Use.OOMKills > 0 {
			exit.Reason = isolation.ReasonOOM
		}
	}
	exit.Disks = [2]isolation.Disk{diskOf(isolation.Workspace), diskOf("/tmp")}
	reply := isolation.BoxReply{ID: p.id, Exited: exit}
	var files []int
	for i := range p.streams {
		st := &p.streams[i]
		s.drain(p, st)
		exit.Streams[i].Total = uint64(st.ring.Size())
		exit.Streams[i].CutFrom, exit.Streams[i].CutTo = st.ring.Cut()
		if st.ring.FD >= 0 && !p.durable {
			reply.Attached[i] = true
			files = append(files, st.ring.FD)
		}
	}
	s.removeScript(p)
	if p.conn == s.conn { // a later boxd does not know the program, or learns of it from adopt
		s.send(&reply, files...)
	}
	s.release(p) // afterwards, since a caller waits for the message
	p.notifyReaders()
	if p.finished = true; !p.durable {
		s.forget(p)
	}
}

// othersAlive reports whether a program that has ended may have left processes behind. In a box
// without cgroups the answer is whether PID 1 has children that are no programs, which saves a
// walk through /proc.
func (s *server) othersAlive(p *program) bool {
	if p.group.FD >= 0 {
		populated, err := p.group.Populated()
		return populated || err != nil
	}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD) && !s.procs.hasOnly(s.byPID)
}

// abandon undoes a start that failed halfway.
func (s *server) abandon(p *program) {
	if p.continued != nil {
		p.dropOutput()
	}
	s.release(p)
	s.forget(p)
}

// dropOutput makes a program drop its output, which another program continues.
func (p *program) dropOutput() {
	for i := range p.streams {
		p.streams[i].ring.FD = -1
	}
	p.journal.FD, p.event = -1, -1
}

// release frees what a program needs only while it runs.
func (s *server) release(p *program) {
	for i := range p.streams {
		s.closePipe(&p.streams[i])
	}
	if p.input.pipe >= 0 {
		unix.Close(p.input.pipe)
		p.input.pipe = -1
	}
	if p.slave >= 0 {
		unix.Close(p.slave)
		p.slave = -1
	}
	switch {
	case p.pidfd >= 0:
		s.unwatch(p.pidfd, p.token)
		p.pidfd = -1
	case p.events > 0:
		s.unwatch(p.events, p.token)
		p.events = 0
	}
	s.removeScript(p)
	s.dropGroup(p)
	if s.byPID[p.pid] == p {
		delete(s.byPID, p.pid)
	}
	if p.tag != 0 && !p.keepRunning && !p.stuck {
		s.procs.freeTag(p.tag)
		p.tag = 0
	}
	p.deadline = 0
	s.lifetime.Idle(monotonic())
}

// removeScript removes the file that a program was written to.
func (s *server) removeScript(p *program) {
	if p.script == "" {
		return
	}
	restore := asBoxUser()
	defer restore()
	asUser(p.root)
	_ = unix.Unlink(p.script) // the program may have removed it
	p.script = ""
}

// forget drops all state of a program that has been released. boxd may still hold copies of its
// output descriptors.
func (s *server) forget(p *program) {
	for i := range p.streams {
		p.streams[i].ring.Close()
	}
	p.journal.Close()
	fdpass.CloseAll(p.remoteEnds)
	for _, fd := range []int{p.event, p.private, p.input.memory} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	delete(s.programs, p.id)
}
