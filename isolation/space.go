// SPDX-License-Identifier: Apache-2.0

package isolation

import "strconv"

// SpacesDir holds, beside the workspaces of boxes, the named ones, which boxes mount and which
// outlive them.
const SpacesDir = "spaces"

// FieldWorkspaces is the field of the refusal to make one more workspace than KeeperConfig.Workspaces.
const FieldWorkspaces = "workspaces"

// ChangeSpace makes a named workspace, or removes one, which no box may be using.
type ChangeSpace struct {
	Key    string
	Quota  Quota // zero: none
	Remove bool
}

// MaxLent is how many named workspaces a box can mount read-only.
const MaxLent = 16

func (s *Spec) validLent(seen map[string]bool) error {
	for _, l := range s.Lent {
		at := l[min(KeyLen, len(l)):]
		if len(s.Lent) > MaxLent || !ValidKey(l[:len(l)-len(at)]) || !CleanAbsolute(at) || Reserved(at) || Within(at, Workspace) || seen[at] {
			return &Refusal{"inputs", l, "at most " + strconv.Itoa(MaxLent) + ", each with a target of its own outside " + Workspace + " that is " + Targets}
		}
		seen[at] = true
	}
	return nil
}

// Validate checks what can be checked without the host.
func (s *ChangeSpace) Validate() error {
	if !ValidKey(s.Key) || (s.Quota.Bytes == 0) != (s.Quota.Inodes == 0) {
		return &Refusal{"workspace", s.Key, strconv.Itoa(KeyLen) + " characters of a-z and 0-9, with bytes and inodes together"}
	}
	return nil
}

func (s *ChangeSpace) fields(c *codec) {
	c.str(&s.Key)
	s.Quota.fields(c)
	c.bool(&s.Remove)
}

// SetHostname sets the hostname of a box in which no program runs yet.
type SetHostname struct{ Key, Hostname string }

// Validate checks what can be checked without the box.
func (m *SetHostname) Validate() error {
	if !validHostname(m.Hostname) {
		return &Refusal{"hostname", m.Hostname, "a DNS label: a-z, 0-9 and inner hyphens, at most 63"}
	}
	return nil
}

func (m *SetHostname) fields(c *codec) { c.str(&m.Key, &m.Hostname) }

// ReadQuota asks how full the quota is on a directory of the host, at or below one that is
// mounted in a box.
type ReadQuota struct{ Key, Source string }

func (m *ReadQuota) fields(c *codec) { c.str(&m.Key, &m.Source) }
