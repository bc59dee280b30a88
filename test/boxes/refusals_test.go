// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
)

// refused checks that an error refuses a field, and says what is allowed.
func refused(t *testing.T, err error, status int, field, allowed string) {
	t.Helper()
	if e := boxtest.Refused(t, err, status, field); !strings.Contains(e.Allowed, allowed) {
		t.Errorf("%s is refused with allowed %q (%s), want %q", field, e.Allowed, e.Detail, allowed)
	}
}

// refusal is a list of mounts that must be refused.
type refusal struct {
	name           string
	mounts         []api.Mount
	status         int
	field, allowed string
}

func TestRefusedMountsLeaveNothing(t *testing.T) {
	d := start(t)
	for _, r := range refusals(t, d) {
		t.Run(r.name, func(t *testing.T) {
			d.Warm()
			before := d.Look()
			s, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Mounts: r.mounts})
			if err == nil {
				t.Fatalf("accepted: s = %+v, want an error", s)
			}
			refused(t, err, r.status, r.field, r.allowed)
			untouched(t, d, before)
		})
	}
}

// untouched checks that a refused start has left nothing behind.
func untouched(t *testing.T, d *boxtest.Daemon, before boxtest.Traces) {
	t.Helper()
	list, err := d.Sessions(t.Context(), true)
	if err != nil || len(list) != 0 {
		t.Errorf("sessions: list = %v, err = %v, want no error and len(list) == 0", list, err)
	}
	d.NothingLeft(before)
}

func TestMountWithoutAPlaceIsRefused(t *testing.T) {
	d := start(t)
	ro, rw := d.MountSource(t, "ro", owner), d.MountSource(t, "rw", owner)
	put(t, filepath.Join(rw, "file"), "", 0o644, owner)
	for name, target := range map[string]string{"link": "/workspace", "outside": "/etc", "nowhere": "missing"} {
		if err := os.Symlink(target, filepath.Join(rw, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(rw, "closed"), 0o700); err != nil { // owned by root
		t.Fatal(err)
	}
	outer := api.Mount{Source: rw, Target: "/mnt", Mode: "rw"}
	for target, why := range map[string]string{
		"/data/in": "no such file", "/mnt/link": "symbolic links", "/mnt/link/x": "symbolic links", "/mnt/outside/x": "symbolic links", "/mnt/nowhere": "symbolic links",
		"/mnt/file": "not a directory", "/mnt/file/x": "not a directory", "/mnt/closed/x": "permission denied",
	} {
		t.Run(target, func(t *testing.T) {
			d.Warm()
			before := d.Look()
			mounts := []api.Mount{outer, {Source: ro, Target: "/data", Mode: "ro"}, {Source: ro, Target: target, Mode: "ro"}}
			_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Mounts: mounts})
			refused(t, err, 400, "mounts[2].target", why)
			untouched(t, d, withMaps(before, 2))
		})
	}
}

func refusals(t *testing.T, d *boxtest.Daemon) []refusal {
	t.Helper()
	dir, roots := d.MountSource(t, "dir", owner), d.MountSource(t, "roots", 0)
	put(t, filepath.Join(dir, "file"), "", 0o644, owner)
	outside := filepath.Join(d.Dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	link := func(name, target string) string {
		path := filepath.Join(d.Dir, "lent", name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := func(m api.Mount) []api.Mount { return []api.Mount{m} }
	from := func(source, mode string) []api.Mount {
		return one(api.Mount{Source: source, Target: "/mnt", Mode: mode})
	}
	lendDir := filepath.Join(d.Dir, "lent")
	const source, target, clean, system = "mounts[0].source", "mounts[0].target", "an absolute path", "outside system directories"
	list := []refusal{
		{"not listed", from(outside, "ro"), 403, source, lendDir},
		{"name with a listed one before it", from(lendDir+"er", "ro"), 400, source, "existing"},
		{"link to what is not listed", from(link("outside", outside), "ro"), 403, source, lendDir},
		{"link to a system directory", from(link("etc", "/etc"), "ro"), 403, source, system},
		{"link on the way", from(link("root", "/")+"/etc/ssl", "ro"), 403, source, system},
		{"magic link", from("/proc/self/root"+dir, "ro"), 400, source, "existing"},
		{"link to a magic link", from(link("magic", "/proc/self/root")+dir, "ro"), 400, source, "existing"},
		{"root of another process", from("/proc/1/root/etc", "ro"), 400, source, "existing"},
		{"boxd's state", from(d.State, "ro"), 403, source, system},
		{"what contains boxd's state", from(d.Dir, "ro"), 403, source, system},
		{"writing to a directory of root", from(roots, "rw"), 403, source, "a user other than root"},
		{"writing as another owner", one(api.Mount{Source: dir, Target: "/mnt", Mode: "rw", Owner: stranger}), 403, source, fmt.Sprint("owned by uid ", stranger)},
		{"file", from(filepath.Join(dir, "file"), "ro"), 400, source, "existing directory"},
		{"missing", from(filepath.Join(dir, "missing"), "ro"), 400, source, "existing directory"},
		{"relative", from("lent/dir", "ro"), 400, source, clean},
		{"empty", from("", "ro"), 400, source, clean},
		{"dots", from(lendDir+"/roots/../dir", "ro"), 400, source, clean},
		{"trailing slash", from(dir+"/", "ro"), 400, source, clean},
		{"NUL", from(dir+"\x00", "ro"), 400, source, clean},
		{"mode", from(dir, "rx"), 400, "mounts[0].mode", "none, ro or rw"},
		{"too many", nil, 400, "mounts", fmt.Sprint("at most ", isolation.MaxMounts)},
		{"one target twice", []api.Mount{{Source: dir, Target: "/mnt/x", Mode: "ro"}, {Source: roots, Target: "/mnt/x", Mode: "ro"}}, 400, "mounts[1].target", "unique among the mounts"},
		{"workspace twice", []api.Mount{{Source: dir, Target: "/workspace", Mode: "ro"}, {Source: roots, Target: "/workspace", Mode: "ro"}}, 400, "mounts[1].target", "unique among the mounts"},
		{"second of two", []api.Mount{{Source: dir, Target: "/mnt/x", Mode: "rw"}, {Source: outside, Target: "/mnt/y", Mode: "ro"}}, 403, "mounts[1].source", lendDir},
	}
	for i := range isolation.MaxMounts + 1 {
		list[20].mounts = append(list[20].mounts, api.Mount{Source: dir, Target: fmt.Sprint("/mnt/", i), Mode: "ro"})
	}
	for _, path := range []string{"/", "/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/usr", "/usr/share", "/bin", "/lib", "/var/run", "/var", "/proc/self", "/dev/shm"} {
		list = append(list, refusal{"system directory " + path, from(path, "ro"), 403, source, system})
	}
	for _, path := range []string{"/", "/etc", "/usr", "/usr/bin", "/usr/lib64", "/bin/x", "/proc", "/proc/self", "/dev/shm", "/run/x", "/sys", "/home", "/var", "/var/lib", "/var/lib/boxd/x", "/var/tmp/x", "/skills/x"} {
		list = append(list, refusal{"target " + path, one(api.Mount{Source: dir, Target: path, Mode: "ro"}), 400, target, "does not need itself"})
	}
	for _, path := range []string{"/mnt/", "/mnt/../etc", "/mnt/./x", "//mnt", "mnt", "", "/mnt/a\x00b"} {
		list = append(list, refusal{"target " + path, one(api.Mount{Source: dir, Target: path, Mode: "ro"}), 400, target, clean})
	}
	return list
}
