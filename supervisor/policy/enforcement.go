// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// Limits by the names they have in best_effort and in a session's record.
const (
	LimitMemory    = "memory"
	LimitCPU       = "cpu"
	LimitPids      = "pids"
	LimitTmp       = "tmp"
	LimitWorkspace = "workspace"
)

// Mechanism is what enforces a limit.
type Mechanism string

// The mechanisms of this version.
const (
	MechanismTmpfs  Mechanism = "tmpfs"  // the size of a tmpfs: exact
	MechanismRlimit Mechanism = "rlimit" // RLIMIT_NPROC for the whole box; RLIMIT_DATA for each process alone
	MechanismNone   Mechanism = "none"   // nothing
)

// Enforcement decides how the limits of a session are kept on this host, or that they cannot be:
// a limit that is not kept by the kernel as a whole must have been named as best effort by the
// operator. Doctor and every start ask the same function.
func (c *Config) Enforcement(s *Settings, host cgroup.Layout) (map[string]Mechanism, error) {
	by := map[string]Mechanism{
		LimitTmp: MechanismTmpfs, LimitMemory: MechanismRlimit, LimitPids: MechanismRlimit, LimitCPU: MechanismNone,
	}
	need := []string{LimitMemory, LimitCPU, LimitPids}
	if s.WorkspaceQuota > 0 {
		by[LimitWorkspace] = MechanismNone
		need = append(need, LimitWorkspace)
	}
	for _, name := range need {
		if !slices.Contains(c.Limits.BestEffort, name) {
			return nil, unenforced(name, host)
		}
	}
	return by, nil
}

func unenforced(name string, host cgroup.Layout) error {
	err := fault.Errorf(fault.Unsupported, "the %s limit cannot be enforced: %s", name, whyNot(name, host))
	err.Field = "limits.best_effort"
	return err.WithHint("as the operator, list %q under limits.best_effort in box.toml to run boxes without it", name)
}

func whyNot(name string, host cgroup.Layout) string {
	switch {
	case name == LimitWorkspace:
		return "this version sets no disk quotas"
	case host == cgroup.Unified:
		return "this version does not write cgroup v2 limits"
	}
	return "the host's control groups are " + string(host) + ", not v2"
}

// Resource limits every box has (setrlimit(2)). Address space is never limited: it says nothing
// about memory, and Go and Node reserve far more of it than they use.
const (
	coreLimit    = 0
	nofileSoft   = 4096
	nofileHard   = 65536
	memlockLimit = 64 << 10
	stackLimit   = 8 << 20
)

// Rlimits are the resource limits of every process of a session.
func Rlimits(s *Settings) []isolation.Rlimit {
	same := func(resource int, n uint64) isolation.Rlimit {
		return isolation.Rlimit{Resource: uint32(resource), Soft: n, Hard: n}
	}
	return []isolation.Rlimit{
		same(unix.RLIMIT_CORE, coreLimit),
		{Resource: unix.RLIMIT_NOFILE, Soft: nofileSoft, Hard: nofileHard},
		same(unix.RLIMIT_MEMLOCK, memlockLimit),
		same(unix.RLIMIT_STACK, stackLimit),
		same(unix.RLIMIT_DATA, uint64(s.Memory)),
		same(unix.RLIMIT_NPROC, uint64(s.Pids)),
	}
}
