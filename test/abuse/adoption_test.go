// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// boxd runs a daemon's boxd that should fail to start, and returns its output.
func boxd(t *testing.T, d *boxtest.Daemon) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config).CombinedOutput()
	return string(out), err
}

// configure replaces a text in a daemon's configuration, for the next boxd.
func configure(t *testing.T, d *boxtest.Daemon, from, to string) {
	t.Helper()
	text, err := os.ReadFile(d.Config)
	if err != nil || !bytes.Contains(text, []byte(from)) {
		t.Fatalf("no %q in %s, %v", from, text, err)
	}
	if err := os.WriteFile(d.Config, bytes.ReplaceAll(text, []byte(from), []byte(to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// endsWithTheTest makes boxes end with boxd, and starts a boxd with that configuration.
func endsWithTheTest(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	configure(t, d, "on_stop", "on_stop = \"end\" #")
	d.Stop()
	d.Restart()
}

// living is a session with running processes, one of which counts, and a process that has ended.
type liveSession struct {
	session api.Session
	states  map[string]api.Process
}

func live(t *testing.T, d *boxtest.Daemon, req api.SessionRequest) liveSession {
	t.Helper()
	req.ID, req.Env = "s1", map[string]string{"TOKEN": "s3cret"}
	l := liveSession{d.NewSession(t, req), map[string]api.Process{}}
	terminal := boxtest.ShellProcess("stty -echo; echo up; read x; echo \"got $x\"; sleep 1000")
	terminal.Terminal = &api.Terminal{Rows: 24, Cols: 80}
	counts := boxtest.ShellProcess("i=0; while sleep 0.01; do echo $((i += 1)); done")
	l.states["counts"] = d.NewProcess(t, "s1", "counts", counts)
	l.states["terminal"] = d.NewProcess(t, "s1", "terminal", terminal)
	l.states["past"] = d.NewProcess(t, "s1", "past", boxtest.ShellProcess("echo $TOKEN; exit 3"))
	d.Ended(t, "s1", "past")
	awaitOutput(t, d, "counts", "3\n")
	awaitOutput(t, d, "terminal", "up")
	return l
}

// goesOn checks that session and processes still exist and run.
func (l *liveSession) checkRunning(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != l.session.PID || now.IDBase != l.session.IDBase || !now.CreatedAt.Equal(l.session.CreatedAt) {
		t.Fatalf("now = %+v, err = %v, want no error and now.PID == %v and now.IDBase == %v and now.CreatedAt.Equal(l.session.CreatedAt)",
			now, err, l.session.PID, l.session.IDBase)
	}
	for p, before := range l.states {
		now, err := d.Process(t.Context(), "s1", p, 0)
		if err != nil || p != "past" && (now.PID != before.PID || now.Starts != 1 || now.State != "running") {
			t.Errorf(`%s: now = %+v, err = %v, want no error and (p == "past" or now.PID == %v and now.Starts == 1 and now.State == "running")`,
				p, now, err, before.PID)
		}
	}
	if past := d.Ended(t, "s1", "past"); *past.Result.ExitCode != 3 || past.Result.Stdout != "s3cret\n" {
		t.Errorf(`past.Result = %+v, want *past.Result.ExitCode == 3 and past.Result.Stdout == "s3cret\n"`, past.Result)
	}
	c, a := d.AttachPeer(t, "s1", "counts", api.StreamAttach{Replay: true})
	got := ""
	for int64(len(got)) <= a.Process.Output[0].Bytes { // it writes more
		m := c.Hear()
		if m.Closed != nil || m.Control != nil {
			t.Fatalf("m.Data = %s, m.Closed = %v, want m.Closed == nil and m.Control == nil", m.Data, m.Closed)
		}
		got += string(m.Data)
	}
	if !strings.HasPrefix(got, "1\n2\n3\n") {
		t.Errorf("it has counted %q", got)
	}
	tty, _ := d.AttachPeer(t, "s1", "terminal", api.StreamAttach{Write: true, TakeOver: true})
	tty.Send(api.ChannelStdin, []byte("x\n"))
	if got := d.Sh(t, "s1", "echo $TOKEN"); got != "s3cret\n" {
		t.Errorf(`the environment of the session has %q, want "s3cret\n"`, got)
	}
	awaitOutput(t, d, "terminal", "got x")
}

// The next boxd adopts what was left to it: after a kill, and after a shutdown that keeps boxes.
func TestTheNextBoxdAdoptsBoxesThatWereLeftRunning(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config string
		leave  func(d *boxtest.Daemon)
	}{
		"killed":                       {boxtest.Lasting, (*boxtest.Daemon).Kill},
		"stopped, on_stop keep":        {"on_stop = \"keep\"\n" + boxtest.Lasting, (*boxtest.Daemon).Stop},
		"stopped, keep, without grace": {"on_stop = \"keep\"\nadopt_grace = \"0s\"\n", (*boxtest.Daemon).Stop},
	} {
		t.Run(name, func(t *testing.T) {
			d := boxtest.StartWith(t, tc.config, boxtest.BestEffort)
			l := live(t, d, api.SessionRequest{})
			tc.leave(d)
			if !boxtest.Lives(int(l.session.PID)) {
				t.Error("the box of the session has ended")
			}
			d.Restart()
			l.checkRunning(t, d)
			if err := d.DeleteSession(t.Context(), "s1"); err != nil {
				t.Error(err)
			}
			endsWithTheTest(t, d)
		})
	}
}

// What is configured to end with boxd ends with it, and leaves nothing to the next.
func TestBoxesConfiguredToEndWithBoxdEnd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config string
		leave  func(d *boxtest.Daemon)
	}{
		"killed, without grace": {"", (*boxtest.Daemon).Kill},
		"killed, on_stop keep":  {"on_stop = \"keep\"\nadopt_grace = \"0s\"\n", (*boxtest.Daemon).Kill},
		"killed, grace over":    {"adopt_grace = \"500ms\"\n", (*boxtest.Daemon).Kill},
		"stopped, on_stop end":  {boxtest.Lasting, (*boxtest.Daemon).Stop},
	} {
		t.Run(name, func(t *testing.T) {
			d := boxtest.StartWith(t, tc.config, boxtest.BestEffort)
			d.Warm()
			before := d.Look()
			l := live(t, d, api.SessionRequest{})
			tc.leave(d)
			boxtest.Eventually(t, "the box of the session has ended", func() bool { return !boxtest.Lives(int(l.session.PID)) })
			if tc.config == boxtest.Lasting {
				boxtest.Eventually(t, "no process and no file of the box is left", func() bool {
					now := d.Look()
					return len(now.Processes)+len(now.Files) == 0
				})
			}
			d.Restart()
			if list, err := d.Sessions(t.Context(), true); err != nil || len(list) > 0 {
				t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
			}
			d.Warm()
			d.NothingLeft(before)
			endsWithTheTest(t, d)
		})
	}
}

// The next boxd checks what it finds against its own configuration: what that no longer allows is ended, and the log names the
// key. What it would merely not grant any more stays.
func TestAnotherConfigurationIsHeldAgainstWhatLives(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ from, to, why string }{
		"a smaller locked limit": {"memory = \"64MiB\"", "memory = \"32MiB\"", "memory"},
		"the profile is gone":    {"[profiles.small]", "[profiles.other]", "profile"},
		"no best effort":         {boxtest.BestEffort, "", "limits.best_effort"},
		"a smaller default":      {"pids = 50", "pids = 40", ""},
		"fewer sessions":         {"[ids]", "[sessions]\nmax = 1\n[ids]", ""},
	} {
		if tc.why == "limits.best_effort" && boxtest.Grouped() {
			continue // with cgroups nothing is best effort
		}
		t.Run(name, func(t *testing.T) {
			d := boxtest.Start(t, boxtest.Lasting, "[profiles.small]\nmemory = \"64MiB\"\npids = 50\nlocked = [\"memory\"]\n")
			s := d.NewSession(t, api.SessionRequest{ID: "s1", Profile: "small"})
			d.NewSession(t, api.SessionRequest{ID: "s2", Patch: limits.Patch{Memory: new(100 * quantity.MiB)}})
			d.NewProcess(t, "s1", "p", boxtest.ShellProcess("sleep 1000"))
			path := d.Record(t, "s1")
			d.Kill()
			configure(t, d, tc.from, tc.to)
			seen := len(d.Log())
			d.Restart()
			now, err := d.Session(t.Context(), "s1")
			if tc.why == "" {
				if err != nil || now.PID != s.PID || now.Pids != 50 || now.Memory != s.Memory {
					t.Errorf("now = %+v, err = %v, want no error and now.PID == %v and now.Pids == 50 and now.Memory == %v",
						now, err, s.PID, s.Memory)
				}
				return
			}
			if !errors.Is(err, client.NotFound) {
				t.Errorf("now = %+v, err = %v, want err is client.NotFound", now, err)
			}
			boxtest.Eventually(t, "the box of the session is dead", func() bool { return !boxtest.Lives(int(s.PID)) })
			if text := d.Log()[seen:]; !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "is lost") || !strings.Contains(text, tc.why) || !strings.Contains(text, path) {
				t.Errorf("the log does not say why the session ended:\n%s", text)
			}
			if _, err := d.Session(t.Context(), "s2"); (err == nil) != (tc.why != "limits.best_effort") {
				t.Errorf(`the other session: err = %v, want (err == nil) == (tc.why != "limits.best_effort")`, err)
			}
		})
	}
}

