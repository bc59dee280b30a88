// SPDX-License-Identifier: Apache-2.0

// The table of limits. Everything that handles all limits of a session uses it: merging a request into a profile, applying
// ceilings, validation, comparison with a session, and conversion to cgroup limits.

package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// row describes one limit.
type row[T cmp.Ordered] struct {
	key       string // in JSON and box.toml
	when      when
	value     func(*Settings) *T
	requested func(*Request) **T
	ceiling   func(*limits.Ceilings) *T // nil: it has no ceiling of its own
	// endless says that 0 means unlimited.
	endless bool
	// counts says whether a ceiling applies to a session. Nil: always.
	counts func(*cutter, *Settings) bool
	// allowed returns which values are allowed, "" if this one is. Nil: any.
	allowed func(T, *Settings) string
	// group sets the limit for the cgroups. Nil: something else enforces it, named in by.
	group func(*cgroup.Limits, T)
	by    string
}

// when says when a session gets a limit.
type when uint8

const (
	always    when = iota // at creation, and while it runs
	atStart               // only at creation
	ofNetwork             // with its network, see mergeCaps
)

// limit is a row of any value type.
type limit interface { //nolint:interfacebloat // one implementation, which differs by the type of a value alone
	name() string
	how() when
	given(req *Request) bool
	setRequested(req *Request, s *Settings)
	pick(m *merger, s *Settings, req *Request)
	cut(t *cutter, s *Settings, req *Request)
	raise(s *Settings, to *limits.Ceilings)
	same(a, b *Settings) bool
	check(s *Settings) error
	toGroup(s *Settings, g *cgroup.Limits)
	elsewhere() string
}

// limitTable returns the limits in the order in which they are shown.
func limitTable() []limit {
	return slices.Concat(memoryAndCPU(), diskAndNetwork())
}

func memoryAndCPU() []limit {
	return []limit{
		row[float64]{
			key: "cpus", value: func(s *Settings) *float64 { return &s.CPUs }, requested: func(r *Request) **float64 { return &r.CPUs },
			ceiling: func(c *limits.Ceilings) *float64 { return &c.CPUs },
			allowed: unless(func(n float64) bool { return n >= minCPUs && n <= maxCPUs }, "%g to %d", minCPUs, maxCPUs), // excludes NaN
			group:   func(g *cgroup.Limits, n float64) { g.CPU = uint64(math.Round(n * cgroup.CPUPeriod)) },
		},
		row[quantity.Size]{
			key: "memory", value: func(s *Settings) *quantity.Size { return &s.Memory }, requested: func(r *Request) **quantity.Size { return &r.Memory },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.Memory },
			allowed: between(minMemory, maxSize),
			group:   func(g *cgroup.Limits, n quantity.Size) { g.Memory = uint64(n) },
		},
		row[quantity.Size]{
			key: "memory_high", value: func(s *Settings) *quantity.Size { return &s.MemoryHigh }, requested: func(r *Request) **quantity.Size { return &r.MemoryHigh },
			allowed: allowedMemoryHigh,
			group:   func(g *cgroup.Limits, n quantity.Size) { g.MemoryHigh = uint64(n) },
		},
		row[quantity.Size]{
			key: "swap", value: func(s *Settings) *quantity.Size { return &s.Swap }, requested: func(r *Request) **quantity.Size { return &r.Swap },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.Swap },
			allowed: unless(func(n quantity.Size) bool { return n <= maxSize }, "at most %v", maxSize),
			group:   func(g *cgroup.Limits, n quantity.Size) { g.Swap = uint64(n) },
		},
		row[string]{
			key: "oom", value: func(s *Settings) *string { return &s.OOM }, requested: func(r *Request) **string { return &r.OOM },
			allowed: unless(func(word string) bool { return slices.Contains(oomWords(), word) }, "%s", fault.OneOf(oomWords()...)),
			group:   func(g *cgroup.Limits, word string) { g.OOM = oomOf(word) },
		},
		row[int]{
			key: "pids", value: func(s *Settings) *int { return &s.Pids }, requested: func(r *Request) **int { return &r.Pids },
			ceiling: func(c *limits.Ceilings) *int { return &c.Pids },
			allowed: between(isolation.MinPids, maxPids),
			group:   func(g *cgroup.Limits, n int) { g.Pids = uint64(n) },
		},
		row[int]{
			key: "cpu_weight", value: func(s *Settings) *int { return &s.CPUWeight }, requested: func(r *Request) **int { return &r.CPUWeight },
			ceiling: func(c *limits.Ceilings) *int { return &c.CPUWeight },
			allowed: between(cgroup.MinWeight, cgroup.MaxWeight),
			group:   func(g *cgroup.Limits, n int) { g.CPUWeight = uint64(n) },
		},
	}
}

