// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// stop stops a session, which must have no process afterwards.
func stop(t *testing.T, d *boxtest.Daemon, id string) api.Session {
	t.Helper()
	s, err := d.StopSession(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != "stopped" || s.PID != 0 || s.StoppedAt == nil || s.ID != id {
		t.Fatalf(`it is %+v, want s.State == "stopped" and s.PID == 0 and s.StoppedAt != nil and s.ID == %v`, s, id)
	}
	return s
}

// startAgain starts a stopped session.
func startAgain(t *testing.T, d *boxtest.Daemon, id string) api.Session {
	t.Helper()
	s, err := d.StartSession(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != "ready" || s.PID == 0 || s.StoppedAt != nil || s.ID != id {
		t.Fatalf(`it is %+v, want s.State == "ready" and s.PID != 0 and s.StoppedAt == nil and s.ID == %v`, s, id)
	}
	return s
}

// A stopped session has no process and no memory. Started again it has its id, its settings, its environment, its workspace, its
// changes to the root, its home on disk, and the processes whose restart policy is always.
func TestAStoppedSessionComesBackAsItWas(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	for name, req := range map[string]api.SessionRequest{
		"plain":          {},
		"writable":       {ReadOnlyRoot: new(false)},
		"home":           {HomeOnDisk: new(true)},
		"writable, home": {ReadOnlyRoot: new(false), HomeOnDisk: new(true)},
		"other user":     {ReadOnlyRoot: new(false), HomeOnDisk: new(true), UserName: new("user"), Home: new("/home/user")},
	} {
		t.Run(name, func(t *testing.T) {
			req.ID, req.Env, req.Labels = "s", map[string]string{"TOKEN": "a value", "EMPTY": ""}, map[string]string{"for": "test"}
			req.Base64 = &api.InBase64{Env: []string{base64.StdEncoding.EncodeToString([]byte("BYTES=\xff"))}}
			was := d.NewSession(t, req)
			writes := "umask 022; echo work > /workspace/f; mkdir -p /workspace/d; chmod 700 /workspace/d; echo tmp > /tmp/f; echo home > $HOME/f"
			if req.ReadOnlyRoot != nil {
				writes += "; echo root > /usr/local/bin/mine; chmod 755 /usr/local/bin/mine; rm -f /usr/bin/env; echo etc > /etc/mine; mkdir /own; echo top > /own/f"
			}
			d.Sh(t, "s", writes)
			d.NewProcess(t, "s", "always", &api.ProcessRequest{Command: new("date +%s%N >> /workspace/started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}, Env: map[string]string{"OWN": "1"}})
			d.NewProcess(t, "s", "once", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
			env := d.Sh(t, "s", "tr '\\0' '\\n' < /proc/self/environ | sort")
			boxtest.Eventually(t, "the process has started", func() bool {
				return d.Sh(t, "s", "test ! -e /workspace/started || wc -l < /workspace/started") == "1\n"
			})

			stop(t, d, "s")
			if boxtest.Lives(int(was.PID)) {
				t.Error("PID 1 of the stopped session still runs")
			}
			boxtest.Eventually(t, "no process and no cgroup of the session is left", func() bool { // except of a preforked box that is being created now
				now := d.Look()
				return len(now.Processes) <= len(before.Processes) && len(now.Groups) <= len(before.Groups)
			})
			listed, err := d.Sessions(t.Context(), false)
			if err != nil || len(listed) != 1 || listed[0].State != "stopped" {
				t.Errorf(`the list has %+v, %v, want no error and len(listed) == 1 and listed[0].State == "stopped"`,
					listed, err)
			}

			now := startAgain(t, d, "s")
			was.PID, was.IDBase, was.Group, was.LastUsedAt, was.ExpiresAt, was.Executions = now.PID, now.IDBase, now.Group, now.LastUsedAt, now.ExpiresAt, now.Executions
			was.Running = now.Running
			if a, b := asJSON(t, was), asJSON(t, now); a != b {
				t.Errorf("it was\n%s and is\n%s", a, b)
			}
			if got := d.Sh(t, "s", "tr '\\0' '\\n' < /proc/self/environ | sort"); got != env {
				t.Errorf("its environment was\n%q and is\n%q", env, got)
			}
			user := "box"
			if req.UserName != nil {
				user = *req.UserName
			}
			if got := d.Sh(t, "s", "cat /workspace/f; stat -c %a%U /workspace/d; ls /tmp"); got != "work\n700"+user+"\n" {
				t.Errorf(`in workspace and /tmp is %q, want "work\n700" + user + "\n"`, got)
			}
			home := "1\n"
			if req.HomeOnDisk != nil {
				home = "home\n0\n"
			}
			if got := d.Sh(t, "s", "cat $HOME/f 2>/dev/null; echo $?"); got != home {
				t.Errorf("in the home is %q, want %q", got, home)
			}
			if req.ReadOnlyRoot != nil {
				if got := d.Sh(t, "s", "cat /usr/local/bin/mine /etc/mine /own/f; ls /usr/bin/env 2>&1 | grep -c 'No such'; echo again > /etc/again; cat /etc/again"); got != "root\netc\ntop\n1\nagain\n" {
					t.Errorf(`in its root is %q, want "root\netc\ntop\n1\nagain\n"`, got)
				}
			}
			boxtest.Eventually(t, "the process has started again", func() bool { return d.Sh(t, "s", "wc -l < /workspace/started") == "2\n" })
			if p, err := d.Process(t.Context(), "s", "always", 0); err != nil || p.State != "running" {
				t.Errorf(`the process is %+v, %v, want no error and p.State == "running"`, p, err)
			}
			if _, err := d.Process(t.Context(), "s", "once", 0); boxtest.StatusOf(err) != http.StatusNotFound {
				t.Errorf("the other process: err = %v, want boxtest.StatusOf(err) == 404", err)
			}
			// A second time: what a resumed box has written is kept just as what the first one has.
			stop(t, d, "s")
			startAgain(t, d, "s")
			if got := d.Sh(t, "s", "cat /workspace/f"); got != "work\n" {
				t.Errorf(`after the second start the files are %q, want "work\n"`, got)
			}
			if err := d.DeleteSession(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			d.NothingLeft(before)
		})
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func session(t *testing.T, d *boxtest.Daemon, id string) api.Session {
	t.Helper()
	s, err := d.Session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An operation that needs the box of a stopped session is refused with what to do; any other works.
func TestAStoppedSessionSaysSo(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.NewProcess(t, "s", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
	stop(t, d, "s")
	stop(t, d, "s") // has the same result
	ctx := t.Context()
	for what, do := range map[string]func() error{
		"exec": func() error { _, err := d.Exec(ctx, "s", &api.ExecRequest{Argv: []string{"true"}}); return err },
		"process": func() error {
			_, _, err := d.StartProcess(ctx, "s", "q", &api.ProcessRequest{Argv: []string{"true"}})
			return err
		},
		"freeze": func() error { _, err := d.FreezeSession(ctx, "s"); return err },
		"renew":  func() error { _, err := d.RenewSession(ctx, "s"); return err },
		"create": func() error { _, _, err := d.CreateSession(ctx, &api.SessionRequest{ID: "s"}); return err },
		"write": func() error {
			_, err := d.WriteFile(ctx, "s", &api.FileWrite{Path: "f", Content: "x"})
			return err
		},
		"waiting": func() error {
			_, err := d.Exec(ctx, "s", &api.ExecRequest{ID: "x", Argv: []string{"true"}})
			return err
		},
		"add mount": func() error {
			_, _, err := d.AddMount(ctx, "s", &api.MountRequest{Source: "/tmp", Target: "/mnt/x", Mode: "ro"})
			return err
		},
	} {
		if e := boxtest.Refused(t, do(), http.StatusConflict, ""); !strings.Contains(e.Detail, "is stopped") || !strings.Contains(e.Hint, "boxctl start") {
			t.Errorf(`%s: e = %+v, want e.Detail containing "is stopped" and e.Hint containing "boxctl start"`, what, e)
		}
	}
	if list, err := d.Processes(ctx, "s"); err != nil || len(list) != 0 {
		t.Errorf("it has the processes %+v, %v", list, err)
	}
	status, err := d.Status(ctx)
	if err != nil || status.Sessions != 0 || status.Stopped != 1 {
		t.Errorf("%d sessions, %d stopped, %v", status.Sessions, status.Stopped, err)
	}
	if err := d.DeleteSession(ctx, "s"); err != nil {
		t.Error(err)
	}
	_, err = d.StartSession(ctx, "s")
	boxtest.Refused(t, err, http.StatusNotFound, "")
	d.NothingLeft(before)
}

// A stopped session can be changed: the next boxd knows the change and the next start applies it. A change concurrent with a
// start is in effect after that start, or is refused.
func TestAStoppedSessionIsChanged(t *testing.T) {
	d := boxtest.Start(t, boxtest.Kept, "[profiles.default]\nlocked = [\"network\"]\n")
	d.NewSession(t, api.SessionRequest{ID: "s", Labels: map[string]string{"n": "none"}})
	stop(t, d, "s")
	change := api.SessionChange{Labels: map[string]string{"n": "first"}, Metadata: map[string]string{"why": "later"}, Patch: limits.Patch{MaxLifetime: boxtest.Duration("7h"), CPUs: new(0.5)}}
	check := func(when, state string) {
		t.Helper()
		s := session(t, d, "s")
		if s.State != state || s.Labels["n"] != "first" || s.Metadata["why"] != "later" || s.CPUs != 0.5 || time.Duration(s.MaxLifetime) != 7*time.Hour {
			t.Errorf(`%s: s = %+v, want s.State == %v and s.Labels["n"] == "first" and s.Metadata["why"] == "later" and s.CPUs == 0.5 and time.Duration(s.MaxLifetime) == 7 * time.Hour`,
				when, s, state)
		}
	}
	if s, err := d.ChangeSession(t.Context(), "s", &change); err != nil || s.State != "stopped" || s.Labels["n"] != "first" {
		t.Fatalf(`s = %+v, err = %v, want no error and s.State == "stopped" and s.Labels["n"] == "first"`, s, err)
	}
	for what, bad := range map[string]api.SessionChange{
		"cpus": {Patch: limits.Patch{CPUs: new(-1.0)}}, "labels": {Labels: map[string]string{"": "x"}},
	} {
		if _, err := d.ChangeSession(t.Context(), "s", &bad); boxtest.StatusOf(err) != http.StatusBadRequest {
			t.Errorf("%s: err = %v, want boxtest.StatusOf(err) == 400", what, err)
		}
	}
	check("changed", "stopped")
	d.Kill()
	d.Restart()
	check("for the next boxd", "stopped")
	startAgain(t, d, "s")
	check("started", "ready")
	for n := range 10 {
		stop(t, d, "s")
		label, done := strconv.Itoa(n), make(chan error, 1)
		go func() { // ends with the change
			_, err := d.ChangeSession(t.Context(), "s", &api.SessionChange{Labels: map[string]string{"n": label}})
			done <- err
		}()
		startAgain(t, d, "s")
		err := <-done
		if got := session(t, d, "s").Labels["n"]; (got == label) != (err == nil) || err != nil && boxtest.StatusOf(err) != http.StatusConflict {
			t.Errorf("round %d: the label is %q after %v", n, got, err)
		}
	}
}

// A session that is stopped while it is being started keeps the processes that had not been started yet.
func TestAStopDuringAStartKeepsItsProcesses(t *testing.T) {
	const processes = 6
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for i := range processes {
		d.NewProcess(t, "s", fmt.Sprint("p", i), &api.ProcessRequest{Argv: []string{"sleep", "100000"}, Restart: &api.Restart{Policy: "always"}})
	}
	stop(t, d, "s")
	for range 6 {
		started := make(chan struct{})
		go func() {
			defer close(started)
			_, _ = d.StartSession(context.WithoutCancel(t.Context()), "s") // it may be refused because of the stop
		}()
		boxtest.Eventually(t, "the session has a box", func() bool {
			s, err := d.Session(t.Context(), "s")
			return err == nil && s.State == "ready"
		})
		stop(t, d, "s")
		<-started
	}
	startAgain(t, d, "s")
	list, err := d.Processes(t.Context(), "s")
	if err != nil || len(list) != processes {
		t.Fatalf("%d processes of %d: list = %+v, err = %v, want no error and len(list) == processes",
			len(list), processes, list, err)
	}
	boxtest.Eventually(t, "all processes run", func() bool {
		list, err := d.Processes(t.Context(), "s")
		return err == nil && !slices.ContainsFunc(list, func(p api.Process) bool { return p.State != "running" })
	})
}

// On a stop a process gets its configured signal and grace period; a running execution ends at once as canceled, and one that
// waits in the queue is refused: each gets an answer.
func TestAStopEndsProgramsInTheirWay(t *testing.T) {
	d := boxtest.Start(t, "[exec]\nmax_per_session = 2\n[queue]\nwait = \"1m\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.NewProcess(t, "s", "asks", &api.ProcessRequest{
		Command: new("trap 'echo asked > /workspace/asked; exit 0' USR1; touch /workspace/ready; while :; do sleep 0.1; done"), Stop: &api.Stop{Signal: "SIGUSR1", Grace: boxtest.Duration("1m")},
	})
	boxtest.Eventually(t, "the process waits for its signal", func() bool { return d.Sh(t, "s", "ls /workspace") == "ready\n" })
	streamed := d.Hold(t, "s", boxtest.Shell("echo ready; exec sleep 1000"))
	runs := make(chan api.ExecResult)
	go func() { // ends with the session
		r, err := d.Exec(context.WithoutCancel(t.Context()), "s", &api.ExecRequest{Argv: []string{"sleep", "1000"}})
		if err != nil {
			t.Error(err)
		}
		runs <- r
	}()
	boxtest.Eventually(t, "an execution runs", func() bool { return session(t, d, "s").Running == 3 })
	waits := make(chan error)
	go func() { // ends with the session
		_, err := d.Exec(context.WithoutCancel(t.Context()), "s", &api.ExecRequest{Argv: []string{"true"}})
		waits <- err
	}()
	boxtest.Eventually(t, "an execution waits", func() bool {
		now, err := d.Status(t.Context())
		return err == nil && now.Queue.Executions == 1
	})
	stop(t, d, "s")
	if _, r := streamed.Release(); r.Status != "signaled" || r.Signal != "SIGTERM" {
		t.Errorf(`the execution that is streamed is %s, want r.Status == "signaled" and r.Signal == "SIGTERM"`,
			boxtest.Show(r))
	}
	if r := <-runs; r.Status != "canceled" {
		t.Errorf(`the execution is %s, want r.Status == "canceled"`, boxtest.Show(r))
	}
	if e := boxtest.Refused(t, <-waits, http.StatusConflict, ""); !strings.Contains(e.Detail, "stopped") {
		t.Errorf(`e = %+v, want e.Detail containing "stopped"`, e)
	}
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat /workspace/asked"); got != "asked\n" {
		t.Errorf("the process received %q", got)
	}
}

// Concurrent stops, starts and removals leave one session or none.
func TestStopsStartsAndRemovalsAtOnce(t *testing.T) {
	d := boxtest.Start(t, "[queue]\nwait = \"1m\"\n")
	d.Warm()
	before := d.Look()
	for round := range 8 {
		d.NewSession(t, api.SessionRequest{ID: "s"})
		d.Sh(t, "s", "echo here > f")
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				_, err := d.StopSession(t.Context(), "s")
				if i%2 == 1 {
					_, err = d.StartSession(t.Context(), "s")
				}
				if err != nil && (round%2 == 0 || boxtest.StatusOf(err) != http.StatusNotFound) {
					t.Errorf("round %d: err = %v, want no error or round %% 2 != 0 and boxtest.StatusOf(err) == 404",
						round, err)
				}
			})
		}
		if round%2 == 1 {
			wg.Go(func() {
				if err := d.DeleteSession(t.Context(), "s"); err != nil {
					t.Errorf("round %d: remove: %v", round, err)
				}
			})
		}
		wg.Wait()
		if round%2 == 1 {
			if _, err := d.Session(t.Context(), "s"); boxtest.StatusOf(err) != http.StatusNotFound {
				t.Fatalf("round %d: the removed session: err = %v, want boxtest.StatusOf(err) == 404", round, err)
			}
			continue
		}
		startAgain(t, d, "s")
		if got := d.Sh(t, "s", "cat f"); got != "here\n" {
			t.Errorf(`round %d: the file has %q, want got == "here\n"`, round, got)
		}
		if err := d.DeleteSession(t.Context(), "s"); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
}

// A stopped session counts against its owner's number of sessions, but not against memory. To start, it queues like a new
// session, and stays stopped if there is no room.
func TestAStoppedSessionReservesNoMemory(t *testing.T) {
	d := boxtest.Start(t, "[policy.default]\nsessions = 2\ntotal_memory = \"300MiB\"\n[sessions]\nmax = 1\nmax_per_owner = 1\n")
	most := api.SessionRequest{Patch: limits.Patch{Memory: new(200 * quantity.MiB)}}
	one, two := most, most
	one.ID, two.ID = "one", "two"
	d.NewSession(t, one)
	if _, _, err := d.CreateSession(t.Context(), &two); boxtest.StatusOf(err) != http.StatusTooManyRequests {
		t.Errorf("a second one: err = %v, want boxtest.StatusOf(err) == 429", err)
	}
	stop(t, d, "one")
	d.NewSession(t, two)
	three := most
	three.ID = "three"
	if _, _, err := d.CreateSession(t.Context(), &three); boxtest.StatusOf(err) != http.StatusTooManyRequests {
		t.Errorf("a third one: err = %v, want boxtest.StatusOf(err) == 429", err)
	}
	_, err := d.StartSession(t.Context(), "one")
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, ""); e.Hint == "" {
		t.Errorf(`e = %+v, want e.Hint != ""`, e)
	}
	if s, err := d.Session(t.Context(), "one"); err != nil || s.State != "stopped" {
		t.Errorf(`it is %+v, %v, want no error and s.State == "stopped"`, s, err)
	}
	stop(t, d, "two")
	startAgain(t, d, "one")
}

// The time a session is stopped does not count towards its lifetime, and has a limit of its own.
func TestAStoppedSessionHasATimeOfItsOwn(t *testing.T) {
	d := boxtest.Start(t, "[sessions]\nstopped_age = \"30s\"\n")
	s := d.NewSession(t, api.SessionRequest{ID: "s", Patch: limits.Patch{TTL: boxtest.Duration("1h"), MaxLifetime: boxtest.Duration("1h")}})
	stop(t, d, "s")
	shorten(t, d, "s", limits.Patch{TTL: boxtest.Duration("1s")})
	<-time.After(1500 * time.Millisecond) // longer than its ttl
	shorten(t, d, "s", limits.Patch{TTL: boxtest.Duration("1h")})
	now := startAgain(t, d, "s")
	if !now.CreatedAt.Equal(s.CreatedAt) {
		t.Errorf("it was made at %v, and now at %v", s.CreatedAt, now.CreatedAt)
	}
	was := stop(t, d, "s")
	if was.ExpiresAt == nil || was.ExpiresAt.Sub(*was.StoppedAt) != 30*time.Second {
		t.Errorf("it is stopped since %v until %v", was.StoppedAt, was.ExpiresAt)
	}
	boxtest.Eventually(t, "the session is removed", func() bool {
		_, err := d.Session(t.Context(), "s")
		return boxtest.StatusOf(err) == http.StatusNotFound && strings.Contains(err.Error(), "stopped_age")
	})
}

// A session lives for as long as max_lifetime says, no matter how long it was stopped in between.
func TestALifetimeDoesNotCountTheTimeStopped(t *testing.T) {
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s", Patch: limits.Patch{TTL: boxtest.Duration("0s"), MaxLifetime: boxtest.Duration("1h")}})
	end := session(t, d, "s").ExpiresAt
	stop(t, d, "s")
	<-time.After(1100 * time.Millisecond)
	now := startAgain(t, d, "s")
	if later := now.ExpiresAt.Sub(*end); later < 1100*time.Millisecond || later > time.Minute {
		t.Errorf("it ends %v later", later)
	}
}

// Stopped sessions survive boxd, its keeper and the loss of the runtime directory, and so a reboot of the host; also where boxd
// ends its boxes on shutdown.
func TestAStoppedSessionOutlivesTheHost(t *testing.T) {
	d := boxtest.Start(t) // which ends its sessions on shutdown
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false), HomeOnDisk: new(true), Env: map[string]string{"A": "value"}})
	d.NewSession(t, api.SessionRequest{ID: "runs"})
	d.NewProcess(t, "s", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}, Restart: &api.Restart{Policy: "always"}})
	d.Sh(t, "s", "echo f > f; echo home > ~/f; echo top > /opt/f")
	record := d.Record(t, "s")
	if text, err := os.ReadFile(record); err != nil || strings.Contains(string(text), "value") {
		t.Errorf(`while it runs the record has the environment: text = %s, err = %v, want no error and text without "value"`,
			text, err)
	}
	stop(t, d, "s")
	info, err := os.Stat(record)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("its record has mode %v, %v", info.Mode(), err)
	}
	keeper := d.Keeper()
	d.Stop()
	boxtest.Eventually(t, "the keeper has ended", func() bool { return !boxtest.Lives(keeper) })
	if err := os.RemoveAll(filepath.Join(d.Dir, "run")); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if _, err := d.Session(t.Context(), "runs"); boxtest.StatusOf(err) != http.StatusNotFound {
		t.Errorf("the other: err = %v, want boxtest.StatusOf(err) == 404", err)
	}
	if s, err := d.Session(t.Context(), "s"); err != nil || s.State != "stopped" {
		t.Errorf(`it is %+v, %v, want no error and s.State == "stopped"`, s, err)
	}
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat f ~/f /opt/f; echo $A"); got != "f\nhome\ntop\nvalue\n" {
		t.Errorf(`the files are %q, want "f\nhome\ntop\nvalue\n"`, got)
	}
	if p, err := d.Process(t.Context(), "s", "p", 0); err != nil || p.State == "ended" {
		t.Errorf(`the process is %+v, %v, want no error and p.State != "ended"`, p, err)
	}
	if text, err := os.ReadFile(record); err != nil || strings.Contains(string(text), "env_values") {
		t.Errorf(`when it runs again the record has the environment: text = %s, err = %v, want no error and text without "env_values"`,
			text, err)
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "no file of the session is left", func() bool { return len(d.Look().Files) == len(before.Files) })
}

