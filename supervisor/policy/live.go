// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// LiveMount is a mount that a living session has been given.
type LiveMount struct {
	Mount
	Since time.Time `json:"since"`
	Attrs []string  `json:"attributes"` // as the kernel has them
	// IDs are the numbers of the mounts on the target, the uppermost first; there are more than one where one that
	// was replaced could not be taken away from below.
	IDs  []uint64 `json:"ids"`
	Made string   `json:"made,omitempty"` // the first of the directories that were made for the target
}

// LiveMount gives a mount that is asked for of a living session its mode, under the rules of one that is asked for
// when it is made.
func (p *Profile) LiveMount(name string, m Mount) (Mount, error) {
	list, err := mergeMounts(name, p, []Mount{m})
	switch {
	case err != nil:
		return m, err
	case len(list) == 0:
		return m, fault.Field("mode", MountNone, MountReadOnly)
	}
	return list[0], nil
}
