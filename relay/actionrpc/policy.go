// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Logical is the id of the only session that a Workspace may have.
const Logical = "global"

// Policy applies to every admitted session and every grant: the admission of an INIT.
type Policy struct {
	MaxSessions      int64
	MaxProcesses     int64
	MaxGrant         time.Duration // maximum lifetime of a grant
	MaxTimeoutSec    int64         // of a command
	CPUs             float64
	MemoryMB         int64
	PidsLimit        int64
	ReadOnlyRootfs   bool
	WorkspaceQuotaMB int64
	ReadinessCache   time.Duration
}

// DefaultPolicy returns the defaults.
func DefaultPolicy() Policy {
	return Policy{MaxSessions: 1, MaxGrant: 300 * time.Second, MaxTimeoutSec: 120, CPUs: 1, MemoryMB: 512, PidsLimit: 128, ReadOnlyRootfs: true, ReadinessCache: 15 * time.Second}
}

// longest is the cap for durations, in seconds.
const longest = 1 << 32

func seconds(n float64) time.Duration { return time.Duration(min(n, longest) * float64(time.Second)) }

// ReadPolicy reads the section of an INIT, and whether the admission is required. wrong describes an error, "" if there
// is none.
func ReadPolicy(raw json.RawMessage) (p Policy, required bool, wrong string) {
	p = DefaultPolicy()
	if wire.IsNull(raw) {
		return p, false, ""
	}
	fields, ok := wire.ObjectOf(raw)
	if !ok {
		return p, true, "box.admission must be an object"
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		set, known := keys[name]
		switch {
		case !known:
			return DefaultPolicy(), true, "box.admission has an unknown key " + strconv.Quote(name)
		case !set(&p, fields[name]):
			return DefaultPolicy(), true, "box.admission." + name + " has a value that is not allowed"
		}
	}
	if text, given := fields["required"]; given {
		required, ok = wire.CoerceBool(text)
		if !ok {
			return DefaultPolicy(), true, "box.admission.required must be a boolean"
		}
	}
	return p, required, ""
}

// keys set a value of a policy, and report whether it is allowed.
var keys = map[string]func(p *Policy, raw json.RawMessage) bool{
	"required":              func(*Policy, json.RawMessage) bool { return true },
	"logical_session_id":    grantsOnly(Logical),
	"required_backend":      grantsOnly("nsjail"),
	"max_sessions":          whole(func(p *Policy, n int64) { p.MaxSessions = n }, 0, 1),
	"max_managed_processes": whole(func(p *Policy, n int64) { p.MaxProcesses = n }, 0, 0),
	"max_grant_ttl_sec":     whole(func(p *Policy, n int64) { p.MaxGrant = seconds(float64(n)) }, 1, -1),
	"max_timeout_sec":       whole(func(p *Policy, n int64) { p.MaxTimeoutSec = n }, 1, -1),
	"memory_mb":             whole(func(p *Policy, n int64) { p.MemoryMB = n }, 32, -1),
	"pids_limit":            whole(func(p *Policy, n int64) { p.PidsLimit = n }, 1, -1),
	"workspace_quota_mb":    whole(func(p *Policy, n int64) { p.WorkspaceQuotaMB = n }, 0, -1),
	"cpus": func(p *Policy, raw json.RawMessage) (ok bool) {
		p.CPUs, ok = wire.CoerceFloat(raw)
		return ok && p.CPUs > 0
	},
	"readiness_cache_sec": func(p *Policy, raw json.RawMessage) bool {
		f, ok := wire.CoerceFloat(raw)
		p.ReadinessCache = seconds(f)
		return ok && f >= 0
	},
	"read_only_rootfs": func(p *Policy, raw json.RawMessage) (ok bool) {
		p.ReadOnlyRootfs, ok = wire.CoerceBool(raw)
		return ok
	},
}

func grantsOnly(word string) func(*Policy, json.RawMessage) bool {
	return func(_ *Policy, raw json.RawMessage) bool {
		s, ok := wire.StringOf(raw)
		return ok && s == word
	}
}

// whole reads an integer from minimum to limit; a limit of -1 is no upper bound.
func whole(set func(*Policy, int64), minimum, limit int64) func(*Policy, json.RawMessage) bool {
	return func(p *Policy, raw json.RawMessage) bool {
		n, ok := wire.CoerceInt(raw)
		set(p, n)
		return ok && n >= minimum && (limit < 0 || n <= limit)
	}
}