// Mounts that were added to a running session are restored when it is started again, and their mount points on the host exist as
// long as it runs. One that cannot be restored is reported and left out.
func TestMountsComeBackWithASession(t *testing.T) {
	d := boxtest.Start(t, boxtest.MountSources)
	source, other := d.NamedMountSource(t, "a", 4242), d.NamedMountSource(t, "b", 4242)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for target, dir := range map[string]string{"/mnt/a": source, "/mnt/b": other} {
		if _, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: dir, Target: target, Mode: "ro"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(source, "f"), []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	stop(t, d, "s")
	if list, err := d.Mounts(t.Context(), "s"); err == nil && len(list) > 0 {
		t.Errorf("it has the mounts %+v", list)
	}
	if err := os.RemoveAll(other); err != nil {
		t.Fatal(err)
	}
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat /mnt/a/f; test -e /mnt/b/f || echo none"); got != "mine\nnone\n" {
		t.Errorf(`the files are %q, want "mine\nnone\n"`, got)
	}
	if log := d.Log(); !strings.Contains(log, "cannot restore a mount") {
		t.Error("the log does not say that the other mount could not be restored")
	}
}

// A failed start leaves the session stopped, with its files.
func TestAStartThatFailsLeavesTheSessionStopped(t *testing.T) {
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "a", 4242)
	d.NewSession(t, api.SessionRequest{ID: "s", Mounts: []api.Mount{{Source: source, Target: "/mnt/a", Mode: "ro"}}})
	d.Sh(t, "s", "echo f > f")
	was := stop(t, d, "s")
	away := source + "-away"
	if err := os.Rename(source, away); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := d.StartSession(t.Context(), "s")
		boxtest.Refused(t, err, http.StatusBadRequest, "mounts[0].source")
		if s, err := d.Session(t.Context(), "s"); err != nil || s.State != "stopped" || !s.StoppedAt.Equal(*was.StoppedAt) {
			t.Errorf(`it is %+v, %v, want no error and s.State == "stopped" and s.StoppedAt.Equal(*was.StoppedAt)`,
				s, err)
		}
	}
	if err := os.Rename(away, source); err != nil {
		t.Fatal(err)
	}
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat f"); got != "f\n" {
		t.Errorf(`the files are %q, want "f\n"`, got)
	}
}

