// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// Boxes of one image, and boxes with a common mount source, share files that none of them can write. With flock(2), which needs
// no write access, one of them can signal another one bit at a time, which is documented (docs/design/limits.md). Nothing similar
// works: no record lock, no lease, no object of another box.
func TestT44WhatBoxesOnOneMountCanTellEachOther(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.MountSource(t, "common", 4242)
	d.Warm()
	before := d.Look()
	for _, id := range []string{"one", "two"} {
		d.NewSession(t, api.SessionRequest{ID: id, Mounts: []api.Mount{{Source: source, Target: "/data", Mode: "ro"}}})
	}
	for _, path := range []string{"/usr/bin/env", "/data"} {
		held := d.Hold(t, "one", api.ExecRequest{Argv: []string{"python3", "-c", `
import fcntl, os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(f, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()`, path}})
		got := d.Output(t, "two", api.ExecRequest{Argv: []string{"python3", "-c", `
import errno, fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
def attempt(name, f):
    try:
        f()
        print(name, "OK")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
attempt("flock", lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
attempt("record", lambda: fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)))
attempt("lease", lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))`, path}})
		held.Release()
		if want := "flock EAGAIN\nrecord EBADF\nlease EINVAL\n"; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for _, id := range []string{"one", "two"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
}

// A repository in a workspace contains only what was put there, and nothing of boxd: no file that hides another, and no directory
// that git would add.
func TestT70GitSeesNothingOfBoxd(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "git")
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "plain"})
	if got := d.Sh(t, "plain", "git init -q . && git status --porcelain --ignored && git add . && git ls-files && ls -A"); got != ".git\n" {
		t.Errorf(`git in a new workspace prints %q, want ".git\n"`, got)
	}
	if got := d.Sh(t, "plain", "echo text > file && git add . && git -c user.name=x -c user.email=x@example.org commit -qm first && git ls-tree -r --name-only HEAD"); got != "file\n" {
		t.Errorf(`the commit has %q, want "file\n"`, got)
	}
}
