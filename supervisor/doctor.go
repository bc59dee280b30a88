// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// doctor examines a host.
type doctor struct {
	Boxes  *driver.Driver
	Config *policy.Config
	State  string                                         // the state directory
	Look   func(ctx context.Context) (policy.Host, error) // returns what can be enforced
	Spec   func(context.Context) (*isolation.Spec, error) // spec of a typical session's box
	More   []isolation.Check                              // see Parts.Checks
}

// Examine checks for what a box needs, and what enforces each limit. A line is CheckFail exactly if no session of the default
// profile can start because of it.
func (d *doctor) Examine(ctx context.Context) ([]isolation.Check, error) {
	checks, err := d.Boxes.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	host, err := d.Look(ctx)
	if err != nil {
		return nil, err
	}
	checks = append(checks, d.checkBox(ctx), checkControlGroups(host))
	for _, name := range []string{policy.LimitMemory, policy.LimitCPU, policy.LimitPids, policy.LimitIO, policy.LimitWorkspace} {
		checks = append(checks, d.checkLimit(name, host))
	}
	checks = append(checks, checkTotals(d.Config, host, d.Boxes.Scopes())...)
	checks = append(checks, checkConnections(d.Config, trackedConnections())...)
	return append(append(checks, d.checkDisk()), d.More...), nil
}

// checkTotals reports what enforces a policy's total_memory and total_cpus over all sessions of an owner. boxd always accounts
// for them; nothing is refused where the kernel does not enforce them too.
func checkTotals(cfg *policy.Config, host policy.Host, scopes bool) []isolation.Check {
	some := false
	for _, b := range cfg.Policies {
		some = some || b.Memory > 0 || b.CPUs > 0
	}
	if !some {
		return nil
	}
	c := isolation.Check{Name: "policy totals", Level: isolation.CheckWarn}
	const reserved = "total_memory and total_cpus are enforced by boxd only, not by the kernel: "
	switch {
	case len(host.Controllers) == 0:
		c.Detail, c.Hint = reserved+"boxes have no cgroups", "fix the check \"cgroups\" first"
	case scopes:
		c.Detail, c.Hint = reserved+"each box has a systemd scope of its own", "set cgroups.driver = \"direct\" in box.toml; it has a cgroup per owner"
	default:
		c.Level, c.Detail = isolation.CheckOK, "enforced by a cgroup per owner"
	}
	return []isolation.Check{c}
}

// fewSessions is for how many sessions at their connection limit a host should have room. A small host has room for 64 with the
// defaults of the kernel and of box.toml.
const fewSessions = 32

// checkConnections reports whether all sessions together could fill the host's connection tracking table, without which the
// host itself gets no connections. tracked is the size of that table; 0: the host has none.
func checkConnections(cfg *policy.Config, tracked int) []isolation.Check {
	some, limit := false, 0
	for _, p := range cfg.Profiles {
		if p.Network != policy.NetworkEgress {
			continue
		}
		n := cmp.Or(p.NetworkConnections, cfg.DefaultCaps.Connections)
		if n == 0 {
			n = tracked
		}
		some, limit = true, max(limit, n)
	}
	if !some || tracked == 0 {
		return nil
	}
	c := isolation.Check{Name: "connections", Detail: fmt.Sprintf("the host can track %d; %d sessions with %d each fit", tracked, cfg.Sessions.Max, limit)}
	if n := tracked / limit; n < cfg.Sessions.Max {
		c.Detail = fmt.Sprintf("the host can track %d; more than %d sessions with %d each, of at most %d, exceed that", tracked, n, limit, cfg.Sessions.Max)
		if n < fewSessions {
			c.Level, c.Hint = isolation.CheckWarn, "raise net.netfilter.nf_conntrack_max with sysctl, or lower network.connections or sessions.max in box.toml"
		}
	}
	return []isolation.Check{c}
}

// trackedConnections returns how many connections the host can track; 0: it tracks none.
func trackedConnections() int {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return n
}

