// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Mount asks for a host directory in the box.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Mode   string `json:"mode"`            // MountReadOnly, MountReadWrite or MountNone; "": the profile's
	Owner  uint32 `json:"owner,omitempty"` // see isolation.Mount
	// NoSymlinks has the kernel follow no symbolic link of the directory.
	NoSymlinks bool `json:"nosymfollow,omitempty"`
}

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

// MountChange is a change of a mount that has begun, and of which nobody has said yet what has come of it.
type MountChange struct {
	Mount            // what is added, or takes the place of what is on its target; without a source that is removed
	Known   []uint64 `json:"known,omitempty"`   // the numbers of the mounts that there were before
	Missing string   `json:"missing,omitempty"` // the first of the directories of a new target that were not there
}

// Leftovers are, after the end of a box, the mounts for which directories may have been made.
func (c *MountChange) Leftovers(live []LiveMount) []LiveMount {
	if c == nil {
		return live
	}
	return append(slices.Clip(live), LiveMount{Mount: c.Mount, Made: c.Missing})
}

// ActiveSkill is a skill that a session has.
type ActiveSkill struct {
	Name   string    `json:"name"`
	Since  time.Time `json:"since"`
	Digest string    `json:"digest,omitempty"` // of the version that it has
	Tree   string    `json:"tree,omitempty"`   // of its files, below the store
	Attrs  []string  `json:"attributes,omitempty"`
	// Of is whose it is in the store, where that is not the session's owner but a Workspace of LangBot's.
	Of string `json:"of,omitempty"`
	// Missing says that it was asked for and was not there.
	Missing bool `json:"missing,omitempty"`
}

// MaxSkills is how many a session can have.
const MaxSkills = 128

// mergeSkills are the skills of a session: those it asks for, or those of its profile if it asks for none.
func mergeSkills(name string, p *Profile, asked []string) ([]string, error) {
	usual, err := ReadSkillNames(p.Skills, MaxSkills)
	if err != nil || asked == nil {
		return usual, err
	}
	list, err := ReadSkillNames(asked, MaxSkills)
	if err == nil && slices.Contains(p.Locked, "skills") && !slices.Equal(list, usual) {
		err = locked("skills", strings.Join(list, ", "), cmp.Or(strings.Join(usual, ", "), "none"), name)
	}
	return list, err
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
