// SPDX-License-Identifier: Apache-2.0

package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
)

func TestRecordsReplaceEachOtherWhole(t *testing.T) {
	t.Parallel()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for i, want := range []string{"one", "two", "three", "four"} {
		write := durable.WriteJSON
		if i%2 == 0 {
			write = durable.SyncJSON
		}
		if err := write(dir, "a.json", want); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := durable.ReadJSON(dir, "a.json", &got); err != nil || got != want {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	if err := dir.WriteFile(".new-HALF", []byte(`"tw`), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := durable.Names(dir) // while it is being written, for all one knows
	if err != nil || !slices.Equal(names, []string{"a.json"}) {
		t.Fatalf("names %v, %v", names, err)
	}
	if _, err := dir.Stat(".new-HALF"); err != nil {
		t.Fatal(err)
	}
	if names, err := durable.Recover(dir); err != nil || !slices.Equal(names, []string{"a.json"}) {
		t.Fatalf("names %v, %v", names, err)
	}
	if _, err := dir.Stat(".new-HALF"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the half-written record is still there: err = %v, want err is fs.ErrNotExist", err)
	}
	if err := dir.WriteFile("bad.json", []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	var v any
	if durable.ReadJSON(dir, "bad.json", &v) == nil || !errors.Is(durable.ReadJSON(dir, "no.json", &v), fs.ErrNotExist) {
		t.Fatal("a corrupt or missing record was read")
	}
}

// Something else with the name of a record is refused; it is not followed, and reading it does
// not block.
func TestOnlyRegularFilesAreRecords(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, make := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink("good", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"huge":      func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		if err := errors.Join(dir.WriteFile("good", []byte("1"), 0o600), make(filepath.Join(path, name))); err != nil {
			t.Fatal(err)
		}
		if err := durable.ReadJSON(dir, name, new(any)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if err := durable.ReadJSON(dir, "good", new(any)); err != nil {
		t.Error(err)
	}
}

// Files that an earlier process has left in the scratch directory are removed, and the directory stays: on a full disk it could not
// be created again.
func TestTheScratchDirectoryIsEmptied(t *testing.T) {
	t.Parallel()
	store := filepath.Join(t.TempDir(), "store")
	root, err := durable.OpenStore(store)
	if err != nil {
		t.Fatal(err)
	}
	at, err := durable.NewScratch(root)
	if err == nil {
		err = root.WriteFile(at+"/f", nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := root.Stat(durable.Scratch)
	if err != nil {
		t.Fatal(err)
	}
	_ = root.Close()
	if root, err = durable.OpenStore(store); err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	after, err := root.Stat(durable.Scratch)
	left, _ := os.ReadDir(filepath.Join(store, durable.Scratch))
	if err != nil || !os.SameFile(before, after) || len(left) > 0 {
		t.Errorf("%v, the same %v, %d entries", err, os.SameFile(before, after), len(left))
	}
}
