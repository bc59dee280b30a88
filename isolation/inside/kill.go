// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Which processes belong to a program is known by a supplementary group: every program is started
// with one of its own, every descendant inherits it, and without CAP_SETGID none can shed it. It
// survives setsid, double forks and reparenting, which ancestry does not. This is the way where
// there is no cgroup v2 to do it.

// tags hands out group ids for that purpose.
type tags struct {
	next uint32
	used map[uint32]bool
}

// The range of tags lies inside the box's own ids and away from any that a file could have.
const (
	firstTag = 30000
	lastTag  = 59999
)

// take returns a tag no living process has, 0 if there is none left.
func (t *tags) take() uint32 {
	if t.used == nil {
		t.used = map[uint32]bool{}
	}
	for range lastTag - firstTag + 1 {
		if t.next < firstTag || t.next > lastTag {
			t.next = firstTag
		}
		tag := t.next
		t.next++
		if !t.used[tag] {
			t.used[tag] = true
			return tag
		}
	}
	return 0
}

// free gives a tag back; nothing that carries it may be alive.
func (t *tags) free(tag uint32) { delete(t.used, tag) }

// takeTag is take, which looks for tags that nobody has any more when there seems to be none left: a
// program that may leave others running keeps its tag used.
func (s *server) takeTag() uint32 {
	if tag := s.tags.take(); tag != 0 {
		return tag
	}
	used := map[uint32]bool{}
	for _, p := range s.programs {
		used[p.tag] = true
	}
	s.eachProcess(func(p *process) {
		for _, g := range p.groups {
			if g >= firstTag && g <= lastTag {
				used[g] = true
			}
		}
	})
	s.tags.used = used
	return s.tags.take()
}

// killPatience bounds one killTagged: a process in an uninterruptible sleep of the kernel dies only
// when that ends, and must not hold the whole box up.
const killPatience = 5 * time.Second

// looks is how many looks may be spoilt by forks before all processes are stopped for one.
const looks = 4

// killTagged kills every process with a tag, waits until they are dead, and returns how many there
// were. It looks until it has seen none: by its successor a process may escape a look, if it forks
// between being listed and being examined, so only a look counts in whose time nothing has forked.
// stuck means that some were told and do not die.
func (s *server) killTagged(tag uint32) (killed uint32, stuck bool) {
	deadline := monotonic() + killPatience
	for spoilt := 0; monotonic() < deadline; {
		if spoilt >= looks {
			n, stuck := s.killStopped(tag, deadline)
			return killed + n, stuck
		}
		before := s.lastPID()
		n, stuck := s.killOnce(tag, deadline)
		killed += n
		switch {
		case stuck:
			return killed, true
		case n == 0 && before != 0 && before == s.lastPID():
			return killed, false
		case n == 0:
			spoilt++
		}
	}
	s.evaded = true
	return killed, true
}

// killStopped is the way for processes that fork faster than they are found: with all others stopped
// at one moment (kill(2) of -1 goes by the kernel's list of processes, which no fork can pass), what
// carries the tag is found for certain. The others go on; they are stopped for some milliseconds.
func (s *server) killStopped(tag uint32, deadline time.Duration) (killed uint32, stuck bool) {
	asleep := map[int]bool{} // those that were stopped before stay so
	s.eachProcess(func(p *process) { asleep[p.pid] = p.state == 'T' })
	defer s.eachProcess(func(p *process) {
		if !asleep[p.pid] {
			_ = unix.PidfdSendSignal(p.pidfd, unix.SIGCONT, nil, 0)
		}
	})
	for monotonic() < deadline {
		_ = unix.Kill(-1, unix.SIGSTOP)
		before := s.lastPID()
		n, stuck := s.killOnce(tag, deadline)
		killed += n
		if stuck || n == 0 && before == s.lastPID() {
			return killed, stuck
		}
	}
	s.evaded = true
	return killed, true
}

// killOnce kills what one look finds, and waits for its death; stuck means that some do not die.
func (s *server) killOnce(tag uint32, deadline time.Duration) (killed uint32, stuck bool) {
	var fds []int
	s.eachProcess(func(p *process) {
		if !slices.Contains(p.groups, tag) || unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0) != nil {
			return
		}
		killed++
		if fd, err := unix.FcntlInt(uintptr(p.pidfd), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			fds = append(fds, fd)
		}
	})
	for _, fd := range fds {
		stuck = !awaitExit(fd, deadline) || stuck
		unix.Close(fd)
	}
	return killed, stuck
}

// awaitExit waits until the process of a pidfd is dead with all its threads (a pidfd is readable then,
// pidfd_open(2)).
func awaitExit(pidfd int, deadline time.Duration) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		left := max((deadline-monotonic())/time.Millisecond, 0)
		n, err := unix.Poll(poll, int(left))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// lastPID is the process id this box has given out last, 0 if the kernel does not tell: the last field
// of /proc/loadavg (proc(5)) goes by the reader's pid namespace.
func (s *server) lastPID() int {
	fd, err := unix.Openat(s.proc, "loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var buf [128]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return 0
	}
	fields := bytes.Fields(buf[:n])
	if len(fields) != 5 {
		return 0
	}
	pid, _ := strconv.Atoi(string(fields[4]))
	return pid
}

// process is a living process of the box other than PID 1. Its pidfd is open while it is looked at.
type process struct {
	pid    int
	pidfd  int
	state  byte
	groups []uint32
}

// eachProcess calls do for every living process of the box that it finds.
func (s *server) eachProcess(do func(*process)) {
	dir, err := unix.Openat(s.proc, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(dir)
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n <= 0 {
			return
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == 1 {
				continue
			}
			// The descriptor first, so that what is examined is what is killed.
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			p := process{pid: pid, pidfd: fd}
			if s.examine(&p, name) {
				do(&p)
			}
			unix.Close(fd)
		}
	}
}

// examine reads /proc/<pid>/status (proc(5)) and reports whether the process is alive. The state is
// that of its first thread, which may have ended while others run.
func (s *server) examine(p *process, name string) (alive bool) {
	fd, err := unix.Openat(s.proc, name+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return false
	}
	threads := 0
	for line := range bytes.Lines(buf[:n]) {
		if state, ok := bytes.CutPrefix(line, []byte("State:\t")); ok {
			p.state = state[0]
		} else if groups, ok := bytes.CutPrefix(line, []byte("Groups:\t")); ok {
			for g := range bytes.FieldsSeq(groups) {
				id, _ := strconv.ParseUint(string(g), 10, 32)
				p.groups = append(p.groups, uint32(id))
			}
		} else if count, ok := bytes.CutPrefix(line, []byte("Threads:\t")); ok {
			threads, _ = strconv.Atoi(string(bytes.TrimSpace(count)))
		}
	}
	return p.state != 'Z' && p.state != 'X' || threads > 1
}
