// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// life is how long the box lives without boxd. All times are of the monotonic clock.
type life struct {
	times       isolation.Times
	endAt       time.Duration // 0: none
	orphanSince time.Duration // 0: boxd is there
	idleSince   time.Duration // when the last program has ended
}

func (l *life) set(t *isolation.Times) {
	l.times, l.endAt = *t, 0
	if t.End > 0 {
		l.endAt = monotonic() + t.End
	}
}

// orphan goes on without boxd: what nobody but its callers could want is ended, the rest waits for the next.
func (s *server) orphan() {
	s.unwatch(s.control, s.token)
	s.control, s.served = -1, false
	s.life.orphanSince = monotonic()
	for _, p := range s.programs { // all at once, before any of them is waited for
		if !p.durable && p.group.FD >= 0 {
			_ = p.group.Kill()
		}
	}
	for _, p := range s.programs {
		if !p.durable && p.exit == nil && !s.evaded {
			s.end(p, isolation.ReasonCanceled)
		}
	}
}

// outlived reports whether the box has no reason to live on.
func (s *server) outlived() bool {
	end := s.endAt()
	return end > 0 && end <= monotonic()
}

// endAt is when the box ends unless boxd comes; 0 while that is there, or if nothing ends the box.
func (s *server) endAt() time.Duration {
	l := &s.life
	if l.orphanSince == 0 {
		return 0
	}
	at := time.Duration(0)
	sooner := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	switch {
	case s.listener < 0, l.times.Grace == 0 && !l.times.Parked:
		return l.orphanSince
	case !l.times.Parked:
		sooner(l.orphanSince + l.times.Grace)
	}
	if l.endAt > 0 {
		sooner(l.endAt)
	}
	if l.times.Idle > 0 && !s.childful {
		sooner(max(l.idleSince, l.orphanSince) + l.times.Idle)
	}
	return at
}

// accept takes another boxd's connection; who has connected last is boxd. Only root of the host can reach
// the socket.
func (s *server) accept() {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return // it has given up meanwhile
	}
	if s.control >= 0 {
		s.orphan()
	}
	token, err := s.watch(fd, watch{})
	if err != nil {
		unix.Close(fd)
		return
	}
	s.control, s.token, s.life.orphanSince = fd, token, 0
	s.conn++
	s.life.times.Parked = false
}

// adopt tells a boxd that has just come what there is.
func (s *server) adopt() {
	s.served = true
	for id, p := range s.programs {
		if !p.durable {
			continue
		}
		p.conn = s.conn
		k := isolation.Kept{
			PID: uint32(p.pid), Input: p.input.pipe >= 0, Taken: p.input.taken(), Terminal: p.terminal,
			Output: isolation.Output{Head: uint64(p.streams[0].ring.Head), Tail: uint64(p.streams[0].ring.Tail)},
		}
		if p.over {
			k.Exited = p.exit
		}
		files := p.handOver(true)
		if p.private >= 0 {
			files = append([]int{p.private}, files...)
		}
		s.send(&isolation.BoxReply{ID: id, Program: &k}, files...)
	}
	last := isolation.Adopted{Version: isolation.BoxVersion, Next: s.last + 1, Frozen: s.frozen, Kept: s.kept}
	var files []int
	if last.Private = s.private >= 0; last.Private {
		files = append(files, s.private)
	}
	s.send(&isolation.BoxReply{Adopted: &last}, files...)
}
