// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"syscall"

	"github.com/boxd-dev/boxd/cgroup"
)

// The fields of parts that more than one message has.

func limits(c *codec, l *cgroup.Limits) {
	c.u64(&l.Memory, &l.MemoryHigh, &l.Swap, &l.CPU, &l.CPUWeight, &l.Pids, &l.IOWeight, &l.IORead, &l.IOWrite)
	small(c, &l.OOM)
	c.refuse(l.OOM > cgroup.OOMSession)
}

func use(c *codec, u *cgroup.Use) {
	c.durations(&u.User, &u.System)
	c.u64(&u.MemoryPeak, &u.PidsPeak, &u.Read, &u.Write, &u.OOMKills)
}

func (d *Disk) fields(c *codec) { c.u64(&d.Used, &d.Limit, &d.Files, &d.FilesLimit) }

func (q *Quota) fields(c *codec) { c.u64(&q.Bytes, &q.Inodes) }

func (r *Rlimit) fields(c *codec) {
	c.u32(&r.Resource)
	c.u64(&r.Soft, &r.Hard)
}

func (x *Caller) fields(c *codec) {
	c.u32(&x.UID, &x.GID)
	listOf(c, &x.Groups, 4, func(gid *uint32) { c.u32(gid) })
}

func (m *Mount) fields(c *codec) {
	c.str(&m.Source, &m.Target)
	c.bool(&m.Writable)
	c.u32(&m.Owner)
	c.bool(&m.NoSymlinks, &m.Bound)
}

func (e *StepError) fields(c *codec) {
	small(c, &e.Step)
	c.items(&e.Item)
	errno := uint32(e.Errno)
	if c.u32(&errno); c.reading {
		e.Errno = syscall.Errno(errno)
	}
	optional(c, &e.Refused)
}

func (r *Refusal) fields(c *codec) { c.items(&r.Field, &r.Value, &r.Allowed) }

func owner(c *codec, o *cgroup.Owner) {
	c.str(&o.Name)
	c.u64(&o.Memory, &o.CPU)
}

func (s *Spec) fields(c *codec) {
	c.str(&s.Key, &s.Hostname)
	s.Caller.fields(c)
	c.u64(&s.Scratch.Bytes, &s.Scratch.Inodes)
	list(c, &s.Rlimits, 20)
	c.bool(&s.Grouped)
	c.str(&s.Scope)
	limits(c, &s.Limits)
	limits(c, &s.View)
	owner(c, &s.Owner)
	s.Work.fields(c)
	c.bool(&s.ManagedWork)
	c.str(&s.Space)
	c.strs(&s.Lent)
	list(c, &s.Mounts, 15)
	s.Network.fields(c)
	c.str(&s.Image)
	c.bool(&s.Writable, &s.DiskHome, &s.Resume)
	c.str(&s.User.Name, &s.User.Home)
}
