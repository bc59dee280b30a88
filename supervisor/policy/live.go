// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Mount requests a host directory in the box.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Mode   string `json:"mode"`            // MountReadOnly, MountReadWrite or MountNone; "": the profile's
	Owner  uint32 `json:"owner,omitempty"` // see isolation.Mount
	// NoSymlinks makes the kernel follow no symbolic link on the mount.
	NoSymlinks bool `json:"nosymfollow,omitempty"`
}

// LiveMount is a mount that was added to a running session.
type LiveMount struct {
	Mount
	Since time.Time `json:"since"`
	Attrs []string  `json:"attributes"` // as the kernel reports them
	// IDs are the ids of the mounts on the target, topmost first; there are several if a replaced one could not be removed from
	// below.
	IDs  []uint64 `json:"ids"`
	Made string   `json:"made,omitempty"` // the topmost of the directories made for the target
}

// MountChange is a change of a mount that has begun and whose result is not known yet.
type MountChange struct {
	Mount            // the mount to add or to replace the target's with; without a source it is removed
	Known   []uint64 `json:"known,omitempty"`   // ids of the mounts before
	Missing string   `json:"missing,omitempty"` // the topmost directory of a new target that did not exist
}

// Leftovers returns the mounts for which directories may have been made, once the box has ended.
func (c *MountChange) Leftovers(live []LiveMount) []LiveMount {
	if c == nil {
		return live
	}
	return append(slices.Clip(live), LiveMount{Mount: c.Mount, Made: c.Missing})
}

// ActiveSkill is a skill that a session uses.
type ActiveSkill struct {
	Name   string    `json:"name"`
	Since  time.Time `json:"since"`
	Digest string    `json:"digest,omitempty"` // of its version
	Tree   string    `json:"tree,omitempty"`   // its files, relative to the store
	Attrs  []string  `json:"attributes,omitempty"`
	// Of is its owner in the store if that is not the session's owner: a Workspace of LangBot's.
	Of string `json:"of,omitempty"`
	// Missing says that it was requested and did not exist.
	Missing bool `json:"missing,omitempty"`
}

// MaxSkills is how many a session can have.
const MaxSkills = 128

// mergeSkills returns the skills of a session: those requested, or those of its profile if the request gives none.
func mergeSkills(name string, p *Profile, requested []string) ([]string, error) {
	def, err := readSkillNames(p.Skills, MaxSkills)
	if err != nil || requested == nil {
		return def, err
	}
	list, err := readSkillNames(requested, MaxSkills)
	if err == nil && slices.Contains(p.Locked, "skills") && !slices.Equal(list, def) {
		err = locked("skills", strings.Join(list, ", "), cmp.Or(strings.Join(def, ", "), "none"), name)
	}
	return list, err
}

// LiveMount sets the mode of a mount for a running session, by the same rules as for a new session.
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
