// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/cgroup/usage"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// addUse adds what the control group of an execution has told.
func (o *outcome) addUse(r *Result) {
	exit := o.exit
	if by := o.session.enforced[policy.LimitWorkspace]; by == policy.MechanismProject || by == policy.MechanismStore {
		r.addFull(policy.LimitWorkspace, exit.Disks[0])
	}
	r.addFull(policy.LimitTmp, exit.Disks[1])
	if !exit.Grouped {
		return
	}
	u := exit.Use
	r.Grouped = true
	r.UserTime, r.SysTime = u.User, u.System
	r.MemoryPeak = quantity.Size(u.MemoryPeak)
	// The kernel counts attempts that it has then refused as well (kernel/cgroup/pids.c, pids_try_charge).
	pids := int(o.limits.Pids)
	if pids == 0 {
		pids = o.session.settings().Pids
	}
	r.PidsPeak = min(int(u.PidsPeak), pids)
	r.Read, r.Written = quantity.Size(u.Read), quantity.Size(u.Write)
	if u.OOMKills == 0 {
		return
	}
	r.OOM = &OOM{Kills: int(u.OOMKills), Limit: quantity.Size(o.limits.Memory), Own: true}
	if r.OOM.Limit == 0 {
		r.OOM.Limit, r.OOM.Own = o.session.settings().Memory, false
	}
	if info := o.session.Info(); info.Group != "" {
		r.OOM.Victims = usage.Victims(cgroup.Mount, filepath.Join(info.Group, "work", o.group))
	}
}

// Full is a place in a box that is full: an execution has left it so. One that has removed what did not fit
// any more is not known.
type Full struct {
	Kind        string // policy.LimitWorkspace or policy.LimitTmp
	Used, Limit quantity.Size
	Files       uint64
	FilesLimit  uint64
}

// roomForOne is less than any file needs.
const roomForOne = 4 * quantity.KiB

// IsFull reports whether nothing more fits.
func IsFull(d isolation.Disk) bool {
	return d.Limit > 0 && (quantity.Size(d.Used)+roomForOne > quantity.Size(d.Limit) || d.Files >= d.FilesLimit)
}

func (r *Result) addFull(kind string, d isolation.Disk) {
	if !IsFull(d) {
		return
	}
	r.Full = append(r.Full, Full{kind, quantity.Size(d.Used), quantity.Size(d.Limit), d.Files, d.FilesLimit})
}

// limitHit is the refusal of a program that could not be started because the session has as much as it may.
func limitHit(s *Session, step *isolation.StepError) error {
	switch {
	case step.Step == isolation.StepFreeze:
		return frozenError(s.ID)
	case s.grouped() && step.Step == isolation.StepExec && errors.Is(step, unix.EAGAIN):
		return fault.Errorf(fault.Exhausted, "session %s has as many processes as it may, %d (pids)", fault.Show(s.ID), s.settings().Pids).
			WithHint("end some of them, or raise the limit with boxctl set")
	case step.Step == isolation.StepGroup && errors.Is(step, unix.EAGAIN):
		return fault.Errorf(fault.Exhausted, "session %s has as many programs as it may, %d", fault.Show(s.ID), cgroup.MaxGroups).
			WithHint("end some of those that others have left running")
	}
	return nil
}

// Work is how full a session's workspace is, nil if it has no quota.
func (v *Supervisor) Work(s *Session) *isolation.Disk {
	if policy.Work(&policy.Settings{WorkspaceQuota: 1}, s.enforced).Bytes == 0 {
		return nil
	}
	v.mu.Lock()
	dir := v.host.Workspaces
	v.mu.Unlock()
	// What the filesystem says of a directory with a project is about that (statfs(2), quotas of ext4 and xfs).
	var fs unix.Statfs_t
	if unix.Statfs(filepath.Join(dir, s.Key), &fs) != nil {
		return nil // it is ending
	}
	return new(isolation.DiskOf(&fs))
}

// Usage is what the programs of a session use, nil if it has no control groups or is gone.
func (s *Session) Usage() *usage.Box {
	info := s.Info()
	if info.Group == "" || info.State != StateReady {
		return nil
	}
	b, _ := usage.Read(filepath.Join(info.Group, "work")) // nil of one that is ending
	return b
}
