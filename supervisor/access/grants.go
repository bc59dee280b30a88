// SPDX-License-Identifier: Apache-2.0

// A grant gives a principal a role for a limited time.

package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of grants.
const (
	// LongestGrant is the longest that a grant may last.
	LongestGrant = 7 * 24 * time.Hour
	// Shortest is the shortest that a grant may last.
	Shortest = time.Second

	maxGrants = 256
)

// Grant gives a principal a role for a time.
type Grant struct {
	Principal string    `json:"principal"`
	Role      Role      `json:"role"`
	By        string    `json:"by"` // who gave it
	Created   time.Time `json:"created"`
	Until     time.Time `json:"until"`
}

// expired reports whether the grant has expired. A clock set back behind its beginning ends it too: it would last longer than it was
// given for.
func (g *Grant) expired(now time.Time) bool {
	return !now.Before(g.Until) || now.Before(g.Created.Add(-time.Minute))
}

const file = "grants.json"

// Grants stores the grants, on disk too: they survive boxd. The zero Grants has none, and accepts none.
type Grants struct {
	mu      sync.Mutex
	dir     *os.Root
	list    []Grant
	now     func() time.Time
	changed func()
}

// OpenGrants reads the grants in a directory. A file that cannot be read is an error: without it no temporary role would be
// known.
func OpenGrants(dir *os.Root, now func() time.Time) (*Grants, error) {
	s := &Grants{dir: dir, now: now, changed: func() {}}
	err := durable.ReadJSON(dir, file, &s.list)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	s.list = slices.DeleteFunc(s.list, func(g Grant) bool {
		return g.Role == 0 || g.Principal == "" || g.expired(now()) || g.Until.Sub(g.Created) > LongestGrant
	})
	return s, err
}

// OnChange sets the function to call after each change. It is called once, before anything else.
func (s *Grants) OnChange(f func()) { s.changed = f }

// List returns the grants that have not expired, by principal.
func (s *Grants) List() []Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	return slices.Clone(s.list)
}

// forget drops expired grants.
func (s *Grants) forget() {
	now := s.now()
	s.list = slices.DeleteFunc(s.list, func(g Grant) bool { return g.expired(now) })
}

// Of returns the grant of a principal, if it has one.
func (s *Grants) Of(principal string) (Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.list {
		if g.Principal == principal && !g.expired(s.now()) {
			return g, true
		}
	}
	return Grant{}, false
}

// Give grants a principal a role for a time, and replaces its earlier grant.
func (s *Grants) Give(principal string, role Role, last time.Duration, by string) (Grant, error) {
	if last < Shortest || last > LongestGrant {
		return Grant{}, fault.Field("for", last, fmt.Sprintf("%v to %v", Shortest, LongestGrant))
	}
	s.mu.Lock()
	s.forget()
	now := s.now()
	g := Grant{Principal: principal, Role: role, By: by, Created: now, Until: now.Add(last)}
	next := slices.DeleteFunc(slices.Clone(s.list), func(old Grant) bool { return old.Principal == principal })
	if len(next) >= maxGrants {
		s.mu.Unlock()
		return Grant{}, fault.Errorf(fault.Exhausted, "too many grants: the limit is %d", maxGrants).WithHint("end one: boxctl grant revoke PRINCIPAL")
	}
	next = append(next, g)
	slices.SortFunc(next, func(a, b Grant) int { return strings.Compare(a.Principal, b.Principal) })
	err := s.store(next)
	s.mu.Unlock()
	if err != nil {
		return Grant{}, err
	}
	s.changed()
	return g, nil
}

// Revoke ends the grant of a principal.
func (s *Grants) Revoke(principal string) error {
	s.mu.Lock()
	s.forget()
	next := slices.DeleteFunc(slices.Clone(s.list), func(g Grant) bool { return g.Principal == principal })
	if len(next) == len(s.list) {
		s.mu.Unlock()
		return fault.Errorf(fault.NotFound, "%s has no grant", fault.Show(principal)).WithHint("list grants: boxctl grant ls")
	}
	err := s.store(next)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.changed()
	return nil
}

// store writes the grants and waits for the disk: a revoked grant must not come back after a power failure.
func (s *Grants) store(next []Grant) error {
	if err := durable.WriteJSON(s.dir, file, next); err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	s.list = next
	for _, name := range []string{file, "."} {
		f, err := s.dir.Open(name)
		if err == nil {
			err = f.Sync()
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("grants: %w", err)
		}
	}
	return nil
}