// A boxd started by socket activation exits when only stopped sessions are left, and the next one still has them.
func TestABoxdWithNothingButStoppedSessionsEnds(t *testing.T) {
	d := boxtest.Start(t)
	rewrite(t, d, "[daemon]\n", "[daemon]\nidle_exit = \"1s\"\n")
	m := d.Managed(0)
	hears(t, m, "READY=1")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	stop(t, d, "s")
	d.Close()
	if err := d.Wait(); err != nil {
		t.Fatalf("it ends with %v", err)
	}
	d.Restart()
	startAgain(t, d, "s")
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
}

// A session that is started again has the versions of skills and drives it had, even if those were changed or removed meanwhile,
// including those attached while it ran; it pins no other versions.
func TestSkillsAndDrivesComeBackWithASession(t *testing.T) {
	d := boxtest.Start(t, "[drives]\nkeep_versions = 1\n")
	skill(t, d, "one", "first")
	skill(t, d, "two", "second")
	fillDrive(t, d, drive, "first")
	d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"one"}, Drives: []string{drive}})
	activate(t, d, "s", "two", true)
	fillDrive(t, d, drive, "second")
	switchDrive(t, d, "s", drive, 2, false)
	if n := driveTrees(t, d); n != 2 {
		t.Errorf("%d versions are there", n)
	}
	stop(t, d, "s")
	boxtest.Eventually(t, "the version of the drive that is no longer used is removed", func() bool { return driveTrees(t, d) == 1 })
	if err := rewriteSkill(t, d, "one", "reworded"); err != nil {
		t.Fatal(err)
	}
	fillDrive(t, d, drive, "third")
	d.Stop()
	d.Restart()
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat /skills/one/text /skills/two/text /drives/me/data/text"); got != "firstsecondsecond" {
		t.Errorf(`it has %q, want "firstsecondsecond"`, got)
	}
	if s := session(t, d, "s"); len(s.Skills) != 2 || len(s.Drives) != 1 || s.Drives[0].Version != 2 || s.Drives[0].Earlier != 0 {
		t.Errorf("it has %+v, %+v, want len(s.Skills) == 2 and len(s.Drives) == 1 and s.Drives[0].Version == 2 and s.Drives[0].Earlier == 0",
			s.Skills, s.Drives)
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "only the newest version is there", func() bool { return driveTrees(t, d) == 1 })
}

