// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestCreateIsGetOrCreate(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for i, want := range []int{http.StatusCreated, http.StatusOK, http.StatusOK} {
		if a := d.Raw(t, "POST", "/v1/sessions", `{"id":"s1"}`); a.Code != want {
			t.Errorf("request %d: %d %s, want %d", i, a.Code, a.Body, want)
		}
	}
	first := d.NewSession(t, api.SessionRequest{})
	second := d.NewSession(t, api.SessionRequest{})
	if first.ID == second.ID || len(first.ID) < 8 || first.State != "ready" || first.Owner != "uid:0" {
		t.Errorf("made-up ids %q and %q, %+v", first.ID, second.ID, first)
	}
	if got := sessions(t, d); !slices.Equal(got, []string{"s1", first.ID, second.ID}) {
		t.Errorf("sessions %q", got)
	}
}

func TestConcurrentCreatesOfOneIDJoin(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	pids, fresh := map[uint32]int{}, 0
	for range 32 {
		wait.Go(func() {
			s, isNew, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "one"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || s.State != "ready" {
				t.Errorf(`s = %+v, err = %v, want no error and s.State == "ready"`, s, err)
			}
			pids[s.PID]++
			if isNew {
				fresh++
			}
		})
	}
	wait.Wait()
	if len(pids) != 1 || fresh != 1 || len(sessions(t, d)) != 1 {
		t.Errorf("boxes %v, %d of them new, sessions %q", pids, fresh, sessions(t, d))
	}
}

func TestAConflictNamesExactlyWhatDiffers(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	base := func() api.SessionRequest {
		return api.SessionRequest{
			ID: "s1", Patch: limits.Patch{Memory: new(512 * quantity.MiB), Pids: new(64)}, Labels: map[string]string{"team": "x"}, Env: map[string]string{"A": "1", "B": "2"},
		}
	}
	before := d.NewSession(t, base())
	for _, tc := range []struct {
		name   string
		change func(*api.SessionRequest)
		want   string
	}{
		{"nothing", func(*api.SessionRequest) {}, ""},
		{"what was not said", func(r *api.SessionRequest) { r.Memory, r.Pids, r.Labels, r.Env = nil, nil, nil, nil }, ""},
		{"the profile it has anyway", func(r *api.SessionRequest) { r.Profile = "default" }, ""},
		{"profile and its mounts", func(r *api.SessionRequest) { r.Profile = "offline_readonly" }, "profile"},
		{"memory", func(r *api.SessionRequest) { r.Memory = new(quantity.GiB) }, "memory"},
		{"several", func(r *api.SessionRequest) {
			r.Pids, r.CPUs, r.TTL, r.Labels = new(65), new(0.5), boxtest.Duration("1m"), map[string]string{}
		}, "cpus, pids, ttl"},
		{"labels", func(r *api.SessionRequest) { r.Labels["team"] = "y" }, "labels"},
		{"names of variables", func(r *api.SessionRequest) { r.Env["C"] = "" }, "env"},
		{"values of variables", func(r *api.SessionRequest) { r.Env["B"] = "s3cret" }, "env"},
	} {
		req := base()
		tc.change(&req)
		s, isNew, err := d.CreateSession(t.Context(), &req)
		if tc.want == "" {
			if err != nil || isNew || s.PID != before.PID {
				t.Errorf("%s: new %v, %v", tc.name, isNew, err)
			}
			continue
		}
		e := boxtest.Refused(t, err, http.StatusConflict, tc.want)
		if !strings.Contains(e.Detail, "a different "+tc.want) || strings.Contains(fmt.Sprint(e), "s3cret") {
			t.Errorf(`%s: e = %+v, want e.Detail containing "a different " + tc.want and fmt.Sprint(e) without "s3cret"`,
				tc.name, e)
		}
	}
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != before.PID || now.Memory != 512*quantity.MiB {
		t.Errorf("the session has changed: now = %+v, err = %v, want no error and now.PID == %v and now.Memory == 512 * quantity.MiB",
			now, err, before.PID)
	}
}

