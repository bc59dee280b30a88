// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestWorkspacesAreInADirectoryClosedToAll(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		there func(dir string) error
		ok    bool
	}{
		{name: "made", there: func(string) error { return nil }, ok: true},
		{name: "there", there: func(dir string) error { return os.Mkdir(dir, 0o700) }, ok: true},
		{name: "open to others", there: func(dir string) error { return os.Mkdir(dir, 0o755) }},
		{name: "open to a group", there: func(dir string) error { return os.Mkdir(dir, 0o710) }},
		{name: "a file", there: func(dir string) error { return os.WriteFile(dir, nil, 0o700) }},
		{name: "a link", there: func(dir string) error { return os.Symlink(t.TempDir(), dir) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			dir := filepath.Join(state, "workspaces")
			if err := tc.there(dir); err != nil {
				t.Fatal(err)
			}
			root, err := openWork(state, "workspaces", 0)
			if (err == nil) != tc.ok {
				t.Fatalf("err = %v, want (err == nil) == %v", err, tc.ok)
			}
			if err != nil {
				return
			}
			defer root.Close()
			if info, err := os.Lstat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("info = %v, err = %v, want no error and info.Mode() == os.ModeDir | 0o700", info, err)
			}
		})
	}
}

// A workspace that has become the tree of an image is no workspace any more, and its project id
// is forgotten.
func TestAKeptWorkspaceIsForgotten(t *testing.T) {
	t.Parallel()
	w := &Workspaces{}
	if err := w.open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	defer w.Close(false)
	const key, tree = "0123456789abcdef0123456789abcdef", "abcdefghijklmnopqrstuvwxyz"
	if err := w.root.Mkdir(key, 0o700); err != nil {
		t.Fatal(err)
	}
	w.ids[key] = 7
	for range 2 {
		if err := w.Keep(key, tree); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(w.root.Name()), statedir.ImageTrees, tree)); err != nil || len(w.ids) > 0 {
		t.Errorf("%v, remembered %v", err, w.ids)
	}
}

// A name never leads out of the directory of workspaces, and nothing that is no workspace is
// removed.
func TestOnlyWorkspacesBecomeTrees(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	w, err := OpenWorkspaces(state, "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(false)
	other := filepath.Join(state, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", ".", "..", "../other", other} {
		if err := w.Keep(key, "abcdefghijklmnopqrstuvwxyz"); err == nil {
			t.Errorf("the invalid key %q was accepted", key)
		}
		for _, to := range []string{"spaces/" + strings.Repeat("a", isolation.KeyLen), "spaces/../trees", "spaces/"} {
			if err := w.Keep(key, to); err == nil {
				t.Errorf("%q became %s", key, to)
			}
		}
		if err := w.Remove(key); key != "" && err == nil {
			t.Errorf("%q was removed", key)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// The changes that a box made to its root belong to root and stay; a workspace in which a program
// has made directories with the same names is kept whole.
func TestAWorkspaceIsTakenFromBesideARoot(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t) // to create files of other users
	w, err := OpenWorkspaces(t.TempDir(), "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(false)
	for _, tc := range []struct {
		key  string
		spec isolation.Spec
		want string // a path in the kept workspace
		left bool
	}{
		{strings.Repeat("a", isolation.KeyLen), isolation.Spec{Writable: true}, "file", true},
		{strings.Repeat("b", isolation.KeyLen), isolation.Spec{}, "workspace/file", false},
	} {
		tc.spec.Key = tc.key
		if err := w.MakeFor(&tc.spec); err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(w.root.Name(), tc.key)
		for _, name := range []string{"upper", "work", "workspace"} {
			if err := os.Mkdir(filepath.Join(own, name), 0o700); err == nil {
				err = os.Chown(filepath.Join(own, name), isolation.BoxUID, isolation.BoxGID)
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(own, "workspace", "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		space := tc.key[1:] + "z"
		for range 2 { // it may be called again
			if err := w.Keep(tc.key, isolation.SpacesDir+"/"+space); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(filepath.Join(w.Spaces.root.Name(), space, tc.want)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(own, "upper")); (err == nil) != tc.left {
			t.Errorf("the changes to the root: err = %v, want (err == nil) == %v", err, tc.left)
		}
		if err := w.Remove(tc.key); err != nil {
			t.Error(err)
		}
		if err := w.Keep(tc.key, isolation.SpacesDir+"/"+space); err != nil {
			t.Errorf("Keep of a workspace that was removed already: %v", err)
		}
	}
}

// Where neither the state directory nor a store can keep quotas, the hint says what the store lacks, which is easiest to fix.
func TestTheQuotaHintNamesWhatTheStoreLacks(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	w, err := OpenWorkspaces(t.TempDir(), "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(false)
	off := &UnavailableError{Reason: Off, Path: "/state", Kind: "ext4"}
	for want, store := range map[string]*UnavailableError{
		off.Hint():          nil,
		"install e2fsprogs": {Reason: NoProgram, Kind: isolation.StoreExt4},
		"install xfsprogs":  {Reason: NoProgram, Kind: isolation.StoreXFS},
	} {
		w.quotas, w.why, w.noStore = nil, off, store
		if store != nil {
			w.why = errors.Join(off, store)
		}
		var h isolation.Host
		if w.Probe(&h); h.QuotaHint != want {
			t.Errorf("the hint is %q, want %q", h.QuotaHint, want)
		}
	}
}
