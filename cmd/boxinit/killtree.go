// SPDX-License-Identifier: Apache-2.0

// Where there is no cgroup v2, all processes that a program of a box has started are found and
// killed by a marker gid.
//
// That is a supplementary group which says what program a process belongs to: every program is
// started with a gid of its own, every descendant inherits it, and without CAP_SETGID none can
// drop it. It survives setsid, double forks and reparenting, which ancestry does not.

package main

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// procView is the procfs of a box, as its PID 1 sees it.
type procView struct {
	Proc int // the mounted procfs
	next uint32
	used map[uint32]bool
}

// Marker gids come from a range inside the box's own ids, where no file can have its group.
const (
	firstTag = 30000
	lastTag  = 59999
)

// allocTag returns a marker gid that no living process has, 0 if there is none left.
func (g *procView) allocTag() uint32 {
	if g.used == nil {
		g.used = map[uint32]bool{}
	}
	for range lastTag - firstTag + 1 {
		if g.next < firstTag || g.next > lastTag {
			g.next = firstTag
		}
		tag := g.next
		g.next++
		if !g.used[tag] {
			g.used[tag] = true
			return tag
		}
	}
	return 0
}

// freeTag gives a marker gid back. No living process may have it.
func (g *procView) freeTag(tag uint32) { delete(g.used, tag) }

// Tag returns a marker gid that no living process has, 0 if there is none. When all seem to be in
// use it looks for those that no process has any more, since a program that may have left
// processes running keeps its own in use. running returns the marker gids of the running
// programs.
func (g *procView) Tag(running func() []uint32) uint32 {
	if tag := g.allocTag(); tag != 0 {
		return tag
	}
	used := map[uint32]bool{}
	for _, tag := range running() {
		used[tag] = true
	}
	err := g.eachProcess(func(p *process) {
		for _, id := range p.groups {
			if id >= firstTag && id <= lastTag {
				used[id] = true
			}
		}
	})
	if err != nil {
		return 0
	}
	g.used = used
	return g.allocTag()
}

// hasOnly reports whether PID 1 has no children but the running programs, by PID. Then a program that was waited for has left
// nothing behind: whatever it has left descends from a child of PID 1 that is no program. Orphans go to the nearest living ancestor
// that is a subreaper (PR_SET_CHILD_SUBREAPER(2const)), else to PID 1 (pid_namespaces(7)), and no ancestor of a program but PID 1 is
// outside of what it started. The list is exact although others fork and exit meanwhile, of which proc_tid_children(5) warns: only
// a wait of this thread takes a child from it, and new ones come last.
func (g *procView) hasOnly(programs map[int]*program) bool {
	// Orphans are listed as children of the first thread, programs as those of this one.
	return unix.Gettid() == 1 && listsOnly(g.Proc, programs)
}

// listsOnly reads the list for hasOnly.
func listsOnly(proc int, programs map[int]*program) bool {
	fd, err := unix.Openat(proc, "1/task/1/children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil { // a kernel without CONFIG_PROC_CHILDREN
		return false
	}
	defer unix.Close(fd)
	var buf [2048]byte // less than a page, at whose end the kernel would cut the list between two entries (fs/seq_file.c)
	n, err := unix.Read(fd, buf[:])
	if err != nil || n == len(buf) { // there may be more
		return false
	}
	for field := range bytes.FieldsSeq(buf[:n]) {
		pid, err := strconv.Atoi(string(field))
		if err != nil || programs[pid] == nil {
			return false
		}
	}
	return true
}

// killTimeout bounds the waits of one Kill, and exitTimeout the wait for one process in it: a
// process in an uninterruptible sleep dies only when that ends, and must not hold up the whole
// box.
const (
	killTimeout = 5 * time.Second
	exitTimeout = time.Second
)

// maxScans bounds how many scans of /proc may find something or be spoilt by forks, and scanTimeout
// how long they may take. After that all processes are stopped during the following scans: then
// none forks any more, and none takes processor time from PID 1.
const (
	maxScans    = 8
	scanTimeout = 250 * time.Millisecond
)

// killing is the state of one Kill.
type killing struct {
	tag      uint32
	deadline time.Time
	killed   uint32
	stuck    map[int]bool // killed, and still not dead
	stopped  bool         // all other processes are stopped
}

// Kill kills every process with a marker gid, waits until they are dead, and returns how many
// there were. It scans /proc until a scan finds none. A process that forks between being listed
// and being examined escapes a scan through its child, so only a scan during which nothing has
// forked counts. stuck means that some were killed and do not die; if complete is false, there may be
// others that were not even found.
func (g *procView) Kill(tag uint32) (killed uint32, stuck, complete bool) {
	start := time.Now()
	k := &killing{tag: tag, deadline: start.Add(killTimeout), stuck: map[int]bool{}}
	clean := false
	for n := 0; n < maxScans && !clean && time.Since(start) < scanTimeout; n++ {
		clean = g.scan(k)
	}
	if !clean {
		clean = g.killStopped(k)
	}
	return k.killed, len(k.stuck) > 0, clean
}

