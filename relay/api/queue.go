// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// Queue is where requests wait for room.
type Queue struct {
	Waiting    int               `json:"waiting"`    // for a session, of all callers
	Executions int               `json:"executions"` // for another of their session to end
	Length     int               `json:"length"`     // so many of each may wait
	Wait       quantity.Duration `json:"wait"`       // for so long at most
	Places     []Place           `json:"places"`     // the caller's own, or all if that is root; the next one first
}

// Place is one request for a session that waits.
type Place struct {
	ID       string    `json:"id"` // of the session
	Owner    string    `json:"owner"`
	Position int       `json:"position"` // 1 is next
	Reason   string    `json:"reason"`   // "sessions", "owner", "starts", "disk", "memory" or "pressure"
	Since    time.Time `json:"since"`
}

// Warm is how many boxes of a profile have been started ahead of need. No session has them yet.
type Warm struct {
	Profile string `json:"profile"`
	Ready   int    `json:"ready"`
	Want    int    `json:"want"`
}

// DrainRequest asks that boxd takes no new sessions: the body of POST /v1/drain.
type DrainRequest struct {
	Reason string `json:"reason,omitempty"` // for people
}

// Drain says who has seen to that, and when.
type Drain struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}
