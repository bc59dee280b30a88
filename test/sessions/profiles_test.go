// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestTheBuiltInProfiles(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	got, err := d.Profiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	base := api.Profile{
		Image: "host", Network: "off", NetworkRules: []string{"0.0.0.0/0 tcp", "::/0 tcp"}, ReadOnlyRoot: true, UserName: "box", Home: "/home/box", Mounts: "rw", Limits: limits.Limits{
			CPUs: 1, Memory: 512 * quantity.MiB, OOM: "program", Pids: 128, Rlimits: map[string]string{}, CPUWeight: 100, IOWeight: 100,
			Tmp: 256 * quantity.MiB, WorkspaceQuota: quantity.GiB, WorkspaceInodes: 200_000,
		},
		Timeout: *boxtest.Duration("30s"), MaxTimeout: *boxtest.Duration("2m"), Lifetime: limits.Lifetime{TTL: *boxtest.Duration("5m"), MaxLifetime: *boxtest.Duration("24h")}, Leftovers: "kill", Skills: []string{}, Locked: []string{},
	}
	readonly, basic, extended := base, base, base
	readonly.Mounts, readonly.CPUs, readonly.Memory, readonly.Pids, readonly.MaxTimeout = "ro", 0.5, 256*quantity.MiB, 64, *boxtest.Duration("1m")
	readonly.Locked = []string{"network", "mounts", "read_only_root"}
	basic.Network = "egress"
	extended.Network, extended.CPUs, extended.Memory, extended.Pids, extended.ReadOnlyRoot, extended.MaxTimeout = "egress", 2, quantity.GiB, 256, false, *boxtest.Duration("5m")
	mcp := base
	mcp.Network, mcp.Mounts, mcp.Memory, mcp.Tmp, mcp.Pids = "egress", "ro", 1536*quantity.MiB, 512*quantity.MiB, 256
	mcp.ReadOnlyRoot = false
	mcp.Timeout, mcp.MaxTimeout, mcp.TTL, mcp.MaxLifetime = *boxtest.Duration("2m"), *boxtest.Duration("10m"), 0, 0
	e2b := base
	e2b.Network, e2b.ReadOnlyRoot, e2b.HomeOnDisk, e2b.UserName, e2b.Home, e2b.Leftovers = "egress", false, true, "user", "/home/user", "keep"
	e2b.CPUs, e2b.Memory, e2b.Pids, e2b.Tmp, e2b.WorkspaceQuota, e2b.WorkspaceInodes = 2, quantity.GiB, 512, 512*quantity.MiB, 4*quantity.GiB, 400_000
	e2b.MaxTimeout, e2b.TTL = *boxtest.Duration("1h"), 0
	want := api.ProfileList{Default: "default", Profiles: map[string]api.Profile{
		"default": base, "offline_readonly": readonly, "network_basic": basic, "network_extended": extended, "mcp": mcp, "e2b": e2b,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, name := range []string{"", "default", "offline_readonly", "mcp"} {
		want := want.Profiles[name]
		if name == "" {
			want = base
		}
		s := d.NewSession(t, api.SessionRequest{ID: "of " + name, Profile: name, Network: new("off")})
		if s.Memory != want.Memory || s.Pids != want.Pids || s.CPUs != want.CPUs || s.TTL != want.TTL || s.MaxLifetime != want.MaxLifetime || s.Network != "off" || s.ReadOnlyRoot != want.ReadOnlyRoot {
			t.Errorf(`%q: s = %+v, want s.Memory == %v and s.Pids == %v and s.CPUs == %v and s.TTL == %v and s.MaxLifetime == %v and s.Network == "off" and s.ReadOnlyRoot == %v`,
				name, s, want.Memory, want.Pids, want.CPUs, want.TTL, want.MaxLifetime, want.ReadOnlyRoot)
		}
		if r := d.Result(t, s.ID, boxtest.Shell("true")); r.Timeout != want.Timeout {
			t.Errorf("%q: timeout %v", name, r.Timeout)
		}
	}
}

const lockedProfile = `
[profiles.closed]
memory = "64MiB"
timeout = "30s"
mounts = "ro"
locked = ["memory", "cpus", "pids", "tmp", "ttl", "max_lifetime", "timeout", "mounts", "network", "image", "read_only_root", "workspace_quota"]
`

func TestLockedFields(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, lockedProfile)
	for _, tc := range []struct {
		req                   api.SessionRequest
		field, value, allowed string
	}{
		{api.SessionRequest{Patch: limits.Patch{Memory: new(quantity.GiB)}}, "memory", "1GiB", "64MiB"},
		{api.SessionRequest{Patch: limits.Patch{CPUs: new(4.0)}}, "cpus", "4", "1"},
		{api.SessionRequest{Patch: limits.Patch{Pids: new(16)}}, "pids", "16", "128"},
		{api.SessionRequest{Tmp: new(quantity.MiB)}, "tmp", "1MiB", "256MiB"},
		{api.SessionRequest{Patch: limits.Patch{TTL: boxtest.Duration("1h")}}, "ttl", "1h", "5m"},
		{api.SessionRequest{Network: new("host")}, "network", "host", "off"},
		{api.SessionRequest{Mounts: []api.Mount{{Source: "/home", Target: "/data", Mode: "rw"}}}, "mounts[0].mode", "rw", "at most ro"},
	} {
		tc.req.ID, tc.req.Profile = "s1", "closed"
		_, _, err := d.CreateSession(t.Context(), &tc.req)
		e := boxtest.Refused(t, err, http.StatusForbidden, tc.field)
		if e.Value != tc.value || e.Allowed != tc.allowed || !strings.Contains(e.Detail, `profile "closed" locks`) {
			t.Errorf("e = %+v, want e.Value == %v and e.Allowed == %v and e.Detail containing `profile \"closed\" locks`",
				e, tc.value, tc.allowed)
		}
	}
	if got := sessions(t, d); len(got) > 0 {
		t.Errorf("sessions %q", got)
	}
	// Asking for exactly the locked value is allowed.
	d.NewSession(t, api.SessionRequest{ID: "s1", Profile: "closed", Patch: limits.Patch{Memory: new(64 * quantity.MiB), Pids: new(128), TTL: boxtest.Duration("300s")}, Network: new("off")})
	req := boxtest.Shell("true")
	req.Timeout = boxtest.Duration("1s")
	_, err := d.Exec(t.Context(), "s1", &req)
	if e := boxtest.Refused(t, err, http.StatusForbidden, "timeout"); e.Allowed != "30s" {
		t.Errorf(`e = %+v, want e.Allowed == "30s"`, e)
	}
	req.Timeout = boxtest.Duration("30000ms")
	d.Output(t, "s1", req)
}

