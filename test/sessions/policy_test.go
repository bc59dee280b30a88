// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// denied checks which rule an answer names for the refusal.
func denied(t *testing.T, a boxtest.Answer, status int, layer, rule string) *api.Denial {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(a.Body, &p); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	if a.Code != status || p.Denial == nil || p.Denial.Layer != layer || p.Denial.Rule != rule {
		t.Errorf("%d %s, want %d by %s", a.Code, a.Body, status, rule)
		return &api.Denial{}
	}
	return p.Denial
}

func executing(id, line string) string {
	return boxtest.Request("POST", "/v1/sessions/"+id+"/exec", fmt.Sprintf(`{"command":%q}`, line))
}

// A caller at its limit is told which limit; another caller can go on.
func TestACallerAtItsLimitWhileAnotherWorks(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[policy.ci]\nprincipals = [\"uid:4242\"]\nsessions = 2\nprocesses = 1\nexecutions_per_minute = 2\ntotal_cpus = 0.6\n[policy.ci.ceilings]\ncpus = 0.25\npids = 33\n")
	all := d.AsUser(t, boxtest.OtherUID,
		boxtest.Request("POST", "/v1/sessions", `{"id":"a","pids":500}`),
		boxtest.Request("POST", "/v1/sessions", `{"id":"b"}`),
		boxtest.Request("POST", "/v1/sessions", `{"id":"c"}`),
		boxtest.Request("PUT", "/v1/sessions/a/processes/p", `{"argv":["sleep","1000"]}`),
		boxtest.Request("PUT", "/v1/sessions/b/processes/p", `{"argv":["sleep","1000"]}`),
		executing("a", "ulimit -u"),
		executing("b", "true"))
	if s := decode[api.Session](t, all[0]); s.Pids != 33 || s.CPUs != 0.25 || len(s.Clamped) != 2 {
		t.Errorf("s = %+v, want s.Pids == 33 and s.CPUs == 0.25 and len(s.Clamped) == 2", s)
	}
	if n := denied(t, all[2], http.StatusTooManyRequests, "quota", "policy.ci.sessions"); n.Used != "2" || n.Allowed != "2" {
		t.Errorf(`n = %+v, want n.Used == "2" and n.Allowed == "2"`, n)
	}
	decode[api.Process](t, all[3])
	denied(t, all[4], http.StatusTooManyRequests, "quota", "policy.ci.processes")
	decode[api.ExecResult](t, all[5])
	if n := denied(t, all[6], http.StatusTooManyRequests, "quota", "policy.ci.executions_per_minute"); n.RetryAfter < 1 || n.RetryAfter > 31 {
		t.Errorf("n = %+v, want n.RetryAfter >= 1 and n.RetryAfter <= 31", n)
	}
	for _, a := range d.AsUser(t, 4343, boxtest.Request("POST", "/v1/sessions", `{"id":"a"}`), executing("a", "true"), executing("a", "true"), executing("a", "true")) {
		if a.Code >= http.StatusBadRequest {
			t.Errorf("another caller: a.Code = %d, a.Body = %s, want a.Code < 400", a.Code, a.Body)
		}
	}
	again := d.AsUser(t, boxtest.OtherUID,
		boxtest.Request("DELETE", "/v1/sessions/b", ""), boxtest.Request("POST", "/v1/sessions", `{"id":"c"}`),
		boxtest.Request("DELETE", "/v1/sessions/a/processes/p", ""), boxtest.Request("GET", "/v1/usage", ""))
	if again[1].Code != http.StatusCreated {
		t.Errorf("a place that was given back cannot be used: again[1].Body = %s, want again[1].Code == 201", again[1].Body)
	}
	for _, h := range decode[api.UsageList](t, again[3]).Holdings {
		want := map[string]float64{"policy.ci.sessions": 2, "policy.ci.processes": 0, "policy.ci.total_cpus": 0.5}[h.Rule]
		if h.Used != want {
			t.Errorf("%+v, want %v", h, want)
		}
	}
}