// Neither does a start lose files that fails after the box has been created.
func TestAStartThatFailsLateKeepsTheFiles(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	fillDrive(t, d, drive, "text")
	d.NewSession(t, api.SessionRequest{ID: "s", Drives: []string{drive}, Patch: limits.Patch{MaxLifetime: boxtest.Duration("1h"), TTL: boxtest.Duration("0s")}})
	d.Sh(t, "s", "echo f > f")
	was := stop(t, d, "s")
	list, err := filepath.Glob(filepath.Join(d.State, "drives", "u-*", "trees", "*"))
	if err != nil || len(list) != 1 {
		t.Fatalf("list = %q, err = %v, want no error and len(list) == 1", list, err)
	}
	away := filepath.Join(d.Dir, "away")
	if err := os.Rename(list[0], away); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Second / 2) // long enough to show if it were counted twice
	for range 2 {
		if _, err := d.StartSession(t.Context(), "s"); err == nil {
			t.Error("no error for a start without the drive")
		}
	}
	if s := session(t, d, "s"); s.State != "stopped" {
		t.Errorf(`it is %+v, want s.State == "stopped"`, s)
	}
	boxtest.Eventually(t, "the boxes of the failed starts are gone", func() bool { return len(d.Look().Processes) == 1 })
	if err := os.Rename(away, list[0]); err != nil {
		t.Fatal(err)
	}
	now := startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat f /drives/me/data/text"); got != "f\ntext" {
		t.Errorf(`the files are %q, want "f\ntext"`, got)
	}
	// The failed starts do not change the stopped time that the successful one adds.
	if rested, most := now.ExpiresAt.Sub(now.CreatedAt)-time.Hour, time.Since(*was.StoppedAt); rested < time.Second/2 || rested > most {
		t.Errorf("it was stopped for %v of %v", rested, most)
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	d.NothingLeft(before)
}