// killStopped handles processes that fork faster than they are found. It stops all others at one
// moment (kill(2) of -1 goes by the kernel's list of processes, which no fork can escape), so
// that every process with the marker gid is found for certain. The rest continues afterwards;
// they stand still for as long as the found ones take to die, usually some milliseconds.
func (g *procView) killStopped(k *killing) (clean bool) {
	alreadyStopped, clean := []int{}, false // already stopped before, and left so
	if g.eachProcess(func(p *process) {
		if p.state == 'T' {
			alreadyStopped = append(alreadyStopped, p.pid)
		}
	}) != nil {
		return false
	}
	k.stopped, k.deadline = true, time.Now().Add(killTimeout)
	for n := 0; n < maxScans && !clean; n++ { // two are enough, however slow the machine
		_ = unix.Kill(-1, unix.SIGSTOP)
		clean = g.scan(k)
	}
	if g.eachProcess(func(p *process) {
		if !slices.Contains(alreadyStopped, p.pid) {
			_ = unix.PidfdSendSignal(p.pidfd, unix.SIGCONT, nil, 0)
		}
	}) != nil { // out of descriptors: continue too many rather than too few
		_ = unix.Kill(-1, unix.SIGCONT)
	}
	return clean
}

// scan kills the processes it finds and waits until they are dead. clean means that it has found
// nothing new and that nothing can have escaped it.
func (g *procView) scan(k *killing) (clean bool) {
	var fds, pids []int
	found := 0
	pidBefore := g.lastPID()
	err := g.eachProcess(func(p *process) {
		if !slices.Contains(p.groups, k.tag) || k.stuck[p.pid] || unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0) != nil {
			return
		}
		found++
		if fd, err := unix.FcntlInt(uintptr(p.pidfd), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			fds, pids = append(fds, fd), append(pids, p.pid)
		}
	})
	k.killed += uint32(found)
	clean = err == nil && found == 0 && pidBefore == g.lastPID() && (pidBefore != 0 || k.stopped)
	for i, fd := range fds {
		deadline := time.Now().Add(exitTimeout)
		if k.deadline.Before(deadline) {
			deadline = k.deadline
		}
		if !awaitExit(fd, deadline) {
			k.stuck[pids[i]] = true
		}
		unix.Close(fd)
	}
	return clean
}

// awaitExit waits until the process of a pidfd is dead with all its threads (a pidfd is readable then,
// pidfd_open(2)).
func awaitExit(pidfd int, deadline time.Time) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		left := max(time.Until(deadline)/time.Millisecond, 0)
		n, err := unix.Poll(poll, int(left))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// lastPID returns the PID that was allocated last in this box, 0 if the kernel does not tell: the
// last field of /proc/loadavg (proc(5)) is that of the reader's pid namespace.
func (g *procView) lastPID() int {
	fd, err := unix.Openat(g.Proc, "loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
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

// process is a living process of the box other than PID 1. Its pidfd stays open while it is
// examined.
type process struct {
	pid    int
	pidfd  int
	state  byte
	groups []uint32
}

// eachProcess calls do for every living process of the box that it finds. An error means that it
// may have missed some that are still alive.
func (g *procView) eachProcess(do func(*process)) error {
	dir, err := unix.Openat(g.Proc, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	buf := make([]byte, 8<<10)
	var missed error
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n <= 0 {
			return errors.Join(missed, err)
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == 1 {
				continue
			}
			// The pidfd first, so that the process examined is the one killed.
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				missed = ignoreGone(missed, err)
				continue
			}
			p := process{pid: pid, pidfd: fd}
			alive, err := g.examine(&p, name)
			if err != nil {
				missed = ignoreGone(missed, err)
			} else if alive {
				do(&p)
			}
			unix.Close(fd)
		}
	}
}

// ignoreGone returns err, or missed as it was if err only says that the process has ended since
// it was listed.
func ignoreGone(missed, err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return missed
	}
	return err
}

// examine reads /proc/<pid>/status (proc(5)) and reports whether the process is alive. The state
// is that of its first thread, which may have ended while others run.
func (g *procView) examine(p *process, name string) (alive bool, err error) {
	fd, err := unix.Openat(g.Proc, name+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return false, err
	}
	threads := 0
	for line := range bytes.Lines(buf[:n]) {
		if state, ok := bytes.CutPrefix(line, []byte("State:\t")); ok {
			p.state = state[0]
		} else if groups, ok := bytes.CutPrefix(line, []byte("Groups:\t")); ok {
			for field := range bytes.FieldsSeq(groups) {
				id, _ := strconv.ParseUint(string(field), 10, 32)
				p.groups = append(p.groups, uint32(id))
			}
		} else if count, ok := bytes.CutPrefix(line, []byte("Threads:\t")); ok {
			threads, _ = strconv.Atoi(string(bytes.TrimSpace(count)))
		}
	}
	return p.state != 'Z' && p.state != 'X' || threads > 1, nil
}

// alive reports whether a process is alive, and its state as in proc(5).
func (g *procView) alive(pid int) (alive bool, state byte, err error) {
	p := process{pid: pid}
	alive, err = g.examine(&p, strconv.Itoa(pid))
	return alive, p.state, err
}
