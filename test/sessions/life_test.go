// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// ended waits until a session has ended, and checks the reason in the log.
func ended(t *testing.T, d *boxtest.Daemon, id, reason string) {
	t.Helper()
	boxtest.Eventually(t, "session "+id+" is gone", func() bool {
		_, err := d.Session(t.Context(), id)
		return errors.Is(err, client.NotFound)
	})
	want := fmt.Sprintf("msg=\"session ended\" session=%s owner=uid:0 reason=%s", id, reason)
	boxtest.Eventually(t, "the log says why "+id+" has ended", func() bool { return strings.Contains(d.Log(), want) })
}

func TestAnUnusedSessionEnds(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{TTL: boxtest.Duration("100ms")}})
	d.NewSession(t, api.SessionRequest{ID: "s2", Patch: limits.Patch{TTL: boxtest.Duration("0")}})
	ended(t, d, "s1", "idle")
	d.Sh(t, "s2", "true")
	if err := d.DeleteSession(t.Context(), "s2"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}

func TestARunningProgramKeepsItsSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	running := d.Hold(t, "s1", waits())
	shorten(t, d, "s1", limits.Patch{TTL: boxtest.Duration("1s")})
	d.NewSession(t, api.SessionRequest{ID: "other", Patch: limits.Patch{TTL: boxtest.Duration("4s")}})
	ended(t, d, "other", "idle")
	// If the TTL had counted while the program ran, the program would have been canceled.
	if _, r := running.Release(); r.Status != "exited" {
		t.Errorf(`r = %s, want r.Status == "exited"`, boxtest.Show(r))
	}
	ended(t, d, "s1", "idle")
}

// shorten gives a session less time, once that what is to be tested runs in it: how long a host takes to start a program is
// no part of that time.
func shorten(t *testing.T, d *boxtest.Daemon, id string, to limits.Patch) {
	t.Helper()
	if _, err := d.ChangeSession(t.Context(), id, &api.SessionChange{Patch: to}); err != nil {
		t.Fatal(err)
	}
}

func TestProcessesThatWereKeptKeepTheirSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.keeper]\nleftovers = \"keep\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s1", Profile: "keeper"})
	d.Sh(t, "s1", "sleep 1000 & sleep 1001 &")
	shorten(t, d, "s1", limits.Patch{TTL: boxtest.Duration("3s")})
	for i := range 2 { // each of these is idle for that long
		id := fmt.Sprint("other", i)
		d.NewSession(t, api.SessionRequest{ID: id, Patch: limits.Patch{TTL: boxtest.Duration("4s")}})
		ended(t, d, id, "idle")
	}
	if got := d.Sh(t, "s1", "pgrep -c sleep; kill $(pgrep -fx 'sleep 1000')"); got != "2\n" {
		t.Errorf("%s background processes still run", got)
	}
	d.NewSession(t, api.SessionRequest{ID: "other", Patch: limits.Patch{TTL: boxtest.Duration("4s")}})
	ended(t, d, "other", "idle")
	d.Sh(t, "s1", "kill $(pgrep -fx 'sleep 1001')")
	ended(t, d, "s1", "idle")
}

func TestMaxLifetimeEndsEvenWhatIsUsed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{MaxLifetime: boxtest.Duration("30m"), TTL: boxtest.Duration("1h")}})
	if life := s.ExpiresAt.Sub(s.CreatedAt); quantity.Duration(life) != *boxtest.Duration("30m") {
		t.Errorf("the lifetime of the session is %v", life)
	}
	running := d.Hold(t, "s1", waits())
	shorten(t, d, "s1", limits.Patch{MaxLifetime: new(quantity.Duration(time.Since(s.CreatedAt).Round(time.Millisecond) + 2*time.Second))})
	ended(t, d, "s1", "lifetime")
	if _, r := running.Release(); r.Status != "canceled" {
		t.Errorf(`r = %s, want r.Status == "canceled"`, boxtest.Show(r))
	}
	d.NothingLeft(before)
}

// A change that ends a session, because its time is then over, has succeeded: the answer is not that the session is missing.
func TestAChangeMayEndASession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for i := range 10 {
		id := fmt.Sprintf("s%d", i)
		d.NewSession(t, api.SessionRequest{ID: id})
		if _, err := d.ChangeSession(t.Context(), id, &api.SessionChange{Patch: limits.Patch{MaxLifetime: boxtest.Duration("1ms")}}); err != nil {
			t.Error(err)
		}
		ended(t, d, id, "lifetime")
	}
}

