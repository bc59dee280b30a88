// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// Change applies a request to a running session: what the request leaves out stays. It accepts the fields that can change while a
// session runs. What the profile locks is locked here too.
func (p *Profile) Change(now *Settings, req *Request) (Settings, error) {
	s := *now
	s.Labels = maps.Clone(now.Labels)
	m := merger{profile: now.Profile, locked: p.Locked}
	for _, l := range limitTable() {
		if l.how() == always {
			l.pick(&m, &s, req)
		}
	}
	if m.err != nil {
		return s, m.err
	}
	if req.NetworkRules != nil {
		if err := s.mergeNetwork(p, req.NetworkRules); err != nil {
			return s, err
		}
	}
	if err := cmp.Or(s.mergeCaps(p, req), s.quotaFor(req), s.checkQuota(now)); err != nil {
		return s, err
	}
	if req.Labels != nil {
		if err := CheckLabels(req.Labels); err != nil {
			return s, err
		}
		s.Labels = req.Labels
	}
	if req.Metadata != nil {
		if err := checkMetadata(req.Metadata); err != nil {
			return s, err
		}
		s.Metadata = req.Metadata
	}
	return s, s.validate()
}

// unchanged reports whether two settings are the same.
func (s *Settings) unchanged(other *Settings) bool { return reflect.DeepEqual(s, other) }

// Fits refuses requested limits that exceed what the machine has, since they would limit nothing.
func (req *Request) Fits(has Machine, s *Settings) error {
	switch {
	case req.CPUs != nil && s.CPUs > float64(has.CPUs):
		return fault.Field("cpus", s.CPUs, fmt.Sprintf("at most %d, the CPUs of this host", has.CPUs))
	case req.Memory != nil && s.Memory > has.Memory:
		return fault.Field("memory", s.Memory, fmt.Sprintf("at most %d MiB, the memory of this host", has.Memory/quantity.MiB))
	case req.Pids != nil && s.Pids > has.Pids:
		return fault.Field("pids", s.Pids, fmt.Sprintf("at most %d, the limit of this host (kernel.pid_max)", has.Pids))
	}
	return nil
}

// ProgramLimits are an execution's own limits, within its session's. Nil: none.
type ProgramLimits struct {
	CPUs   *float64
	Memory *quantity.Size
	Pids   *int
}

// Groups validates the limits of one program and converts them for its cgroup.
func (l *ProgramLimits) Groups(s *Settings, by map[string]Mechanism) (cgroup.Limits, error) {
	limits := cgroup.Limits{OOM: oomOf(s.OOM)}
	for _, f := range []struct {
		limit, field string
		given        bool
	}{{LimitCPU, "cpus", l.CPUs != nil}, {LimitMemory, "memory", l.Memory != nil}, {LimitPids, "pids", l.Pids != nil}} {
		if f.given && by[f.limit] != MechanismGroup {
			err := fault.Errorf(fault.Unsupported, "%s: a limit for one execution needs cgroups, which this session does not have", f.field).
				WithHint("leave it out (the session's limit applies); boxctl doctor says why there are no cgroups")
			err.Field, err.Allowed = f.field, "left out"
			return limits, err
		}
	}
	switch {
	case l.CPUs != nil && !(*l.CPUs >= minCPUs && *l.CPUs <= s.CPUs):
		return limits, fault.Field("cpus", *l.CPUs, fmt.Sprintf("%g to %g, the limit of the session", minCPUs, s.CPUs))
	case l.Memory != nil && (*l.Memory < minProgramMemory || *l.Memory > s.Memory):
		return limits, fault.Field("memory", *l.Memory, fmt.Sprintf("%v to %v, the limit of the session", minProgramMemory, s.Memory))
	case l.Pids != nil && (*l.Pids < 1 || *l.Pids > s.Pids):
		return limits, fault.Field("pids", *l.Pids, fmt.Sprintf("1 to %d, the limit of the session", s.Pids))
	}
	if l.CPUs != nil {
		limits.CPU = uint64(math.Round(*l.CPUs * cgroup.CPUPeriod))
	}
	if l.Memory != nil {
		limits.Memory = uint64(*l.Memory)
	}
	if l.Pids != nil {
		limits.Pids = uint64(*l.Pids)
	}
	return limits, nil
}

// minProgramMemory is what the smallest programs need to load.
const minProgramMemory = quantity.MiB

// Request returns the request that has these settings, whatever its profile says. It has no id, no environment, and neither
// skills, drives, secrets nor a bucket.
func (s *Settings) Request() *Request {
	req := &Request{
		Profile: s.Profile, Image: &s.Image, Network: &s.Network, NetworkRules: s.rules(), NetworkStrict: &s.NetworkStrict, ReadOnlyRoot: &s.ReadOnlyRoot, HomeOnDisk: &s.HomeOnDisk,
		User: new(s.UserName()), Home: new(s.HomeDir()), Rlimits: s.Rlimits, Workspace: s.Workspace, Inputs: s.Inputs, Mounts: s.Mounts, Labels: s.Labels, Metadata: s.Metadata,
	}
	for _, l := range limitTable() {
		if l.how() != ofNetwork {
			l.setRequested(req, s)
		}
	}
	isNamed := s.Workspace != "" && !s.OwnDir()
	if isNamed {
		req.WorkspaceInodes = nil
	}
	if isNamed || !s.OwnDisk() { // that of another workspace comes from the profile
		req.WorkspaceQuota = nil
	}
	return req
}

// Recheck validates the settings of an earlier boxd's session against this configuration, as if requested now, and returns their
// profile. by is what enforces its limits.
func (c *Config) Recheck(s *Settings, by map[string]Mechanism) (*Profile, error) {
	if s.Profile == "" {
		return nil, fault.Field("profile", fault.Word("empty"), "the name of a profile")
	}
	_, profile, err := c.Merge(s.Request())
	if err != nil {
		return nil, err
	}
	for _, name := range []string{LimitMemory, LimitCPU, LimitPids, LimitIO, LimitWorkspace} {
		m, present := by[name]
		needed := name != LimitIO && name != LimitWorkspace || name == LimitIO && s.IORead+s.IOWrite > 0 || name == LimitWorkspace && s.OwnDisk() && s.WorkspaceQuota > 0
		if loose := !present || m == MechanismNone || m == MechanismRlimit; loose && needed && !slices.Contains(c.Limits.BestEffort, name) {
			return nil, fault.Field("enforcement."+name, string(m), "enforced, as limits.best_effort does not list it")
		}
	}
	return profile, nil
}