// A policy applies to a principal in every notation, and callers find the same principal by each of its names.
func TestAPersonIsOneHoweverWritten(t *testing.T) {
	t.Parallel()
	boxtest.OneDay(t)
	d := boxtest.Start(t, "[principals.alice]\nuid = 4242\nrole = \"user\"\n[policy.a]\nprincipals = [\"uid:4242\"]\nsessions = 1\n[policy.b]\nprincipals = [\"daemon\"]\nsessions = 1\n")
	const daemon = 1 // the uid of that user, on every Debian
	for uid, rule := range map[uint32]string{boxtest.OtherUID: "policy.a.sessions", daemon: "policy.b.sessions"} {
		all := d.AsUser(t, uid, boxtest.Request("POST", "/v1/sessions", `{"id":"s"}`), boxtest.Request("POST", "/v1/sessions", `{"id":"t"}`), boxtest.Request("POST", "/v1/sessions", `{"id":"u"}`))
		if all[0].Code != http.StatusCreated {
			t.Errorf("%d: all[0].Body = %s, want all[0].Code == 201", uid, all[0].Body)
		}
		denied(t, all[1], http.StatusTooManyRequests, "quota", rule)
	}
	for written, name := range map[string]string{"alice": "alice", "daemon": "uid:1", "uid:1": "uid:1"} {
		c := *d.Client
		c.Owner = written
		if s, err := c.Session(t.Context(), "s"); err != nil || s.Owner != name {
			t.Errorf("the session of %s: s.Owner = %+v, err = %v, want no error and s.Owner == %+v",
				written, s.Owner, err, name)
		}
		boxtest.Eventually(t, "both refusals to "+written+" are counted", func() bool { // which is when they have been answered
			u, err := c.Usage(t.Context(), 1, false)
			if err != nil || len(u.Days) != 1 || u.Days[0].Principal != name || u.Days[0].Sessions != 1 || u.Days[0].Refused > 2 || u.Policy == "" {
				t.Fatalf(`the usage of %s: u = %+v, err = %v, want no error and len(u.Days) == 1 and u.Days[0].Principal == %v and u.Days[0].Sessions == 1 and u.Days[0].Refused <= 2 and u.Policy != ""`,
					written, u, err, name)
			}
			return u.Days[0].Refused == 2
		})
	}
	if all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/v1/usage?owner=daemon", "")); all[0].Code != http.StatusForbidden {
		t.Errorf("the usage of another caller: all[0].Code = %d, all[0].Body = %s, want all[0].Code == 403",
			all[0].Code, all[0].Body)
	}
}

// A caller that is shut out has no process left; its session's files stay.
func TestWhoIsShutOutHasNoProcesses(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[principals.alice]\nuid = 4242\nrole = \"user\"\n")
	all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"s"}`), boxtest.Request("PUT", "/v1/sessions/s/processes/p", `{"argv":["sleep","1000"]}`))
	decode[api.Process](t, all[1])
	d.NewSession(t, api.SessionRequest{ID: "mine"})
	d.NewProcess(t, "mine", "p", boxtest.ShellProcess("sleep 1000"))
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Config, []byte(strings.Replace(string(text), `role = "user"`, `role = "none"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	hers := *d.Client
	hers.Owner = "alice"
	boxtest.Eventually(t, "the process of the locked-out caller has ended", func() bool {
		p, err := hers.Process(t.Context(), "s", "p", 0)
		return err == nil && p.State == "ended" && p.Reason == "revoked"
	})
	if _, err := hers.Session(t.Context(), "s"); err != nil {
		t.Errorf("the session of the locked-out caller: %v", err)
	}
	if p, err := d.Process(t.Context(), "mine", "p", 0); err != nil || p.State != "running" {
		t.Errorf(`the process of another caller: p = %+v, err = %v, want no error and p.State == "running"`, p, err)
	}
}

// The executions of the day are known to the next boxd, even if the previous one was killed.
func TestADayOfExecutionsOutlivesAKilledBoxd(t *testing.T) {
	t.Parallel()
	boxtest.OneDay(t)
	d := boxtest.Start(t, boxtest.Lasting, "[policy.ci]\nprincipals = [\"uid:4242\"]\nexecutions_per_day = 3\nsessions = 1\n")
	all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"s"}`), executing("s", "true"), executing("s", "true"), executing("s", "true"), executing("s", "true"))
	if n := denied(t, all[4], http.StatusTooManyRequests, "quota", "policy.ci.executions_per_day"); n.Used != "3" || n.Allowed != "3" || n.RetryAfter < 1 {
		t.Errorf(`n = %+v, want n.Used == "3" and n.Allowed == "3" and n.RetryAfter >= 1`, n)
	}
	boxtest.Eventually(t, "the usage of the day is on disk", func() bool {
		files, err := filepath.Glob(filepath.Join(d.State, "usage", "*.json"))
		if err != nil || len(files) == 0 {
			return false
		}
		text, err := os.ReadFile(files[len(files)-1])
		return err == nil && strings.Contains(string(text), `"executions":3`) && strings.Contains(string(text), `"over_a_day":1`)
	})
	d.Kill()
	d.Restart()
	all = d.AsUser(t, boxtest.OtherUID, executing("s", "true"), boxtest.Request("GET", "/v1/usage", ""), boxtest.Request("POST", "/v1/sessions", `{"id":"t"}`))
	denied(t, all[0], http.StatusTooManyRequests, "quota", "policy.ci.executions_per_day")
	list := decode[api.UsageList](t, all[1])
	if len(list.Days) != 1 || list.Days[0].Executions != 3 || list.Days[0].Refused < 1 || list.Days[0].Sessions != 1 || list.Days[0].SessionSeconds <= 0 || list.Days[0].MemoryByteHours <= 0 {
		t.Errorf("list = %+v", list)
	}
	denied(t, all[2], http.StatusTooManyRequests, "quota", "policy.ci.sessions") // the adopted session counts
}

// A changed policy applies to running sessions when a program is started in them.
func TestAPolicyThatChangesHoldsLivingSessions(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	if all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"s"}`), executing("s", "true")); all[1].Code != http.StatusOK {
		t.Fatalf("all[1].Body = %s, want all[1].Code == 200", all[1].Body)
	}
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Config, append(text, "\n[policy.ci]\nprincipals = [\"uid:4242\"]\ntools = [\"files\"]\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	var last boxtest.Answer
	boxtest.Eventually(t, "the policy is in force", func() bool {
		last = d.AsUser(t, boxtest.OtherUID, executing("s", "true"))[0]
		return last.Code != http.StatusOK
	})
	denied(t, last, http.StatusForbidden, "policy", "policy.ci.tools")
	d.NewSession(t, api.SessionRequest{ID: "mine"})
	d.Sh(t, "mine", "true") // root is in no policy
}

