// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
)

// Limits by the names they have in best_effort and in a session's record.
const (
	LimitMemory    = "memory"
	LimitCPU       = "cpu"
	LimitPids      = "pids"
	LimitIO        = "io"
	LimitTmp       = "tmp"
	LimitWorkspace = "workspace"
	LimitMounts    = "mounts" // in a record alone: the workspace's, of other directories of the host
)

// Mechanism is what enforces a limit.
type Mechanism string

// The mechanisms.
const (
	MechanismGroup  Mechanism = "cgroup2" // cgroups: all of the box together, exact
	MechanismTmpfs  Mechanism = "tmpfs"   // the size of a tmpfs: exact
	MechanismRlimit Mechanism = "rlimit"  // RLIMIT_NPROC for the whole box; RLIMIT_DATA for each process alone
	MechanismNone   Mechanism = "none"    // nothing
	// MechanismProject and MechanismStore are project quotas of a filesystem: exact, in bytes and inodes.
	MechanismProject Mechanism = isolation.QuotaProject
	MechanismStore   Mechanism = isolation.QuotaStore
	// MechanismHost is said of a workspace that is a directory of the host: its own filesystem bounds it.
	MechanismHost Mechanism = "host"
)

// CgroupLayout is how a host has its cgroups mounted.
type CgroupLayout string

// The layouts. Only CgroupsUnified lets boxd limit memory, CPU and processes.
const (
	CgroupsUnified CgroupLayout = "unified" // v2 only
	CgroupsHybrid  CgroupLayout = "hybrid"  // v1 with the controllers, and v2 beside it without any
	CgroupsLegacy  CgroupLayout = "legacy"  // v1
	CgroupsAbsent  CgroupLayout = "absent"
)

// Host is what a host can enforce.
type Host struct {
	Layout CgroupLayout
	isolation.Host
}

// Enforcement decides how the limits of a session are kept on this host, or that they cannot be:
// a limit that is not kept by the kernel as a whole must have been named as best effort by the
// operator. Doctor and every start ask the same function.
func (c *Config) Enforcement(s *Settings, host Host) (map[string]Mechanism, error) {
	by := map[string]Mechanism{LimitTmp: MechanismTmpfs}
	without := map[string]Mechanism{LimitMemory: MechanismRlimit, LimitPids: MechanismRlimit}
	need := []string{LimitMemory, LimitCPU, LimitPids}
	if s.IORead > 0 || s.IOWrite > 0 || slices.Contains(host.Controllers, LimitIO) { // with it, weights count too
		need = append(need, LimitIO)
	}
	switch {
	case !s.OwnDisk():
		by[LimitWorkspace] = MechanismHost
	case s.WorkspaceQuota == 0:
	case host.Quota != "":
		by[LimitWorkspace] = Mechanism(host.Quota)
	default:
		need = append(need, LimitWorkspace)
	}
	for _, name := range need {
		switch {
		case slices.Contains(host.Controllers, name): // the limits have the controllers' names
			by[name] = MechanismGroup
		case !slices.Contains(c.Limits.BestEffort, name):
			return nil, unenforced(name, host)
		default:
			by[name] = MechanismNone
			if m, ok := without[name]; ok {
				by[name] = m
			}
		}
	}
	if err := c.hostQuotas(s, by, host); err != nil {
		return nil, err
	}
	return by, nil
}

// Groups is a word or two on what the limits of boxes rest on.
func (h *Host) Groups() string {
	if h.Layout == CgroupsUnified && h.NoGroups != "" {
		return string(h.Layout) + ", none for boxes"
	}
	return string(h.Layout)
}

// EnforcedBy says what keeps each limit on this host, the operator's choices apart.
func (c *Config) EnforcedBy(host Host) map[string]Mechanism {
	all := *c
	all.Limits.BestEffort = LimitNames()
	by, _ := all.Enforcement(&Settings{Limits: limits.Limits{IORead: 1, WorkspaceQuota: 1}}, host) // where all may be missing, nothing is refused
	return by
}

// Unenforced are the limits that the operator lets go and that the kernel does not keep as a whole.
func (c *Config) Unenforced(kept map[string]Mechanism) []string {
	return slices.DeleteFunc(slices.Clone(c.Limits.BestEffort), func(name string) bool {
		return kept[name] != MechanismRlimit && kept[name] != MechanismNone
	})
}

// Grouped reports whether any limit is kept by cgroups: then the box has some.
func Grouped(by map[string]Mechanism) bool {
	for _, m := range by {
		if m == MechanismGroup {
			return true
		}
	}
	return false
}

func unenforced(name string, host Host) error {
	err := fault.Errorf(fault.Unsupported, "the %s limit cannot be enforced: %s", name, whyNot(name, host))
	err.Field = "limits.best_effort"
	hint := fmt.Sprintf("add %q to limits.best_effort in box.toml to run boxes without this limit", name)
	if name == LimitWorkspace && host.QuotaHint != "" {
		hint = host.QuotaHint + "; or " + hint
	}
	return err.WithHint("%s", hint).
		By(fault.Denial{Layer: fault.LayerLimit, Rule: "limits.best_effort", Setting: fmt.Sprintf("limits.best_effort with %q", name)})
}

func whyNot(name string, host Host) string {
	switch {
	case name == LimitWorkspace:
		return host.NoQuota
	case host.Layout != CgroupsUnified:
		return "the host has " + string(host.Layout) + " cgroups, not v2"
	case host.NoGroups != "":
		return host.NoGroups
	}
	return "the cgroups of boxes have no controller " + name
}

// Work is the quota of what a session has on disk of its own, if one is kept: its workspace, what it changes of its root, its home.
func Work(s *Settings, by map[string]Mechanism) isolation.Quota {
	if m := by[LimitWorkspace]; s.Workspace != "" && !s.OwnDir() || m != MechanismProject && m != MechanismStore && by[LimitMounts] != MechanismProject {
		return isolation.Quota{}
	}
	return isolation.Quota{Bytes: uint64(s.WorkspaceQuota), Inodes: uint64(s.WorkspaceInodes)}
}

// Groups are the limits of a session for its cgroups.
func Groups(s *Settings) (g cgroup.Limits) {
	for _, l := range limitTable() {
		l.toGroup(s, &g)
	}
	return g
}

func oomWords() []string { return []string{OOMProcess, OOMProgram, OOMSession} }

func oomOf(word string) cgroup.OOM {
	return map[string]cgroup.OOM{OOMProcess: cgroup.OOMProcess, OOMProgram: cgroup.OOMProgram, OOMSession: cgroup.OOMSession}[word]
}