func diskAndNetwork() []limit {
	onDisk := func(t *cutter, s *Settings) bool { return !t.stays && (s.OwnDisk() || len(s.Bounded) > 0) }
	egress := func(_ *cutter, s *Settings) bool { return s.Network == NetworkEgress }
	perSecond := unless(func(n quantity.Size) bool { return n == 0 || n >= minIO && n <= maxSize }, "0, or at least %v a second", minIO)
	return []limit{
		row[int]{
			key: "io_weight", value: func(s *Settings) *int { return &s.IOWeight }, requested: func(r *Request) **int { return &r.IOWeight },
			ceiling: func(c *limits.Ceilings) *int { return &c.IOWeight },
			allowed: between(cgroup.MinWeight, cgroup.MaxWeight),
			group:   func(g *cgroup.Limits, n int) { g.IOWeight = uint64(n) },
		},
		row[quantity.Size]{
			key: "io_read", value: func(s *Settings) *quantity.Size { return &s.IORead }, requested: func(r *Request) **quantity.Size { return &r.IORead },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.IORead }, endless: true,
			allowed: perSecond,
			group:   func(g *cgroup.Limits, n quantity.Size) { g.IORead = uint64(n) },
		},
		row[quantity.Size]{
			key: "io_write", value: func(s *Settings) *quantity.Size { return &s.IOWrite }, requested: func(r *Request) **quantity.Size { return &r.IOWrite },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.IOWrite }, endless: true,
			allowed: perSecond,
			group:   func(g *cgroup.Limits, n quantity.Size) { g.IOWrite = uint64(n) },
		},
		row[int]{
			key: FieldConnections, value: func(s *Settings) *int { return &s.NetworkConnections }, requested: func(r *Request) **int { return &r.NetworkConnections },
			ceiling: func(c *limits.Ceilings) *int { return &c.NetworkConnections }, endless: true, counts: egress, when: ofNetwork,
			by: "the firewall, see KeeperNetwork",
		},
		row[quantity.Size]{
			key: FieldBandwidth, value: func(s *Settings) *quantity.Size { return &s.NetworkBandwidth }, requested: func(r *Request) **quantity.Size { return &r.NetworkBandwidth },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.NetworkBandwidth }, endless: true, counts: egress, when: ofNetwork,
			by: "the firewall, see KeeperNetwork",
		},
		row[quantity.Size]{
			key: "tmp", value: func(s *Settings) *quantity.Size { return &s.Tmp }, requested: func(r *Request) **quantity.Size { return &r.Tmp },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.Tmp }, when: atStart,
			allowed: unless(func(n quantity.Size) bool { return n >= isolation.MinScratch }, "at least %v", quantity.Size(isolation.MinScratch)),
			by:      "the size of a tmpfs, see BoxSpec",
		},
		row[quantity.Size]{
			key: "workspace_quota", value: func(s *Settings) *quantity.Size { return &s.WorkspaceQuota }, requested: func(r *Request) **quantity.Size { return &r.WorkspaceQuota },
			ceiling: func(c *limits.Ceilings) *quantity.Size { return &c.WorkspaceQuota }, endless: true, counts: onDisk,
			allowed: unless(func(n quantity.Size) bool { return n == 0 || n >= minQuota && n <= maxSize }, "0, or %v to %v", minQuota, maxSize),
			by:      "a project quota, see Work",
		},
		row[int]{
			key: "workspace_inodes", value: func(s *Settings) *int { return &s.WorkspaceInodes }, requested: func(r *Request) **int { return &r.WorkspaceInodes },
			ceiling: func(c *limits.Ceilings) *int { return &c.WorkspaceInodes }, counts: onDisk,
			allowed: allowedInodes,
			by:      "a project quota, see Work",
		},
		row[quantity.Duration]{
			key: "ttl", value: func(s *Settings) *quantity.Duration { return &s.TTL }, requested: func(r *Request) **quantity.Duration { return &r.TTL },
			ceiling: func(c *limits.Ceilings) *quantity.Duration { return &c.TTL }, endless: true,
			by: "boxd, and PID 1 while there is none",
		},
		row[quantity.Duration]{
			key: "max_lifetime", value: func(s *Settings) *quantity.Duration { return &s.MaxLifetime }, requested: func(r *Request) **quantity.Duration { return &r.MaxLifetime },
			ceiling: func(c *limits.Ceilings) *quantity.Duration { return &c.MaxLifetime }, endless: true,
			by: "boxd, and PID 1 while there is none",
		},
	}
}

