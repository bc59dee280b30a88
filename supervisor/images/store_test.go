// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// stored returns a store of one image, and the list of the trees that it has removed.
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
		in: Parts{Changed: func() {}, Log: slog.New(slog.DiscardHandler)}, root: dir, remove: func(_ context.Context, tree string) error { *removed = append(*removed, tree); return nil },
		busy: make(chan struct{}, 1), wakeup: make(chan struct{}, 1),
		images: map[string]*Image{}, leases: map[string]map[string]bool{}, holding: map[string]string{}, unused: map[string]bool{},
	}
	if err := s.enter(&Image{Name: "one", Digest: "sha256:1", Tree: "tree"}); err != nil {
		t.Fatal(err)
	}
	return s, removed
}

func TestAnImageTreeStaysWhileASessionUsesIt(t *testing.T) {
	t.Parallel()
	s, removed := stored(t)
	is := &policy.ImageRoot{Digest: "sha256:1", Tree: "tree"}
	if err := s.Take("a", is); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("one"); err != nil {
		t.Fatal(err)
	}
	s.removeFree(t.Context())
	if len(*removed) > 0 {
		t.Fatalf("removed %q", *removed)
	}
	s.Hold("b", is) // of an earlier boxd
	s.Release("a")
	s.removeFree(t.Context())
	if len(*removed) > 0 {
		t.Fatalf("removed %q", *removed)
	}
	s.Release("b")
	s.removeFree(t.Context())
	if !slices.Equal(*removed, []string{"tree"}) {
		t.Errorf("removed %q", *removed)
	}
	if err := s.Take("c", is); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a removed image: err = %v, want a fault.NotFound error", err)
	}
}

// An import of existing content uses its tree, which stays although its other name is removed meanwhile.
func TestAnImageTreeReusedByAnImportStays(t *testing.T) {
	t.Parallel()
	s, removed := stored(t)
	s.Hold(importing, &policy.ImageRoot{Tree: "tree"})
	if err := s.Remove("one"); err != nil {
		t.Fatal(err)
	}
	if err := s.enter(&Image{Name: "two", Digest: "sha256:1", Tree: "tree"}); err != nil {
		t.Fatal(err)
	}
	s.Release(importing)
	s.removeFree(t.Context())
	if len(*removed) > 0 {
		t.Errorf("removed %q", *removed)
	}
	if err := s.Take("a", &policy.ImageRoot{Tree: "tree"}); err != nil {
		t.Error(err)
	}
	if len(s.unused) > 0 {
		t.Errorf("the directory tree of a named image is to be removed: s.unused = %v, want len(s.doomed) == 0", s.unused)
	}
}

// No caller waits for the removal of a directory tree. One that a preforked box still uses is tried again when that box has ended,
// and Close leaves the rest to the next boxd.
func TestRemovingAnImageTreeBlocksNoCaller(t *testing.T) {
	t.Parallel()
	s, _ := stored(t)
	tries := make(chan string)
	s.remove = func(ctx context.Context, tree string) error {
		select {
		case tries <- tree:
			return unix.EBUSY
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	baseCtx, stop := context.WithCancel(t.Context())
	s.stop = stop
	s.work.Go(func() { s.removeUnused(baseCtx) })
	if err := s.Remove("one"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if tree := <-tries; tree != "tree" {
			t.Errorf("removes %q", tree)
		}
		s.Restore()
	}
	s.Close()
}

func TestPruneKeepsWhatProfilesName(t *testing.T) {
	t.Parallel()
	for _, keep := range []string{"one", "sha256:1"} {
		s, _ := stored(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.busy <- struct{}{} // a running import
		gone, err := s.Prune(ctx, []string{keep})
		if !errors.Is(err, context.Canceled) || len(gone) > 0 || s.images["one"] == nil {
			t.Errorf(`kept as %s: gone = %v, err = %v, want err is context.Canceled and len(gone) == 0 and s.images["one"] != nil`,
				keep, gone, err)
		}
	}
}

// A slow upload delays other uploads at most, and no other operation of the store.
func TestASlowImageUploadBlocksNoOtherOperation(t *testing.T) {
	t.Parallel()
	s, _ := stored(t)
	s.cfg, s.receiving.All, s.receiving.Each = DefaultConfig(), 1, 1
	if err := s.root.Mkdir(durable.Scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	from, to := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := s.Import(t.Context(), from, Source{Name: "two"})
		ended <- err
	}()
	if _, err := io.WriteString(to, "the beginning"); err != nil { // the store is receiving it
		t.Fatal(err)
	}
	done, err := waitFor(t.Context(), s.busy)
	if err != nil {
		t.Fatal(err)
	}
	done()
	to.CloseWithError(errors.New("gone"))
	if err := <-ended; fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
}

// A commit that breaks off leaves neither an image nor a file.
func TestACommitThatBreaksOffLeavesNothing(t *testing.T) {
	t.Parallel()
	s, _ := stored(t)
	s.cfg, s.receiving.All, s.receiving.Each = DefaultConfig(), 1, 1
	if err := s.root.Mkdir(durable.Scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	is := &policy.ImageRoot{Digest: "sha256:1", Tree: "tree"}
	broken := errors.New("the box has ended")
	for _, name := range []string{"two", "one"} {
		_, err := s.Commit(t.Context(), is, &Commitment{Name: name}, func(_ context.Context, b files.Bounds, w io.Writer) error {
			if b.Bytes != int64(s.cfg.MaxBytes) || b.Entries != s.cfg.MaxEntries {
				t.Errorf("bounds %+v", b)
			}
			_, err := io.WriteString(w, "half of an archive")
			return errors.Join(err, broken)
		})
		if !errors.Is(err, broken) {
			t.Errorf("%s: err = %v, want err is %v", name, err, broken)
		}
	}
	left, err := os.ReadDir(s.root.Name() + "/" + durable.Scratch)
	if list := s.List(); err != nil || len(left) > 0 || len(list) != 1 || list[0].Digest != "sha256:1" || s.receiving.Taken() > 0 {
		t.Errorf(`left are %v, %v, %+v, want no error and len(left) == 0 and len(list) == 1 and list[0].Digest == "sha256:1" and s.receiving.Taken() <= 0`,
			left, err, list)
	}
}
