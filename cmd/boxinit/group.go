// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
)

// mark makes everything that a program starts findable: by a cgroup of its own, or by a marker
// gid where the box has no cgroups.
func (s *server) mark(p *program, limits *cgroup.Limits) error {
	if s.groups.FD < 0 {
		if p.tag = s.procs.Tag(s.tags); p.tag == 0 {
			return stepError(isolation.StepCommand, "tag", unix.EAGAIN)
		}
		return nil
	}
	// As in-box root, who owns the cgroups; this is also needed to start a program in one.
	setfs(0, 0)
	var err error
	if p.group, err = s.groups.Make(isolation.ProgramGroup(p.id)); err != nil {
		return stepError(isolation.StepGroup, isolation.ProgramGroup(p.id), err)
	}
	if err := p.group.Apply(limits.Program()); err != nil {
		return stepError(isolation.StepGroup, err.Error(), err)
	}
	if limits.Memory > 0 {
		return nil
	}
	return s.showMemory(p.group)
}

// showMemory sets memory.max of a program by that of the box. The keeper, which changes that, has not seen the program if it did so
// before the first look, and has changed both if it did so after the last.
func (s *server) showMemory(program cgroup.Group) error {
	for old := uint64(math.MaxUint64); ; { // no limit, as a new cgroup has it
		memory, err := s.groups.Number("memory.max")
		if err != nil {
			return stepError(isolation.StepGroup, "memory.max of the box: "+err.Error(), err)
		}
		if memory == old {
			return nil
		}
		if err := program.Write("memory.max", cgroup.ProgramMemory(memory)); err != nil {
			return stepError(isolation.StepGroup, err.Error(), err)
		}
		old = memory
	}
}

// tags returns the marker gids that programs have.
func (s *server) tags() (tags []uint32) {
	for _, p := range s.programs {
		tags = append(tags, p.tag)
	}
	return tags
}

// kill ends a program and everything it has started, and returns how many processes were found.
// Without cgroups they are dead when it returns, or p.stuck is set; with cgroups isEmpty reports
// when they are.
func (s *server) kill(p *program) (killed uint32) {
	p.killed = true
	if p.group.FD < 0 {
		var complete bool
		killed, p.stuck, complete = s.procs.Kill(p.tag)
		s.unkillable = s.unkillable || !complete
		return killed
	}
	// A frozen process forks no more, and SIGKILL still ends it.
	if p.group.Write("cgroup.freeze", "1") == nil {
		_, _ = p.group.Await("frozen", 1, killFreezeTimeout)
	}
	before, _ := p.group.Processes()
	if err := p.group.Kill(); err != nil {
		s.unkillable = true
	}
	s.killHeadless(p)
	return uint32(len(before))
}

// killFreezeTimeout is how long freezing a cgroup may take before its processes are killed regardless.
const killFreezeTimeout = 100 * time.Millisecond

// checkUnkillable examines processes that do not die. One in an uninterruptible sleep can do no harm any
// more; because of any other the box must end.
func (s *server) checkUnkillable(p *program) {
	s.killHeadless(p)
	left, err := p.group.Processes()
	s.unkillable = s.unkillable || err != nil
	for _, pid := range left {
		alive, state, err := s.procs.alive(pid)
		if err == nil && alive && state != 'D' {
			s.unkillable = true
		}
	}
	p.stuck = true
}

// killHeadless kills the processes that cgroup.kill passes over: it signals only the first thread
// of each process (kernel/cgroup/cgroup.c, __cgroup_kill), and that may have ended while other
// threads run. The second listing makes sure that each pidfd is of a process of this cgroup,
// whatever PIDs were reused before it was open.
func (s *server) killHeadless(p *program) {
	left, _ := p.group.Processes()
	pidfds := map[int]int{} // pidfds by PID
	for _, pid := range left {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			pidfds[pid] = fd
		}
	}
	left, _ = p.group.Processes()
	for pid, fd := range pidfds {
		if slices.Contains(left, pid) {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

// dyingTimeout bounds the wait for the killed processes of a cgroup. Other programs of the box do not wait meanwhile. After it,
// checkUnkillable decides.
const (
	dyingTimeout = 30 * time.Second
	dyingGrace   = 2 * time.Millisecond
)

// isEmpty reports whether all processes that a program has left behind are dead. If not, the
// event loop wakes when they are.
func (s *server) isEmpty(p *program) bool {
	if p.group.FD < 0 {
		return true
	}
	if empty, err := p.group.Await("populated", 0, dyingGrace); empty || err != nil {
		return true
	}
	events, err := unix.Openat(p.group.FD, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		s.unkillable = true
		return true
	}
	p.events, p.deadline = events, monotonic()+dyingTimeout
	// EPOLLPRI: cgroup.events has changed since it was last read.
	if p.token, err = s.watchFor(events, watch{program: p}, unix.EPOLLPRI); err != nil {
		s.unkillable = true
		return true
	}
	return s.emptied(p)
}

// emptied reads from cgroup.events whether the cgroup of a dying program is empty.
func (s *server) emptied(p *program) bool {
	var buf [256]byte
	n, err := unix.Pread(p.events, buf[:], 0)
	return err != nil || cgroup.KeyOf(buf[:n], "populated") == 0
}

// dropGroup removes the cgroup of a program that has ended, now or, if processes are left in it,
// when the last of them ends.
func (s *server) dropGroup(p *program) {
	if p.group.FD < 0 {
		return
	}
	p.group.Close()
	p.group.FD = -1
	if errors.Is(s.groups.Remove(isolation.ProgramGroup(p.id)), unix.EBUSY) {
		s.nonEmpty = append(s.nonEmpty, isolation.ProgramGroup(p.id))
	}
}

// clearGroups removes those cgroups that still had processes at the end of their program and are
// empty now.
func (s *server) clearGroups() {
	s.nonEmpty = slices.DeleteFunc(s.nonEmpty, func(name string) bool {
		return !errors.Is(s.groups.Remove(name), unix.EBUSY)
	})
}

// freezeTimeout bounds the wait for all programs to stop. A process in an uninterruptible sleep
// stops only when that sleep ends.
const freezeTimeout = 5 * time.Second

// freeze stops all programs or lets them continue, and answers once that has happened. Deadlines
// are not suspended: a frozen program whose time is up is killed frozen. PID 1 does this itself
// because it starts the programs: a program frozen between clone and exec would block PID 1 too.
func (s *server) freeze(on bool) {
	reply := isolation.BoxReply{Frozen: true}
	if err := s.setFrozen(on); err != nil {
		reply.Failed = stepError(isolation.StepFreeze, "", err)
	}
	s.send(&reply)
}

func (s *server) setFrozen(on bool) error {
	if s.groups.FD < 0 {
		return unix.EOPNOTSUPP
	}
	state := map[bool]uint64{true: 1, false: 0}[on]
	if err := s.groups.Write("cgroup.freeze", strconv.FormatUint(state, 10)); err != nil {
		return err
	}
	done, err := s.groups.Await("frozen", state, freezeTimeout)
	if err == nil && !done {
		err = unix.ETIMEDOUT
	}
	if err != nil && on {
		return errors.Join(err, s.groups.Write("cgroup.freeze", "0"))
	}
	s.frozen = err == nil && on
	return err
}

// diskOf reads how full the filesystem at a path of the box is. Programs cannot replace what is
// mounted there.
func diskOf(path string) isolation.Disk {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return isolation.Disk{}
	}
	return isolation.DiskOf(&fs)
}