func TestThereAreOnlySoManySessions(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	for _, tc := range [][2]string{{"/v1/sessions", `{"id":"s3"}`}, {"/v1/exec", `{"session":{},"exec":{"argv":["true"]}}`}} {
		a := d.Raw(t, "POST", tc[0], tc[1])
		if p := a.Problem(t); p.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(p.Detail, "sessions.max") {
			t.Errorf(`%s: a.Header = %v, p = %+v, want p.Status == 429 and a.Header.Get("Retry-After") != "" and p.Detail containing "sessions.max"`,
				tc[0], a.Header, p)
		}
	}
	if _, isNew, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"}); err != nil || isNew {
		t.Errorf("a session that exists: isNew = %v, err = %v, want no error and isNew == false", isNew, err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s3"})
}

func TestManyCreatesAtOnceKeepToTheLimit(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 5\n")
	var wait sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 20 {
		wait.Go(func() {
			_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: fmt.Sprint(i)})
			mu.Lock()
			defer mu.Unlock()
			if e, ok := errors.AsType[*client.Error](err); err == nil {
				made++
			} else if !ok || e.Status != http.StatusTooManyRequests {
				t.Errorf("err = %v, want ok == true and e.Status == 429", err)
			}
		})
	}
	wait.Wait()
	if got := len(sessions(t, d)); made != 5 || got != 5 {
		t.Errorf("%d were made, %d are there", made, got)
	}
}

// waits returns a program for Hold.
func waits() api.ExecRequest { return boxtest.Shell("echo ready; cat") }

func TestOneSessionRunsOnlySoMuchAtOnce(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[exec]\nmax_per_session = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	first, second := d.Hold(t, "s1", waits()), d.Hold(t, "s1", waits())
	a := d.Raw(t, "POST", "/v1/sessions/s1/exec", `{"argv":["true"]}`)
	if p := a.Problem(t); p.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf(`a.Header = %v, p = %+v, want p.Status == 429 and a.Header.Get("Retry-After") != ""`, a.Header, p)
	}
	_, err := d.ExecStream(t.Context(), "s1", new(boxtest.Shell("true")), client.Stdio{}, nil)
	boxtest.Refused(t, err, http.StatusTooManyRequests, "")
	d.Sh(t, "s2", "true")
	if s, err := d.Session(t.Context(), "s1"); err != nil || s.Running != 2 || s.ExpiresAt == nil {
		t.Errorf("s = %+v, err = %v, want no error and s.Running == 2 and s.ExpiresAt != nil", s, err)
	}
	first.Release()
	d.Sh(t, "s1", "true")
	second.Release()
	if s, err := d.Session(t.Context(), "s1"); err != nil || s.Running != 0 || s.Executions != 3 {
		t.Errorf("s = %+v, err = %v, want no error and s.Running == 0 and s.Executions == 3", s, err)
	}
}

func TestABoxWhosePID1IsKilledIsLost(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	for range 5 {
		s := d.NewSession(t, api.SessionRequest{ID: "s1"})
		results := make(chan api.ExecResult, 2)
		for i := range cap(results) {
			go func() {
				req := boxtest.Shell(fmt.Sprintf("touch run%d; exec sleep 1000", i))
				req.Timeout = new(quantity.Duration(boxtest.Longest))
				r, err := d.Exec(t.Context(), "s1", &req)
				if err != nil {
					t.Error(err)
				}
				results <- r
			}()
		}
		boxtest.Eventually(t, "both programs run", func() bool {
			r := d.Result(t, "s1", boxtest.Shell("test -e run0 -a -e run1"))
			return r.ExitCode != nil && *r.ExitCode == 0
		})
		if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if r := <-results; r.Status != "lost" || r.ExitCode != nil {
			t.Errorf(`r = %s, want r.Status == "lost" and r.ExitCode == nil`, boxtest.Show(r))
		}
		// Works at once, whether or not boxd has noticed the death.
		again := d.NewSession(t, api.SessionRequest{ID: "s1"})
		if again.PID == s.PID {
			t.Errorf("the box of %+v is dead", again)
		}
		d.Sh(t, "s1", "true")
		if r := <-results; r.Status != "lost" {
			t.Errorf(`r = %s, want r.Status == "lost"`, boxtest.Show(r))
		}
		if err := d.DeleteSession(t.Context(), "s1"); err != nil {
			t.Fatal(err)
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "idle"})
	s, err := d.Session(t.Context(), "idle")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, d, "idle", "lost")
	d.NothingLeft(before)
}

