// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func length(d time.Duration) *quantity.Duration { return new(quantity.Duration(d)) }

// awaitState waits until a process is in a certain state.
func awaitState(t *testing.T, d *boxtest.Daemon, p, what string, is func(api.Process) bool) (state api.Process) {
	t.Helper()
	boxtest.Eventually(t, p+" is "+what, func() bool {
		var err error
		state, err = d.Process(t.Context(), "s1", p, 0)
		if err != nil {
			t.Fatal(err)
		}
		return is(state)
	})
	return state
}

func isOver(p api.Process) bool { return p.State == "ended" }

func isReady(p api.Process) bool { return p.Ready }

func TestAProcessIsStartedOnceAndAgainAsItsPolicySays(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, _, err := d.StartProcess(t.Context(), "s1", "once", &api.ProcessRequest{Command: new("echo x >> once; sleep 1000")}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	boxtest.Eventually(t, "the process has started", func() bool {
		r := d.Result(t, "s1", boxtest.Shell("test -s once"))
		return r.ExitCode != nil && *r.ExitCode == 0
	})
	if got := d.Sh(t, "s1", "cat once"); got != "x\n" {
		t.Errorf("it was started %q", got)
	}
	_, _, err := d.StartProcess(t.Context(), "s1", "once", &api.ProcessRequest{Argv: []string{"true"}, Env: map[string]string{"A": "b"}})
	boxtest.Refused(t, err, http.StatusConflict, "argv, command, env")
	// Two failures and a success.
	fails := &api.ProcessRequest{
		Command: new("echo x >> fails; echo out; [ $(wc -l < fails) -ge 3 ]"), Restart: &api.Restart{Policy: "on-failure", Delay: length(10 * time.Millisecond)},
	}
	process(t, d, "s1", "fails", fails)
	p := awaitState(t, d, "fails", "over", isOver)
	if p.Starts != 3 || p.Reason != "" || p.Result == nil || *p.Result.ExitCode != 0 || p.Result.Stdout != "out\nout\nout\n" {
		t.Errorf(`p = %+v, p.Result = %+v, want p.Starts == 3 and p.Reason == "" and p.Result != nil and *p.Result.ExitCode == 0 and p.Result.Stdout == "out\nout\nout\n"`,
			p, p.Result)
	}
	process(t, d, "s1", "loop", &api.ProcessRequest{Argv: []string{"true"}, Restart: &api.Restart{Policy: "always", Delay: length(10 * time.Millisecond), Limit: new(3)}})
	if p := awaitState(t, d, "loop", "over", isOver); p.Starts != 4 || p.Reason != "crash loop" {
		t.Errorf(`p = %+v, want p.Starts == 4 and p.Reason == "crash loop"`, p)
	}
	wrong := process(t, d, "s1", "wrong", &api.ProcessRequest{Argv: []string{"no-such-program"}, Restart: &api.Restart{Policy: "always"}})
	if !isOver(wrong) || wrong.Starts != 0 {
		t.Errorf("wrong = %+v, want isOver(wrong) and wrong.Starts == 0", wrong)
	}
	if err := d.DeleteProcess(t.Context(), "s1", "once"); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "no process runs", func() bool { // a process has ended before it is no longer counted
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.Running == 0
	})
}

func TestAProcessSaysWhenItIsReady(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	listen := `import os,socket,time
while not os.path.exists("go"): time.sleep(0.02)
s=socket.socket(); s.bind(("127.0.0.1", 8123)); s.listen()
time.sleep(1000)`
	for name, req := range map[string]*api.ProcessRequest{
		"line":    {Command: new("printf 'now '; until [ -e go ]; do sleep 0.02; done; echo listening; sleep 1000"), Ready: &api.Ready{Line: new("^now listen")}},
		"port":    {Code: &listen, Language: "python", Ready: &api.Ready{Port: new(8123)}},
		"command": {Command: new("touch up; sleep 1000"), Ready: &api.Ready{Command: []string{"test", "-e", "up"}}},
	} {
		if p := process(t, d, "s1", name, req); p.Ready && name != "command" {
			t.Errorf("%s is ready at once", name)
		}
	}
	d.Sh(t, "s1", "touch go")
	for _, name := range []string{"line", "port", "command"} {
		awaitState(t, d, name, "ready", isReady)
	}
	process(t, d, "s1", "late", &api.ProcessRequest{Argv: []string{"sleep", "1000"}, Ready: &api.Ready{Port: new(1), Timeout: length(100 * time.Millisecond)}})
	if p := awaitState(t, d, "late", "over", isOver); p.Reason != "not ready" || p.Result.Status != "canceled" {
		t.Errorf(`p = %+v, p.Result = %+v, want p.Reason == "not ready" and p.Result.Status == "canceled"`, p, p.Result)
	}
}

func TestAProcessIsAskedToEndAndThenMade(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	process(t, d, "s1", "polite", &api.ProcessRequest{Command: new("trap 'echo bye; exit 4' HUP; echo up; while :; do sleep 0.01; done"), Stop: &api.Stop{Signal: "SIGHUP", Grace: length(time.Minute)}, Ready: &api.Ready{Line: new("up")}})
	process(t, d, "s1", "stubborn", &api.ProcessRequest{Command: new("trap '' TERM; echo up; while :; do sleep 0.01; done"), Stop: &api.Stop{Grace: length(50 * time.Millisecond)}, Ready: &api.Ready{Line: new("up")}})
	for name, want := range map[string]func(*api.ExecResult) bool{
		"polite": func(r *api.ExecResult) bool {
			return r.Status == "exited" && *r.ExitCode == 4 && r.Stdout == "up\nbye\n"
		},
		"stubborn": func(r *api.ExecResult) bool { return r.Status == "canceled" },
	} {
		awaitState(t, d, name, "ready", isReady)
		p, err := d.StopProcess(t.Context(), "s1", name)
		if err != nil || p.State != "ended" || p.Reason != "stopped" || !want(p.Result) {
			t.Errorf(`p = %+v, p.Result = %+v, err = %v, want no error and p.State == "ended" and p.Reason == "stopped" and want(p.Result)`,
				p, p.Result, err)
		}
	}
	p := process(t, d, "s1", "leased", &api.ProcessRequest{Argv: []string{"sleep", "1000"}, Lease: length(time.Hour)})
	if p.ExpiresAt == nil || p.ExpiresAt.Sub(p.StartedAt) < 59*time.Minute {
		t.Errorf("p = %+v, want p.ExpiresAt != nil and p.ExpiresAt.Sub(p.StartedAt) >= 59 * time.Minute", p)
	}
	before := *p.ExpiresAt
	if p, err := d.RenewProcess(t.Context(), "s1", "leased"); err != nil || !p.ExpiresAt.After(before) {
		t.Errorf("p = %+v, err = %v, want no error and p.ExpiresAt.After(before)", p, err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
	if _, err := d.Processes(t.Context(), "s1"); err == nil || !strings.Contains(err.Error(), "no session") {
		t.Errorf(`err = %v, want an error containing "no session"`, err)
	}
}
