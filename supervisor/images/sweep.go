// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Prune removes the images that no session uses, except those with these names and digests; it returns the removed ones.
func (s *Store) Prune(ctx context.Context, keep []string) ([]Image, error) {
	var removed []Image
	for _, img := range s.List() {
		if img.Used > 0 || slices.Contains(keep, img.Name) || slices.Contains(keep, img.Digest) {
			continue
		}
		if err := s.Remove(img.Name); err != nil {
			return removed, err
		}
		removed = append(removed, img)
	}
	return removed, s.Sweep(ctx)
}

// Sweep removes the trees that no image and no session uses. Sessions of an earlier boxd must hold theirs before.
func (s *Store) Sweep(ctx context.Context) error {
	done, err := waitFor(ctx, s.busy) // no tree is being imported
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, dropTimeout)
	defer cancel()
	host, err := s.in.Boxes.ProbeHost(ctx)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(filepath.Dir(host.Workspaces), statedir.ImageTrees))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		seen[name] = true
		if !isolation.ValidTree(name) { // of an interrupted removal: the keeper removes it together with any tree
			name = strings.ToLower(rand.Text())
		}
		s.drop(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, img := range s.images {
		if !seen[img.Tree] {
			s.in.Log.Error("an image of the store is missing on disk", "image", name)
			delete(s.images, name)
		}
	}
	return nil
}
