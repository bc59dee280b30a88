// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// denied holds an answer to the rule that has refused.
func denied(t *testing.T, a answer, status int, layer, rule string) *api.Denial {
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
	return request("POST", "/v1/sessions/"+id+"/exec", fmt.Sprintf(`{"command":%q}`, line))
}

// A caller at its limit is told which, and another goes on.
func TestACallerAtItsLimitWhileAnotherWorks(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[policy.ci]\nprincipals = [\"uid:4242\"]\nsessions = 2\nprocesses = 1\nexecutions_per_minute = 2\ntotal_cpus = 0.6\n[policy.ci.ceilings]\ncpus = 0.25\npids = 33\n")
	all := asOther(
		t, d,
		request("POST", "/v1/sessions", `{"id":"a","pids":500}`),
		request("POST", "/v1/sessions", `{"id":"b"}`),
		request("POST", "/v1/sessions", `{"id":"c"}`),
		request("PUT", "/v1/sessions/a/processes/p", `{"argv":["sleep","1000"]}`),
		request("PUT", "/v1/sessions/b/processes/p", `{"argv":["sleep","1000"]}`),
		executing("a", "ulimit -u"),
		executing("b", "true"),
	)
	if s := decode[api.Session](t, all[0]); s.Pids != 33 || s.CPUs != 0.25 || len(s.Clamped) != 2 {
		t.Errorf("%+v", s)
	}
	if n := denied(t, all[2], http.StatusTooManyRequests, "quota", "policy.ci.sessions"); n.Used != "2" || n.Allowed != "2" {
		t.Errorf("%+v", n)
	}
	decode[api.Process](t, all[3])
	denied(t, all[4], http.StatusTooManyRequests, "quota", "policy.ci.processes")
	decode[api.ExecResult](t, all[5])
	if n := denied(t, all[6], http.StatusTooManyRequests, "quota", "policy.ci.executions_per_minute"); n.RetryAfter < 1 || n.RetryAfter > 31 {
		t.Errorf("%+v", n)
	}
	for _, a := range asUser(t, d, 4343, request("POST", "/v1/sessions", `{"id":"a"}`), executing("a", "true"), executing("a", "true"), executing("a", "true")) {
		if a.Code >= http.StatusBadRequest {
			t.Errorf("another caller: %d %s", a.Code, a.Body)
		}
	}
	again := asOther(
		t, d,
		request("DELETE", "/v1/sessions/b", ""), request("POST", "/v1/sessions", `{"id":"c"}`),
		request("DELETE", "/v1/sessions/a/processes/p", ""), request("GET", "/v1/usage", ""),
	)
	if again[1].Code != http.StatusCreated {
		t.Errorf("what was given back cannot be had: %s", again[1].Body)
	}
	for _, h := range decode[api.UsageList](t, again[3]).Holdings {
		want := map[string]float64{"policy.ci.sessions": 2, "policy.ci.processes": 0, "policy.ci.total_cpus": 0.5}[h.Rule]
		if h.Used != want {
			t.Errorf("%+v, want %v", h, want)
		}
	}
}

// What was used today is known to the next boxd, whatever became of this one.
func TestADayOfExecutionsOutlivesAKilledBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, "[policy.ci]\nprincipals = [\"uid:4242\"]\nexecutions_per_day = 3\nsessions = 1\n")
	all := asOther(t, d, request("POST", "/v1/sessions", `{"id":"s"}`), executing("s", "true"), executing("s", "true"), executing("s", "true"), executing("s", "true"))
	if n := denied(t, all[4], http.StatusTooManyRequests, "quota", "policy.ci.executions_per_day"); n.Used != "3" || n.Allowed != "3" || n.RetryAfter < 1 {
		t.Errorf("%+v", n)
	}
	boxtest.Eventually(t, "the day is on disk", func() bool {
		files, err := filepath.Glob(filepath.Join(d.State, "usage", "*.json"))
		if err != nil || len(files) == 0 {
			return false
		}
		text, err := os.ReadFile(files[len(files)-1])
		return err == nil && strings.Contains(string(text), `"executions":3`)
	})
	d.Kill()
	d.Restart()
	all = asOther(t, d, executing("s", "true"), request("GET", "/v1/usage", ""), request("POST", "/v1/sessions", `{"id":"t"}`))
	denied(t, all[0], http.StatusTooManyRequests, "quota", "policy.ci.executions_per_day")
	list := decode[api.UsageList](t, all[1])
	if len(list.Days) != 1 || list.Days[0].Executions != 3 || list.Days[0].Refused < 1 || list.Days[0].Sessions != 1 || list.Days[0].SessionSeconds <= 0 || list.Days[0].MemoryByteHours <= 0 {
		t.Errorf("%+v", list)
	}
	denied(t, all[2], http.StatusTooManyRequests, "quota", "policy.ci.sessions") // the one that was taken over counts
}

// A living session is held by what is in force when something begins in it.
func TestAPolicyThatChangesHoldsLivingSessions(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	if all := asOther(t, d, request("POST", "/v1/sessions", `{"id":"s"}`), executing("s", "true")); all[1].Code != http.StatusOK {
		t.Fatalf("%s", all[1].Body)
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
	var last answer
	boxtest.Eventually(t, "the policy is in force", func() bool {
		last = asOther(t, d, executing("s", "true"))[0]
		return last.Code != http.StatusOK
	})
	denied(t, last, http.StatusForbidden, "policy", "policy.ci.tools")
	create(t, d, api.SessionRequest{ID: "mine"})
	succeeds(t, d, "mine", sh("true")) // root is in no table
}

// A policy narrows what mounts.allow lends, and links do not lead out of it.
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
		return request("POST", "/v1/sessions", fmt.Sprintf(`{"id":%q,"mounts":[{"source":%q,"target":"/data","mode":"ro"}]}`, id, source))
	}
	all := asOther(t, d, mount("a", dir+"/lent/ok"), mount("b", dir+"/other"), mount("c", dir+"/lent/link"))
	if all[0].Code != http.StatusCreated {
		t.Errorf("%s", all[0].Body)
	}
	for _, a := range all[1:] {
		denied(t, a, http.StatusForbidden, "mount", "policy.ci.mounts")
	}
	if a := asUser(t, d, 4343, mount("b", dir+"/other")); a[0].Code != http.StatusCreated {
		t.Errorf("another caller: %s", a[0].Body)
	}
	if a := asUser(t, d, 4343, mount("c", "/etc")); true {
		denied(t, a[0], http.StatusForbidden, "mount", "mounts.allow")
	}
}
