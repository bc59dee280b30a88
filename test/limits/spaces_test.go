// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// The quota of a named workspace counts for all its sessions together: space that one uses is missing for the other, which gets an
// error. The quota survives sessions, keeper and boxd.
func TestSessionsShareTheQuotaOfAWorkspace(t *testing.T) {
	d := start(t, boxtest.Lasting)
	c := d.Client
	w, err := c.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "small", Quota: new(8 * quantity.MiB), Inodes: new(100)})
	if err != nil || w.Enforcement == "none" || w.Enforcement == "" || w.Usage == nil || w.Usage.Limit != 8*quantity.MiB || w.Usage.FilesLimit != 100 {
		t.Fatalf(`w = %+v, err = %v, want no error and w.Enforcement != "none" and w.Enforcement != "" and w.Usage != nil and w.Usage.Limit == 8 * quantity.MiB and w.Usage.FilesLimit == 100`,
			w, err)
	}
	for _, id := range []string{"a", "b"} {
		if s := d.NewSession(t, api.SessionRequest{ID: id, Workspace: "small"}); s.Enforcement["workspace"] != w.Enforcement || s.WorkspaceQuota != 8*quantity.MiB {
			t.Errorf(`s = %+v, want s.Enforcement["workspace"] == %v and s.WorkspaceQuota == 8 * quantity.MiB`,
				s, w.Enforcement)
		}
	}
	full := func(id, line string) {
		t.Helper()
		if r := d.Result(t, id, boxtest.Shell(line)); r.Status != "exited" || *r.ExitCode == 0 || !strings.Contains(r.Stderr, "quota") || len(r.Quota) != 1 || !r.Quota[0].Hit {
			t.Errorf(`r = %s, want r.Status == "exited" and *r.ExitCode != 0 and r.Stderr containing "quota" and len(r.Quota) == 1 and r.Quota[0].Hit == true`,
				boxtest.Show(r))
		}
	}
	full("a", "head -c 20000000 /dev/zero > big")
	full("b", "head -c 100000 /dev/zero > other")
	for _, id := range []string{"a", "b"} {
		if s, err := d.Session(t.Context(), id); err != nil || s.Workspace == nil || !s.Workspace.Hit || s.Workspace.Limit != 8*quantity.MiB {
			t.Errorf("s = %+v, err = %v, want no error and s.Workspace != nil and s.Workspace.Hit == true and s.Workspace.Limit == 8 * quantity.MiB",
				s, err)
		}
	}
	if now, err := c.Workspace(t.Context(), "small"); err != nil || now.Usage == nil || !now.Usage.Hit || now.Usage.Used > 8*quantity.MiB {
		t.Errorf("now = %+v, err = %v, want no error and now.Usage != nil and now.Usage.Hit == true and now.Usage.Used <= 8 * quantity.MiB",
			now, err)
	}
	d.Sh(t, "b", "rm big other; head -c 6000000 /dev/zero > big") // what one frees the other has
	killKeeper(t, d)
	full("a", "head -c 6000000 /dev/zero > more")
	if err := d.DeleteSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	d.Kill()
	d.Restart()
	full("b", "rm more; for i in $(seq 200); do : > f$i || exit 1; done")
	if err := d.DeleteSession(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "c", Workspace: "small"})
	full("c", "rm -f f*; head -c 6000000 /dev/zero > more")
	if now, err := c.ChangeWorkspace(t.Context(), "small", &api.WorkspaceChange{Quota: new(16 * quantity.MiB)}); err != nil || now.Usage == nil || now.Usage.Limit != 16*quantity.MiB || now.Usage.FilesLimit != 100 {
		t.Errorf("now = %+v, err = %v, want no error and now.Usage != nil and now.Usage.Limit == 16 * quantity.MiB and now.Usage.FilesLimit == 100",
			now, err)
	}
	d.Sh(t, "c", "head -c 6000000 /dev/zero > more") // it holds at once
	full("c", "head -c 20000000 /dev/zero > most")
	if err := d.DeleteSession(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteWorkspace(t.Context(), "small"); err != nil {
		t.Fatal(err)
	}
	if w, err = c.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "small", Quota: new(8 * quantity.MiB)}); err != nil || w.Usage == nil || w.Usage.Used > quantity.MiB {
		t.Errorf("w = %+v, err = %v, want no error and w.Usage != nil and w.Usage.Used <= quantity.MiB", w, err)
	}
}

