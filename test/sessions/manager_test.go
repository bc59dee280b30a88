// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// hears waits for a notification, skipping watchdog messages.
func hears(t *testing.T, m *boxtest.Manager, want string) string {
	t.Helper()
	for {
		switch heard := m.Hear(); {
		case strings.HasPrefix(heard, want):
			return heard
		case heard != "WATCHDOG=1":
			t.Fatalf("boxd notifies systemd with %q, want %q", heard, want)
		}
	}
}

func TestTheWatchdogHearsOfABoxdThatIsWell(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	m := d.Managed(200 * time.Millisecond)
	if heard := m.Hear(); heard != "READY=1" {
		t.Fatalf(`the first notification is %q, want "READY=1"`, heard)
	}
	alive := func(while string) {
		t.Helper()
		m.Drain()
		for range 3 {
			if heard := m.Hear(); heard != "WATCHDOG=1" {
				t.Fatalf(`%s the notification is %q, want heard == "WATCHDOG=1"`, while, heard)
			}
		}
	}
	alive("at rest")
	// A fault that a new boxd would meet as well must not end this one.
	keeper := d.Keeper()
	if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waits, giveUp := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _, _ = d.CreateSession(waits, &api.SessionRequest{ID: "s1"}) // blocks until the keeper answers
	}()
	alive("with a keeper that hangs")
	if err := d.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(keeper, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	<-asked
	giveUp()
	if err := syscall.Kill(d.Keeper(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	alive("while another keeper is started")
	// A boxd that is stopped sends no watchdog messages.
	if err := syscall.Kill(d.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "boxd is stopped", func() bool {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", d.PID())) // each thread stops by itself
		return len(stats) > 0 && !slices.ContainsFunc(stats, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err != nil || !strings.Contains(string(stat), ") T ")
		})
	})
	m.Drain()
	if err := m.Heard.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := m.Heard.Read(make([]byte, 100)); err == nil {
		t.Errorf("boxd, stopped by SIGSTOP, has sent %d bytes", n)
	}
	if err := syscall.Kill(d.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	alive("after that")
	d.Stop()
	hears(t, m, "STOPPING=1")
}

func TestAnIdleBoxdEndsAndTheNextCallerFindsAnother(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[processes]\nmax = 9\n", "[profiles.default]\nttl = \"1s\"\n")
	rewrite(t, d, "[daemon]\n", "[daemon]\nidle_exit = \"1s\"\n")
	m := d.Managed(0)
	hears(t, m, "READY=1")
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{TTL: length(1500 * time.Millisecond)}})
	d.Close() // otherwise this client's connection counts
	if err := d.Wait(); err != nil {
		t.Fatalf("it ends with %v", err)
	}
	hears(t, m, "STOPPING=1")
	_, after, ended := strings.Cut(d.Log(), `msg="session ended"`)
	if !ended || !strings.Contains(after, "no sessions and no connections") {
		t.Errorf("it has ended while there was a session:\n%s", d.Log())
	}
	// No boxd is running, and still the request is not lost.
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, boxtest.Request("GET", "/v1/status", "")); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if a, err := boxtest.ReadAnswer(conn); err != nil || a.Code != 200 {
		t.Errorf("a = %v, err = %v, want no error and a.Code == 200", a, err)
	}
	conn.Close()
	d.Close()
	if err := d.Wait(); err != nil {
		t.Errorf("without a session it ends with %v", err)
	}
}