func TestATimeoutIsCutToTheMostAndTheAnswerSaysSo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\ntimeout = \"2s\"\nmax_timeout = \"3s\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.Shell("true")
	req.Timeout = boxtest.Duration("1h")
	want := []api.Clamp{{Field: "timeout", Asked: "1h", Got: "3s", By: "profiles.default.max_timeout"}}
	if r := d.Result(t, "s1", req); r.Timeout != *boxtest.Duration("3s") || !cmp.Equal(r.Clamped, want) {
		t.Errorf(`r = %s, want r.Timeout == *boxtest.Duration("3s") and r.Clamped == %v`, boxtest.Show(r), want)
	}
	var out bytes.Buffer
	r, err := d.ExecStream(t.Context(), "s1", &req, client.Stdio{Stdout: &out, Stderr: &out}, nil)
	if err != nil || !cmp.Equal(r.Clamped, want) {
		t.Errorf("in a stream: r = %+v, err = %v, want no error and r.Clamped == %v", r, err, want)
	}
	req.Timeout = nil
	if r := d.Result(t, "s1", req); r.Timeout != *boxtest.Duration("2s") || r.Clamped != nil {
		t.Errorf(`r = %s, want r.Timeout == *boxtest.Duration("2s") and r.Clamped == nil`, boxtest.Show(r))
	}
}

