// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
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
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// outcome is the part of a result that is the same every time.
type outcome struct {
	Status, Signal, Stdout, Stderr string
	ExitCode                       int
	Leftovers                      int
	Failure                        string // step, item and errno
}

func outcomeOf(r api.ExecResult) outcome {
	o := outcome{Status: r.Status, Signal: r.Signal, Stdout: r.Stdout, Stderr: r.Stderr, Leftovers: r.LeftoversKilled, ExitCode: -1}
	if r.ExitCode != nil {
		o.ExitCode = *r.ExitCode
	}
	if f := r.Failure; f != nil {
		o.Failure = f.Step + " " + f.Item + " " + f.Errno
	}
	return o
}

func TestEveryEndOfAProgramIsTold(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "echo text > /workspace/text; printf '#!/nowhere\n' > script; chmod +x script")
	argv := func(argv ...string) api.ExecRequest { return api.ExecRequest{Argv: argv} }
	for _, tc := range []struct {
		name string
		req  api.ExecRequest
		want outcome
	}{
		{"argv", argv("printf", "%s.%s", "a b", "$HOME"), outcome{Status: "exited", Stdout: "a b.$HOME"}},
		{"shell", boxtest.Shell("echo out; echo err >&2; exit 3"), outcome{Status: "exited", Stdout: "out\n", Stderr: "err\n", ExitCode: 3}},
		{"python", api.ExecRequest{Code: new("import sys; print(6*7); sys.exit(255)"), Language: "python"}, outcome{Status: "exited", Stdout: "42\n", ExitCode: 255}},
		{"code for the shell", api.ExecRequest{Code: new("echo $0"), Language: "sh"}, outcome{Status: "exited", Stdout: "/bin/sh\n"}},
		{"another name", api.ExecRequest{Code: new("echo $0"), Language: "shell"}, outcome{Status: "exited", Stdout: "/bin/sh\n"}},
		{"signal", boxtest.Shell("kill -SEGV $$"), outcome{Status: "signaled", Signal: "SIGSEGV", ExitCode: -1}},
		{"timeout", api.ExecRequest{Command: new("echo before; sleep 1000; echo after"), Timeout: boxtest.Duration("15s")}, outcome{Status: "timed_out", Signal: "SIGKILL", Stdout: "before\n", ExitCode: -1}},
		{"timeout that TERM does not impress", api.ExecRequest{Command: new("trap '' TERM INT HUP; while :; do sleep 1000; done"), Timeout: boxtest.Duration("200ms")}, outcome{Status: "timed_out", Signal: "SIGKILL", ExitCode: -1}},
		{"missing", argv("no-such-program"), outcome{Status: "start_failed", ExitCode: -1, Failure: "lookup no-such-program ENOENT"}},
		{"missing path", argv("/usr/bin/no-such-program"), outcome{Status: "start_failed", ExitCode: -1, Failure: "exec /usr/bin/no-such-program ENOENT"}},
		{"not executable", argv("/workspace/text"), outcome{Status: "start_failed", ExitCode: -1, Failure: "exec /workspace/text EACCES"}},
		{"a directory", argv("/workspace"), outcome{Status: "start_failed", ExitCode: -1, Failure: "exec /workspace EACCES"}},
		{"no interpreter", argv("./script"), outcome{Status: "start_failed", ExitCode: -1, Failure: "exec ./script ENOENT"}},
		{"a working directory below a file", api.ExecRequest{Argv: []string{"true"}, Cwd: "/workspace/text/x"}, outcome{Status: "start_failed", ExitCode: -1, Failure: "directory /workspace/text/x ENOTDIR"}},
	} {
		if diff := cmp.Diff(tc.want, outcomeOf(d.Result(t, "s1", tc.req))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	if got := d.Sh(t, "s1", "ls -A"); got != "script\ntext\n" {
		t.Errorf(`left in the workspace: got %q, want "script\ntext\n"`, got)
	}
}

func TestAMissingWorkingDirectoryIsMade(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	got := d.Output(t, "s1", api.ExecRequest{Command: new("pwd; stat -c %U . .."), Cwd: "/workspace/a/b"})
	if want := "/workspace/a/b\nbox\nbox\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// PID 1 of a box frees what it has allocated for a program: its memory does not grow with their number.
func TestManyExecutionsTakeNoMemory(t *testing.T) {
	t.Parallel()
	const executions, most = 1200, 2560 << 10
	d := boxtest.Start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	for range executions {
		d.Output(t, "s1", api.ExecRequest{Argv: []string{"true"}})
	}
	if now := boxtest.Memory(t, int(s.PID), "RssAnon"); now > most {
		t.Errorf("PID 1 has %d KiB after %d executions, and may have %d, want now <= most",
			now>>10, executions, most>>10)
	}
}

func TestStandardInputArrivesWhole(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	every := make([]byte, 1<<20)
	for i := range every {
		every[i] = byte(i * 7)
	}
	for _, tc := range []struct {
		name string
		req  api.ExecRequest
		want string
	}{
		{"none", api.ExecRequest{Argv: []string{"cat"}}, ""},
		{"text", api.ExecRequest{Argv: []string{"cat"}, Stdin: "hällo\n"}, "hällo\n"},
		{"binary", api.ExecRequest{
			Argv: []string{"cat"}, Stdin: base64.StdEncoding.EncodeToString(every), StdinEncoding: "base64", Encoding: "base64",
		}, base64.StdEncoding.EncodeToString(every)},
		{"not read", api.ExecRequest{Argv: []string{"echo", "x"}, Stdin: strings.Repeat("y", 1<<20)}, "x\n"},
		{"read twice", api.ExecRequest{Command: new("head -c1; cat"), Stdin: "abc"}, "abc"},
	} {
		if got := d.Output(t, "s1", tc.req); got != tc.want {
			t.Errorf("%s: %d bytes, %.40q", tc.name, len(got), got)
		}
	}
}

// A command may be longer than the kernel accepts as one argument (MAX_ARG_STRLEN, 128 KiB), and the program must not notice.
func TestACommandOfAnyAllowedLengthRuns(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for _, size := range []int{1 << 10, 128<<10 - 1, 128 << 10, 128<<10 + 1, 1 << 20} {
		for _, lang := range []struct{ name, comment, code string }{
			{"sh", "#", "\necho $# $((6*7)); cat"}, {"python", "#", "\nimport sys; print(len(sys.argv)-1, 6*7); print(sys.stdin.read(), end='')"},
		} {
			code := lang.comment + strings.Repeat("x", size-len(lang.comment)-len(lang.code)) + lang.code
			got := d.Output(t, "s1", api.ExecRequest{Code: &code, Language: lang.name, Stdin: "input\n"})
			if got != "0 42\ninput\n" {
				t.Errorf(`%s of %d bytes: got %q, want "0 42\ninput\n"`, lang.name, size, got)
			}
		}
	}
	long := strings.Repeat("x", 1<<20)
	if got := d.Sh(t, "s1", "wc -c <<'END'\n"+long[:1<<20-100]+"\nEND\n"); strings.TrimSpace(got) != fmt.Sprint(1<<20-99) {
		t.Errorf("a here-document: got %q, want strings.TrimSpace(got) == fmt.Sprint(1<<20 - 99)", got)
	}
	if got := d.Sh(t, "s1", "ls -A /workspace /tmp /home/box"); strings.Count(got, "\n") > 5 {
		t.Errorf("scripts are left:\n%s", got)
	}
}

func TestLongOutputKeepsBeginningAndEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	limit := quantity.Size(1000)
	for _, tc := range []struct {
		lines   int // of 10 bytes
		omitted uint64
	}{{0, 0}, {99, 0}, {100, 0}, {101, 10}, {100000, 999000}} {
		line := fmt.Sprintf("seq -f '%%09.0f' %d; seq -f '%%09.0f' %d >&2", tc.lines, tc.lines)
		r := d.Result(t, "s1", api.ExecRequest{Command: &line, OutputLimit: &limit})
		for i, text := range []string{r.Stdout, r.Stderr} {
			want := api.Total{Bytes: uint64(tc.lines) * 10, Omitted: tc.omitted}
			if r.Output[i] != want {
				t.Errorf("%d lines, stream %d: %+v, want %+v", tc.lines, i, r.Output[i], want)
			}
			var expected strings.Builder
			for n := 1; n <= tc.lines; n++ {
				if tc.omitted == 0 || n <= 60 || n > tc.lines-40 {
					fmt.Fprintf(&expected, "%09d\n", n)
				}
				if tc.omitted > 0 && n == 60 {
					fmt.Fprintf(&expected, "\n... [%d bytes omitted] ...\n", tc.omitted)
				}
			}
			if diff := cmp.Diff(expected.String(), text); diff != "" {
				t.Errorf("%d lines, stream %d (-want +got):\n%s", tc.lines, i, diff)
			}
		}
	}
}

// At its timeout everything that a command has started is killed: children, orphans, those in sessions of their own, and stopped
// ones. Other executions of the session are not.
func TestATimeoutKillsAllOfOneExecutionAndNothingElse(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	others := make(chan api.ExecResult, 1)
	go func() {
		req := boxtest.Shell("(setsid sleep 1000 &); touch up; until [ -e done ]; do sleep 0.02; done; echo lived; pgrep -c sleep")
		req.Timeout = new(quantity.Duration(boxtest.Longest))
		r, _ := d.Exec(t.Context(), "s1", &req)
		others <- r
	}()
	boxtest.Eventually(t, "the other execution runs", func() bool {
		r := d.Result(t, "s1", api.ExecRequest{Argv: []string{"test", "-e", "up"}})
		return r.Status == "exited" && r.ExitCode != nil && *r.ExitCode == 0
	})
	line := `trap '' TERM INT HUP
	sleep 1001 & (sleep 1002 &) ; setsid sleep 1003 & setsid sh -c 'trap "" TERM; (setsid sleep 1004 &); sleep 1005' &
	sleep 1006 & kill -STOP $!
	setsid sh -c 'while :; do (setsid sleep 1007 &); sleep 0.01; done' &
	sleep 1008`
	r := d.Result(t, "s1", api.ExecRequest{Command: &line, Timeout: boxtest.Duration("700ms")})
	if r.Status != "timed_out" {
		t.Errorf(`r = %s, want r.Status == "timed_out"`, boxtest.Show(r))
	}
	left := d.Result(t, "s1", boxtest.Shell("pgrep -fa 'sleep 100[1-8]'"))
	if left.Stdout != "" {
		t.Errorf("processes that run after the timeout:\n%s", left.Stdout)
	}
	d.Sh(t, "s1", "touch done")
	if r := <-others; r.Status != "exited" || !strings.HasPrefix(r.Stdout, "lived\n") || r.LeftoversKilled != 1 {
		t.Errorf(`the other execution: r = %s, want r.Status == "exited" and r.Stdout starting with "lived\n" and r.LeftoversKilled == 1`,
			boxtest.Show(r))
	}
	noSleepIn(t, d, "s1")
}

func TestWhatACommandLeavesRunningIsKilledAndCounted(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.keeper]\nleftovers = \"keep\"\n")
	d.NewSession(t, api.SessionRequest{ID: "kill"})
	for _, tc := range []struct {
		line  string
		count int
	}{
		{"true", 0},
		{"sleep 1000 & echo on", 1},
		{"sleep 1000 & sleep 1000 & (setsid sleep 1000 &); echo on", 3},
		{"sleep 1000 & kill $!; wait; echo on", 0},
	} {
		// Leftovers hold the pipes open: the answer does not wait for them.
		if r := d.Result(t, "kill", boxtest.Shell(tc.line)); r.Status != "exited" || r.LeftoversKilled != tc.count {
			t.Errorf(`%s: r = %s, want r.Status == "exited" and r.LeftoversKilled == %v`,
				tc.line, boxtest.Show(r), tc.count)
		}
	}
	noSleepIn(t, d, "kill")
	d.NewSession(t, api.SessionRequest{ID: "keep", Profile: "keeper"})
	if r := d.Result(t, "keep", boxtest.Shell("sleep 1000 & echo on")); r.LeftoversKilled != 0 {
		t.Errorf("r = %s, want r.LeftoversKilled == 0", boxtest.Show(r))
	}
	// It may still be the shell before its execve.
	if got := d.Sh(t, "keep", "until pgrep sleep >/dev/null; do :; done; pgrep -c sleep"); got != "1\n" {
		t.Errorf(`left in the background: got %s, want "1\n"`, got)
	}
}

