// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
)

// Leased is a skill as it was when it was mounted. Its tree exists as long as the lease, even if the skill changes.
type Leased struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Tree   string `json:"tree"` // relative to the store
}

// Lease holds trees of skills.
type Lease struct {
	Skills []Leased

	store *Store
	once  sync.Once
}

// Lease holds the skills of these names. Names that do not exist are only returned as missing: a session that can do without them
// must not fail.
func (s *Store) Lease(owner string, names []string) (l *Lease, missing []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l = &Lease{store: s}
	for _, name := range names {
		sp, k, err := s.find(owner, name)
		if err != nil {
			missing = append(missing, name)
			continue
		}
		l.Skills = append(l.Skills, Leased{Name: k.Name, Digest: k.Digest, Tree: k.path(sp)})
		s.leases[k.path(sp)]++
	}
	return l, missing
}

// Restore holds trees that an earlier boxd leased. Call it before Sweep.
func (s *Store) Restore(list []Leased) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range list {
		s.leases[k.Tree]++
	}
	return &Lease{Skills: list, store: s}
}

// Release releases the trees. It may be called again.
func (l *Lease) Release() {
	l.once.Do(func() {
		for _, k := range l.Skills {
			l.store.release(k.Tree)
		}
	})
}

func (s *Store) release(at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[at]--; s.leases[at] <= 0 {
		delete(s.leases, at)
		s.forget(at)
		key, _, _ := strings.Cut(at, "/")
		s.dissolve(key)
	}
}

// forget removes a tree that no record names and no lease holds. The lock is held.
func (s *Store) forget(at string) {
	if s.leases[at] > 0 || s.named(at) {
		return
	}
	if err := s.root.RemoveAll(at); err != nil {
		s.log.Warn("cannot remove an unused skill yet", "directory", at, "error", err)
	}
}

func (s *Store) named(at string) bool {
	key, tree, _ := strings.Cut(at, "/"+treesDir+"/")
	if sp := s.spaces[key]; sp != nil {
		if sp.broken {
			return true // possibly by an unreadable record
		}
		for _, k := range sp.skills {
			if k.tree == tree {
				return true
			}
		}
	}
	return false
}

// Sweep removes unused trees of an earlier boxd. Sessions that continue must have their leases again.
func (s *Store) Sweep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for key, sp := range s.spaces {
		if sp.broken {
			continue
		}
		trees, err := fs.ReadDir(s.root.FS(), path.Join(key, treesDir))
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep skills: %w", err))
			continue
		}
		for _, t := range trees {
			s.forget(path.Join(key, treesDir, t.Name()))
		}
		s.dissolve(key)
	}
	return errors.Join(errs...)
}
