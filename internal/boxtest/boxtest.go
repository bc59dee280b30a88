// SPDX-License-Identifier: Apache-2.0

// Package boxtest starts real daemons with real boxes for tests, with helpers for them.
package boxtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Environment variables that control tests.
const (
	strictVariable = "BOXD_TEST_STRICT" // if not empty, tests that would be skipped fail instead
	groupVariable  = "BOXD_TEST_CGROUP" // a delegated cgroup, relative to /sys/fs/cgroup; "": there is none
	binVariable    = "BOXD_TEST_BIN"    // directory of prebuilt programs
)

// RequireRoot skips a test that needs root, or fails it where skipping is not allowed.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	Missing(t, "root: boxes are started by it")
}

// RequireProgram skips a test that needs a program of the host inside a box, or fails it where
// skipping is not allowed.
func RequireProgram(t testing.TB, name string) {
	t.Helper()
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return
		}
	}
	Missing(t, "the program "+name+" in /usr")
}

// build builds the programs once for all tests of a process.
var build = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(binVariable); dir != "" {
		return dir, nil
	}
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(os.TempDir(), "boxd-test-bin-"+fmt.Sprint(os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir, "./cmd/...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w: %s", err, out)
	}
	return dir, nil
})

// Programs returns the directory of boxd, boxctl, boxkeeper and boxinit.
func Programs(t testing.TB) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Build builds another program of this module, without cgo, and returns its path. It may have
// been built already.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	if built := filepath.Join(os.Getenv(binVariable), filepath.Base(pkg)); filepath.IsAbs(built) {
		if _, err := os.Stat(built); err == nil {
			return built
		}
	}
	root, err := ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(TempDir(t), filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", pkg, err, text)
	}
	return out
}

// ModuleRoot returns the root of the module that the working directory is in.
func ModuleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// TempDir is t.TempDir with a short name, which the path of a socket needs, and open to every
// user.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd") //nolint:usetesting // t.TempDir's names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Daemon is a private boxd.
type Daemon struct {
	*client.Client
	Dir    string // its own directory, with Socket, State and the log in it
	Socket string
	State  string
	Config string
	Group  string // parent of its boxes' cgroups, relative to /sys/fs/cgroup; "": they have none

	t   testing.TB
	cmd *exec.Cmd
	log string
	ids idRange

	canary  canary
	foreign []string      // traces of boxes with its ids from before, of a killed test
	manager *Manager      // nil: there is none
	user    *unprivileged // nil: boxd is root
}

// Lasting makes boxes outlive a boxd that is killed; they end when boxd is stopped. Without it
// they end in both cases.
const Lasting = "# lasting\n"

// Kept makes boxes outlive a boxd that is stopped too.
const Kept = "# kept\n"

// BestEffort accepts sessions without the limits that only cgroups enforce.
const BestEffort = "[limits]\nbest_effort = [\"memory\", \"cpu\", \"pids\", \"workspace\"]\n"

// Start starts a private boxd and stops it at the end of the test. configuration is appended to
// the settings of its files and BestEffort; %DIR% in it stands for the daemon's directory. Unless
// it has [ids], the daemon gets host ids that no other test's daemon has, by which Look
// recognizes its boxes.
func Start(t testing.TB, configuration ...string) *Daemon {
	t.Helper()
	return StartWith(t, append([]string{BestEffort}, configuration...)...)
}

