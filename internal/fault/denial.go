// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"time"
)

// Layer is what has refused something: who wants another answer has to look there.
type Layer string

// The layers. They may be extended, never renamed.
const (
	LayerPolicy  Layer = "policy"  // who may do what: tools, profiles, locked fields, ids
	LayerMount   Layer = "mount"   // which directories of the host are lent
	LayerNetwork Layer = "network" // which networks a box may have
	LayerQuota   Layer = "quota"   // how many and how much of something a principal, or all, may have
	LayerSeccomp Layer = "seccomp" // what programs may ask of the kernel
	LayerLimit   Layer = "limit"   // what a session has, or what this host can keep
)

// Denial says which rule has refused something, and which setting would allow it. It is in the answer and in
// the log, so it names no value of anybody but the caller.
type Denial struct {
	Layer   Layer
	Rule    string // the key that refused, as box.toml has it: "policy.ci.sessions"
	Used    string // of what is counted, "" where nothing is
	Allowed string // by the rule
	Setting string // what would allow it, as the operator writes it
	// After is when it may be asked again with another outcome; 0: nobody knows.
	After time.Duration
}

// By returns e with the rule that refused.
func (e *Error) By(d Denial) *Error {
	e.Denial = &d
	return e
}

// DenialOf is that of the outermost Error in err's chain that has one, otherwise nil.
func DenialOf(err error) *Denial {
	for {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return nil
		}
		if e.Denial != nil {
			return e.Denial
		}
		err = e.Err
	}
}
