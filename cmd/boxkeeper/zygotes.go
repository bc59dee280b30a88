// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"sync"
)

// maxZygotes is how many zygotes of store images live at once: each has a mounted tree, and some memory.
const maxZygotes = 16

// zygoteSet holds the zygotes of one keeper: that of the image "host", and those of the images of the
// store that were used last. The descriptors stay the keeper's.
type zygoteSet struct {
	BoxInit, BoxFiles int
	Etc               []string
	Open              func(tree string) (int, error) // opens a detached mount of an image's tree

	mu     sync.Mutex         // guards the fields below
	all    map[string]*zygote // by tree
	recent []string           // trees of the store's images that have a zygote, the last used one last
}

// of returns the zygote of a tree, "" for the image "host".
func (s *zygoteSet) of(tree string) *zygote {
	s.mu.Lock()
	defer s.mu.Unlock()
	z := s.all[tree]
	if z == nil {
		z = &zygote{BoxInit: s.BoxInit, BoxFiles: s.BoxFiles, Etc: s.Etc}
		if tree != "" {
			z.Tree = func() (int, error) { return s.Open(tree) }
		}
		if s.all == nil {
			s.all = map[string]*zygote{}
		}
		s.all[tree] = z
	}
	if tree == "" {
		return z
	}
	s.recent = append(slices.DeleteFunc(s.recent, func(t string) bool { return t == tree }), tree)
	if len(s.recent) > maxZygotes {
		go s.all[s.recent[0]].Close() // it ends after a request in progress, and starts again when it is needed
		s.recent = s.recent[1:]
	}
	return z
}

// Drop ends the zygote of a tree that is not used any more and cannot be opened again.
func (s *zygoteSet) Drop(tree string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if z := s.all[tree]; z != nil {
		z.Close()
		delete(s.all, tree)
		s.recent = slices.DeleteFunc(s.recent, func(t string) bool { return t == tree })
	}
}

// Close ends all zygotes.
func (s *zygoteSet) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, z := range s.all {
		z.Close()
	}
	s.all = nil
}
