// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
)

// The fields that more than one message has, or that have parts.

func (e *encoder) limits(l *cgroup.Limits) {
	for _, n := range []uint64{l.Memory, l.MemoryHigh, l.Swap, l.CPU, l.CPUWeight, l.Pids, l.IOWeight, l.IORead, l.IOWrite} {
		e.u64(n)
	}
	e.u8(uint8(l.OOM))
}

func (d *decoder) limits() (l cgroup.Limits) {
	for _, n := range []*uint64{&l.Memory, &l.MemoryHigh, &l.Swap, &l.CPU, &l.CPUWeight, &l.Pids, &l.IOWeight, &l.IORead, &l.IOWrite} {
		*n = d.u64()
	}
	l.OOM = cgroup.OOM(d.u8())
	d.bad = d.bad || l.OOM > cgroup.OOMSession
	return l
}

func (e *encoder) use(u *cgroup.Use) {
	for _, n := range []uint64{uint64(u.User), uint64(u.System), u.MemoryPeak, u.PidsPeak, u.Read, u.Write, u.OOMKills} {
		e.u64(n)
	}
}

func (d *decoder) use() cgroup.Use {
	return cgroup.Use{
		User: time.Duration(d.i64()), System: time.Duration(d.i64()), MemoryPeak: d.u64(), PidsPeak: d.u64(),
		Read: d.u64(), Write: d.u64(), OOMKills: d.u64(),
	}
}

func (e *encoder) spec(s *Spec) {
	e.str(s.Key)
	e.str(s.Hostname)
	e.caller(&s.Caller)
	e.u64(s.Scratch.Bytes, s.Scratch.Inodes)
	e.rlimits(s.Rlimits)
	e.bool(s.Grouped)
	e.str(s.Scope)
	e.limits(&s.Limits)
	e.limits(&s.View)
	e.str(s.Owner.Name)
	e.u64(s.Owner.Memory, s.Owner.CPU, s.Work.Bytes, s.Work.Inodes)
	e.bool(s.ManagedWork)
	e.str(s.Space)
	e.strs(s.Lent)
	e.u32(uint32(len(s.Mounts)))
	for i := range s.Mounts {
		e.mount(&s.Mounts[i])
	}
	e.strs(s.Network)
	e.str(s.Image)
	e.bool(s.Writable)
}

func (d *decoder) spec() *Spec {
	s := &Spec{Key: d.str(), Hostname: d.str(), Caller: d.caller()}
	s.Scratch = Scratch{Bytes: d.u64(), Inodes: d.u64()}
	s.Rlimits = d.rlimits()
	s.Grouped, s.Scope, s.Limits, s.View = d.bool(), d.str(), d.limits(), d.limits()
	s.Owner = cgroup.Owner{Name: d.str(), Memory: d.u64(), CPU: d.u64()}
	s.Work, s.ManagedWork, s.Space, s.Lent = Quota{d.u64(), d.u64()}, d.bool(), d.str(), d.strs()
	for range d.count(15) {
		s.Mounts = append(s.Mounts, d.mount())
	}
	s.Network, s.Image, s.Writable = d.strs(), d.str(), d.bool()
	return s
}

func (e *encoder) rlimits(list []Rlimit) {
	e.u32(uint32(len(list)))
	for _, r := range list {
		e.u32(r.Resource)
		e.u64(r.Soft, r.Hard)
	}
}

func (d *decoder) rlimits() []Rlimit {
	var list []Rlimit
	for range d.count(20) {
		list = append(list, Rlimit{Resource: d.u32(), Soft: d.u64(), Hard: d.u64()})
	}
	return list
}

// MaxItem bounds the texts of a StepError, so that a reply always fits a small buffer.
const MaxItem = 512

func (e *encoder) stepError(s *StepError) {
	e.u8(uint8(s.Step))
	e.str(s.Item[:min(len(s.Item), MaxItem)])
	e.u32(uint32(s.Errno))
	e.bool(s.Refused != nil)
	if r := s.Refused; r != nil {
		for _, text := range []string{r.Field, r.Value, r.Allowed} {
			e.str(text[:min(len(text), MaxItem)])
		}
	}
}

func (d *decoder) stepError() *StepError {
	s := &StepError{Step: Step(d.u8()), Item: d.item(), Errno: syscall.Errno(d.u32())}
	if d.bool() {
		s.Refused = &Refusal{Field: d.item(), Value: d.item(), Allowed: d.item()}
	}
	return s
}

func (d *decoder) item() string {
	s := d.str()
	d.bad = d.bad || len(s) > MaxItem
	return s
}