// traced is a program that makes its parent, PID 1, its tracer, as some do to see whether a debugger has them.
const traced = `#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <unistd.h>

static volatile int got;

static void handle(int signal)
{
	got = signal;
}

int main(int argc, char **argv)
{
	if (ptrace(PTRACE_TRACEME, 0, 0, 0))
		perror("ptrace");
	signal(SIGUSR1, handle);
	raise(SIGUSR1);
	printf("%d\n", got == SIGUSR1);
	fflush(stdout);
	ptrace(PTRACE_TRACEME, 0, 0, 0);
	execl("/bin/echo", "echo", "on", (char *)0);
	return 1;
}
`

func TestAProgramThatMakesPID1ItsTracerGoesOn(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "gcc")
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	build := boxtest.Shell("gcc -O1 -xc -o traced -")
	build.Stdin, build.Timeout = traced, boxtest.Duration("2m")
	d.Output(t, "s1", build)
	if got := d.Output(t, "s1", api.ExecRequest{Argv: []string{"./traced"}}); got != "1\non\n" {
		t.Errorf("it writes %q, want that it has its signal and goes on after an execve", got)
	}
}

func TestExecutionsOfASessionRunAtOnce(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	const n = 32 // exec.max_per_session
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			// Each waits for all others: they cannot run one by one.
			line := fmt.Sprintf("touch here.%d; until [ $(ls here.* | wc -l) = %d ]; do sleep 0.2; done; echo %d", i, n, i)
			r, err := d.Exec(t.Context(), "s1", &api.ExecRequest{Command: &line, Timeout: boxtest.Duration("2m")})
			if err != nil || r.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf(`%d: r = %s, err = %v, want no error and r.Stdout == fmt.Sprintf("%%d\n", i)`,
					i, boxtest.Show(r), err)
			}
		})
	}
	wg.Wait()
}