// A frozen session is still frozen when it is adopted, and can be thawed.
func TestAFrozenSessionIsFoundFrozen(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	l := live(t, d, api.SessionRequest{})
	if !boxtest.Grouped() { // freezing needs a cgroup
		if _, err := d.FreezeSession(t.Context(), "s1"); err == nil {
			t.Error("no error for freezing a session without a cgroup")
		}
		return
	}
	if _, err := d.FreezeSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.Kill()
		d.Restart()
	}
	before, err := d.Process(t.Context(), "s1", "counts", 0)
	if s, serr := d.Session(t.Context(), "s1"); err != nil || serr != nil || s.State != "frozen" || s.PID != l.session.PID {
		t.Fatalf(`s = %+v, err = %v, serr = %v, want no error and no error and s.State == "frozen" and s.PID == %v`,
			s, err, serr, l.session.PID)
	}
	<-time.After(200 * time.Millisecond)
	if now, err := d.Process(t.Context(), "s1", "counts", 0); err != nil || now.Output[0].Bytes != before.Output[0].Bytes {
		t.Errorf("frozen, it has counted from %d to %d bytes, %v", before.Output[0].Bytes, now.Output[0].Bytes, err)
	}
	if _, err := d.ThawSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	l.checkRunning(t, d)
}

// The deadlines of a box also apply while no boxd runs: it ends by itself, and the next boxd cleans up. If a deadline has not
// passed, the same time is left as before.
func TestTimesGoOnWithoutBoxd(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]api.SessionRequest{
		"ttl":          {Patch: limits.Patch{TTL: boxtest.Duration("30s")}},
		"max_lifetime": {Patch: limits.Patch{TTL: boxtest.Duration("0s"), MaxLifetime: boxtest.Duration("40s")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			d := boxtest.Start(t, boxtest.Lasting)
			d.Warm()
			before := d.Look()
			req.ID = "s1"
			s := d.NewSession(t, req)
			stays := d.NewSession(t, api.SessionRequest{ID: "stays"})
			if name == "max_lifetime" { // applies whatever runs
				d.NewProcess(t, "s1", "p", boxtest.ShellProcess("sleep 1000"))
			}
			d.Kill()
			d.Restart()
			if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != s.PID || name == "max_lifetime" && !now.ExpiresAt.Equal(*s.ExpiresAt) {
				t.Fatalf(`now = %+v, err = %v, want no error and now.PID == %v and (name != "max_lifetime" or now.ExpiresAt.Equal(*s.ExpiresAt))`,
					now, err, s.PID)
			}
			d.Kill()
			boxtest.Eventually(t, "the box has ended by its orphan timeout", func() bool { return !boxtest.Lives(int(s.PID)) })
			if late := time.Since(s.CreatedAt); late < 30*time.Second {
				t.Errorf("it has ended after %v", late)
			}
			d.Restart()
			if _, err := d.Session(t.Context(), "s1"); !errors.Is(err, client.NotFound) {
				t.Error(err)
			}
			if now, err := d.Session(t.Context(), "stays"); err != nil || now.PID != stays.PID {
				t.Errorf("the other session: now = %+v, err = %v, want no error and now.PID == %v", now, err, stays.PID)
			}
			if err := d.DeleteSession(t.Context(), "stays"); err != nil {
				t.Error(err)
			}
			d.NothingLeft(before)
		})
	}
}