// The workspace of a session that is kept has the same quota as before, and its content counts: for the sessions that use it later,
// and after restarts of keeper and boxd.
func TestAKeptWorkspaceIsCountedOn(t *testing.T) {
	d := start(t, boxtest.Lasting)
	c := d.Client
	d.NewSession(t, api.SessionRequest{ID: "s", Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB), WorkspaceInodes: new(100)}})
	d.Sh(t, "s", "head -c 6000000 /dev/zero > big")
	counted := func(w api.Workspace, err error) {
		t.Helper()
		if err != nil || w.Enforcement == "none" || w.Usage == nil || w.Usage.Used < 5*quantity.MiB || w.Usage.Limit != 8*quantity.MiB || w.Usage.FilesLimit != 100 {
			t.Fatalf("w = %+v, err = %v", w, err)
		}
	}
	counted(c.KeepWorkspace(t.Context(), "s", "kept"))
	full := func(id, line string) {
		t.Helper()
		if r := d.Result(t, id, boxtest.Shell(line)); r.Status != "exited" || *r.ExitCode == 0 || !strings.Contains(r.Stderr, "quota") {
			t.Errorf(`r = %s, want r.Status == "exited" and *r.ExitCode != 0 and r.Stderr containing "quota"`,
				boxtest.Show(r))
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "a", Workspace: "kept"})
	d.NewSession(t, api.SessionRequest{ID: "other", Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}}) // which takes no project of another's
	d.Sh(t, "other", "head -c 6000000 /dev/zero > big")
	full("a", "head -c 6000000 /dev/zero > more")
	full("a", "rm more; for i in $(seq 200); do : > f$i || exit 1; done")
	killKeeper(t, d)
	d.Kill()
	d.Restart()
	full("a", "rm -f f* more; head -c 6000000 /dev/zero > more")
	d.Sh(t, "a", "rm more")
	counted(c.Workspace(t.Context(), "kept"))
	if err := d.DeleteSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteWorkspace(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	if w, err := c.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "kept", Quota: new(8 * quantity.MiB)}); err != nil || w.Usage == nil || w.Usage.Used > quantity.MiB {
		t.Errorf("w = %+v, err = %v, want no error and w.Usage != nil and w.Usage.Used <= quantity.MiB", w, err)
	}
}

// The session's own quota limits what it has on disk beside a named workspace: that is counted for its owner, and while the session
// is stopped, a quota below it is refused; the content of the workspace does not count there.
func TestWhatASessionHasBesideAWorkspaceIsCounted(t *testing.T) {
	d := start(t, boxtest.Lasting)
	c := d.Client
	if _, err := c.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "w", Quota: new(64 * quantity.MiB)}); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s", Workspace: "w", ReadOnlyRoot: new(false), Patch: limits.Patch{WorkspaceQuota: new(48 * quantity.MiB)}})
	d.Sh(t, "s", "head -c 20M /dev/zero > /opt/f")
	boxtest.Eventually(t, "the usage counts the files in the root of the session", func() bool {
		u, err := d.Usage(t.Context(), 1, false)
		if err != nil {
			t.Fatal(err)
		}
		const second = 20 << 20 / 3600.0 // of these 20 MiB, in byte-hours; the workspace, which is empty, does not come to that in minutes
		return len(u.Days) == 1 && u.Days[0].DiskByteHours > second
	})
	d.Sh(t, "s", "head -c 40M /dev/zero > /workspace/f")
	if _, err := d.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	_, err := d.ChangeSession(t.Context(), "s", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(16 * quantity.MiB)}})
	boxtest.Refused(t, err, http.StatusConflict, "workspace_quota")
	if s, err := d.ChangeSession(t.Context(), "s", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(32 * quantity.MiB)}}); err != nil || s.WorkspaceQuota != 32*quantity.MiB {
		t.Errorf("s = %+v, err = %v, want no error and s.WorkspaceQuota == 32 * quantity.MiB", s, err)
	}
	if _, err := d.StartSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if r := d.Result(t, "s", boxtest.Shell("head -c 20M /dev/zero > /opt/g")); r.ExitCode == nil || *r.ExitCode == 0 || !strings.Contains(r.Stderr, "quota") && !strings.Contains(r.Stderr, "No space") {
		t.Errorf(`r = %s, want r.ExitCode != nil and *r.ExitCode != 0 and (r.Stderr containing "quota" or r.Stderr containing "No space")`,
			boxtest.Show(r))
	}
}