// A client that shuts down its sending side and waits for the answer still counts as connected, until it closes the connection.
func TestAClientMayEndWhatItSends(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	send := func(line string) *net.UnixConn {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: d.Socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://boxd/v1/sessions/s1/exec", strings.NewReader(fmt.Sprintf(`{"command":%q}`, line)))
		if err == nil {
			err = req.Write(conn)
		}
		if err == nil {
			err = conn.CloseWrite()
		}
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := send("sleep 0.5; echo done")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var result api.ExecResult
	if err := json.NewDecoder(resp.Body).Decode(&result); err != nil || resp.StatusCode != http.StatusOK || result.Stdout != "done\n" {
		t.Errorf(`resp.Status = %s, result = %+v, err = %v, want no error and resp.StatusCode == 200 and result.Stdout == "done\n"`,
			resp.Status, result, err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("boxd waits for more: n = %d, err = %v, want err is io.EOF", n, err)
	}
	running := func(want int) func() bool {
		return func() bool {
			s, err := d.Session(t.Context(), "s1")
			return err == nil && s.Running == want
		}
	}
	conn = send("sleep 1000")
	boxtest.Eventually(t, "the program runs", running(1))
	conn.Close()
	boxtest.Eventually(t, "the program has ended with the connection of its client", running(0))
}

func TestAClientThatGoesEndsItsProgram(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.Exec(ctx, "s1", &api.ExecRequest{Command: new("trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000"), Timeout: boxtest.Duration("2m")})
			failed <- err
		}()
		boxtest.Eventually(t, "the program runs", func() bool {
			s, err := d.Session(t.Context(), "s1")
			return err == nil && s.Running == 1
		})
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v, want err is context.Canceled", err)
		}
		boxtest.Eventually(t, "no program runs", func() bool {
			s, err := d.Session(t.Context(), "s1")
			return err == nil && s.Running == 0
		})
		noSleepIn(t, d, "s1")
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	// A one-shot session ends with its client too.
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := d.Run(ctx, &api.OneShotRequest{Exec: api.ExecRequest{Command: new("sleep 1000"), Timeout: boxtest.Duration("2m")}})
		failed <- err
	}()
	boxtest.Eventually(t, "the program runs", func() bool { return len(sessions(t, d)) == 1 })
	cancel()
	<-failed
	boxtest.Eventually(t, "the session is gone", func() bool { return len(sessions(t, d)) == 0 })
	d.Warm()
	d.NothingLeft(before)
}

