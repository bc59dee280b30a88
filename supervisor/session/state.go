// SPDX-License-Identifier: Apache-2.0

package session

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
type EndReason string

// The reasons.
const (
	EndDeleted   EndReason = "deleted"   // asked for
	EndIdle      EndReason = "idle"      // unused for its ttl
	EndLifetime  EndReason = "lifetime"  // max_lifetime is over
	EndLost      EndReason = "lost"      // PID 1 of the box was gone, or did not end a program when it was due
	EndOneShot   EndReason = "one-shot"  // the one execution it was for is over
	EndUnclaimed EndReason = "unclaimed" // its maker has gone without learning its id
	EndShutdown  EndReason = "shutdown"  // boxd stopped
)
