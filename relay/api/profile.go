// SPDX-License-Identifier: Apache-2.0

package api

import (
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// Profile describes a profile.
type Profile struct {
	Image         string   `json:"image"`
	Network       string   `json:"network"`
	NetworkRules  []string `json:"network_rules"`
	NetworkStrict bool     `json:"network_strict"`
	ReadOnlyRoot  bool     `json:"read_only_root"`
	HomeOnDisk    bool     `json:"home_on_disk"`
	UserName      string   `json:"user_name"`
	Home          string   `json:"home"`
	Mounts        string   `json:"mounts"`
	Skills        []string `json:"skills"` // names, of a session that asks for none
	limits.Limits
	Timeout    quantity.Duration `json:"timeout"`
	MaxTimeout quantity.Duration `json:"max_timeout"`
	limits.Lifetime
	Leftovers   string            `json:"leftovers"`
	FreezeAfter quantity.Duration `json:"freeze_after"` // unused; 0 is never
	Warm        int               `json:"warm"`         // boxes that are started ahead of need
	WarmMax     int               `json:"warm_max"`     // up to so many, as they were used lately; 0 is no more than warm
	Locked      []string          `json:"locked"`

	NetworkConnections int           `json:"network_connections"` // 0 is that of all boxes
	NetworkBandwidth   quantity.Size `json:"network_bandwidth"`   // 0 is that of all boxes
}