// Many scripts rely on this: echo failed > /dev/stderr.
func TestStandardStreamsCanBeOpenedByName(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.Shell("echo one > /dev/stdout; echo two > /dev/stderr; cat /dev/stdin; echo three >> /proc/self/fd/1")
	req.Stdin = "input\n"
	if r := d.Result(t, "s1", req); r.Stdout != "one\ninput\nthree\n" || r.Stderr != "two\n" {
		t.Errorf(`r = %s, want r.Stdout == "one\ninput\nthree\n" and r.Stderr == "two\n"`, boxtest.Show(r))
	}
	c := converse(t.Context(), d, "s1", boxtest.Shell("cat /dev/stdin > /dev/stderr"))
	c.says(t, "input")
	c.hears(t, "input")
	c.in.Close()
	c.ends(t)
}

func TestOutputThatIsNoTextComesAsAsked(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.Shell(`printf 'a\377\0b'`)
	if got := d.Output(t, "s1", req); got != "a\ufffd\x00b" {
		t.Errorf(`as text: got %q, want "a\ufffd\x00b"`, got)
	}
	req.Encoding = "base64"
	if got := d.Output(t, "s1", req); got != base64.StdEncoding.EncodeToString([]byte("a\xff\x00b")) {
		t.Errorf(`as base64: got %q, want base64.StdEncoding.EncodeToString([]byte("a\xff\x00b"))`, got)
	}
}

