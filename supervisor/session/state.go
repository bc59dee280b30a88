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