// checkBox starts and ends a box as a session of the default profile would have it: a host that passes has done what it will be
// asked to do.
func (d *doctor) checkBox(ctx context.Context) isolation.Check {
	c := isolation.Check{Name: "test box"}
	spec, err := d.Spec(ctx)
	if err != nil {
		c.Level, c.Detail = isolation.CheckFail, err.Error()
		return c
	}
	start := time.Now()
	box, err := d.Boxes.Launch(ctx, spec)
	if err != nil {
		c.Level, c.Detail, c.Hint = isolation.CheckFail, err.Error(), "no box can start: see journalctl -b -u boxd.service -u boxd-keeper.service"
		return c
	}
	elapsed := time.Since(start)
	err = d.Boxes.End(context.WithoutCancel(ctx), spec.Key, true)
	box.Close()
	if err != nil {
		c.Level, c.Detail = isolation.CheckFail, "it cannot be ended: "+err.Error()
		return c
	}
	c.Detail = fmt.Sprintf("started in %.1f ms", float64(elapsed.Microseconds())/1000)
	return c
}

func checkControlGroups(host policy.Host) isolation.Check {
	c := isolation.Check{Name: "cgroups", Detail: string(host.Layout)}
	switch {
	case host.Layout != policy.CgroupsUnified:
		c.Level = isolation.CheckWarn
		c.Detail += ": limits need cgroup v2"
		c.Hint = "boot with systemd.unified_cgroup_hierarchy=1 (systemd 258 and later always use v2)"
	case host.NoGroups != "":
		c.Level = isolation.CheckWarn
		c.Detail += ", but not available to boxes: " + host.NoGroups
		c.Hint = "systemctl start boxd-boxes.service, or set cgroups.parent in box.toml to a delegated cgroup"
	default:
		c.Detail += ", controllers for boxes: " + strings.Join(host.Controllers, ", ")
	}
	return c
}

// checkLimit reports what a start would be told about one limit.
func (d *doctor) checkLimit(name string, host policy.Host) isolation.Check {
	c := isolation.Check{Name: name + " limit"}
	profile := d.Config.Profiles[d.Config.Sessions.DefaultProfile]
	only := *d.Config
	for _, other := range policy.LimitNames() {
		if other != name {
			only.Limits.BestEffort = append([]string{other}, only.Limits.BestEffort...)
		}
	}
	by, err := only.Enforcement(&policy.Settings{Limits: limits.Limits{Memory: profile.Memory, IORead: 1, WorkspaceQuota: 1}}, host)
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
		c.Level, c.Detail = isolation.CheckOK, "enforced by cgroup"
	case policy.MechanismRlimit:
		c.Detail = "best effort: by rlimit, not by cgroup"
		if name == policy.LimitMemory {
			c.Detail = "best effort: limited per process (rlimit), not for the whole box"
		}
	case policy.MechanismProject:
		c.Level, c.Detail = isolation.CheckOK, "enforced by project quota in "+host.Workspaces
	case policy.MechanismStore:
		c.Level, c.Detail = isolation.CheckOK, "enforced by project quota in the store "+host.Workspaces
	default:
		c.Detail = "best effort: not enforced (limits.best_effort)"
	}
	return c
}

// lowDisk is the free space below which doctor warns about the state directory.
const lowDisk = quantity.GiB

func (d *doctor) checkDisk() isolation.Check {
	c := isolation.Check{Name: "disk"}
	var fs unix.Statfs_t
	if err := unix.Statfs(d.State, &fs); err != nil {
		c.Level, c.Detail = isolation.CheckWarn, err.Error()
		return c
	}
	free := quantity.Size(fs.Bavail) * quantity.Size(fs.Bsize)
	c.Detail = fmt.Sprintf("%d MiB free in %s", free/quantity.MiB, d.State)
	if free < lowDisk {
		c.Level, c.Hint = isolation.CheckWarn, "free disk space, or workspaces run full: boxctl ls --all, boxctl rm BOX"
	}
	return c
}
