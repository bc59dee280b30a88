// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup/usage"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Doctor examines the host: what a box needs, and what is enforced by what. A line is CheckFail
// exactly if no session of the default profile can start because of it.
func (v *Supervisor) Doctor(ctx context.Context) ([]isolation.Check, error) {
	select { // each examination starts a box, which no limit on sessions counts
	case v.exams <- struct{}{}:
		defer func() { <-v.exams }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	checks, err := v.boxes.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	host, err := v.lookAtHost(ctx)
	if err != nil {
		return nil, err
	}
	checks = append(checks, v.checkBox(ctx), checkControlGroups(host))
	for _, name := range []string{policy.LimitMemory, policy.LimitCPU, policy.LimitPids, policy.LimitIO, policy.LimitWorkspace} {
		checks = append(checks, v.checkLimit(name, host))
	}
	return append(checks, v.checkDisk()), nil
}

// checkBox starts a box as a session of the default profile would have it, and ends it: a host that
// passes has done what it will be asked to do.
func (v *Supervisor) checkBox(ctx context.Context) isolation.Check {
	c := isolation.Check{Name: "a real box"}
	s := &Session{ID: "doctor", Key: policy.Key("", rand.Text()), Hostname: "doctor"}
	var err error
	if s.Settings, _, err = v.cfg.Merge(&policy.Request{}); err != nil {
		c.Level, c.Detail = isolation.CheckFail, err.Error()
		return c
	}
	begin := time.Now()
	if s.enforced, err = v.enforcement(ctx, &s.Settings); err != nil {
		s.enforced = nil // checkLimit says so; this is about the box
	}
	box, err := v.boxes.Launch(ctx, s.spec())
	if err != nil {
		c.Level, c.Detail, c.Hint = isolation.CheckFail, err.Error(), "the step and the error say what the host refuses"
		return c
	}
	took := time.Since(begin)
	err = v.boxes.End(context.WithoutCancel(ctx), s.Key, true)
	box.Close()
	if err != nil {
		c.Level, c.Detail = isolation.CheckFail, "it does not end: "+err.Error()
		return c
	}
	c.Detail = fmt.Sprintf("started in %.1f ms", float64(took.Microseconds())/1000)
	return c
}

func checkControlGroups(host policy.Host) isolation.Check {
	c := isolation.Check{Name: "control groups", Detail: string(host.Layout)}
	switch {
	case host.Layout != usage.Unified:
		c.Level = isolation.CheckWarn
		c.Detail += ": v2 alone can limit boxes"
		c.Hint = "boot with systemd.unified_cgroup_hierarchy=1, or upgrade: from version 258 on systemd has v2 alone"
	case host.NoGroups != "":
		c.Level = isolation.CheckWarn
		c.Detail += ", but boxes have none: " + host.NoGroups
		c.Hint = "systemctl start boxd-boxes.service, or name a delegated group as cgroups.parent in box.toml"
	default:
		c.Detail += ", boxes have " + strings.Join(host.Controllers, ", ") + "; each limit was written and read back"
	}
	return c
}

// checkLimit asks what a start would be told about one limit.
func (v *Supervisor) checkLimit(name string, host policy.Host) isolation.Check {
	c := isolation.Check{Name: name + " limit"}
	profile := v.cfg.Profiles[v.cfg.Sessions.DefaultProfile]
	only := v.cfg
	for _, other := range policy.LimitNames() {
		if other != name {
			only.Limits.BestEffort = append([]string{other}, only.Limits.BestEffort...)
		}
	}
	by, err := only.Enforcement(&policy.Settings{Memory: profile.Memory, IORead: 1, WorkspaceQuota: 1}, host)
	if err != nil {
		c.Level, c.Detail = isolation.CheckFail, err.Error()
		if f, ok := err.(*fault.Error); ok { //nolint:errorlint // made two lines above
			c.Hint = f.Hint
		}
		if name == policy.LimitIO && profile.IORead+profile.IOWrite == 0 || name == policy.LimitWorkspace && profile.WorkspaceQuota == 0 {
			c.Level = isolation.CheckWarn // only sessions that ask for one are refused
		}
		return c
	}
	c.Level = isolation.CheckWarn
	switch by[name] {
	case policy.MechanismGroup:
		c.Level, c.Detail = isolation.CheckOK, "kept by control groups"
	case policy.MechanismRlimit:
		c.Detail = "best effort: by rlimit, not by the kernel's control groups"
	case policy.MechanismProject:
		c.Level, c.Detail = isolation.CheckOK, "kept by project quota in "+host.Workspaces+", found out by running into one"
	case policy.MechanismStore:
		c.Level, c.Detail = isolation.CheckOK, "kept by project quota in the store, "+host.Workspaces+", found out by running into one"
	default:
		c.Detail = "best effort: not enforced"
	}
	return c
}

// lowDisk is where doctor begins to worry about the state directory.
const lowDisk = quantity.GiB

func (v *Supervisor) checkDisk() isolation.Check {
	c := isolation.Check{Name: "disk"}
	var fs unix.Statfs_t
	if err := unix.Statfs(v.state, &fs); err != nil {
		c.Level, c.Detail = isolation.CheckWarn, err.Error()
		return c
	}
	free := quantity.Size(fs.Bavail) * quantity.Size(fs.Bsize)
	c.Detail = fmt.Sprintf("%d MiB free in %s", free/quantity.MiB, v.state)
	if free < lowDisk {
		c.Level, c.Hint = isolation.CheckWarn, "make room: boxes write their workspaces there"
	}
	return c
}

// Overview is the daemon in figures.
type Overview struct {
	Sessions      int
	MaxSessions   int
	Running       int
	Executed      uint64
	Goroutines    int
	ControlGroups string
	BestEffort    []string // limits that may be missing
	Unenforced    []string // of them, those that are not kept here
}

// controlGroups is a word or two on what the limits of boxes rest on.
func (v *Supervisor) controlGroups() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := string(v.layout)
	if v.layout == usage.Unified && v.host.NoGroups != "" {
		text += ", none for boxes"
	}
	return text
}

