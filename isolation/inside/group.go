// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
)

// mark sees to it that what a program starts can be found: by a cgroup of its own, or where the
// box has none, by a tag.
func (s *server) mark(p *program, limits *cgroup.Limits) error {
	if s.groups.FD < 0 {
		if p.tag = s.ground.Tag(s.tags); p.tag == 0 {
			return stepError(isolation.StepCommand, "tag", unix.EAGAIN)
		}
		return nil
	}
	// As in-box root, whose the groups are; also to start a program in one.
	setfs(0, 0)
	var err error
	if p.group, err = s.groups.Make(isolation.ProgramGroup(p.id)); err != nil {
		return stepError(isolation.StepGroup, isolation.ProgramGroup(p.id), err)
	}
	if err := p.group.Apply(limits.Program()); err != nil {
		return stepError(isolation.StepGroup, err.Error(), err)
	}
	return nil
}

// tags are those that programs have.
func (s *server) tags() (tags []uint32) {
	for _, p := range s.programs {
		tags = append(tags, p.tag)
	}
	return tags
}

// kill ends a program and everything it has started, and returns how many processes were found. Without
// cgroups they are dead then, or p is stuck; with them isEmpty tells.
func (s *server) kill(p *program) (killed uint32) {
	p.killed = true
	if p.group.FD < 0 {
		var all bool
		killed, p.stuck, all = s.ground.Kill(p.tag)
		s.evaded = s.evaded || !all
		return killed
	}
	// Who is frozen forks no more, and dies all the same.
	if p.group.Write("cgroup.freeze", "1") == nil {
		_, _ = p.group.Await("frozen", 1, standStill)
	}
	before, _ := p.group.Processes()
	if err := p.group.Kill(); err != nil {
		s.evaded = true
	}
	s.killHeadless(p)
	return uint32(len(before))
}

// standStill is how long what is to be killed may take to be frozen first.
const standStill = 100 * time.Millisecond

// judge looks at what does not die. Who sleeps in the kernel can do nothing any more; anybody else costs the
// box.
func (s *server) judge(p *program) {
	s.killHeadless(p)
	left, err := p.group.Processes()
	s.evaded = s.evaded || err != nil
	for _, pid := range left {
		alive, state, err := s.ground.Alive(pid)
		if err == nil && alive && state != 'D' {
			s.evaded = true
		}
	}
	p.stuck = true
}

// killHeadless kills those that cgroup.kill has passed over: it signals first threads alone
// (kernel/cgroup/cgroup.c, __cgroup_kill), and a first thread may have ended while others run. Only who is
// still in the group once we hold it is told.
func (s *server) killHeadless(p *program) {
	left, _ := p.group.Processes()
	held := map[int]int{} // descriptors by process id
	for _, pid := range left {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			held[pid] = fd
		}
	}
	left, _ = p.group.Processes()
	for pid, fd := range held {
		if slices.Contains(left, pid) {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

// dyingPatience bounds the wait for killed processes of a cgroup. Other programs of the box do not
// wait meanwhile. What takes longer is judged.
const (
	dyingPatience = 30 * time.Second
	dyingAtOnce   = 2 * time.Millisecond
)

// isEmpty reports whether what a program has left is dead. If it is not, the loop wakes when it is.
func (s *server) isEmpty(p *program) bool {
	if p.group.FD < 0 {
		return true
	}
	if empty, err := p.group.Await("populated", 0, dyingAtOnce); empty || err != nil {
		return true
	}
	events, err := unix.Openat(p.group.FD, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		s.evaded = true
		return true
	}
	p.events, p.deadline = events, monotonic()+dyingPatience
	// The file is ready for EPOLLPRI when it has changed since it was read.
	if p.token, err = s.watchFor(events, watch{program: p}, unix.EPOLLPRI); err != nil {
		s.evaded = true
		return true
	}
	return s.emptied(p)
}

// emptied reads what there is about the group of a program that is dying.
func (s *server) emptied(p *program) bool {
	var buf [256]byte
	n, err := unix.Pread(p.events, buf[:], 0)
	return err != nil || cgroup.KeyOf(buf[:n], "populated") == 0
}

// dropGroup removes the group of a program that has ended, now or when the last process in it has.
func (s *server) dropGroup(p *program) {
	if p.group.FD < 0 {
		return
	}
	p.group.Close()
	p.group.FD = -1
	if errors.Is(s.groups.Remove(isolation.ProgramGroup(p.id)), unix.EBUSY) {
		s.full = append(s.full, isolation.ProgramGroup(p.id))
	}
}

// clearGroups removes the groups that were full and are empty now.
func (s *server) clearGroups() {
	s.full = slices.DeleteFunc(s.full, func(name string) bool {
		return !errors.Is(s.groups.Remove(name), unix.EBUSY)
	})
}

// freezePatience bounds the wait for all programs to stop. A process in an uninterruptible sleep of the
// kernel stops when that ends.
const freezePatience = 5 * time.Second

// freeze stops all programs, or lets them go on, and says when that is so. Time goes on for them: who is
// due is ended frozen. PID 1 does it because it starts the programs: one that froze between clone and
// exec would stop PID 1 too.
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
	done, err := s.groups.Await("frozen", state, freezePatience)
	if err == nil && !done {
		err = unix.ETIMEDOUT
	}
	if err != nil && on {
		return errors.Join(err, s.groups.Write("cgroup.freeze", "0"))
	}
	s.frozen = err == nil && on
	return err
}

// diskOf reads how full a place of the box is; no program can put another in its stead.
func diskOf(path string) isolation.Disk {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return isolation.Disk{}
	}
	return isolation.DiskOf(&fs)
}
