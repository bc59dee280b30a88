// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/boxd-dev/boxd/supervisor/ended"

// State is where a session is in its life.
type State string

// The states of a session.
const (
	StateStarting State = "starting"
	StateReady    State = "ready"
	StateEnding   State = "ending"
	StateEnded    State = "ended"
)

// moves is every legal move:
//
//	starting ──► ready ──► ending ──► ended
//	    └───────────────────────────────▲
func moves() map[State][]State {
	return map[State][]State{
		StateStarting: {StateReady, StateEnded},
		StateReady:    {StateEnding},
		StateEnding:   {StateEnded},
	}
}

// EndReason is why a session ended.
type EndReason = ended.Reason

// The reasons that this room gives or is asked for.
const (
	EndDeleted   = ended.Deleted
	EndIdle      = ended.Idle
	EndLifetime  = ended.Lifetime
	EndLost      = ended.Lost
	EndOneShot   = ended.OneShot
	EndUnclaimed = ended.Unclaimed
	EndShutdown  = ended.Shutdown
)