// unless allows values for which inOrder holds; the words say what is allowed.
func unless[T any](inOrder func(T) bool, format string, words ...any) func(T, *Settings) string {
	return func(value T, _ *Settings) string {
		if inOrder(value) {
			return ""
		}
		return fmt.Sprintf(format, words...)
	}
}

// between allows values from minimum to maximum.
func between[T cmp.Ordered](minimum, maximum T) func(T, *Settings) string {
	return unless(func(value T) bool { return value >= minimum && value <= maximum }, "%v to %v", minimum, maximum)
}

func allowedMemoryHigh(n quantity.Size, s *Settings) string {
	if n == 0 || n >= minMemory && n <= s.Memory {
		return ""
	}
	return fmt.Sprintf("0, or %v to %v (memory)", minMemory, s.Memory)
}

// allowedInodes applies to sessions with a quota: without one, inodes are not counted.
func allowedInodes(n int, s *Settings) string {
	if s.WorkspaceQuota == 0 || n >= minInodes && n <= maxInodes {
		return ""
	}
	return fmt.Sprintf("%d to %d", minInodes, maxInodes)
}

func (l row[T]) name() string { return l.key }

func (l row[T]) how() when { return l.when }

// given reports whether a request gives the limit.
func (l row[T]) given(req *Request) bool { return *l.requested(req) != nil }

// setRequested makes a request ask for what a session has.
func (l row[T]) setRequested(req *Request, s *Settings) { *l.requested(req) = l.value(s) }

// pick takes the value of a request, unless the profile locks the limit.
func (l row[T]) pick(m *merger, s *Settings, req *Request) {
	value := l.value(s)
	*value = pick(m, l.key, *value, *l.requested(req))
}

// cut reduces a session's limit to the ceiling.
func (l row[T]) cut(t *cutter, s *Settings, req *Request) {
	if l.ceiling == nil || l.counts != nil && !l.counts(t, s) {
		return
	}
	value := l.value(s)
	*value = ceiling(t, l.key, *value, *l.ceiling(&t.policy.Ceilings), l.given(req), l.endless)
}

// raise sets a session's limit to its ceiling, if there is one.
func (l row[T]) raise(s *Settings, to *limits.Ceilings) {
	var none T
	if l.ceiling != nil && *l.ceiling(to) != none {
		*l.value(s) = *l.ceiling(to)
	}
}

// same reports whether two sessions have the same limit.
func (l row[T]) same(a, b *Settings) bool { return *l.value(a) == *l.value(b) }

// check refuses an invalid value.
func (l row[T]) check(s *Settings) error {
	if l.allowed == nil {
		return nil
	}
	value := *l.value(s)
	if allowed := l.allowed(value, s); allowed != "" {
		return fault.Field(l.key, value, allowed)
	}
	return nil
}

// elsewhere names what enforces the limit, "" if cgroups do.
func (l row[T]) elsewhere() string { return l.by }

// toGroup sets the limit for the cgroups, if they enforce it.
func (l row[T]) toGroup(s *Settings, g *cgroup.Limits) {
	if l.group != nil {
		l.group(g, *l.value(s))
	}
}
