// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// orphan lets the box continue after boxd has gone. Programs that only a connected caller could use are killed; durable ones keep
// running for the next boxd.
func (s *server) orphan() {
	s.unwatch(s.control, s.token)
	s.control, s.stateSent = -1, false
	s.lifetime.markLost(monotonic())
	for _, p := range s.programs { // kill all of them before waiting for any
		if !p.durable && p.group.FD >= 0 {
			_ = p.group.Kill()
		}
	}
	for _, p := range s.programs {
		if !p.durable && p.exit == nil && !s.unkillable {
			s.end(p, isolation.ReasonCanceled)
		}
	}
}

// isExpired reports whether a box without boxd has reached its end.
func (s *server) isExpired() bool {
	end := s.endAt()
	return end > 0 && end <= monotonic()
}

// endAt returns when the box ends if no boxd connects before, 0 if it does not end.
func (s *server) endAt() time.Duration {
	s.lifetime.Running(s.mayHaveChildren)
	return s.lifetime.End(s.listener >= 0)
}

// accept takes a connection of another boxd, which replaces the one before: the last to connect is boxd. Only the keeper can
// reach the socket, which hands the connection to boxd.
func (s *server) accept() {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return // the client has given up
	}
	if s.control >= 0 {
		s.finishRequests()
		s.orphan()
	}
	token, err := s.watch(fd, watch{})
	if err != nil {
		unix.Close(fd)
		return
	}
	s.control, s.token = fd, token
	s.lifetime.markConnected()
	s.conn++
}

// adopt sends a newly connected boxd, which speaks that version, the state of every durable program. A program that this boxd
// could not read is ended.
func (s *server) adopt(version uint32) {
	s.stateSent = true
	for id, p := range s.programs {
		if !p.durable {
			continue
		}
		if version < isolation.SpoolVersion && p.streams[0].ring.Spooled() { // it would reject the descriptors and lose the box
			if !p.finished {
				s.end(p, isolation.ReasonCanceled)
			}
			continue
		}
		p.conn = s.conn
		k := isolation.ProgramState{
			PID: uint32(p.pid), Input: p.input.pipe >= 0, Taken: p.input.taken(), Terminal: p.terminal,
			Output: isolation.Output{Head: uint64(p.streams[0].ring.Head), Tail: uint64(p.streams[0].ring.Tail)},
		}
		if p.finished {
			k.Exited = p.exit
		}
		files := p.handOver(true)
		if p.private >= 0 {
			files = append([]int{p.private}, files...)
		}
		s.send(&isolation.BoxReply{ID: id, Program: &k}, files...)
	}
	report := isolation.Adopted{Version: min(isolation.BoxVersion, version), Next: s.lastID + 1, Frozen: s.frozen, LeftRunning: s.leftRunning}
	var files []int
	if report.Private = s.private >= 0; report.Private {
		files = append(files, s.private)
	}
	s.send(&isolation.BoxReply{Adopted: &report}, files...)
}

// maxPending is more requests than a boxd has sent when it ends.
const maxPending = 4096

// finishRequests handles what the previous boxd sent and PID 1 has not read yet. Its last request says that the box lives on
// without it: if that were dropped, the box would end with the next boxd that goes before it has said the same.
func (s *server) finishRequests() {
	for range maxPending {
		pending := []unix.PollFd{{Fd: int32(s.control), Events: unix.POLLIN}}
		if n, err := unix.Poll(pending, 0); err != nil || n == 0 || pending[0].Revents&unix.POLLIN == 0 || !s.request() {
			return
		}
	}
}
