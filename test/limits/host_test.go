// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// parent creates a cgroup below the test's, with controllers for its children.
func parent(t *testing.T, d, controllers string) string {
	t.Helper()
	boxtest.RequireGroups(t)
	path := filepath.Join(boxtest.GroupRoot(), d)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
	if controllers != "" {
		if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte(controllers), 0); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func groups(path string) string {
	return fmt.Sprintf("[cgroups]\nparent = %q\n", strings.TrimPrefix(path, "/sys/fs/cgroup/"))
}

func level(t *testing.T, d *boxtest.Daemon, name string) api.Check {
	t.Helper()
	doctor, err := d.Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range doctor.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("boxctl doctor has no check %s: %+v", name, doctor)
	return api.Check{}
}

func TestAGoodHostHasNothingToComplainAbout(t *testing.T) {
	d := start(t)
	doctor, err := d.Doctor(t.Context())
	if err != nil || !doctor.OK {
		t.Fatalf("doctor = %+v, err = %v, want no error and doctor.OK == true", doctor, err)
	}
	for _, c := range doctor.Checks {
		if c.Level != "ok" {
			t.Errorf(`c = %+v, want c.Level == "ok"`, c)
		}
	}
	if st, err := d.Status(t.Context()); err != nil || len(st.Unenforced) > 0 || st.ControlGroups != "unified" {
		t.Errorf(`st = %+v, err = %v, want no error and len(st.Unenforced) == 0 and st.ControlGroups == "unified"`,
			st, err)
	}
}

// Without the anchor sessions are refused; as soon as it exists they are accepted.
func TestTheAnchorIsNotRunning(t *testing.T) {
	boxtest.RequireGroups(t)
	path := filepath.Join(boxtest.GroupRoot(), "late")
	d := start(t, groups(path))
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e := boxtest.Refused(t, err, http.StatusNotImplemented, "limits.best_effort"); !strings.Contains(e.Detail, path+" does not exist: its unit is not running") {
		t.Errorf(`e = %+v, want e.Detail containing path + " does not exist: its unit is not running"`, e)
	}
	if c := level(t, d, "cgroups"); c.Level != "warn" || !strings.Contains(c.Hint, "systemctl start boxd-boxes.service") {
		t.Errorf(`c = %+v, want c.Level == "warn" and c.Hint containing "systemctl start boxd-boxes.service"`, c)
	}
	if c := level(t, d, "memory limit"); c.Level != "fail" {
		t.Errorf(`c = %+v, want c.Level == "fail"`, c)
	}
	parent(t, "late", "")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil { // the anchor is stopped
		t.Fatal(err)
	}
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s2"})
	if e := boxtest.Refused(t, err, http.StatusServiceUnavailable, ""); !strings.Contains(e.Hint, "boxd-boxes.service") {
		t.Errorf(`e = %+v, want e.Hint containing "boxd-boxes.service"`, e)
	}
	if err := os.Mkdir(path, 0o755); err != nil { // and started
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	d.Close()
	d.Stop() // before its group goes
}

func TestAControllerIsMissing(t *testing.T) {
	path := parent(t, "few", "+memory +pids")
	t.Cleanup(func() {
		if err := os.Remove(filepath.Join(path, "below")); err != nil {
			t.Error(err)
		}
	})
	below := filepath.Join(path, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, groups(below))
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e := boxtest.Refused(t, err, http.StatusNotImplemented, "limits.best_effort"); !strings.Contains(e.Detail, "controller cpu is missing") {
		t.Errorf(`e = %+v, want e.Detail containing "controller cpu is missing"`, e)
	}
	d.Close()
	d.Stop()
}

func TestAGroupThatCannotBeUsed(t *testing.T) {
	d := start(t)
	other := start(t, groups(d.GroupPath()))
	_, _, err := other.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e := boxtest.Refused(t, err, http.StatusNotImplemented, "limits.best_effort"); !strings.Contains(e.Detail, "in use by another boxd") {
		t.Errorf(`e = %+v, want e.Detail containing "in use by another boxd"`, e)
	}
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	outside := start(t, groups(filepath.Join(boxtest.GroupRoot(), "anchor")))
	_, _, err = outside.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e := boxtest.Refused(t, err, http.StatusNotImplemented, "limits.best_effort"); !strings.Contains(e.Detail, "processes of its own") {
		t.Errorf(`e = %+v, want e.Detail containing "processes of its own"`, e)
	}
}

// A daemon that dies leaves cgroups and quotas; the next one removes them.
func TestACrashLeavesNoGroupAndNoQuota(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	for i := range 5 {
		d.NewSession(t, api.SessionRequest{ID: fmt.Sprint("s", i)})
		req := boxtest.Shell("sleep 1000 & sleep 1000")
		go func() { _, _ = d.Exec(t.Context(), fmt.Sprint("s", i), &req) }() // ends with boxd
	}
	d.Kill()
	d.Restart()
	d.Warm()
	d.NothingLeft(before)
	for i := range 5 {
		d.NewSession(t, api.SessionRequest{ID: fmt.Sprint("s", i)})
	}
}

func TestTwoHundredRoundsLeaveNothing(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	rounds := 200
	if os.Getenv("SOAK") != "" {
		rounds = 1000
	}
	for i := range rounds {
		s := d.NewSession(t, api.SessionRequest{ID: fmt.Sprint("s", i%7)})
		if i%10 == 0 {
			d.Sh(t, s.ID, "echo x > f")
		}
		if err := d.DeleteSession(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	d.NothingLeft(before)
	if _, err := os.Stat(filepath.Join(d.GroupPath(), "owner-0")); !os.IsNotExist(err) {
		t.Errorf("the cgroup of the owner is left: err = %v, want os.IsNotExist(err)", err)
	}
}

func TestNothingStartsBelowTheReserveOfTheHost(t *testing.T) {
	d := start(t, "[host]\nkeep_free_disk = \"1000TiB\"\n")
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e := boxtest.Refused(t, err, http.StatusServiceUnavailable, ""); !strings.Contains(e.Detail, "host.keep_free_disk") {
		t.Errorf(`e = %+v, want e.Detail containing "host.keep_free_disk"`, e)
	}
	d = start(t, "[host]\nkeep_free_memory = \"1000TiB\"\n")
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e := boxtest.Refused(t, err, http.StatusServiceUnavailable, ""); !strings.Contains(e.Detail, "host.keep_free_memory") {
		t.Errorf(`e = %+v, want e.Detail containing "host.keep_free_memory"`, e)
	}
}
