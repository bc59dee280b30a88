// SPDX-License-Identifier: Apache-2.0

// Package limits has the limits of a session as the API, box.toml, the command line and the records of boxd share them.
//
// To add one: a field of Limits, of Patch and of Ceilings, and a row of the table in supervisor/policy/limits.go, which says what
// values it may have and what enforces it. The tests then name what of box.toml, of the description of the API and of the flags of
// boxctl is still without it.
package limits

import "github.com/boxd-dev/boxd/internal/quantity"

// Limits are those of a session, whoever speaks of them: its profile, its record, what the API tells.
type Limits struct {
	CPUs            float64           `json:"cpus" toml:"cpus"`
	Memory          quantity.Size     `json:"memory" toml:"memory"`
	MemoryHigh      quantity.Size     `json:"memory_high" toml:"memory_high"` // from which on programs are slowed down; 0: never
	Swap            quantity.Size     `json:"swap" toml:"swap"`
	OOM             string            `json:"oom" toml:"oom"` // "process", "program" or "session"
	Pids            int               `json:"pids" toml:"pids"`
	Rlimits         map[string]string `json:"rlimits,omitzero" toml:"rlimits"` // SOFT:HARD by name, other than those that are built in
	CPUWeight       int               `json:"cpu_weight" toml:"cpu_weight"`
	IOWeight        int               `json:"io_weight" toml:"io_weight"`
	IORead          quantity.Size     `json:"io_read" toml:"io_read"`   // bytes a second
	IOWrite         quantity.Size     `json:"io_write" toml:"io_write"` // bytes a second
	Tmp             quantity.Size     `json:"tmp" toml:"tmp"`
	WorkspaceQuota  quantity.Size     `json:"workspace_quota" toml:"workspace_quota"`
	WorkspaceInodes int               `json:"workspace_inodes" toml:"workspace_inodes"`
}

// Lifetime limits how long a session lives.
type Lifetime struct {
	TTL         quantity.Duration `json:"ttl" toml:"ttl"` // unused; 0: for ever
	MaxLifetime quantity.Duration `json:"max_lifetime" toml:"max_lifetime"`
}

// Patch asks for limits: of a session that is made, or other ones of one that lives. A nil was not asked for. What only a
// session that is made can be given is not here, see api.SessionRequest.
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
	NetworkBandwidth   *quantity.Size `json:"network_bandwidth,omitempty"`   // bytes a second in each direction; at most the profile's
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