func TestInspectSaysAllThatIsKnown(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	made := d.NewSession(t, api.SessionRequest{ID: "Team/42", Labels: map[string]string{"a": "b"}, Env: map[string]string{"TOKEN": "s3cret"}, Patch: limits.Patch{TTL: boxtest.Duration("10m")}})
	d.Sh(t, made.ID, "true")
	s, err := d.Session(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	if s.Hostname != "team-42" || s.Labels["a"] != "b" || !slices.Equal(s.Env, []string{"TOKEN"}) || s.Executions != 1 || s.Running != 0 ||
		s.PID != made.PID || s.IDBase != made.IDBase || s.IDBase%65536 != 0 || s.ExpiresAt == nil || !s.ExpiresAt.After(s.LastUsedAt) ||
		s.LastUsedAt.Before(s.CreatedAt) || s.Enforcement["tmp"] != "tmpfs" || s.Enforcement["cpu"] != map[bool]string{true: "cgroup2", false: "none"}[boxtest.Grouped()] || s.Mounts == nil {
		t.Errorf("s = %+v", s)
	}
	if got := d.Sh(t, made.ID, "hostname"); got != "team-42\n" {
		t.Errorf("hostname %q", got)
	}
	list, err := d.Sessions(t.Context(), false)
	if err != nil || len(list) != 1 || list[0].ID != made.ID {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1 and list[0].ID == made.ID", list, err)
	}
}

func TestDeleteLeavesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "mkdir -p a/b; ln -s /etc/passwd a/link; echo x > a/b/file; mkfifo a/pipe; chmod 000 a/b; (setsid sleep 1000 &)")
	if a := d.Raw(t, "DELETE", "/v1/sessions/s1", ""); a.Code != http.StatusNoContent || len(a.Body) > 0 {
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 204 and len(a.Body) == 0", a.Code, a.Body)
	}
	d.NothingLeft(before)
	if _, err := d.Session(t.Context(), "s1"); !errors.Is(err, client.NotFound) {
		t.Errorf("err = %v, want err is client.NotFound", err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if got := d.Sh(t, "s1", "ls -A"); got != "" {
		t.Errorf(`the workspace of a new session has %q, want ""`, got)
	}
}

func TestDeleteOfWhatIsNotThereIsAProblem(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"s1", "never"} {
		a := d.Raw(t, "DELETE", "/v1/sessions/"+id, "")
		if p := a.Problem(t); p.Status != http.StatusNotFound || p.Type != api.ProblemType+"not_found" || !strings.Contains(p.Detail, id) || p.Hint == "" {
			t.Errorf(`p = %+v, want p.Status == 404 and p.Type == api.ProblemType + "not_found" and p.Detail containing %q and p.Hint != ""`,
				p, id)
		}
	}
}

func TestDeleteCancelsWhatRuns(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	results := make(chan api.ExecResult, 1)
	go func() {
		r, err := d.Exec(t.Context(), "s1", new(boxtest.Shell("echo begun; sleep 1000")))
		if err != nil {
			t.Error(err)
		}
		results <- r
	}()
	boxtest.Eventually(t, "the program runs", func() bool {
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.Running == 1
	})
	var deletes sync.WaitGroup
	codes := make([]int, 5)
	for i := range codes { // one ends it, the others wait for that end or come late
		deletes.Go(func() { codes[i] = d.Raw(t, "DELETE", "/v1/sessions/s1", "").Code })
	}
	deletes.Wait()
	if r := <-results; r.Status != "canceled" || r.ExitCode != nil {
		t.Errorf(`r = %s, want r.Status == "canceled" and r.ExitCode == nil`, boxtest.Show(r))
	}
	for _, code := range codes {
		if code != http.StatusNoContent && code != http.StatusNotFound {
			t.Errorf("codes = %v, want code == 204 or code == 404", codes)
		}
	}
	if !slices.Contains(codes, http.StatusNoContent) {
		t.Errorf("codes = %v, want codes containing 204", codes)
	}
	d.NothingLeft(before)
}

func TestUnknownRoutesAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for _, tc := range [][2]string{
		{"GET", "/"},
		{"GET", "/v1"},
		{"GET", "/v2/sessions"},
		{"GET", "/v1/../healthz"},
		{"GET", "//healthz"},
		{"OPTIONS", "*"},
		{"GET", "/v1/sessions/x/"},
	} {
		a := d.Raw(t, tc[0], tc[1], "")
		if p := a.Problem(t); p.Status != http.StatusNotFound {
			t.Errorf("%s %s: p = %+v, want p.Status == 404", tc[0], tc[1], p)
		}
	}
	for _, tc := range [][3]string{
		{"PUT", "/v1/sessions", "GET, POST"},
		{"BREW", "/v1/sessions", "GET, POST"},
		{"PUT", "/v1/sessions/x", "GET, PATCH, DELETE"},
		{"GET", "/v1/sessions/x/exec", "POST"},
	} {
		a := d.Raw(t, tc[0], tc[1], "")
		if p := a.Problem(t); p.Status != http.StatusMethodNotAllowed || a.Header.Get("Allow") != tc[2] {
			t.Errorf(`%s %s: a.Header = %v, p = %+v, want p.Status == 405 and a.Header.Get("Allow") == tc[2]`,
				tc[0], tc[1], a.Header, p)
		}
	}
	for _, path := range []string{"/v1/sessions?al=true", "/v1/sessions?all=yes", "/v1/sessions?all=true&all=true", "/v1/status?x=1", "/v1/sessions/x?all=true"} {
		a := d.Raw(t, "GET", path, "")
		if p := a.Problem(t); p.Status != http.StatusBadRequest {
			t.Errorf("GET %s: p = %+v, want p.Status == 400", path, p)
		}
	}
	for _, path := range []string{"/v1/exec/stream", "/v1/sessions/x/exec/stream"} {
		a := d.Raw(t, "GET", path, "")
		if p := a.Problem(t); p.Status != http.StatusBadRequest && p.Status != http.StatusNotFound {
			t.Errorf("GET %s without an upgrade: p = %+v, want p.Status == 400 or p.Status == 404", path, p)
		}
	}
}