// StartWith is Start without best effort.
func StartWith(t testing.TB, configuration ...string) *Daemon {
	t.Helper()
	RequireRoot(t)
	dir := TempDir(t)
	d := &Daemon{
		Dir: dir, Socket: filepath.Join(dir, "s"), State: filepath.Join(dir, "state"), Config: filepath.Join(dir, "box.toml"),
		log: filepath.Join(dir, "log"), t: t,
	}
	text := strings.Join(configuration, "\n")
	daemon := fmt.Sprintf("[daemon]\nsocket = %q\nsocket_group = \"nogroup\"\nruntime_dir = %q\n", d.Socket, filepath.Join(dir, "run"))
	if dir, ok := strings.CutPrefix(text, "state_dir = "); ok { // a state directory elsewhere
		_, _ = fmt.Sscanf(dir, "%q", &d.State)
	} else {
		daemon += fmt.Sprintf("state_dir = %q\n", d.State)
	}
	keep := strings.Contains(text, Kept)
	if !keep && !strings.Contains(text, "on_stop") {
		daemon += "on_stop = \"end\"\n"
	}
	if !strings.Contains(text, Lasting) && !keep && !strings.Contains(text, "adopt_grace") {
		daemon += "adopt_grace = \"0s\"\n"
	}
	text = daemon + text
	d.makeGroup()
	if !strings.Contains(text, "[cgroups]") {
		text += fmt.Sprintf("\n[cgroups]\nparent = %q\n", d.Group)
	}
	if !strings.Contains(text, "[queue]") { // a test of a limit should be refused without a wait
		text += "\n[queue]\nwait = \"0s\"\n"
	}
	if !strings.Contains(text, "patience = ") { // the most there is: a busy host may need longer than usual to open a source
		text = strings.Replace(text, "[mounts]\n", "[mounts]\npatience = \"15s\"\n", 1)
	}
	if !strings.Contains(text, "[workspaces]") {
		text += "\n[workspaces]\nstore_size = \"0\"\n"
	}
	if d.ids = allIDs(); !strings.Contains(text, "[ids]") {
		d.ids = takeIDs(t)
		text += fmt.Sprintf("\n[ids]\nbase = %d\ncount = %d\n", d.ids.first, d.ids.boxes())
	}
	if err := os.WriteFile(d.Config, []byte(strings.ReplaceAll(text, "%DIR%", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Client = client.New(d.Socket)
	d.canary, d.foreign = setCanary(t, dir), d.remains()
	d.Restart()
	t.Cleanup(func() {
		if keep {
			d.removeAll()
		}
		d.Close()
		inOrder := d.cmd != nil && d.manager == nil && strings.Contains(text, "on_stop = \"end\"") // otherwise boxes wait for the next boxd
		d.Stop()
		d.manager.close()
		d.user.close()
		d.unharmed(inOrder)
		if _, report, found := strings.Cut(d.Log(), "WARNING: DATA RACE"); found {
			t.Errorf("boxd has a data race:\n%s", report[:min(len(report), 4000)])
		}
		if t.Failed() {
			t.Logf(LogOfBoxd+"\n%s", d.Log())
		}
	})
	return d
}

// removeAll removes the sessions that would outlive the test.
func (d *Daemon) removeAll() {
	if d.cmd == nil {
		d.Restart()
	}
	ctx := context.Background() // the test's context has ended
	list, err := d.Sessions(ctx, true)
	for _, s := range list {
		d.Owner = s.Owner
		// The session's own client may have removed it meanwhile.
		failed := d.DeleteSession(ctx, s.ID)
		if e, ok := errors.AsType[*client.Error](failed); !ok || e.Status != http.StatusNotFound {
			err = errors.Join(err, failed)
		}
	}
	d.Owner = ""
	if err != nil {
		d.t.Error(err)
	}
}

// answerTimeout is how long a boxd that starts may take to answer before it is asked again.
const answerTimeout = 10 * time.Second

// Restart starts boxd again after Stop or Kill.
func (d *Daemon) Restart() {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	// Not CommandContext: Stop ends boxd, in order.
	cmd := exec.Command(filepath.Join(Programs(d.t), "boxd"), "-config", d.Config)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // otherwise the race detector makes each exit take a second
	cmd.Stderr = log
	if d.user != nil {
		cmd = d.user.command(d, cmd)
	}
	if d.manager != nil {
		cmd = d.manager.manage(cmd)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.cmd = cmd
	Eventually(d.t, "boxd is ready", func() bool {
		// The test's context has ended where it cleans up. Where a manager holds the socket, one that has died never answers.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.t.Context()), answerTimeout)
		defer cancel()
		err := d.Ready(ctx)
		if e, ok := errors.AsType[*client.Error](err); err == nil || ok && strings.Contains(e.Detail, "accepts no new boxes") {
			return true
		}
		if !Lives(cmd.Process.Pid) {
			d.t.Fatalf("boxd has ended:\n%s", d.Log())
		}
		return false
	})
}

// Stop asks boxd to end and waits for it.
func (d *Daemon) Stop() {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Errorf("stop boxd: %v", err)
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("boxd: %v", err)
	}
	d.cmd = nil
}

// Wait waits until boxd exits by itself, and returns its error.
func (d *Daemon) Wait() error {
	d.t.Helper()
	err := d.cmd.Wait()
	d.cmd = nil
	return err
}

// Kill kills boxd with SIGKILL.
func (d *Daemon) Kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatal(err)
	}
	_ = d.cmd.Wait() // it was killed above
	d.cmd = nil
}

// Warm creates everything that a daemon creates once and keeps: the zygote and the preforked boxes. Afterwards Look finds the state
// that it finds whenever nothing is in use.
func (d *Daemon) Warm() {
	d.t.Helper()
	req := api.OneShotRequest{Exec: api.ExecRequest{Argv: []string{"true"}}}
	if r, err := d.Run(d.t.Context(), &req); err != nil || r.Status != "exited" {
		d.t.Fatalf(`first execution: r = %+v, err = %v, want no error and r.Status == "exited"`, r, err)
	}
	d.AwaitPrefork(0)
}

// AwaitPrefork waits until a box has been made ahead of need beside those of sessions. It is made some milliseconds after another was
// used.
func (d *Daemon) AwaitPrefork(sessions int) {
	d.t.Helper()
	var now []string
	defer func() {
		if d.t.Failed() {
			d.t.Logf("processes of boxes: %q", now)
		}
	}()
	Eventually(d.t, "a box is made ahead of need", func() bool {
		now = slices.DeleteFunc(d.Look().Processes, func(p string) bool { return !strings.Contains(p, " boxinit ") })
		return len(now) == sessions+1 && !slices.ContainsFunc(now, func(p string) bool { return !strings.Contains(p, " boxinit S") })
	})
}

// PID returns the PID of boxd.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Boxctl returns a boxctl command for this daemon that uses nothing of what the user of the test
// has stored.
func (d *Daemon) Boxctl(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(Programs(t), "boxctl"), args...)
	cmd.Env = append(os.Environ(), "BOXD_SOCKET="+d.Socket, "XDG_STATE_HOME="+d.Dir)
	return cmd
}

// Keeper returns the PID of the keeper, which may be the child of an earlier boxd. It waits for
// one.
func (d *Daemon) Keeper() (pid int) {
	d.t.Helper()
	Eventually(d.t, "there is a keeper", func() bool {
		text, err := os.ReadFile(filepath.Join(d.Dir, "run", "keeper", "lock"))
		if err != nil { // the first one has not come as far as that yet
			return false
		}
		line, _, _ := strings.Cut(string(text), "\n")
		pid, err = strconv.Atoi(line)
		return err == nil
	})
	return pid
}

// Zygotes returns the PIDs of the keeper's zygotes.
func (d *Daemon) Zygotes() (pids []int) {
	d.t.Helper()
	for _, pid := range Children(d.t, d.Keeper()) {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(text), "\x00zygote") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Record returns the path of the only record of a session that boxd has on disk.
func (d *Daemon) Record(t testing.TB, session string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(d.State, "sessions", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range all {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), `"id":"`+session+`"`) {
			found = append(found, path)
		}
	}
	if len(found) != 1 {
		t.Fatalf("records of %s: %q of %q", session, found, all)
	}
	return found[0]
}

// Log returns what boxd and its keeper have logged.
func (d *Daemon) Log() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