func TestLimitsThatCannotBeKeptAreRefusedAndDoctorSaysTheSame(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ config, missing string }{
		"nothing may be missing":    {"", "memory"},
		"memory may be missing":     {"[limits]\nbest_effort = [\"memory\"]\n", "cpu"},
		"only pids may not be":      {"[limits]\nbest_effort = [\"memory\", \"cpu\", \"workspace\"]\n", "pids"},
		"only workspace may not be": {"[limits]\nbest_effort = [\"memory\", \"cpu\", \"pids\"]\n", "workspace"},
		"everything may be":         {boxtest.BestEffort, ""},
		"everything and more may":   {"[limits]\nbest_effort = [\"workspace\", \"pids\", \"cpu\", \"memory\"]\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.StartWith(t, tc.config, "[cgroups]\nparent = \"\"\n[workspaces]\nstore_size = \"0\"\n")
			_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
			doctor, derr := d.Doctor(t.Context())
			if derr != nil || doctor.OK != (tc.missing == "") {
				t.Fatalf(`doctor = %+v, derr = %v, want no error and doctor.OK == (tc.missing == "")`, doctor, derr)
			}
			if tc.missing == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e := boxtest.Refused(t, err, http.StatusNotImplemented, "limits.best_effort")
			if !strings.Contains(e.Detail, tc.missing+" limit cannot be enforced") || !strings.Contains(e.Hint, strconv.Quote(tc.missing)) {
				t.Errorf(`e = %+v, want e.Detail containing tc.missing + " limit cannot be enforced" and e.Hint containing strconv.Quote(tc.missing)`,
					e)
			}
			if got := sessions(t, d); len(got) > 0 {
				t.Errorf("sessions %q", got)
			}
			for _, c := range doctor.Checks {
				if c.Name == tc.missing+" limit" && (c.Level != "fail" || c.Detail != e.Detail || c.Hint != e.Hint) {
					t.Errorf("the check of doctor is %+v, the error of a start %+v", c, e)
				}
			}
		})
	}
}

func TestDoctorLooksAtWhatBoxesNeed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	doctor, err := d.Doctor(t.Context())
	if err != nil || !doctor.OK {
		t.Fatalf("doctor = %+v, err = %v, want no error and doctor.OK == true", doctor, err)
	}
	found := map[string]api.Check{}
	for _, c := range doctor.Checks {
		found[c.Name] = c
	}
	for _, name := range []string{"kernel", "user namespaces", "capabilities", "id ranges", "file locks", "test box", "cgroups", "memory limit", "cpu limit", "pids limit", "workspace limit", "disk"} {
		if c := found[name]; c.Level != "ok" && c.Level != "warn" || c.Detail == "" {
			t.Errorf(`%s: c = %+v, want (c.Level == "ok" or c.Level == "warn") and c.Detail != ""`, name, c)
		}
	}
	level, detail := "warn", "best effort: by rlimit"
	if boxtest.Grouped() {
		level, detail = "ok", "enforced by cgroup"
	}
	if c := found["pids limit"]; c.Level != level || !strings.Contains(c.Detail, detail) {
		t.Errorf("c = %+v, want c.Level == %v and c.Detail containing %q", c, level, detail)
	}
	d.NothingLeft(before)
}

