// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Target is a place in a bucket that a version is pushed to by boxd itself. The version stays until it is there, or given up.
type Target struct {
	Owner   string    `json:"owner"`   // principal
	Session string    `json:"session"` // whose results they are
	Bucket  string    `json:"bucket"`  // a table [buckets.NAME]
	Prefix  string    `json:"prefix"`  // below the address of that
	Since   time.Time `json:"since"`
	Tries   int       `json:"tries,omitempty"`
	Next    time.Time `json:"next,omitzero"`   // when it is tried again
	Error   string    `json:"error,omitempty"` // of the last try
	Done    time.Time `json:"done,omitzero"`   // when it was there
	GivenUp time.Time `json:"given_up,omitzero"`
}

// Waits reports whether a version is still to be pushed there.
func (t *Target) Waits() bool { return t.Done.IsZero() && t.GivenUp.IsZero() }

// same reports whether two are one place, for one session.
func (t *Target) same(o *Target) bool {
	return t.Owner == o.Owner && t.Session == o.Session && t.Bucket == o.Bucket && t.Prefix == o.Prefix
}

// Pending is a version that waits to be pushed.
type Pending struct {
	Target

	Drive   string
	Version int
}

// mostTargets of one version are remembered. Sessions with equal results share versions.
const mostTargets = 64

// SetTarget notes where a version is to be pushed, or how that has gone.
func (s *Drives) SetTarget(who, name string, number int, t *Target) error {
	_, err := s.change(who, name, func(d *Drive) error {
		v, err := d.version(number)
		if err != nil {
			return err
		}
		v.Targets = slices.Clone(v.Targets) // the lists of two records must not be one
		i := slices.IndexFunc(v.Targets, func(o Target) bool { return o.same(t) })
		switch {
		case i >= 0:
			v.Targets[i] = *t
		default:
			if done := slices.IndexFunc(v.Targets, func(o Target) bool { return !o.Waits() }); len(v.Targets) >= mostTargets && done >= 0 {
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

// waits reports whether boxd is still to push a version somewhere.
func (v *Version) waits() bool {
	return slices.ContainsFunc(v.Targets, func(t Target) bool { return t.Waits() })
}

// Pending lists what waits to be pushed, what is due first.
func (s *Drives) Pending() (list []Pending) {
	s.targets("", func(d *Drive, v *Version, t *Target) {
		if t.Waits() {
			list = append(list, Pending{Target: *t, Drive: d.Name, Version: v.Number})
		}
	})
	slices.SortFunc(list, func(a, b Pending) int { return cmp.Or(a.Next.Compare(b.Next), a.Since.Compare(b.Since)) })
	return list
}

// TargetsOf lists where results of a session of a principal are pushed, the oldest first.
func (s *Drives) TargetsOf(who, session string) (list []Target) {
	s.targets(who, func(_ *Drive, _ *Version, t *Target) {
		if t.Session == session && t.Owner == who {
			list = append(list, *t)
		}
	})
	slices.SortFunc(list, func(a, b Target) int { return a.Since.Compare(b.Since) })
	return list
}

// targets goes through those of a principal, or of all.
func (s *Drives) targets(who string, each func(d *Drive, v *Version, t *Target)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sp := range s.spaces {
		if who != "" && key != statedir.OwnerDir(who) {
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