// Values in env are visible to the programs only.
func TestValuesOfTheEnvironmentStaySecret(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	secret := map[string]string{"TOKEN": "hush-4711"}
	d.NewSession(t, api.SessionRequest{ID: "s1", Env: secret})
	if got := d.Sh(t, "s1", "echo $TOKEN"); got != "hush-4711\n" {
		t.Errorf(`got %q, want "hush-4711\n"`, got)
	}
	d.Result(t, "s1", api.ExecRequest{Argv: []string{"no-such-program"}, Env: secret})
	shown := string(d.Raw(t, "GET", "/v1/sessions/s1", "").Body) + string(d.Raw(t, "GET", "/v1/sessions", "").Body)
	if _, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1", Env: map[string]string{"TOKEN": "hush-4712"}}); err == nil {
		t.Error("no error for another value of a secret variable")
	} else {
		shown += fmt.Sprintf("%+v", err)
	}
	records, err := filepath.Glob(filepath.Join(d.State, "sessions", "*"))
	if err != nil || len(records) == 0 {
		t.Fatalf("records: records = %v, err = %v, want no error and len(records) != 0", records, err)
	}
	for _, path := range records {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shown += string(text)
	}
	shown += d.Log()
	if strings.Contains(shown, "hush") {
		t.Errorf("shown:\n%s", shown)
	}
}