// A policy narrows mounts.allow for its principals, and symbolic links do not lead out of it.
func TestAPolicyNarrowsWhatIsLent(t *testing.T) {
	t.Parallel()
	dir := boxtest.TempDir(t)
	for _, name := range []string{"lent/ok", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../other", filepath.Join(dir, "lent", "link")); err != nil {
		t.Fatal(err)
	}
	d := boxtest.Start(t, fmt.Sprintf("[mounts]\nallow = [%q]\n[policy.ci]\nprincipals = [\"uid:4242\"]\nmounts = [%q]\n", dir, dir+"/lent"))
	mount := func(id, source string) string {
		return boxtest.Request("POST", "/v1/sessions", fmt.Sprintf(`{"id":%q,"mounts":[{"source":%q,"target":"/data","mode":"ro"}]}`, id, source))
	}
	all := d.AsUser(t, boxtest.OtherUID, mount("a", dir+"/lent/ok"), mount("b", dir+"/other"), mount("c", dir+"/lent/link"))
	if all[0].Code != http.StatusCreated {
		t.Errorf("all[0].Body = %s, want all[0].Code == 201", all[0].Body)
	}
	for _, a := range all[1:] {
		denied(t, a, http.StatusForbidden, "mount", "policy.ci.mounts")
	}
	if a := d.AsUser(t, 4343, mount("b", dir+"/other")); a[0].Code != http.StatusCreated {
		t.Errorf("another caller: a[0].Body = %s, want a[0].Code == 201", a[0].Body)
	}
	if a := d.AsUser(t, 4343, mount("c", "/etc")); true {
		denied(t, a[0], http.StatusForbidden, "mount", "mounts.allow")
	}
}

// A tenant of a caller has limits of its own, and cannot escape them: not by omitting or changing the label, nor by a restart of boxd.
func TestTenantsOfACaller(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[policy.default]\nsessions = 10\n[policy.root]\nprincipals = [\"uid:0\"]\n[policy.root.tenant]\nlabel = \"of\"\nsessions = 2\nprocesses = 1\n", boxtest.Kept)
	of := func(id, tenant string) api.SessionRequest {
		r := api.SessionRequest{ID: id}
		if tenant != "" {
			r.Labels = map[string]string{"of": tenant}
		}
		return r
	}
	create := func(id, tenant string) error {
		_, _, err := d.CreateSession(t.Context(), new(of(id, tenant)))
		return err
	}
	for _, s := range [][2]string{{"a1", "a"}, {"a2", "a"}, {"b1", "b"}, {"n1", ""}, {"n2", ""}} {
		d.NewSession(t, of(s[0], s[1]))
	}
	denied := func(err error) {
		t.Helper()
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Denial == nil || e.Denial.Rule != "policy.root.tenant.sessions" {
			t.Errorf(`err = %v, want ok == true and e.Denial != nil and e.Denial.Rule == "policy.root.tenant.sessions"`,
				err)
		}
	}
	denied(create("a3", "a"))
	denied(create("n3", ""))
	if _, err := d.ChangeSession(t.Context(), "a1", &api.SessionChange{Labels: map[string]string{"of": "b"}}); err == nil || boxtest.StatusOf(err) != 403 {
		t.Errorf("err = %v, want an error and boxtest.StatusOf(err) == 403", err)
	}
	if _, err := d.ChangeSession(t.Context(), "a1", &api.SessionChange{Labels: map[string]string{"of": "a", "more": "x"}}); err != nil {
		t.Error(err)
	}
	if _, _, err := d.StartProcess(t.Context(), "a1", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.StartProcess(t.Context(), "a2", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}}); boxtest.StatusOf(err) != 429 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 429", err)
	}
	d.Kill()
	d.Restart()
	denied(create("a3", "a"))
	if _, _, err := d.StartProcess(t.Context(), "a2", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}}); boxtest.StatusOf(err) != 429 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 429", err)
	}
	if _, _, err := d.StartProcess(t.Context(), "b1", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Error(err)
	}
	if err := d.DeleteSession(t.Context(), "a1"); err != nil {
		t.Fatal(err)
	}
	if err := create("a3", "a"); err != nil {
		t.Error(err)
	}
}
