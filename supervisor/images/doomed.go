// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Unused trees are removed by one goroutine of the store, so that neither the end of a session nor the start of boxd waits for
// it. The keeper refuses while a box has the tree, which may be a preforked one that ends later, so a failed removal is tried
// again whenever something is released.

// dropTimeout bounds the removal of a tree.
const dropTimeout = 5 * time.Minute

// Release gives back what Hold acquired for a session, whose box has ended or was never made.
func (s *Store) Release(session string) {
	s.mu.Lock()
	tree := s.holding[session]
	delete(s.holding, session)
	delete(s.leases[tree], session)
	if len(s.leases[tree]) == 0 {
		delete(s.leases, tree)
	}
	s.mu.Unlock()
	s.Restore()
}

// Restore retries failed removals in the background, since a box has ended.
func (s *Store) Restore() {
	select {
	case s.wakeup <- struct{}{}:
	default: // already notified
	}
}

// drop removes a tree as soon as it is unused.
func (s *Store) drop(tree string) {
	s.mu.Lock()
	if !s.namedLocked(tree) {
		s.unused[tree] = true
	}
	s.mu.Unlock()
	s.Restore()
}

// removeUnused removes unused trees until ctx ends.
func (s *Store) removeUnused(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wakeup:
		}
		s.removeFree(ctx)
	}
}

func (s *Store) removeFree(ctx context.Context) {
	for _, tree := range s.free() {
		if ctx.Err() != nil {
			return
		}
		s.removeOne(ctx, tree)
	}
}

// free returns the trees that can be removed. None of them can come into use again: no image refers to them.
func (s *Store) free() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.unused, func(tree string, _ bool) bool { return s.namedLocked(tree) }) // the same image was imported again
	var trees []string
	for _, tree := range slices.Sorted(maps.Keys(s.unused)) {
		if len(s.leases[tree]) == 0 {
			trees = append(trees, tree)
		}
	}
	return trees
}

func (s *Store) removeOne(ctx context.Context, tree string) {
	ctx, cancel := context.WithTimeout(ctx, dropTimeout)
	defer cancel()
	if err := s.remove(ctx, tree); err != nil {
		s.in.Log.Info("cannot remove an unused image tree yet", "tree", tree, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unused, tree)
}