// A session whose box ends while no boxd runs, as at a reboot of the host, does not just vanish: its owner is told that it was lost.
func TestABoxThatEndsWithoutABoxdIsLost(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting) // otherwise the box ends by itself, maybe before the test ends it
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Kill()
	if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "PID 1 of the box has ended", func() bool { return !boxtest.Lives(int(s.PID)) })
	d.Restart()
	_, err := d.Session(t.Context(), "s1")
	if refused := boxtest.Refused(t, err, 404, ""); !strings.Contains(refused.Error(), "(lost): it lost its PID 1") {
		t.Errorf("the session is refused with %v", err)
	}
	ended(t, d, "s1", "lost")
	if !slices.ContainsFunc(happened(t, d, ""), func(e api.Event) bool {
		return e.Type == "session.ended" && e.Session == "s1" && e.Reason == "lost" && e.Owner == "uid:0"
	}) {
		t.Error("there is no session.ended event")
	}
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
}

// A failed start leaves nothing behind, wherever it fails.
func TestAStartThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	lent := filepath.Join(d.Dir, "lent")
	if err := os.Mkdir(lent, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lent, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/tmp", filepath.Join(lent, "link")); err != nil {
		t.Fatal(err)
	}
	d.Warm()
	before := d.Look()
	read := func(targets ...string) (list []api.Mount) {
		for _, target := range targets {
			list = append(list, api.Mount{Source: lent, Target: target, Mode: "ro"})
		}
		return list
	}
	for _, tc := range []struct {
		name   string
		mounts []api.Mount
		field  string
	}{
		{"a source that is not there", []api.Mount{{Source: lent + "/none", Target: "/data", Mode: "ro"}}, "mounts[0].source"},
		{"below a read-only mount", read("/data", "/data/sub"), "mounts[1].target"},
		{"over a file", read("/data", "/data/file"), "mounts[1].target"},
		{"below a file", read("/data", "/data/file/sub"), "mounts[1].target"},
		{"over a link", read("/data", "/data/link"), "mounts[1].target"},
		{"through a link", read("/data", "/data/link/sub"), "mounts[1].target"},
		{"a name that is too long", read("/data/" + strings.Repeat("x", 256)), "mounts[0].target"},
		{"and longer than it is reported", read("/data/" + strings.Repeat("y", 2000)), "mounts[0].target"},
	} {
		for range 3 {
			_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Mounts: tc.mounts})
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusBadRequest || e.Field != tc.field || e.Allowed == "" {
				t.Fatalf("%s: %v (%+v)", tc.name, err, e)
			}
		}
	}
	d.NothingLeft(before)
	if got := sessions(t, d); len(got) > 0 {
		t.Errorf("sessions %q", got)
	}
	d.NewSession(t, api.SessionRequest{ID: "s1", Mounts: read("/data", "/mnt/a/b", "/opt")})
	if got := d.Sh(t, "s1", "ls /data /mnt/a/b /opt"); strings.Count(got, "file") != 3 {
		t.Errorf(`got %q, want strings.Count(got, "file") == 3`, got)
	}
}

func TestAWorkspaceThatIsThereAlreadyIsNotUsed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	works := filepath.Join(d.State, "workspaces")
	list, err := os.ReadDir(works)
	if err != nil || len(list) != 1 {
		t.Fatalf("list = %v, err = %v, want no error and len(list) == 1", list, err)
	}
	key := filepath.Join(works, list[0].Name())
	if err := d.DeleteSession(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	d.Warm()
	before := d.Look()
	if err := os.Mkdir(key, 0o755); err != nil {
		t.Fatal(err)
	}
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Failure == nil || e.Failure.Step != "workspace" || e.Failure.Errno != "EEXIST" {
		t.Errorf("%v (%+v)", err, e)
	}
	if err := os.Remove(key); err != nil {
		t.Fatalf("the earlier file was removed or used: %v", err)
	}
	d.NothingLeft(before)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
}

func TestIDsOfTheHostRunOut(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, fmt.Sprintf("[ids]\nbase = %d\ncount = 2\nlock = \"%%DIR%%/ids\"\n", uint32(0x7fff0000)-0x10000))
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s3"})
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, ""); !strings.Contains(e.Hint, "ids.count") {
		t.Errorf(`e = %+v, want e.Hint containing "ids.count"`, e)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s3"}) // even while a warm box is being preforked with these ids
}
