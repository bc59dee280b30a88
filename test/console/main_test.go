// SPDX-License-Identifier: Apache-2.0

// Package console_test tests the console as a person uses it: in a browser, in Cockpit, with a real boxd with real boxes.
package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Programs of the distribution that the tests drive.
const (
	cockpitWS = "/usr/lib/cockpit/cockpit-ws"
	bridge    = "/usr/bin/cockpit-bridge"
)

// browsers are the paths of Chromium in distributions. The second is headless, and the one of the machine of test/run.
var browsers = []string{"/usr/bin/chromium", "/usr/bin/chromium-headless-shell"}

// suiteVariable names a directory filled by test/vm/console.sh, for the machine of test/run, which has neither sources nor npm.
const suiteVariable = "BOXD_TEST_CONSOLE"

// built is the built console, with what drives a browser.
type built struct {
	pages   string // directory of the built package
	modules string // directory of the npm modules
}

// consoleUser is a user logged in to Cockpit. Cockpit needs a user name, so these are system users of every Debian.
type consoleUser struct {
	uid, gid uint32
}

var (
	admin    = consoleUser{0, 0}
	user     = consoleUser{5, boxtest.OtherGID} // games
	operator = consoleUser{9, boxtest.OtherGID} // news
	stranger = consoleUser{10, 10}              // uucp, not allowed to open the socket
	locked   = consoleUser{7, boxtest.OtherGID} // lp, allowed to open it, and nothing else
)

// roles configures a boxd for these users.
const roles = "[principals.operators]\nuid = 9\nrole = \"operator\"\n"

// suite is what test/vm/console.sh has built.
func suite() (built, bool) {
	dir := os.Getenv(suiteVariable)
	b := built{filepath.Join(dir, "pages"), filepath.Join(dir, "node_modules")}
	_, err := os.Stat(b.modules)
	return b, dir != "" && err == nil
}

// bundle is built once, unless it exists.
var bundle = sync.OnceValues(func() (built, error) {
	if b, ok := suite(); ok {
		return b, nil
	}
	root, err := boxtest.ModuleRoot()
	if err != nil {
		return built{}, err
	}
	dir, err := os.MkdirTemp("", "boxd-console-")
	if err != nil {
		return built{}, err
	}
	cmd := exec.Command(filepath.Join(root, "console/build.sh"), dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return built{}, fmt.Errorf("%w: %s", err, errs.String())
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return built{}, err
	}
	return built{dir, strings.TrimSpace(string(out))}, nil
})

func TestMain(m *testing.M) {
	boxtest.BeCaller(nil)
	code := m.Run()
	if _, ok := suite(); !ok {
		if b, err := bundle(); err == nil {
			os.RemoveAll(b.pages)
		}
	}
	os.Exit(code)
}