// archiveOf lists what an archive of a path of a session has: names, and the contents of small files.
func archiveOf(t *testing.T, d *boxtest.Daemon, id, path string) string {
	t.Helper()
	r, err := d.DownloadArchive(t.Context(), id, path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var list []string
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(list, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.Name+h.Linkname+strings.TrimRight("="+string(text), "="))
	}
}

// The files of a stopped session can be read, in a box that exists for that alone: the session stays stopped, and nothing that needs
// its own box can be done.
func TestFilesOfAStoppedSessionAreRead(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	for name, req := range map[string]api.SessionRequest{
		"plain":          {},
		"writable, home": {ReadOnlyRoot: new(false), HomeOnDisk: new(true), Home: new("/home/user")},
	} {
		t.Run(name, func(t *testing.T) {
			req.ID = "s"
			d.NewSession(t, req)
			d.Sh(t, "s", "mkdir -p /workspace/d; echo one > /workspace/d/f; ln -s d/f /workspace/l; echo two > $HOME/f")
			d.NewProcess(t, "s", "always", &api.ProcessRequest{Command: new("echo >> $HOME/started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}})
			was := stop(t, d, "s")
			if r, err := d.ReadFile(t.Context(), "s", &api.FileRead{Path: "/workspace/d/f"}); err != nil || !strings.Contains(r.Content, "one") {
				t.Errorf(`the file is %+v, %v, want no error and r.Content containing "one"`, r, err)
			}
			if list, err := d.ListFiles(t.Context(), "s", &api.FileList{Path: "/workspace"}); err != nil || len(list.Entries) != 2 {
				t.Errorf("the directory has %+v, %v, want no error and len(list.Entries) == 2", list, err)
			}
			if got := archiveOf(t, d, "s", "/workspace"); got != "d/ d/f=one\n ld/f" {
				t.Errorf(`the archive of the workspace has %q, want "d/ d/f=one\n ld/f"`, got)
			}
			if req.HomeOnDisk != nil {
				if got := archiveOf(t, d, "s", "/home/user"); !strings.Contains(got, "f=two\n") {
					t.Errorf(`the archive of the home has %q, want got containing "f=two\n"`, got)
				}
			}
			part, err := d.OpenFile(t.Context(), "s", "/workspace/d/f", 1)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(part); err != nil || string(text) != "ne\n" {
				t.Errorf(`the rest of the file is %q, %v, want no error and text == "ne\n"`, text, err)
			}
			part.Close()
			_, err = d.ReadFile(t.Context(), "s", &api.FileRead{Path: "/workspace/none"})
			boxtest.Refused(t, err, http.StatusNotFound, "")

			_, err = d.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"true"}})
			boxtest.Refused(t, err, http.StatusConflict, "")
			_, err = d.MakeDirectory(t.Context(), "s", &api.FileMkdir{Path: "/workspace/new"})
			boxtest.Refused(t, err, http.StatusConflict, "")
			_, err = d.UploadArchive(t.Context(), "s", client.Upload{Path: "/workspace"}, strings.NewReader(""))
			boxtest.Refused(t, err, http.StatusConflict, "")
			if is, err := d.Session(t.Context(), "s"); err != nil || is.State != "stopped" || !is.StoppedAt.Equal(*was.StoppedAt) || is.PID != 0 {
				t.Errorf(`it is %+v, %v, want no error and is.State == "stopped" and is.StoppedAt.Equal(*was.StoppedAt) and is.PID == 0`,
					is, err)
			}
			startAgain(t, d, "s")
			if got := d.Sh(t, "s", "ls /workspace"); got != "d\nl\n" {
				t.Errorf(`afterwards the workspace has %q, want "d\nl\n"`, got)
			}
			if err := d.DeleteSession(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			d.NothingLeft(before)
		})
	}
}

// unread requests a path of a session, and returns the connection when the response is longer than it reads: boxd waits then.
func unread(t *testing.T, d *boxtest.Daemon, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: d.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET /v1/sessions/%s HTTP/1.1\r\nHost: boxd\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var was, has int
	boxtest.Eventually(t, "boxd waits for a reader", func() bool {
		was = has
		if err := raw.Control(func(fd uintptr) { has, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil { // unix(7), SIOCINQ
			t.Fatal(err)
		}
		return has == was && has > 64<<10
	})
	return conn
}

// While files of a stopped session are sent, it cannot be started. A removal does not wait for a reader that does not read; if boxd
// dies, the next one has the session, stopped.
func TestAStoppedSessionThatIsReadCanBeRemoved(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	begin := func(id, what string) io.Closer {
		d.NewSession(t, api.SessionRequest{ID: id})
		d.Sh(t, id, "head -c 50000000 /dev/urandom > /workspace/f")
		stop(t, d, id)
		r := unread(t, d, id+what)
		_, err := d.StartSession(t.Context(), id)
		boxtest.Refused(t, err, http.StatusConflict, "")
		return r
	}
	for _, what := range []string{"/archive?path=/workspace", "/file?path=/workspace/f"} {
		reader := begin("removed", what)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // boxd itself gives a reader up that reads nothing for a minute
		if err := d.DeleteSession(ctx, "removed"); err != nil {
			t.Fatal(err)
		}
		cancel()
		reader.Close()
		d.NothingLeft(before)
	}

	reader := begin("kept", "/archive?path=/workspace")
	d.Kill()
	d.Restart()
	reader.Close()
	startAgain(t, d, "kept")
	if got := d.Sh(t, "kept", "stat -c %s /workspace/f"); got != "50000000\n" {
		t.Errorf("the file has %q bytes", got)
	}
	stop(t, d, "kept")
	reader = begin("left", "/archive?path=/workspace") // the session can be started when its reader has gone
	reader.Close()
	boxtest.Eventually(t, "the session starts again", func() bool { _, err := d.StartSession(t.Context(), "left"); return err == nil })
}

// beingStopped returns the error of a stop request for a session whose program takes minutes to end.
func beingStopped(t *testing.T, d *boxtest.Daemon) (stopped <-chan error) {
	t.Helper()
	d.NewSession(t, api.SessionRequest{ID: "s"})
	line, grace := "ready", quantity.Duration(5*time.Minute)
	d.NewProcess(t, "s", "p", &api.ProcessRequest{
		Argv: []string{"sh", "-c", "trap '' TERM; echo ready; exec sleep 3600"}, Ready: &api.Ready{Line: &line}, Stop: &api.Stop{Grace: &grace},
	})
	boxtest.Eventually(t, "the program has set its signal handler", func() bool {
		p, err := d.Process(t.Context(), "s", "p", 0)
		return err == nil && p.Ready
	})
	heard := make(chan error, 1)
	go func() {
		_, err := d.StopSession(t.Context(), "s")
		heard <- err
	}()
	boxtest.Eventually(t, "the session is being stopped", func() bool {
		s, err := d.Session(t.Context(), "s")
		return err == nil && s.State == "stopping"
	})
	return heard
}

// A request that removes a session that is being stopped does not wait for its programs, which may take long to end.
func TestASessionThatIsBeingStoppedCanBeRemoved(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	stopped := beingStopped(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.DeleteSession(ctx, "s"); err != nil {
		t.Fatalf("it is not removed: %v", err)
	}
	if err := <-stopped; err != nil && !errors.Is(err, client.NotFound) { // it was stopped, if only for a moment
		t.Errorf("the stop request fails with %v, want no error or err is client.NotFound", err)
	}
	if _, err := d.Session(t.Context(), "s"); !errors.Is(err, client.NotFound) {
		t.Errorf("it is still there: err = %v, want err is client.NotFound", err)
	}
	d.NothingLeft(before)
}

// A removal goes on when its caller hangs up at once, also if it has to wait for a stop.
func TestARemovalGoesOnWithoutItsCaller(t *testing.T) {
	d := boxtest.Start(t)
	for range 5 {
		stopped := beingStopped(t, d)
		conn, err := net.Dial("unix", d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(conn, "DELETE /v1/sessions/s HTTP/1.1\r\nHost: boxd\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		<-stopped
		boxtest.Eventually(t, "the session is removed", func() bool {
			_, err := d.Session(t.Context(), "s")
			return errors.Is(err, client.NotFound)
		})
	}
}

// net/http reads what is left of a request before it sends the response: a reader whose body never comes would hold the session, and a
// place of the few there are for readers.
func TestARequestForFilesHasNoBody(t *testing.T) {
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "echo one > f")
	stop(t, d, "s")
	for _, path := range []string{"/archive", "/file?path=f"} {
		conn, err := net.Dial("unix", d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "GET /v1/sessions/s%s HTTP/1.1\r\nHost: boxd\r\nContent-Length: 1\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		if head, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(head, "HTTP/1.1 400 ") {
			t.Errorf(`%s: head = %q, err = %v, want no error and head starting with "HTTP/1.1 400 "`, path, head, err)
		}
		conn.Close()
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
}

// A client that disconnects while it reads the files of a stopped session, at any moment, leaves the session unchanged. Several
// clients can read it, one after another.
func TestReadersOfAStoppedSessionMayGo(t *testing.T) {
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "echo one > f")
	stop(t, d, "s")
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*300*time.Microsecond)
		_, _ = d.ReadFile(ctx, "s", &api.FileRead{Path: "f"}) // some are in time
		cancel()
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if r, err := d.ReadFile(t.Context(), "s", &api.FileRead{Path: "f"}); err != nil || !strings.Contains(r.Content, "one") {
				t.Errorf(`the file is %+v, %v, want no error and r.Content containing "one"`, r, err)
			}
		})
	}
	wg.Wait()
	boxtest.Eventually(t, "the session starts again", func() bool { _, err := d.StartSession(t.Context(), "s"); return err == nil })
	if got := d.Sh(t, "s", "cat f"); got != "one\n" {
		t.Errorf(`the file is %q, want "one\n"`, got)
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}

// Where a stopped session has something of the host, or a skill, when it runs, it has nothing to read.
func TestMountsOfAStoppedSessionAreNotRead(t *testing.T) {
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	d.NewSession(t, api.SessionRequest{ID: "s", HomeOnDisk: new(true), Mounts: []api.Mount{{Source: source, Target: "/workspace", Mode: "ro"}}})
	d.Sh(t, "s", "echo home > $HOME/f")
	stop(t, d, "s")
	for _, path := range []string{"name", "/workspace/name", "/workspace/../workspace", "/skills", "/skills/x/SKILL.md"} {
		_, err := d.ReadFile(t.Context(), "s", &api.FileRead{Path: path})
		if e := boxtest.Refused(t, err, http.StatusConflict, ""); !strings.Contains(e.Detail, "has nothing at /") {
			t.Errorf(`%s: e = %+v, want e.Detail containing "has nothing at /"`, path, e)
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "nothing", Mounts: []api.Mount{{Source: source, Target: "/workspace", Mode: "ro"}}})
	stop(t, d, "nothing")
	_, err := d.ReadFile(t.Context(), "nothing", &api.FileRead{Path: "/etc/passwd"})
	if e := boxtest.Refused(t, err, http.StatusConflict, ""); !strings.Contains(e.Detail, "nothing of its own on disk") {
		t.Errorf(`e = %+v, want e.Detail containing "nothing of its own on disk"`, e)
	}
	if got := archiveOf(t, d, "s", "/home/box"); !strings.Contains(got, "f=home") {
		t.Errorf(`the home has %q, want got containing "f=home"`, got)
	}
	is, err := d.Definition(t.Context(), "s", false)
	if err != nil || !slices.Equal(is.Paths, []string{"/home/box"}) {
		t.Errorf(`the definition is %s, %v, want no error and is.Paths == []string{"/home/box"}`, asJSON(t, is), err)
	}
}

// The definition of a session, and archives of its paths, make another one like it: that has the same definition.
func TestADefinitionMakesTheSameSession(t *testing.T) {
	d := boxtest.Start(t, boxtest.MountSources)
	source := d.MountSource(t, "lent", 1000)
	d.NewSession(t, api.SessionRequest{
		ID: "one", Env: map[string]string{"TOKEN": "a value", "EMPTY": ""}, Base64: &api.InBase64{Env: []string{base64.StdEncoding.EncodeToString([]byte("BYTES=\xff"))}},
		Labels: map[string]string{"for": "test"}, Metadata: map[string]string{"a": "b"}, HomeOnDisk: new(true), UserName: new("user"), Home: new("/home/user"), Rlimits: map[string]string{"nofile": "2000:4000"},
		Patch: limits.Patch{MaxLifetime: new(quantity.Duration(time.Hour)), TTL: new(quantity.Duration(30 * time.Minute))}, Tmp: new(64 * quantity.MiB),
		Mounts: []api.Mount{{Source: source, Target: "/mnt/lent", Mode: "ro"}},
	})
	d.Sh(t, "one", "echo work > /workspace/f; echo home > $HOME/f")
	always := &api.Restart{Policy: "always", Delay: new(quantity.Duration(time.Second))}
	for id, req := range map[string]api.ProcessRequest{
		"command":  {Command: new("exec sleep 1000"), Env: map[string]string{"OWN": "1"}, Labels: map[string]string{"x": "y"}, Output: new(64 * quantity.KiB), MergeOutput: true},
		"code":     {Code: new("exec sleep 1000 # " + strings.Repeat("x", 200_000)), Language: "sh", Stdin: true, Rlimits: map[string]string{"fsize": "1GiB:1GiB"}, Timeout: new(quantity.Duration(time.Hour))},
		"bytes":    {Base64: &api.InBase64{Argv: []string{"c2xlZXA=", "MTAwMA=="}, Env: []string{base64.StdEncoding.EncodeToString([]byte("B=\xfe"))}}, Cwd: "/workspace/sub"},
		"terminal": {Argv: []string{"sleep", "1000"}, Terminal: &api.Terminal{Rows: 5, Cols: 7}, Rlimits: map[string]string{"nofile": "1100:1100"}},
		"ready":    {Argv: []string{"sh", "-c", "echo yes; exec sleep 1000"}, Ready: &api.Ready{Line: new("yes")}, Stop: &api.Stop{Signal: "SIGINT", Grace: new(quantity.Duration(time.Second))}, Spool: new(quantity.MiB)},
	} {
		req.Restart = always
		d.NewProcess(t, "one", id, &req)
	}
	d.NewProcess(t, "one", "once", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
	stop(t, d, "one")
	one, err := d.Definition(t.Context(), "one", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(one.Processes) != 5 || !slices.Equal(one.Paths, []string{"/workspace", "/home/user"}) || len(one.LeftOut) != 0 {
		t.Fatalf(`the definition is %s, want len(one.Processes) == 5 and one.Paths == []string{"/workspace", "/home/user"} and len(one.LeftOut) == 0`,
			asJSON(t, one))
	}

	request, left := sessionOf(t, &one)
	req := request
	req.ID = "two"
	d.NewSession(t, req)
	for _, path := range one.Paths {
		r, err := d.DownloadArchive(t.Context(), "one", path, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.UploadArchive(t.Context(), "two", client.Upload{Path: path, Overwrite: true, OutwardLinks: true}, r); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	for id, text := range one.Processes {
		var p api.ProcessRequest
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		d.NewProcess(t, "two", id, &p)
	}
	if got := d.Sh(t, "two", `cat /workspace/f $HOME/f; echo "$TOKEN.$EMPTY.$BYTES" | od -An -c; ulimit -n; id -un; grep -c '/mnt/lent .*ro' /proc/self/mountinfo`); got != "work\nhome\n   a       v   a   l   u   e   .   . 377  \\n\n2000\nuser\n1\n" {
		t.Errorf(`the copy has %q, want "work\nhome\n a v a l u e . . 377 \\n\n2000\nuser\n1\n"`, got)
	}
	stop(t, d, "two")
	two, err := d.Definition(t.Context(), "two", false)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := sessionOf(t, &two)
	again.ID, again.MaxLifetime = "one", request.MaxLifetime
	one.Session, two.Session = nil, nil
	if a, b := asJSON(t, request)+asJSON(t, one), asJSON(t, again)+asJSON(t, two); a != b {
		t.Errorf("the definition of the copy is\n%s\nand not\n%s", b, a)
	}
	if left >= time.Hour || left < 50*time.Minute {
		t.Errorf("there are %v of its lifetime left", left)
	}
}

// The client that imports a session may die: an incomplete session ends when it was not used for five minutes, unless policy allows
// no other ttl.
func TestASessionThatIsNotWholeEndsSoon(t *testing.T) {
	d := boxtest.Start(t, "[profiles.locked]\nttl = \"30m\"\nlocked = [\"ttl\"]")
	for _, tc := range []struct {
		profile    string
		soon, then time.Duration
	}{{"default", 5 * time.Minute, 0}, {"default", 5 * time.Minute, 30 * time.Minute}, {"default", 2 * time.Minute, 2 * time.Minute}, {"locked", 30 * time.Minute, 30 * time.Minute}} {
		d.NewSession(t, api.SessionRequest{ID: "s", Profile: tc.profile, Patch: limits.Patch{TTL: new(quantity.Duration(tc.then))}})
		d.Sh(t, "s", "head -c 1000000 /dev/urandom > /workspace/f")
		var all bytes.Buffer
		if err := d.Export(t.Context(), "s", &all, client.ExportOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := d.DeleteSession(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}

		r, w := io.Pipe()
		made := make(chan error, 1)
		go func() { // ends with the pipe
			_, err := d.Import(t.Context(), r, client.ImportOptions{ToEnd: true})
			r.CloseWithError(err)
			made <- err
		}()
		if _, err := w.Write(all.Next(500_000)); err != nil {
			t.Fatal(err)
		}
		if s, err := d.Session(t.Context(), "s"); err != nil || time.Duration(s.TTL) != tc.soon {
			t.Errorf("%+v: before it is whole it has %v, %v, want no error and time.Duration(s.TTL) == tc.soon",
				tc, s.TTL, err)
		}
		if _, err := w.Write(all.Bytes()); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		if s, err := d.Session(t.Context(), "s"); err != nil || time.Duration(s.TTL) != tc.then {
			t.Errorf("%+v: it has %v, %v, want no error and time.Duration(s.TTL) == tc.then", tc, s.TTL, err)
		}
		if err := d.DeleteSession(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
}

// sessionOf is the request of a definition, and what is left of the lifetime.
func sessionOf(t *testing.T, d *api.SessionDefinition) (req api.SessionRequest, left time.Duration) {
	t.Helper()
	if err := json.Unmarshal(d.Session, &req); err != nil {
		t.Fatal(err)
	}
	if req.MaxLifetime != nil {
		left = time.Duration(*req.MaxLifetime)
	}
	return req, left
}

// A definition says what it cannot carry.
func TestADefinitionSaysWhatItLeavesOut(t *testing.T) {
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false)})
	is, err := d.Definition(t.Context(), "s", false)
	if err != nil {
		t.Fatal(err)
	}
	if req, _ := sessionOf(t, &is); !slices.Equal(is.LeftOut, []string{"changes to the root filesystem"}) || *req.ReadOnlyRoot || req.ID != "s" {
		t.Errorf("the definition is %s, %v", asJSON(t, is), err)
	}
	_, err = d.Definition(t.Context(), "none", false)
	boxtest.Refused(t, err, http.StatusNotFound, "")
}

// The definition of a session that uses a named workspace has that, or, on request, a workspace of its own instead, with room for the same. An export has its files then.
func TestAnExportHasANamedWorkspaceOnRequest(t *testing.T) {
	d := boxtest.Start(t)
	for name, req := range map[string]api.WorkspaceRequest{
		"bounded": {Name: "bounded", Quota: new(40 * quantity.MiB), Inodes: new(2000)},
		"free":    {Name: "free", Quota: new(quantity.Size(0))},
	} {
		if _, err := d.CreateWorkspace(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
		own := api.SessionRequest{ID: name + "-home", Workspace: name, HomeOnDisk: new(true), Patch: limits.Patch{WorkspaceQuota: new(24 * quantity.MiB), WorkspaceInodes: new(1000)}}
		for _, req := range []api.SessionRequest{{ID: name, Workspace: name}, own} {
			d.NewSession(t, req)
			d.Sh(t, req.ID, "echo "+name+" > /workspace/f; echo home > $HOME/f")
			stop(t, d, req.ID)
		}
	}
	for _, tc := range []struct {
		id, quota string
		paths     []string
	}{
		{"bounded", "40 MiB 2000", []string{"/workspace"}},
		{"bounded-home", "64 MiB 3000", []string{"/workspace", "/home/box"}},
		{"free", "0 none", []string{"/workspace"}},
		{"free-home", "0 none", []string{"/workspace", "/home/box"}},
	} {
		is, err := d.Definition(t.Context(), tc.id, false)
		if err != nil {
			t.Fatal(err)
		}
		if req, _ := sessionOf(t, &is); req.Workspace == "" || slices.Contains(is.Paths, "/workspace") {
			t.Errorf("%s: the definition is %s, want req.Workspace != \"\" and is.Paths without \"/workspace\"", tc.id, asJSON(t, is))
		}
		if is, err = d.Definition(t.Context(), tc.id, true); err != nil {
			t.Fatal(err)
		}
		req, _ := sessionOf(t, &is)
		quota := fmt.Sprint(int64(*req.WorkspaceQuota)/int64(quantity.MiB), " MiB none")
		if *req.WorkspaceQuota == 0 {
			quota = "0 none"
		}
		if req.WorkspaceInodes != nil {
			quota = strings.Replace(quota, "none", fmt.Sprint(*req.WorkspaceInodes), 1)
		}
		if req.Workspace != "" || quota != tc.quota || !slices.Equal(is.Paths, tc.paths) || len(is.LeftOut) != 0 {
			t.Errorf("%s: the definition is %s, want req.Workspace == \"\", a quota of %s, is.Paths == %q and len(is.LeftOut) == 0", tc.id, asJSON(t, is), tc.quota, tc.paths)
		}
		var all bytes.Buffer
		if err := d.Export(t.Context(), tc.id, &all, client.ExportOptions{WithWorkspace: true}); err != nil {
			t.Fatal(err)
		}
		copied, err := d.Import(t.Context(), &all, client.ImportOptions{ID: "copy"})
		if err != nil || copied.WorkspaceName != "" {
			t.Fatalf("copied = %+v, err = %v, want no error and copied.WorkspaceName == \"\"", copied, err)
		}
		name, _, home := strings.Cut(tc.id, "-")
		want := name + "\n"
		if home {
			want += "home\n"
		}
		if got := d.Sh(t, "copy", "cat /workspace/f $HOME/f 2>/dev/null; echo other > /workspace/f"); got != want {
			t.Errorf("%s: the copy has %q, want %q", tc.id, got, want)
		}
		if err := d.DeleteSession(t.Context(), "copy"); err != nil {
			t.Fatal(err)
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "reads", Inputs: []api.Input{{Workspace: "bounded"}, {Workspace: "free"}}})
	if got := d.Sh(t, "reads", "cat /mnt/*/f"); got != "bounded\nfree\n" {
		t.Errorf("the workspaces have %q, want \"bounded\\nfree\\n\"", got)
	}
}