// rewrite changes a daemon's configuration file; the text to be replaced must occur in it.
func rewrite(t *testing.T, d *boxtest.Daemon, old, replacement string) {
	t.Helper()
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), old) != 1 {
		t.Fatalf("%q is not in the configuration once:\n%s", old, text)
	}
	if err := os.WriteFile(d.Config, []byte(strings.Replace(string(text), old, replacement, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAReloadIsForNewSessionsAndOnlyIfAllIsInOrder(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\nmemory = \"96MiB\"\n", "[env]\nCOLOUR = \"red\"\n")
	m := d.Managed(0)
	hears(t, m, "READY=1")
	logged := 0
	reload := func() (log string) {
		t.Helper()
		if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if heard := m.Hear(); !strings.HasPrefix(heard, "RELOADING=1\nMONOTONIC_USEC=") {
			t.Fatalf(`the notification is %q, want heard starting with "RELOADING=1\nMONOTONIC_USEC="`, heard)
		}
		if heard := m.Hear(); heard != "READY=1" {
			t.Fatalf(`the next notification is %q, want "READY=1"`, heard)
		}
		all := d.Log()
		log, logged = all[logged:], len(all)
		return log
	}
	memory := func(id string, want quantity.Size) {
		t.Helper()
		s, err := d.Session(t.Context(), id)
		if err != nil || s.Memory != want {
			t.Errorf("%s has %v (%v), want %v", id, s.Memory, err, want)
		}
	}
	colour := func(id, want string) {
		t.Helper()
		if got := d.Sh(t, id, "echo $COLOUR"); got != want+"\n" {
			t.Errorf("%s is %q, want %s", id, got, want)
		}
	}
	asked := api.SessionRequest{ID: "old", Env: map[string]string{"A": "b"}}
	d.NewSession(t, asked)

	rewrite(t, d, "96MiB", "80MiB")
	rewrite(t, d, "red", "green")
	rewrite(t, d, "socket_group = \"nogroup\"", "socket_group = \"root\"")
	log := reload()
	if !strings.Contains(log, "read again") || !strings.Contains(log, "keys=daemon.socket_group") {
		t.Errorf("it logs %s", log)
	}
	d.NewSession(t, api.SessionRequest{ID: "new"})
	memory("old", 96*quantity.MiB)
	memory("new", 80*quantity.MiB)
	colour("old", "red")
	colour("new", "green")
	if _, isNew, err := d.CreateSession(t.Context(), &asked); isNew || err != nil {
		t.Errorf("the request that made it does not find it again: err = %v, want isNew == false and no error", err)
	}

	// A file with one invalid value changes nothing, not even by its valid ones.
	rewrite(t, d, "80MiB", "64MiB")
	drop := filepath.Join(d.Config+".d", "10-test.toml")
	if err := os.Mkdir(filepath.Dir(drop), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(drop, []byte("[sessions]\nmaximum = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if log := reload(); !strings.Contains(log, "stays in force") || !strings.Contains(log, "10-test.toml: line 2") || !strings.Contains(log, "sessions.maximum") {
		t.Errorf("it logs %s", log)
	}
	d.NewSession(t, api.SessionRequest{ID: "meanwhile"})
	memory("meanwhile", 80*quantity.MiB)

	if err := os.WriteFile(drop, []byte("[sessions]\nmax = 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reload()
	d.NewSession(t, api.SessionRequest{ID: "last"})
	memory("last", 64*quantity.MiB)
	memory("old", 96*quantity.MiB)
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "more"})
	boxtest.Refused(t, err, 429, "")
	if s, err := d.Status(t.Context()); err != nil || s.MaxSessions != 4 || s.Sessions != 4 {
		t.Errorf("s = %+v, err = %v, want no error and s.MaxSessions == 4 and s.Sessions == 4", s, err)
	}
}

func TestTheStatusSaysWhatIsTheMatter(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[host]\nkeep_free_memory = \"16TiB\"\n")
	s, err := d.Status(t.Context())
	if err != nil || len(s.Degraded) != 1 || !strings.HasPrefix(s.Degraded[0], "no box can start: ") || !strings.Contains(s.Degraded[0], "host.keep_free_memory") {
		t.Errorf(`s = %+v, err = %v, want no error and len(s.Degraded) == 1 and s.Degraded[0] starting with "no box can start: " and s.Degraded[0] containing "host.keep_free_memory"`,
			s, err)
	}
	memory := "rlimit"
	if boxtest.Grouped() {
		memory = "cgroup2"
	}
	if s.Enforced["memory"] != memory || s.Enforced["tmp"] != "tmpfs" || s.Enforced["workspace"] == "" {
		t.Errorf("limits are enforced by %v", s.Enforced)
	}
	rewrite(t, d, "16TiB", "1MiB")
	if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the status reports no problem", func() bool {
		s, err = d.Status(t.Context())
		return err == nil && len(s.Degraded) == 0
	})
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	process(t, d, "s1", "p1", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
	if s, err = d.Status(t.Context()); err != nil || s.Processes != 1 || s.MaxProcesses != 64 || s.Running != 1 {
		t.Errorf("s = %+v, err = %v, want no error and s.Processes == 1 and s.MaxProcesses == 64 and s.Running == 1",
			s, err)
	}
}
