// SPDX-License-Identifier: Apache-2.0

package images

import (
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/images/root"
)

// stored is a store of one image, and the trees that it has removed.
func stored(t *testing.T) (*Store, *[]string) {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	if err := dir.Mkdir(namesDir, 0o700); err != nil {
		t.Fatal(err)
	}
	removed := &[]string{}
	s := &Store{
		in: Parts{Changed: func() {}, Log: slog.New(slog.DiscardHandler)}, root: dir, remove: func(tree string) error { *removed = append(*removed, tree); return nil },
		images: map[string]*Image{}, leases: map[string]map[string]bool{}, holding: map[string]string{}, doomed: map[string]bool{},
	}
	if err := s.enter(&Image{Name: "one", Digest: "sha256:1", Tree: "tree"}); err != nil {
		t.Fatal(err)
	}
	return s, removed
}

func TestATreeStaysAsLongAsSomebodyHasIt(t *testing.T) {
	t.Parallel()
	s, removed := stored(t)
	is := &root.Root{Digest: "sha256:1", Tree: "tree"}
	if err := s.Take("a", is); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("one"); err != nil || len(*removed) > 0 {
		t.Fatalf("%v, removed %q", err, *removed)
	}
	s.Hold("b", is) // of an earlier boxd
	s.Release("a")
	if len(*removed) > 0 {
		t.Fatalf("removed %q", *removed)
	}
	s.Release("b")
	if !slices.Equal(*removed, []string{"tree"}) {
		t.Errorf("removed %q", *removed)
	}
	if err := s.Take("c", is); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of an image that is gone: %v", err)
	}
}

// An import of what there is uses its tree, which somebody removes meanwhile under its other name.
func TestATreeThatAnImportHasInHandStays(t *testing.T) {
	t.Parallel()
	s, removed := stored(t)
	s.Hold(importing, &root.Root{Tree: "tree"})
	if err := s.Remove("one"); err != nil {
		t.Fatal(err)
	}
	if err := s.enter(&Image{Name: "two", Digest: "sha256:1", Tree: "tree"}); err != nil {
		t.Fatal(err)
	}
	s.Release(importing)
	if len(*removed) > 0 {
		t.Errorf("removed %q", *removed)
	}
	if err := s.Take("a", &root.Root{Tree: "tree"}); err != nil {
		t.Error(err)
	}
}
