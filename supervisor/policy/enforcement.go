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

// Limits by their names in best_effort and in a session's record.
const (
	LimitMemory    = "memory"
	LimitCPU       = "cpu"
	LimitPids      = "pids"
	LimitIO        = "io"
	LimitTmp       = "tmp"
	LimitWorkspace = "workspace"
	LimitMounts    = "mounts" // in records only: the workspace's quota on other host directories
)

// Mechanism is what enforces a limit.
type Mechanism string

// The mechanisms.
const (
	MechanismGroup  Mechanism = "cgroup2" // cgroups: the whole box, exact
	MechanismTmpfs  Mechanism = "tmpfs"   // the size of a tmpfs: exact
	MechanismRlimit Mechanism = "rlimit"  // RLIMIT_NPROC for the whole box; RLIMIT_DATA for each process
	MechanismNone   Mechanism = "none"    // nothing
	// MechanismProject and MechanismStore are project quotas of a filesystem: exact, in bytes and inodes.
	MechanismProject Mechanism = isolation.QuotaProject
	MechanismStore   Mechanism = isolation.QuotaStore
	// MechanismHost marks a workspace that is a host directory: its own filesystem limits it.
	MechanismHost Mechanism = "host"
)

// CgroupLayout is how the host mounts its cgroups.
type CgroupLayout string

// The layouts. Only CgroupsUnified lets boxd limit memory, CPU and processes.
const (
	CgroupsUnified CgroupLayout = "unified" // v2 only
	CgroupsHybrid  CgroupLayout = "hybrid"  // v1 with the controllers, and v2 without any
	CgroupsLegacy  CgroupLayout = "legacy"  // v1
	CgroupsAbsent  CgroupLayout = "absent"
)

// Host is what a host can enforce.
type Host struct {
	Layout CgroupLayout
	isolation.Host
}

// Enforcement determines what enforces the limits of a session on this host, or refuses: a limit that the kernel does not enforce
// as a whole must be listed as best effort by the operator. Doctor and every start use this function.
func (c *Config) Enforcement(s *Settings, host Host) (map[string]Mechanism, error) {
	by := map[string]Mechanism{LimitTmp: MechanismTmpfs}
	without := map[string]Mechanism{LimitMemory: MechanismRlimit, LimitPids: MechanismRlimit}
	need := []string{LimitMemory, LimitCPU, LimitPids}
	if s.IORead > 0 || s.IOWrite > 0 || slices.Contains(host.Controllers, LimitIO) { // with it, weights apply too
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
		case slices.Contains(host.Controllers, name): // limits have the names of controllers
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

// Groups describes in a few words the cgroups available to boxes.
func (h *Host) Groups() string {
	if h.Layout == CgroupsUnified && h.NoGroups != "" {
		return string(h.Layout) + ", none for boxes"
	}
	return string(h.Layout)
}

// EnforcedBy returns what enforces each limit on this host, regardless of the operator's best_effort.
func (c *Config) EnforcedBy(host Host) map[string]Mechanism {
	all := *c
	all.Limits.BestEffort = LimitNames()
	by, _ := all.Enforcement(&Settings{Limits: limits.Limits{IORead: 1, WorkspaceQuota: 1}}, host) // with everything as best effort, nothing is refused
	return by
}

// Unenforced returns the limits listed as best effort that the kernel does not enforce as a whole.
func (c *Config) Unenforced(enforced map[string]Mechanism) []string {
	return slices.DeleteFunc(slices.Clone(c.Limits.BestEffort), func(name string) bool {
		return enforced[name] != MechanismRlimit && enforced[name] != MechanismNone
	})
}

// Grouped reports whether cgroups enforce any limit: then the box needs cgroups.
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

// Work returns the quota of a session's own files on disk, if it is enforced: its workspace, changes to its root, its home.
func Work(s *Settings, by map[string]Mechanism) isolation.Quota {
	if m := by[LimitWorkspace]; s.Workspace != "" && !s.OwnDir() || m != MechanismProject && m != MechanismStore && by[LimitMounts] != MechanismProject {
		return isolation.Quota{}
	}
	return isolation.Quota{Bytes: uint64(s.WorkspaceQuota), Inodes: uint64(s.WorkspaceInodes)}
}

// Groups returns the limits of a session for its cgroups.
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