// Overview returns the daemon in figures.
func (v *Supervisor) Overview() Overview {
	st := Overview{
		MaxSessions: v.cfg.Sessions.Max, Goroutines: runtime.NumGoroutine(),
		ControlGroups: v.controlGroups(), BestEffort: v.cfg.Limits.BestEffort,
	}
	st.Unenforced = v.unenforced()
	v.mu.Lock()
	st.Executed, st.Sessions = v.executed, len(v.sessions)
	all := make([]*Session, 0, len(v.sessions))
	for _, s := range v.sessions {
		all = append(all, s)
	}
	v.mu.Unlock()
	for _, s := range all {
		st.Running += s.Info().Running
	}
	return st
}

// unenforced are the limits that the operator lets go and that the kernel does not keep as a whole.
func (v *Supervisor) unenforced() []string {
	v.mu.Lock()
	host := v.host
	v.mu.Unlock()
	all := v.cfg
	all.Limits.BestEffort = policy.LimitNames() // so that nothing is refused
	by, err := all.Enforcement(&policy.Settings{IORead: 1, WorkspaceQuota: 1}, host)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(v.cfg.Limits.BestEffort), func(name string) bool {
		return by[name] != policy.MechanismRlimit && by[name] != policy.MechanismNone
	})
}

// Profiles returns the configured profiles by name.
func (v *Supervisor) Profiles() map[string]policy.Profile { return v.cfg.Profiles }

// Ready reports whether sessions can start: the keeper is there and boxd is not stopping.
func (v *Supervisor) Ready() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return fault.Errorf(fault.Unavailable, "boxd is stopping")
	}
	select {
	case <-v.boxes.Done():
		return fault.Errorf(fault.Unavailable, "the keeper is gone")
	default:
		return nil
	}
}
