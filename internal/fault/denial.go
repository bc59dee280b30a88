// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"time"
)

// Layer is the part of boxd that refused something: it has to be changed there.
type Layer string

// The layers. They may be extended, never renamed.
const (
	LayerPolicy  Layer = "policy"  // who may do what: tools, profiles, locked fields, ids
	LayerMount   Layer = "mount"   // which directories of the host may be mounted
	LayerNetwork Layer = "network" // which networks a box may have
	LayerQuota   Layer = "quota"   // how much a principal, or all together, may have
	LayerSeccomp Layer = "seccomp" // what system calls programs may make
	LayerLimit   Layer = "limit"   // a session's limits, or what this host can enforce
)

// Denial says which rule refused something, and which setting would allow it. It appears in the answer and in the log, so it
// contains no values of other principals.
type Denial struct {
	Layer   Layer
	Rule    string // the key that refused, as in box.toml: "policy.ci.sessions"
	Used    string // how much of it is used, "" if nothing is counted
	Allowed string // how much the rule allows
	Setting string // what would allow it, as the operator writes it
	// After is how long to wait before the same request may succeed; 0: unknown.
	After time.Duration
}

// By returns e with the rule that refused.
func (e *Error) By(d Denial) *Error {
	e.Denial = &d
	return e
}

// DenialOf returns that of the outermost Error in err's chain that has one, otherwise nil.
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
