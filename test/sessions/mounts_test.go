// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/client/mounts"
)

// lends is the configuration of a boxd that lends all below its own directory of that name.
const lends = "[mounts]\nallow = [\"%DIR%/lent\"]\n"

// lent makes directories that are lent, each with a file of its own name, and returns the path of the first.
func lent(t *testing.T, d *boxtest.Daemon, names ...string) string {
	t.Helper()
	for _, name := range names {
		dir := filepath.Join(d.Dir, "lent", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(d.Dir, "lent", names[0])
}

// mount gives a session a mount that it has not had.
func mount(t *testing.T, d *boxtest.Daemon, id string, req api.MountRequest) api.SessionMount {
	t.Helper()
	if req.Mode == "" {
		req.Mode = "ro"
	}
	m, isNew, err := mounts.Add(t.Context(), d.Client, id, &req)
	if err != nil || !isNew {
		t.Fatalf("mount %+v: new %v, %v", req, isNew, err)
	}
	return m
}

func unmount(t *testing.T, d *boxtest.Daemon, id, target string) {
	t.Helper()
	if err := mounts.Remove(t.Context(), d.Client, id, target, false); err != nil {
		t.Fatal(err)
	}
}

// problemOf is what boxd says of a request it has refused.
func problemOf(t *testing.T, err error) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("not refused by boxd: %v", err)
	}
	return e
}

// A mount comes and goes while a program runs, which finds it at once and cannot write to it; what had to be made
// for it goes with it, wherever it is.
func TestALivingSessionIsGivenMounts(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, lends)
	source := lent(t, d, "one")
	create(t, d, api.SessionRequest{ID: "s"})
	for _, target := range []string{"/mnt/deep/er", "/data", "/workspace/.in/one", "/home/box/one", "/tmp/one"} {
		before := succeeds(t, d, "s", sh("find /mnt /data /workspace /home/box /tmp | sort"))
		m := mount(t, d, "s", api.MountRequest{Source: source, Target: target, NoSymlinks: true})
		if !m.Live || m.Since == nil || !slices.Equal(m.Attributes, []string{"ro", "nosuid", "nodev", "nosymfollow"}) {
			t.Errorf("mounted %+v", m)
		}
		if got := succeeds(t, d, "s", sh("cat "+target+"/name; ! touch "+target+"/x; grep -c ' "+target+" ro,nosuid,nodev' /proc/self/mountinfo")); !strings.HasPrefix(got, "one1\n") {
			t.Errorf("%s in the box: %q", target, got)
		}
		if _, isNew, err := mounts.Add(t.Context(), d.Client, "s", &api.MountRequest{Source: source, Target: target, Mode: "ro", NoSymlinks: true}); err != nil || isNew {
			t.Errorf("once more: new %v, %v", isNew, err)
		}
		list, err := mounts.List(t.Context(), d.Client, "s")
		if err != nil || len(list) != 1 || list[0].Target != target {
			t.Errorf("listed %+v, %v", list, err)
		}
		unmount(t, d, "s", target)
		if after := succeeds(t, d, "s", sh("find /mnt /data /workspace /home/box /tmp | sort")); after != before {
			t.Errorf("%s has left something: before %q, after %q", target, before, after)
		}
		if e := problemOf(t, mounts.Remove(t.Context(), d.Client, "s", target, false)); e.Status != 404 {
			t.Errorf("removed twice: %+v", e.Problem)
		}
	}
	if _, err := os.Stat(filepath.Join(source, "name")); err != nil {
		t.Error(err)
	}
}
