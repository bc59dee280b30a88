// SPDX-License-Identifier: Apache-2.0

package api

import "github.com/boxd-dev/boxd/internal/quantity"

// Profile describes a profile.
type Profile struct {
	Image           string            `json:"image"`
	Network         string            `json:"network"`
	NetworkRules    []string          `json:"network_rules"`
	NetworkStrict   bool              `json:"network_strict"`
	ReadOnlyRoot    bool              `json:"read_only_root"`
	Mounts          string            `json:"mounts"`
	Skills          []string          `json:"skills"` // names, of a session that asks for none
	CPUs            float64           `json:"cpus"`
	Memory          quantity.Size     `json:"memory"`
	MemoryHigh      quantity.Size     `json:"memory_high"`
	Swap            quantity.Size     `json:"swap"`
	OOM             string            `json:"oom"`
	Pids            int               `json:"pids"`
	Rlimits         map[string]string `json:"rlimits"` // other than those that are built in
	CPUWeight       int               `json:"cpu_weight"`
	IOWeight        int               `json:"io_weight"`
	IORead          quantity.Size     `json:"io_read"`
	IOWrite         quantity.Size     `json:"io_write"`
	Tmp             quantity.Size     `json:"tmp"`
	WorkspaceQuota  quantity.Size     `json:"workspace_quota"`
	WorkspaceInodes int               `json:"workspace_inodes"`
	Timeout         quantity.Duration `json:"timeout"`
	MaxTimeout      quantity.Duration `json:"max_timeout"`
	TTL             quantity.Duration `json:"ttl"`
	MaxLifetime     quantity.Duration `json:"max_lifetime"`
	Leftovers       string            `json:"leftovers"`
	FreezeAfter     quantity.Duration `json:"freeze_after"` // unused; 0 is never
	Warm            int               `json:"warm"`         // boxes that are started ahead of need
	Locked          []string          `json:"locked"`

	NetworkConnections int           `json:"network_connections"` // 0 is that of all boxes
	NetworkBandwidth   quantity.Size `json:"network_bandwidth"`   // 0 is that of all boxes
}