// browser returns the first browser that this host has, or "".
func browser() string {
	for _, path := range browsers {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// requireBrowser skips a test if a program that the tests drive is missing, or the processor is too slow for a browser.
func requireBrowser(t *testing.T) {
	t.Helper()
	boxtest.RequireSpeed(t)
	for _, path := range []string{cockpitWS, bridge} {
		if _, err := os.Stat(path); err != nil {
			boxtest.Missing(t, path)
		}
	}
	if browser() == "" {
		boxtest.Missing(t, browsers[0])
	}
	boxtest.RequireProgram(t, "dbus-run-session")
	if _, ok := suite(); !ok {
		requireSources(t)
	}
}

// requireSources skips a test that needs the console's sources, if these cannot be built here.
func requireSources(t *testing.T) {
	t.Helper()
	boxtest.Node(t)
	if _, err := exec.LookPath("npm"); err != nil {
		boxtest.Missing(t, "npm")
	}
}

// login starts Cockpit as a person, with the console of a boxd, and returns the address of the page. programs is the directory of
// boxctl; "": none, even if this host has it installed.
func login(t *testing.T, who consoleUser, socket, programs string) string {
	t.Helper()
	console, err := bundle()
	if err != nil {
		t.Fatal(err)
	}
	home := boxtest.TempDir(t)
	for _, dir := range []string{"data/cockpit", "config/cockpit", "run", "bin"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(console.pages, filepath.Join(home, "data/cockpit/boxd")); err != nil {
		t.Fatal(err)
	}
	paths, err := json.Marshal(map[string]string{"socket": socket, "audit": filepath.Join(filepath.Dir(socket), "state", "audit")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "config/cockpit/boxd.override.json"), paths, 0o644); err != nil { //nolint:gosec // the person reads it
		t.Fatal(err)
	}
	for _, dir := range []string{home, filepath.Join(home, "run")} {
		if err := os.Chown(dir, int(who.uid), int(who.gid)); err != nil {
			t.Fatal(err)
		}
	}
	at := boxtest.FreeAddress(t, "127.0.0.1")
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "dbus-run-session", "--", cockpitWS, "--local-session="+bridge, "--no-tls", "--port", port, "--address", "127.0.0.1")
	cmd.Dir = home
	path := programs + ":/usr/bin:/bin"
	if programs == "" {
		path = filepath.Join(home, "bin")
		for _, needed := range []string{"dbus-daemon", "sh"} {
			if err := os.Symlink(filepath.Join("/usr/bin", needed), filepath.Join(path, needed)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd.Env = []string{
		"HOME=" + home, "XDG_DATA_HOME=" + home + "/data", "XDG_CONFIG_HOME=" + home + "/config", "XDG_RUNTIME_DIR=" + home + "/run", "LANG=C.UTF-8", "SHELL=/bin/sh",
		"PATH=" + path,
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: who.uid, Gid: who.gid}}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was told to end
		if t.Failed() {
			t.Logf("log of Cockpit:\n%s", log.String())
		}
	})
	boxtest.Eventually(t, "Cockpit answers", func() bool {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return "http://" + at + "/cockpit/@localhost/boxd/index.html"
}

// acts are actions on the host that a script can request, by name.
type acts map[string]func(argument string) string

// browse runs a script of testdata in a browser that has opened the console, and checks that it does all its steps.
func browse(t *testing.T, script, address string, do acts, env ...string) {
	t.Helper()
	console, err := bundle()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), boxtest.Node(t), filepath.Join("testdata", script))
	cmd.Env = append(os.Environ(), "CONSOLE_MODULES="+console.modules, "CONSOLE_URL="+address, "CONSOLE_BROWSER="+browser(), "CONSOLE_DIR="+boxtest.TempDir(t))
	cmd.Env = append(cmd.Env, env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		if order, ok := strings.CutPrefix(line, "HOST "); ok {
			name, argument, _ := strings.Cut(order, " ")
			act := do[name]
			if act == nil {
				t.Errorf("%s requests %q, which the test does not support", script, name)
				act = func(string) string { return "" }
			}
			answer, _ := json.Marshal(act(argument)) // a string
			if _, err := fmt.Fprintln(in, string(answer)); err != nil {
				t.Error(err)
			}
			continue
		}
		t.Log(line) // as it arrives, to show progress
		text.WriteString(line + "\n")
	}
	in.Close()
	if err := cmd.Wait(); err != nil || strings.Contains(text.String(), "FAILED ") {
		t.Errorf(`%s: err = %v, want no error and text.String() without "FAILED "`, script, err)
	}
	source, err := os.ReadFile(filepath.Join("testdata", script))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ *await step\("([^"]*)"`).FindAllStringSubmatch(string(source), -1) {
		if !strings.Contains(text.String(), "ok "+m[1]+"\n") && !strings.Contains(text.String(), "FAILED "+m[1]) {
			t.Errorf("%s: %s was not done", script, m[1])
		}
	}
}

// serve serves a handler in place of boxd on a Unix socket in a directory of its own, and returns the path.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	path := filepath.Join(boxtest.TempDir(t), "boxd.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler, ErrorLog: nil, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(ln) }() // until it is closed
	t.Cleanup(func() { s.Close() })
	return path
}
