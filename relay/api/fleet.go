// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"time"
)

// RouteHeader is in answers to gateways: the pattern of the route that was asked for, as "GET /v1/sessions/{id}".
const RouteHeader = "Boxd-Route"

// NeedsHeader tells a gateway what the session of a stream needs, "image=NAME&skill=NAME&drive=NAME&workspace=NAME&input=NAME", as the request itself comes when a node has
// been chosen. boxd does not read it.
const NeedsHeader = "Boxd-Needs"

// FleetNode is what a node of a fleet says of itself. State is "ready" where it takes sessions, "off" where its boxd takes no new
// ones, "failed", or "lost" where a gateway has not heard of it.
type FleetNode struct {
	Name     string            `json:"name"`
	Instance string            `json:"instance"` // of its agent: another after each start
	Host     string            `json:"host"`     // of its agent: the same after each start
	Version  string            `json:"version"`  // of its boxd
	Time     time.Time         `json:"time"`     // of its clock
	State    string            `json:"state"`
	Reason   string            `json:"reason,omitempty"`
	Claims   string            `json:"claims"` // the bucket of claims that it agrees with; "": none
	Labels   map[string]string `json:"labels,omitempty"`
	Direct   *FleetDirect      `json:"direct,omitempty"` // nil: gateways reach it over NATS alone

	Capabilities []string `json:"capabilities"`   // what boxctl doctor has proved
	Warm         []string `json:"warm,omitempty"` // profiles with a box that waits

	CPUs         int     `json:"cpus"`
	CPUsReserved float64 `json:"cpus_reserved"` // by limits of sessions

	Memory          uint64 `json:"memory"`
	MemoryAvailable uint64 `json:"memory_available"`
	MemoryReserved  uint64 `json:"memory_reserved"`
	Disk            uint64 `json:"disk"`
	DiskAvailable   uint64 `json:"disk_available"`

	Pids         int `json:"pids"`          // processes and threads that its kernel allows; 0: it does not say
	PidsUsed     int `json:"pids_used"`     // those there are, of boxes and others
	PidsReserved int `json:"pids_reserved"` // by limits of sessions
	IDRanges     int `json:"id_ranges"`     // of users in boxes, one for each box; 0: it does not say
	IDRangesUsed int `json:"id_ranges_used"`

	Sessions    int `json:"sessions"`
	MaxSessions int `json:"max_sessions"`
	Waiting     int `json:"waiting"` // for a session

	Pressure Pressure   `json:"pressure"`
	Agent    FleetAgent `json:"agent"`

	Owners []FleetOwner `json:"owners,omitempty"` // of its sessions; only gateways see them here
}

// FleetDirect is where gateways connect to a node without NATS between.
type FleetDirect struct {
	Address string `json:"address"` // HOST:PORT: fleet.listen of its box.toml
	Key     string `json:"key"`     // of its agent: Ed25519, 32 bytes in base64; another after each start
}

// States of a node. The last is what a gateway says of one that it has not heard of.
const (
	FleetNodeReady  = "ready" // it takes sessions
	FleetNodeOff    = "off"   // its boxd takes no new ones, or somebody has cordoned it
	FleetNodeFailed = "failed"
	FleetNodeLost   = "lost"
)

// FleetAgent is how the agent of a node does.
type FleetAgent struct {
	Streams int64 `json:"streams"` // connections of gateways to its boxd
	// Since it was started.
	Failed  uint64 `json:"announcements_failed"`
	Refused uint64 `json:"fences_refused"` // claims of which it knew a later one
	GivenUp uint64 `json:"given_up"`       // sessions it ended, which were claimed elsewhere or given up
}

// FleetOwner is what the sessions of an owner have together.
type FleetOwner struct {
	Owner    string  `json:"owner"`
	Sessions int     `json:"sessions"`
	Lost     int     `json:"lost,omitempty"` // those of nodes that are lost, of which nothing else is counted
	CPUs     float64 `json:"cpus"`           // by their limits, as the next two
	Memory   uint64  `json:"memory"`
	Pids     int     `json:"pids"`
}

// FleetOwnerList is the answer of GET /v1/fleet/owners.
type FleetOwnerList struct {
	Owners []FleetOwner `json:"owners"`
}

// FleetNodeState is a node as a gateway knows it.
type FleetNodeState struct {
	FleetNode
	SeenSeconds  float64      `json:"seen_seconds"`  // since it was heard of last
	ClockSeconds float64      `json:"clock_seconds"` // that its clock is ahead of the gateway's
	Cordon       *FleetCordon `json:"cordon,omitempty"`
}

// FleetNodeList is the answer of GET /v1/fleet/nodes.
type FleetNodeList struct {
	Nodes []FleetNodeState `json:"nodes"`
}

// FleetCordon keeps new sessions from a node. Those that are there go on.
type FleetCordon struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// FleetCordonRequest asks for that: the body of PUT /v1/fleet/nodes/NAME/cordon.
type FleetCordonRequest struct {
	Reason string `json:"reason,omitempty"`
}

// FleetClaim says where a session of a fleet is. State is "starting" where the node has been asked for it, "live", "moving" to
// another node, or "lost" where its node has not been heard of.
type FleetClaim struct {
	Owner      string    `json:"owner"`
	ID         string    `json:"id"`
	Node       string    `json:"node"`
	Generation uint64    `json:"generation"`
	State      string    `json:"state"`
	Since      time.Time `json:"since"` // it is in that state
	Reason     string    `json:"reason,omitempty"`
	To         string    `json:"to,omitempty"`       // the node that it is being moved to
	Snapshot   string    `json:"snapshot,omitempty"` // the name of the last one when it was lost
}

