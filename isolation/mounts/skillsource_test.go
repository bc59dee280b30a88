// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// A skill is mounted from the directory at its place in the store, never from where a symbolic
// link leads.
func TestASkillIsMountedFromItsPlaceInTheStore(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	rules := &SourceRules{State: state}
	k := isolation.Skill{Owner: "uid:1", Tree: "t"}
	at := filepath.Join(state, statedir.SkillPath(&k))
	opens := func() error {
		src, err := rules.skill(&k, "/skills/a")
		if err != nil {
			return err
		}
		defer unix.Close(src.FD)
		var is, want unix.Stat_t
		if err := errors.Join(unix.Fstat(src.FD, &is), unix.Lstat(at, &want)); err != nil || is.Ino != want.Ino || is.Dev != want.Dev {
			t.Errorf("something else was opened: err = %v, want no error and is.Ino == want.Ino and is.Dev == want.Dev",
				err)
		}
		if src.Mount.Writable || !src.Mount.NoSymlinks || src.Owner.Mapped || src.Mount.Target != "/skills/a" {
			t.Errorf(`src = %+v, want src.Mount.Writable == false and src.Mount.NoSymlinks == true and src.Owner.Mapped == false and src.Mount.Target == "/skills/a"`,
				src)
		}
		return nil
	}
	if err := opens(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing skill: err = %v, want err is unix.ENOENT", err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := opens(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{at, filepath.Dir(at), filepath.Dir(filepath.Dir(at))} {
		away := filepath.Join(state, "away")
		if err := errors.Join(os.Rename(name, away), os.Symlink(away, name)); err != nil {
			t.Fatal(err)
		}
		if err := opens(); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s is a link: err = %v, want err is unix.ELOOP or err is unix.ENOTDIR", name, err)
		}
		if err := errors.Join(os.Remove(name), os.Rename(away, name)); err != nil {
			t.Fatal(err)
		}
	}
	file := isolation.Skill{Owner: "uid:1", Tree: "file"}
	if err := os.WriteFile(filepath.Join(state, statedir.SkillPath(&file)), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := rules.skill(&file, "/skills/a"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: err = %v, want err is unix.ENOTDIR", err)
	}
}
