// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"bytes"
	"errors"
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

// killPatience bounds one killTagged: a process in an uninterruptible sleep of the kernel dies only
// when that ends, and must not hold the whole box up.
const killPatience = 5 * time.Second

// killTagged kills every process with a tag, waits until they are dead, and returns how many there
// were. It looks again until it finds none: a process born during one look is in the next.
func (s *server) killTagged(tag uint32) (killed uint32) {
	deadline := monotonic() + killPatience
	for monotonic() < deadline {
		fds := s.tagged(tag)
		if len(fds) == 0 {
			return killed
		}
		for _, fd := range fds {
			if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
				killed++
			}
		}
		for _, fd := range fds {
			awaitExit(fd, deadline)
			unix.Close(fd)
		}
	}
	s.tags.used[tag] = true // what could not be killed keeps its tag for good
	return killed
}

// awaitExit waits until the process of a pidfd is dead (a pidfd is readable then, pidfd_open(2)).
func awaitExit(pidfd int, deadline time.Duration) {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		left := (deadline - monotonic()) / time.Millisecond
		if left <= 0 {
			return
		}
		if _, err := unix.Poll(poll, int(left)); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// tagged returns pidfds of all living processes with a tag.
func (s *server) tagged(tag uint32) []int {
	dir, err := unix.Openat(s.proc, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	var fds []int
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n <= 0 {
			return fds
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
			if s.hasTag(name, tag) {
				fds = append(fds, fd)
			} else {
				unix.Close(fd)
			}
		}
	}
}

// hasTag reads /proc/<pid>/status (proc(5)): is the process alive, and is tag among its groups?
func (s *server) hasTag(pid string, tag uint32) bool {
	fd, err := unix.Openat(s.proc, pid+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return false
	}
	dead, member := false, false
	want := strconv.AppendUint(nil, uint64(tag), 10)
	for line := range bytes.Lines(buf[:n]) {
		if state, ok := bytes.CutPrefix(line, []byte("State:\t")); ok {
			dead = state[0] == 'Z' || state[0] == 'X'
		} else if groups, ok := bytes.CutPrefix(line, []byte("Groups:\t")); ok {
			for g := range bytes.FieldsSeq(groups) {
				member = member || bytes.Equal(g, want)
			}
		}
	}
	return member && !dead
}
