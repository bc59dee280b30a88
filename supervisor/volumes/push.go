// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Target is a place in a bucket that boxd pushes a version to. The version is kept until it is there, or given up.
type Target struct {
	Owner   string    `json:"owner"`   // principal
	Session string    `json:"session"` // whose results these are
	Bucket  string    `json:"bucket"`  // a table [buckets.NAME]
	Prefix  string    `json:"prefix"`  // below the bucket's address
	Since   time.Time `json:"since"`
	Tries   int       `json:"tries,omitempty"`
	Next    time.Time `json:"next,omitzero"`   // next try
	Error   string    `json:"error,omitempty"` // of the last try
	Done    time.Time `json:"done,omitzero"`   // when it had arrived
	GivenUp time.Time `json:"given_up,omitzero"`
}

// Waits reports whether the version is still to be pushed there.
func (t *Target) Waits() bool { return t.Done.IsZero() && t.GivenUp.IsZero() }

// same reports whether two targets are the same place, for the same session.
func (t *Target) same(o *Target) bool {
	return t.Owner == o.Owner && t.Session == o.Session && t.Bucket == o.Bucket && t.Prefix == o.Prefix
}

// Pending is a version waiting to be pushed.
type Pending struct {
	Target

	Drive   string
	Version int
}

// maxTargets is how many targets of one version are remembered. Sessions with equal results share versions.
const maxTargets = 64

// SetTarget records where a version is to be pushed, or the outcome.
func (s *Drives) SetTarget(owner, name string, number int, t *Target) error {
	_, err := s.change(owner, name, func(d *Drive) error {
		v, err := d.version(number)
		if err != nil {
			return err
		}
		v.Targets = slices.Clone(v.Targets) // two records must not share a list
		i := slices.IndexFunc(v.Targets, func(o Target) bool { return o.same(t) })
		switch {
		case i >= 0:
			v.Targets[i] = *t
		default:
			if done := slices.IndexFunc(v.Targets, func(o Target) bool { return !o.Waits() }); len(v.Targets) >= maxTargets && done >= 0 {
				v.Targets = slices.Delete(v.Targets, done, done+1)
			}
			v.Targets = append(v.Targets, *t)
		}
		if !t.Done.IsZero() && !slices.ContainsFunc(v.Targets, func(o Target) bool { return o.Waits() }) {
			v.Pushed = t.Done
		}
		return nil
	})
	s.wakeSweeper()
	return err
}

// waits reports whether boxd has yet to push a version somewhere.
func (v *Version) waits() bool {
	return slices.ContainsFunc(v.Targets, func(t Target) bool { return t.Waits() })
}

// Pending lists the versions waiting to be pushed, by due time.
func (s *Drives) Pending() (list []Pending) {
	s.targets("", func(d *Drive, v *Version, t *Target) {
		if t.Waits() {
			list = append(list, Pending{Target: *t, Drive: d.Name, Version: v.Number})
		}
	})
	slices.SortFunc(list, func(a, b Pending) int { return cmp.Or(a.Next.Compare(b.Next), a.Since.Compare(b.Since)) })
	return list
}

// TargetsOf lists where the results of a principal's session are pushed, oldest first.
func (s *Drives) TargetsOf(owner, session string) (list []Target) {
	s.targets(owner, func(_ *Drive, _ *Version, t *Target) {
		if t.Session == session && t.Owner == owner {
			list = append(list, *t)
		}
	})
	slices.SortFunc(list, func(a, b Target) int { return a.Since.Compare(b.Since) })
	return list
}

// targets visits the targets of a principal, or of all.
func (s *Drives) targets(owner string, each func(d *Drive, v *Version, t *Target)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sp := range s.spaces {
		if owner != "" && key != statedir.OwnerDir(owner) {
			continue
		}
		for _, d := range sp.drives {
			for i := range d.Versions {
				for j := range d.Versions[i].Targets {
					each(d, &d.Versions[i], &d.Versions[i].Targets[j])
				}
			}
		}
	}
}