// A bad request gets an answer that names what is wrong, and has created nothing.
func TestBadRequestsMakeNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[mounts]\nallow = [\"%DIR%/allowed\"]\n")
	for _, dir := range []string{"allowed", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(d.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.Warm()
	before := d.Look()
	allowed := filepath.Join(d.Dir, "allowed")
	for _, tc := range []struct {
		name, session string
		status        int
		field         string
	}{
		{"unknown key", `{"profil":"default"}`, 400, "session.profil"},
		{"wrong type", `{"pids":"many"}`, 400, "session.pids"},
		{"unknown profile", `{"profile":"nope"}`, 400, "profile"},
		{"image", `{"image":"debian"}`, 400, "image"},
		{"little memory", `{"memory":1}`, 400, "memory"},
		{"no cpus", `{"cpus":0}`, 400, "cpus"},
		{"few pids", `{"pids":1}`, 400, "pids"},
		{"tmp", `{"tmp":1}`, 400, "tmp"},
		{"variable", `{"env":{"A=B":"x"}}`, 400, "env"},
		{"label", `{"labels":{"a":"\n"}}`, 400, "labels"},
		{"mount of what is not there", `{"mounts":[{"source":"` + allowed + `/none","target":"/data"}]}`, 400, "mounts[0].source"},
		{"mount of a file", `{"mounts":[{"source":"` + d.Config + `","target":"/data"}]}`, 400, "mounts[0].source"},
		{"mount that is not allowed", `{"mounts":[{"source":"` + d.Dir + `/elsewhere","target":"/data"}]}`, 403, "mounts[0].source"},
		{"mount of the system", `{"mounts":[{"source":"/etc","target":"/data"}]}`, 403, "mounts[0].source"},
		{"mount of the root", `{"mounts":[{"source":"/","target":"/data"}]}`, 403, "mounts[0].source"},
		{"relative source", `{"mounts":[{"source":"x","target":"/data"}]}`, 400, "mounts[0].source"},
		{"source with steps", `{"mounts":[{"source":"` + allowed + `/../elsewhere","target":"/data"}]}`, 400, "mounts[0].source"},
		{"target outside", `{"mounts":[{"source":"` + allowed + `","target":"/etc"}]}`, 400, "mounts[0].target"},
		{"target with steps", `{"mounts":[{"source":"` + allowed + `","target":"/data/../etc"}]}`, 400, "mounts[0].target"},
		{"target twice", `{"mounts":[{"source":"` + allowed + `","target":"/data","mode":"ro"},{"source":"` + allowed + `","target":"/data","mode":"ro"}]}`, 400, "mounts[1].target"},
		{"mode", `{"mounts":[{"source":"` + allowed + `","target":"/data","mode":"rwx"}]}`, 400, "mounts[0].mode"},
		{"writable and root's", `{"mounts":[{"source":"` + allowed + `","target":"/data","mode":"rw"}]}`, 403, "mounts[0].source"},
	} {
		a := d.Raw(t, "POST", "/v1/exec", `{"session":`+tc.session+`,"exec":{"argv":["true"]}}`)
		if p := a.Problem(t); p.Status != tc.status || p.Field != tc.field || p.Allowed == "" {
			t.Errorf(`%s: p = %+v, want p.Status == %v and p.Field == %v and p.Allowed != ""`,
				tc.name, p, tc.status, tc.field)
		}
		a = d.Raw(t, "POST", "/v1/sessions", tc.session)
		if p := a.Problem(t); p.Status != tc.status || p.Field != strings.TrimPrefix(tc.field, "session.") {
			t.Errorf(`%s: p = %+v, want p.Status == %v and p.Field == strings.TrimPrefix(tc.field, "session.")`,
				tc.name, p, tc.status)
		}
	}
	d.NothingLeft(before)
	if got := sessions(t, d); len(got) > 0 {
		t.Errorf("sessions %q", got)
	}
	d.NewSession(t, api.SessionRequest{ID: "s1", Mounts: []api.Mount{{Source: allowed, Target: "/data", Mode: "ro"}, {Source: "/etc", Target: "/mnt", Mode: "none"}}})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil || errors.Is(err, client.NotFound) {
		t.Error(err)
	}
}
