// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Trees that nobody wants are removed by one goroutine of the store: nobody waits for it, not the end of a session and
// not the start of boxd. The keeper refuses while a box has the tree, which may be one ahead of need that ends later, so
// what could not be removed is tried again whenever somebody has let go of something.

// dropPatience bounds the removal of a tree.
const dropPatience = 5 * time.Minute

// Release gives back what Hold has held for a session, whose box has ended or has never been.
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

// Restore tries once more to remove what could not be removed, in the background: a box has ended.
func (s *Store) Restore() {
	select {
	case s.poke <- struct{}{}:
	default: // it has been told
	}
}

// drop has a tree removed as soon as nobody has it.
func (s *Store) drop(tree string) {
	s.mu.Lock()
	if !s.namedLocked(tree) {
		s.doomed[tree] = true
	}
	s.mu.Unlock()
	s.Restore()
}

// removeDoomed removes what nobody has any more, until ctx ends.
func (s *Store) removeDoomed(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.poke:
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

// free are the trees that can be removed. Nobody can come to have one of them: no name leads there.
func (s *Store) free() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.doomed, func(tree string, _ bool) bool { return s.namedLocked(tree) }) // somebody has imported the same
	var trees []string
	for _, tree := range slices.Sorted(maps.Keys(s.doomed)) {
		if len(s.leases[tree]) == 0 {
			trees = append(trees, tree)
		}
	}
	return trees
}

func (s *Store) removeOne(ctx context.Context, tree string) {
	ctx, cancel := context.WithTimeout(ctx, dropPatience)
	defer cancel()
	if err := s.remove(ctx, tree); err != nil {
		s.in.Log.Info("cannot remove an unused image tree yet", "tree", tree, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doomed, tree)
}
