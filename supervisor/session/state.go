// SPDX-License-Identifier: Apache-2.0

package session

// State is the state of a session in its life cycle.
type State string

// The states of a session.
const (
	StateStarting State = "starting"
	StateReady    State = "ready"
	StateStopping State = "stopping" // its programs are ending, and its files stay
	StateStopped  State = "stopped"  // it has no box
	StateEnding   State = "ending"
	StateEnded    State = "ended"
)

// transitions is every legal move:
//
//	starting ──► ready ──► ending ──► ended
//	    │         ▲ │        ▲          ▲
//	    │         │ ▼        │          │
//	    │       stopping ────│──────────┤
//	    │                 stopped ──────┤
//	    └───────────────────────────────┘
//
// A stopping session ends when a stopped one has taken its place, and a stopped one when one that is starting has: see
// Succeed. A stop that could not be written down leads back to ready.
func transitions() map[State][]State {
	return map[State][]State{
		StateStarting: {StateReady, StateEnded},
		StateReady:    {StateEnding, StateStopping},
		StateStopping: {StateReady, StateEnded},
		StateStopped:  {StateEnding, StateEnded},
		StateEnding:   {StateEnded},
	}
}