// States of a claim.
const (
	FleetClaimStarting = "starting" // the node has been asked for it
	FleetClaimLive     = "live"
	FleetClaimMoving   = "moving" // to another node; until it is there, nobody can use it
	FleetClaimLost     = "lost"   // its node has not been heard of
)

// FleetClaimList is the answer of GET /v1/fleet/sessions.
type FleetClaimList struct {
	Sessions []FleetClaim `json:"sessions"`
}

// FleetMove asks for a session on another node: the body of POST /v1/fleet/sessions/{id}/move.
type FleetMove struct {
	Node string `json:"node,omitempty"` // left out: the best of those that can take it
	// LeaveOut moves it without what cannot be moved: see left_out of a SessionDefinition. Otherwise a session that has such is refused.
	LeaveOut bool `json:"leave_out,omitempty"`
}

// FleetMoved is the answer: the session is on Node, and runs there if it did before.
type FleetMoved struct {
	ID         string   `json:"id"`
	Owner      string   `json:"owner"`
	From       string   `json:"from"`
	Node       string   `json:"node"`
	Generation uint64   `json:"generation"`
	LeftOut    []string `json:"left_out"` // what it has lost, in words
	DurationMS int64    `json:"duration_ms"`
}

// FleetSnapshot is what a session was made of and had on disk at a time, kept by the fleet apart from its nodes.
type FleetSnapshot struct {
	Name      string    `json:"name"` // of its owner's snapshots
	Owner     string    `json:"owner"`
	Session   string    `json:"session"`
	Node      string    `json:"node"` // that had the session then
	CreatedAt time.Time `json:"created_at"`
	Size      int64     `json:"size"`   // bytes of the archive
	Digest    string    `json:"digest"` // "sha256:…", of the archive
	// Running says that the session ran, so that its programs could change files while they were read.
	Running bool     `json:"running"`
	LeftOut []string `json:"left_out"` // what the session had besides, in words
}

// FleetSnapshotList is the answer of GET /v1/fleet/snapshots: those of an owner, the oldest first.
type FleetSnapshotList struct {
	Snapshots []FleetSnapshot `json:"snapshots"`
}

// FleetSnapshotRequest asks for a snapshot: the body of POST /v1/fleet/snapshots.
type FleetSnapshotRequest struct {
	Session string `json:"session"`
	// Name has 1 to 128 letters, digits, dots, hyphens and underscores, a letter or digit first. Left out: one made of the session's id
	// and the time.
	Name string `json:"name,omitempty"`
	// LeaveOut makes it without what cannot be part of it: see left_out of a SessionDefinition. Otherwise a session that has such is refused.
	LeaveOut bool `json:"leave_out,omitempty"`
	// WithWorkspace has it have a copy of the named workspace that the session uses, which is the new session's own. Otherwise such a session is refused.
	WithWorkspace bool `json:"with_workspace,omitempty"`
}

// FleetRestore asks for a new session like the one of a snapshot: the body of POST /v1/fleet/snapshots/{name}/restore.
type FleetRestore struct {
	ID string `json:"id,omitempty"` // left out: that of the session of the snapshot
	// Placement is as for any new session: see POST /v1/sessions of a gateway.
	Placement json.RawMessage `json:"placement,omitempty"`
}

// FleetRestored is the answer.
type FleetRestored struct {
	Session Session `json:"session"`
	Node    string  `json:"node"` // that has it
}

// FleetOutput is what a process had written, and how it had ended, when its node ended its session: another node had that by then, or it
// was given up while the node was lost. The fleet keeps it for seven days.
type FleetOutput struct {
	Name      string     `json:"name"` // by which it is read
	Owner     string     `json:"owner"`
	Session   string     `json:"session"`
	Node      string     `json:"node"` // that has ended the session
	Process   string     `json:"process"`
	Why       string     `json:"why"`              // the node has ended the session
	State     string     `json:"state"`            // "ended", or what it was instead when its node had waited long enough
	Reason    string     `json:"reason,omitempty"` // as that of a Process: "stopped" where the node has ended it
	Status    string     `json:"status,omitempty"` // this and the next two as in an ExecResult
	ExitCode  *int       `json:"exit_code,omitempty"`
	Signal    string     `json:"signal,omitempty"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	KeptAt    time.Time  `json:"kept_at"`
	Size      int64      `json:"size"`              // bytes of both streams
	Omitted   int64      `json:"omitted,omitempty"` // that were written besides
}

// FleetOutputList is the answer of GET /v1/fleet/outputs: those of an owner, the oldest first.
type FleetOutputList struct {
	Outputs []FleetOutput `json:"outputs"`
}

// FleetEvent is something that a gateway has seen happen in the fleet.
type FleetEvent struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Node    string    `json:"node,omitempty"`
	Session string    `json:"session,omitempty"`
	Detail  string    `json:"detail,omitempty"`
}

// FleetEventList is the answer of GET /v1/fleet/events: what this gateway has seen, the oldest first.
type FleetEventList struct {
	Events []FleetEvent `json:"events"`
}
