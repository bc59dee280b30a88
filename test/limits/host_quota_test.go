// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// lent is a directory of the host that sessions may write to, on the disk with project quotas: directories below the state
// directory of boxd cannot be mounted, by their path.
func lent(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/srv", "quota") //nolint:usetesting // directories below that of the test are lent to nobody
	if err == nil {
		err = unix.Mount(t.TempDir(), dir, "", unix.MS_BIND, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// owned creates a directory that belongs to the user as whom sessions write there.
func owned(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	return path
}

// write creates files of that many bytes, of the same owner.
func write(t *testing.T, size int, paths ...string) {
	t.Helper()
	for _, path := range paths {
		err := os.WriteFile(path, make([]byte, size), 0o666)
		if err == nil {
			err = os.Chown(path, 65534, 65534)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func on(dir string) []api.Mount {
	return []api.Mount{{Source: dir, Target: "/workspace", Mode: "rw"}}
}

// project returns the project id of a file, as lsattr of e2fsprogs prints it.
func project(t *testing.T, path string) int {
	t.Helper()
	out, err := exec.Command("lsattr", "-dp", path).Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 2 {
		t.Fatalf("out = %s, err = %v, want no error and len(fields) >= 2", out, err)
	}
	n, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A directory of the host that sessions write to has a quota for all of them together: what was there before counts, in bytes and
// in files. The quota survives keeper and boxd, until it is removed.
func TestADirectoryOfTheHostHoldsWhatItMay(t *testing.T) {
	root := lent(t)
	dir := owned(t, filepath.Join(root, "a"))
	write(t, 3_000_000, filepath.Join(dir, "before"), filepath.Join(owned(t, filepath.Join(dir, "deep", "er")), "before"))
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	other := owned(t, filepath.Join(root, "other"))
	outside := filepath.Join(root, "outside")
	write(t, 1000, outside)
	d := start(t, boxtest.Lasting+fmt.Sprintf("[mounts]\nallow = [{path = %q, owner = \"65534:65534\"}]\nquota_roots = [%q]\n", root, root))
	ask := func(id string, size quantity.Size, mounts []api.Mount) api.SessionRequest {
		return api.SessionRequest{ID: id, Mounts: mounts, Patch: limits.Patch{WorkspaceQuota: &size, WorkspaceInodes: new(50)}}
	}
	full := func(id, line string) {
		t.Helper()
		if r := d.Result(t, id, boxtest.Shell(line)); r.Status != "exited" || *r.ExitCode == 0 || !strings.Contains(r.Stderr, "quota") || len(r.Quota) != 1 || !r.Quota[0].Hit {
			t.Errorf(`r = %s, want r.Status == "exited" and *r.ExitCode != 0 and r.Stderr containing "quota" and len(r.Quota) == 1 and r.Quota[0].Hit == true`,
				boxtest.Show(r))
		}
	}

	// The directory has more than the requested quota: nothing is changed then.
	small := ask("a", 4*quantity.MiB, on(dir))
	_, _, err := d.CreateSession(t.Context(), &small)
	boxtest.Refused(t, err, http.StatusConflict, "workspace_quota")
	if n := project(t, filepath.Join(dir, "deep", "er", "before")); n != 0 {
		t.Errorf("project %d is left", n)
	}
	for _, id := range []string{"a", "b"} {
		if s := d.NewSession(t, ask(id, 8*quantity.MiB, on(dir))); s.Enforcement["workspace"] != "project-quota" || s.WorkspaceQuota != 8*quantity.MiB {
			t.Errorf(`s = %+v, want s.Enforcement["workspace"] == "project-quota" and s.WorkspaceQuota == 8 * quantity.MiB`,
				s)
		}
	}
	if s, err := d.Session(t.Context(), "b"); err != nil || s.Workspace == nil || s.Workspace.Used < 6_000_000 || s.Workspace.Limit != 8*quantity.MiB || s.Workspace.FilesLimit != 50 {
		t.Errorf("s.Workspace = %+v, err = %v, want no error and s.Workspace != nil and s.Workspace.Used >= 6_000_000 and s.Workspace.Limit == 8 * quantity.MiB and s.Workspace.FilesLimit == 50",
			s.Workspace, err)
	}
	unlike := ask("c", 16*quantity.MiB, on(dir))
	_, _, err = d.CreateSession(t.Context(), &unlike)
	boxtest.Refused(t, err, http.StatusConflict, "workspace_quota")
	unlike = ask("c", 8*quantity.MiB, on(root)) // a directory above contains one of another user
	if err := os.Chown(root, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	_, _, err = d.CreateSession(t.Context(), &unlike)
	boxtest.Refused(t, err, http.StatusNotImplemented, "workspace_quota")

	full("a", "head -c 3000000 /dev/zero > more")
	full("b", "head -c 100000 /dev/zero > deep/er/more")
	d.Sh(t, "b", "rm before more deep/er/more; ln -s nowhere made; mkfifo fifo") // which no program can take out of the project
	full("a", "for i in $(seq 60); do : > deep/er/f$i || exit 1; done")
	d.Sh(t, "a", "rm deep/er/f*")
	killKeeper(t, d)
	full("b", "head -c 6000000 /dev/zero > more")
	d.NewSession(t, ask("elsewhere", 8*quantity.MiB, on(other)))
	if a, b := project(t, dir), project(t, other); a == 0 || b == 0 || a == b {
		t.Errorf("projects %d and %d", a, b)
	}
	if n := project(t, outside); n != 0 {
		t.Errorf("a directory outside has project %d", n)
	}
	for _, id := range []string{"a", "b", "elsewhere"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	// A home on disk has a quota of the same size of its own, and the reported usage is that of the workspace.
	home := ask("home", 8*quantity.MiB, on(other))
	home.HomeOnDisk = new(true)
	if s := d.NewSession(t, home); s.Enforcement["workspace"] != "project-quota" || s.Enforcement["mounts"] != "project-quota" {
		t.Errorf(`s = %+v, want s.Enforcement["workspace"] == "project-quota" and s.Enforcement["mounts"] == "project-quota"`,
			s)
	}
	d.Sh(t, "home", "head -c 6000000 /dev/zero > f && head -c 5000000 /dev/zero > ~/f")
	if r := d.Result(t, "home", boxtest.Shell("head -c 6000000 /dev/zero > ~/g")); *r.ExitCode == 0 || !strings.Contains(r.Stderr, "quota") {
		t.Errorf(`r = %s, want *r.ExitCode != 0 and r.Stderr containing "quota"`, boxtest.Show(r))
	}
	if s, err := d.Session(t.Context(), "home"); err != nil || s.Workspace == nil || s.Workspace.Used < 6_000_000 || s.Workspace.Used > 7_000_000 {
		t.Errorf("s.Workspace = %+v, err = %v, want no error and s.Workspace != nil and s.Workspace.Used >= 6_000_000 and s.Workspace.Used <= 7_000_000",
			s.Workspace, err)
	}
	if err := d.DeleteSession(t.Context(), "home"); err != nil {
		t.Fatal(err)
	}
	before := project(t, dir)
	d.NewSession(t, ask("d", 12*quantity.MiB, on(dir))) // no other directory has it now
	if now := project(t, dir); now != before {
		t.Errorf("it has had project %d and has %d, want now == before", before, now)
	}
	full("d", "head -c 20000000 /dev/zero > more")
	d.Close()
	d.Stop()

	keeper := filepath.Join(boxtest.Programs(t), "boxkeeper")
	if out, err := exec.Command(keeper, "lift", d.State).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range []string{dir, filepath.Join(dir, "more"), filepath.Join(dir, "deep", "er"), other} {
		if n := project(t, path); n != 0 {
			t.Errorf("%s has project %d still", path, n)
		}
	}
	write(t, 20_000_000, filepath.Join(dir, "more"))
}

// If a keeper is killed at any moment while it sets the quota of a directory, the next one undoes that, or the quota is set.
func TestAKeeperThatDiesOverAQuotaLeavesNothingHalfDone(t *testing.T) {
	root := lent(t)
	d := start(t, fmt.Sprintf("[mounts]\nallow = [{path = %q, owner = \"65534:65534\"}]\nquota_roots = [%q]\n", root, root))
	book := filepath.Join(d.State, "host-quotas")
	halfway := 0
	for round := range 4 {
		dir := owned(t, filepath.Join(root, strconv.Itoa(round)))
		for i := range 40 {
			sub := owned(t, filepath.Join(dir, strconv.Itoa(i)))
			for j := range 100 {
				write(t, 1, filepath.Join(sub, strconv.Itoa(j)))
			}
		}
		keeper := d.Keeper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Mounts: on(dir), Patch: limits.Patch{WorkspaceQuota: new(64 * quantity.MiB), WorkspaceInodes: new(10_000)}})
		}()
		boxtest.Eventually(t, "the directory is in the keeper's file of project ids", func() bool {
			text, _ := os.ReadFile(book)
			return strings.Contains(string(text), strconv.Quote(dir))
		})
		if text, _ := os.ReadFile(book); !strings.Contains(string(text), "bound") {
			halfway++
		}
		if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-done
		boxtest.Eventually(t, "another keeper runs", func() bool { return d.Keeper() != keeper })
		_ = d.DeleteSession(t.Context(), "s") // it may be there, tried again
		want := project(t, dir)
		text, err := os.ReadFile(book)
		if err != nil || strings.Contains(string(text), "making") || strings.Contains(string(text), "claiming") || (want != 0) != strings.Contains(string(text), strconv.Quote(dir)) {
			t.Errorf(`project %d, and the file of project ids has %s, %v, want no error and text without "making" and text without "claiming" and (want != 0) == strings.Contains(string(text), strconv.Quote(dir))`,
				want, text, err)
		}
		for _, path := range []string{filepath.Join(dir, "0", "0"), filepath.Join(dir, "39", "99"), filepath.Join(dir, "17")} {
			if n := project(t, path); n != want {
				t.Errorf("%s has project %d, the directory %d", path, n, want)
			}
		}
	}
	if halfway == 0 {
		t.Error("no keeper was killed halfway")
	}
}
