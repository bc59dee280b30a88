// SPDX-License-Identifier: Apache-2.0

package api

import (
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// Plan is the answer to a request with dry_run: what it would come to, now. Nothing has been started.
type Plan struct {
	DryRun bool   `json:"dry_run"`          // true
	Policy string `json:"policy,omitempty"` // the table of box.toml that holds the caller
	// Exists says that there is a session of that id, which the request would get.
	Exists bool `json:"exists"`
	// Session is what profile and policy make of a request for one.
	Session     *PlannedSession   `json:"session,omitempty"`
	Exec        *PlannedExec      `json:"exec,omitempty"`
	Enforcement map[string]string `json:"enforcement,omitempty"`
	Clamped     []Clamp           `json:"clamped,omitempty"`
	Refused     *Problem          `json:"refused,omitempty"` // what would be the answer instead
}

// PlannedSession is what a session would be made with.
type PlannedSession struct {
	ID            string   `json:"id,omitempty"` // left out: one would be made up
	Profile       string   `json:"profile"`
	Image         string   `json:"image"`
	Network       string   `json:"network"`
	NetworkRules  []string `json:"network_rules,omitempty"`
	NetworkStrict bool     `json:"network_strict,omitempty"`
	Secrets       []string `json:"secrets,omitempty"` // names
	Push          string   `json:"push,omitempty"`
	ReadOnlyRoot  bool     `json:"read_only_root"`
	HomeOnDisk    bool     `json:"home_on_disk,omitempty"`
	UserName      string   `json:"user_name"`
	Home          string   `json:"home"`
	limits.Limits
	limits.Lifetime
	Mounts []Mount  `json:"mounts"`
	Skills []string `json:"skills,omitempty"`
	Drives []string `json:"drives,omitempty"`
	Env    []string `json:"env"` // names only

	NetworkConnections int           `json:"network_connections,omitempty"`
	NetworkBandwidth   quantity.Size `json:"network_bandwidth,omitempty"`
}

// PlannedExec is what an execution would be. Code that is too long to be an argument, and input, are not in it.
type PlannedExec struct {
	Argv        []string          `json:"argv"`
	Cwd         string            `json:"cwd"`
	Env         []string          `json:"env"` // names only
	Timeout     quantity.Duration `json:"timeout"`
	OutputLimit quantity.Size     `json:"output_limit"`
	Spool       quantity.Size     `json:"spool,omitempty"` // how much of each stream is kept on disk
	// The three below are limits of its own; 0: those of its session.
	CPUs   float64       `json:"cpus"`
	Memory quantity.Size `json:"memory"`
	Pids   int           `json:"pids"`
}

// Instructions are what a model is told of a box that it is to work in: a fact a line.
type Instructions struct {
	Session      string `json:"session,omitempty"` // of a living one; left out: they are of one that would be made
	Profile      string `json:"profile"`
	Instructions string `json:"instructions"`
}

// UsageList is the answer of GET /v1/usage: the last days (UTC) on which anything was used, newest first.
type UsageList struct {
	Policy   string      `json:"policy,omitempty"` // the table of box.toml that holds the caller
	Holdings []Holding   `json:"holdings"`         // of the caller, now
	Days     []UsageDays `json:"days"`
}

// Holding is what a caller has of something that a rule bounds.
type Holding struct {
	Rule    string  `json:"rule"` // the key of box.toml
	Used    float64 `json:"used"`
	Allowed float64 `json:"allowed"`
}

// UsageDays is what one principal has used on one day.
type UsageDays struct {
	Day            string  `json:"day"` // 2026-11-22
	Principal      string  `json:"principal"`
	Executions     uint64  `json:"executions"`      // that have begun, starts of processes among them
	Refused        uint64  `json:"refused"`         // requests, by a rule of the operator's
	Sessions       uint64  `json:"sessions"`        // that have begun
	SessionSeconds float64 `json:"session_seconds"` // of all of them together
	CPUSeconds     float64 `json:"cpu_seconds"`
	// MemoryByteHours are of what sessions had as their limit, DiskByteHours of what was in workspaces with a quota.
	MemoryByteHours float64 `json:"memory_byte_hours"`
	DiskByteHours   float64 `json:"disk_byte_hours"`
}

// ProfileList is the answer of GET /v1/profiles.
type ProfileList struct {
	Default  string             `json:"default"`
	Profiles map[string]Profile `json:"profiles"`
}
