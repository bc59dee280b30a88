// SPDX-License-Identifier: Apache-2.0

// Package limits has the limits of a session in the form that all share: the API, box.toml, the command line, the
// records of boxd.
//
// To add one: add a field to Limits, to Patch and to Ceilings, and a row to the table in
// supervisor/policy/limits.go, which says what values it may have and what enforces it. The tests
// then name what is still missing in box.toml, in the API description and in the flags of boxctl.
package limits

import "github.com/boxd-dev/boxd/quantity"

// Limits are those of a session, wherever they occur: in its profile, in its record, in the API.
type Limits struct {
	CPUs            float64           `json:"cpus" toml:"cpus"`
	Memory          quantity.Size     `json:"memory" toml:"memory"`
	MemoryHigh      quantity.Size     `json:"memory_high" toml:"memory_high"` // above this programs are slowed down; 0: never
	Swap            quantity.Size     `json:"swap" toml:"swap"`
	OOM             string            `json:"oom" toml:"oom"` // "process", "program" or "session"
	Pids            int               `json:"pids" toml:"pids"`
	Rlimits         map[string]string `json:"rlimits,omitzero" toml:"rlimits"` // SOFT:HARD by name, if they differ from the built-in ones
	CPUWeight       int               `json:"cpu_weight" toml:"cpu_weight"`
	IOWeight        int               `json:"io_weight" toml:"io_weight"`
	IORead          quantity.Size     `json:"io_read" toml:"io_read"`   // bytes per second
	IOWrite         quantity.Size     `json:"io_write" toml:"io_write"` // bytes per second
	Tmp             quantity.Size     `json:"tmp" toml:"tmp"`
	WorkspaceQuota  quantity.Size     `json:"workspace_quota" toml:"workspace_quota"`
	WorkspaceInodes int               `json:"workspace_inodes" toml:"workspace_inodes"`
}

// Lifetime limits how long a session lives.
type Lifetime struct {
	TTL         quantity.Duration `json:"ttl" toml:"ttl"` // time without use; 0: no limit
	MaxLifetime quantity.Duration `json:"max_lifetime" toml:"max_lifetime"`
}

// Patch asks for limits: those of a new session, or changes to those of a live one. nil: not
// asked for. What only a new session can be given is in api.SessionRequest.
type Patch struct {
	CPUs            *float64           `json:"cpus,omitempty"`
	Memory          *quantity.Size     `json:"memory,omitempty"`
	MemoryHigh      *quantity.Size     `json:"memory_high,omitempty"`
	Swap            *quantity.Size     `json:"swap,omitempty"`
	OOM             *string            `json:"oom,omitempty"`
	Pids            *int               `json:"pids,omitempty"`
	CPUWeight       *int               `json:"cpu_weight,omitempty"`
	IOWeight        *int               `json:"io_weight,omitempty"`
	IORead          *quantity.Size     `json:"io_read,omitempty"`
	IOWrite         *quantity.Size     `json:"io_write,omitempty"`
	WorkspaceQuota  *quantity.Size     `json:"workspace_quota,omitempty"`
	WorkspaceInodes *int               `json:"workspace_inodes,omitempty"`
	TTL             *quantity.Duration `json:"ttl,omitempty"`
	MaxLifetime     *quantity.Duration `json:"max_lifetime,omitempty"`

	NetworkConnections *int           `json:"network_connections,omitempty"` // at a time; at most the profile's
	NetworkBandwidth   *quantity.Size `json:"network_bandwidth,omitempty"`   // bytes per second in each direction; at most the profile's
}

// Ceilings are the most that a session may have of each limit of its profile; 0 is no ceiling.
type Ceilings struct {
	CPUs            float64           `toml:"cpus"`
	Memory          quantity.Size     `toml:"memory"`
	Swap            quantity.Size     `toml:"swap"`
	Pids            int               `toml:"pids"`
	CPUWeight       int               `toml:"cpu_weight"`
	IOWeight        int               `toml:"io_weight"`
	IORead          quantity.Size     `toml:"io_read"`
	IOWrite         quantity.Size     `toml:"io_write"`
	Tmp             quantity.Size     `toml:"tmp"`
	WorkspaceQuota  quantity.Size     `toml:"workspace_quota"`
	WorkspaceInodes int               `toml:"workspace_inodes"`
	Timeout         quantity.Duration `toml:"timeout"`
	TTL             quantity.Duration `toml:"ttl"`
	MaxLifetime     quantity.Duration `toml:"max_lifetime"`

	NetworkConnections int           `toml:"network_connections"`
	NetworkBandwidth   quantity.Size `toml:"network_bandwidth"`
}
