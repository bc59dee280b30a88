// SPDX-License-Identifier: Apache-2.0

// Package boxes_test holds real boxes to what boxd promises of them: what a program in a box sees, what it can reach, and what attacks on all of that come to.
//
// The attacks are made by the program in ./probe, so that they need nothing of the host.
package boxes_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestMain(m *testing.M) {
	if request := os.Getenv(callerVariable); request != "" {
		os.Exit(beCaller(request))
	}
	boxtest.BePatient()
	goleak.VerifyTestMain(m)
}

// Host ids that nobody on a host has, for directories that are lent to boxes.
const (
	owner    = 4242
	stranger = 4343
)

// lendable allows what a test puts into the lend directory of its daemon.
const lendable = "[mounts]\nallow = [\"%DIR%/lend\"]\n"

// Where boxes find the probe, and the directory that is mounted for it.
const (
	probeDir = "/opt"
	probe    = probeDir + "/probe"
)

var probeProgram struct {
	once sync.Once
	data []byte
}

// start starts a daemon that may lend directories, one of them with the probe in it. Configuration of
// [mounts] takes the place of lendable.
func start(t *testing.T, config ...string) *boxtest.Daemon {
	t.Helper()
	if !strings.Contains(strings.Join(config, ""), "[mounts]") {
		config = append(config, lendable)
	}
	d := boxtest.Start(t, config...)
	probeProgram.once.Do(func() {
		data, err := os.ReadFile(boxtest.Build(t, "./test/boxes/probe"))
		if err != nil {
			t.Fatal(err)
		}
		probeProgram.data = data
	})
	dir := lend(t, d, "probe", 0)
	if err := os.WriteFile(filepath.Join(dir, "probe"), probeProgram.data, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// lend makes a directory of an owner that boxes of the daemon may have.
func lend(t *testing.T, d *boxtest.Daemon, name string, uid int) string {
	t.Helper()
	dir := filepath.Join(d.Dir, "lend", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	return dir
}

// put writes a file on the host.
func put(t *testing.T, path, text string, mode os.FileMode, uid int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // past the umask and what chown takes off
		t.Fatal(err)
	}
}

// box is a session of a daemon, with the probe lent to it.
type box struct {
	api.Session
	t *testing.T
	d *boxtest.Daemon
}

// newBox makes a session as change asks for it.
func newBox(t *testing.T, d *boxtest.Daemon, change ...func(*api.SessionRequest)) *box {
	t.Helper()
	req := &api.SessionRequest{Mounts: []api.Mount{{Source: filepath.Join(d.Dir, "lend", "probe"), Target: probeDir, Mode: "ro"}}}
	for _, f := range change {
		f(req)
	}
	s, _, err := d.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return &box{Session: s, t: t, d: d}
}

// withMounts adds mounts to a request.
func withMounts(mounts ...api.Mount) func(*api.SessionRequest) {
	return func(r *api.SessionRequest) { r.Mounts = append(r.Mounts, mounts...) }
}

// remove ends the session.
func (b *box) remove() {
	b.t.Helper()
	if err := b.d.Delete(b.t.Context(), b.ID); err != nil {
		b.t.Fatal(err)
	}
}

// exec runs a program and returns its result, however it ended.
func (b *box) exec(req *api.ExecRequest) api.ExecResult {
	b.t.Helper()
	r, err := b.d.Exec(b.t.Context(), b.ID, req)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// run runs a program that must succeed and returns what it wrote.
func (b *box) run(argv ...string) string {
	b.t.Helper()
	r := b.exec(&api.ExecRequest{Argv: argv})
	if r.Status != "exited" || *r.ExitCode != 0 {
		b.t.Fatalf("%v: %s\n%s%s", argv, outcome(&r), r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// sh runs a line of shell that must succeed and returns what it wrote.
func (b *box) sh(line string) string {
	b.t.Helper()
	return b.run("/bin/sh", "-euc", line)
}

// ask runs a verb of the probe and returns its lines.
func (b *box) ask(verb string, args ...string) []string {
	b.t.Helper()
	return lines(b.run(append([]string{probe, verb}, args...)...))
}

// attempt is a call of the probe and the errnos it must answer, "EPERM|EACCES"; "OK" is success.
type attempt struct{ call, want string }

// try has the probe make attempts, in order, and compares the answers.
func (b *box) try(attempts ...attempt) {
	b.t.Helper()
	args := []string{"try"}
	for _, a := range attempts {
		args = append(args, a.call)
	}
	got := b.ask(args[0], args[1:]...)
	if len(got) != len(attempts) {
		b.t.Fatalf("%d answers to %d attempts: %q", len(got), len(attempts), got)
	}
	for i, a := range attempts {
		answer, ok := strings.CutPrefix(got[i], a.call+" ")
		if !ok || !slices.Contains(strings.Split(a.want, "|"), answer) {
			b.t.Errorf("%s: got %q, want %s", a.call, got[i], a.want)
		}
	}
}

// all makes attempts that share one answer.
func all(want string, calls ...string) []attempt {
	var list []attempt
	for _, c := range calls {
		list = append(list, attempt{c, want})
	}
	return list
}

func lines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

// fields are lines of the form "NAME VALUE" by name.
func fields(list []string) map[string]string {
	m := map[string]string{}
	for _, l := range list {
		name, value, _ := strings.Cut(l, " ")
		m[name] = value
	}
	return m
}

func outcome(r *api.ExecResult) string {
	switch {
	case r.ExitCode != nil:
		return "exited " + strconv.Itoa(*r.ExitCode)
	case r.Failure != nil:
		return r.Status + ": " + r.Failure.Text
	}
	return r.Status + " " + r.Signal
}

// running is a program that was started with a stream and has said "ready".
type running struct {
	t      *testing.T
	stdin  *io.PipeWriter
	out    *output
	result chan api.ExecResult
}

// output collects what a streamed program writes.
type output struct {
	mu   sync.Mutex // guards the field below
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// hold starts a program that says "ready" and then waits for the end of its input.
func (b *box) hold(argv ...string) *running {
	b.t.Helper()
	in, stdin := io.Pipe()
	r := &running{t: b.t, stdin: stdin, out: &output{}, result: make(chan api.ExecResult, 1)}
	timeout := quantity.Duration(longest)
	go func() {
		defer close(r.result)
		defer in.Close()
		req := api.ExecRequest{Argv: argv, Timeout: &timeout}
		result, err := b.d.ExecStream(b.t.Context(), b.ID, &req, client.Stdio{Stdin: in, Stdout: r.out, Stderr: r.out}, nil)
		if err != nil {
			b.t.Errorf("%v: %v", argv, err)
			return
		}
		r.result <- *result
	}()
	boxtest.Eventually(b.t, fmt.Sprintf("%v is ready", argv), func() bool { return strings.Contains(r.out.String(), "ready\n") })
	return r
}

// longest is the most that profile "default" gives an execution.
const longest = 120e9

// release ends the program's input and returns its lines after "ready" and its result.
func (r *running) release() ([]string, api.ExecResult) {
	r.t.Helper()
	r.stdin.Close()
	result, ok := <-r.result
	if !ok {
		r.t.FailNow()
	}
	_, rest, _ := strings.Cut(r.out.String(), "ready\n")
	return lines(rest), result
}

// status reads the fields of a host process's status.
func status(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, l := range lines(string(text)) {
		name, value, _ := strings.Cut(l, ":")
		m[name] = strings.Join(strings.Fields(value), " ")
	}
	return m
}

// statOf is what the host knows about a file.
func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

func decimal[T int64 | uint64](n T) string { return fmt.Sprint(n) }
