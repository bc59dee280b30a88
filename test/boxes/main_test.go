// SPDX-License-Identifier: Apache-2.0

// Package boxes_test holds real boxes to what boxd promises: what a program in a box sees, what it can reach, and what attacks achieve.
//
// The attacks are made by the program in ./probe, so that they do not depend on programs of the host.
package boxes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestMain(m *testing.M) {
	boxtest.BeCaller(nil)
	boxtest.BePatient()
	goleak.VerifyTestMain(m)
}

// Host ids that no user has, for directories that are mounted into boxes.
const (
	owner    = 4242
	stranger = 4343
)

// Path of the probe in a box, and of the directory that is mounted for it.
const (
	probeDir = "/opt"
	probe    = probeDir + "/probe"
)

var probeProgram struct {
	once sync.Once
	data []byte
}

// start starts a daemon with mount sources, one of which has the probe. Configuration of [mounts] replaces boxtest.MountSources,
// and that of [limits] replaces boxtest.BestEffort.
func start(t *testing.T, config ...string) *boxtest.Daemon {
	t.Helper()
	if !strings.Contains(strings.Join(config, ""), "[mounts]") {
		config = append(config, boxtest.MountSources)
	}
	if !strings.Contains(strings.Join(config, ""), "[limits]") {
		config = append(config, boxtest.BestEffort)
	}
	d := boxtest.StartWith(t, config...)
	probeProgram.once.Do(func() {
		data, err := os.ReadFile(boxtest.Build(t, "./test/boxes/probe"))
		if err != nil {
			t.Fatal(err)
		}
		probeProgram.data = data
	})
	dir := d.MountSource(t, "probe", 0)
	if err := os.WriteFile(filepath.Join(dir, "probe"), probeProgram.data, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
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
	if err := os.Chmod(path, mode); err != nil { // regardless of the umask, and of bits that chown has cleared
		t.Fatal(err)
	}
}

// box is a session of a daemon, with the probe mounted in it.
type box struct {
	api.Session
	t *testing.T
	d *boxtest.Daemon
}

// newBox creates a session from a request that change modifies.
func newBox(t *testing.T, d *boxtest.Daemon, change ...func(*api.SessionRequest)) *box {
	t.Helper()
	req := &api.SessionRequest{Mounts: []api.Mount{{Source: filepath.Join(d.Dir, "lent", "probe"), Target: probeDir, Mode: "ro"}}}
	for _, f := range change {
		f(req)
	}
	return &box{Session: d.NewSession(t, *req), t: t, d: d}
}

// withMounts adds mounts to a request.
func withMounts(mounts ...api.Mount) func(*api.SessionRequest) {
	return func(r *api.SessionRequest) { r.Mounts = append(r.Mounts, mounts...) }
}

// remove ends the session.
func (b *box) remove() {
	b.t.Helper()
	if err := b.d.DeleteSession(b.t.Context(), b.ID); err != nil {
		b.t.Fatal(err)
	}
}

// exec runs a program and returns its result, whatever that is. Where the request does not say how long it may take, it is
// Longest.
func (b *box) exec(req *api.ExecRequest) api.ExecResult {
	b.t.Helper()
	patient := *req
	if patient.Timeout == nil {
		patient.Timeout = new(quantity.Duration(boxtest.Longest))
	}
	return b.d.Result(b.t, b.ID, patient)
}

// run runs a program that must succeed and returns its output.
func (b *box) run(argv ...string) string {
	b.t.Helper()
	return b.d.Output(b.t, b.ID, api.ExecRequest{Argv: argv})
}

// sh runs a shell line that must succeed and returns its output.
func (b *box) sh(line string) string {
	b.t.Helper()
	return b.run("/bin/sh", "-euc", line)
}

// ask runs a verb of the probe and returns its lines of output.
func (b *box) ask(verb string, args ...string) []string {
	b.t.Helper()
	return lines(b.run(append([]string{probe, verb}, args...)...))
}

// attempt is a call of the probe and the errnos that it may return, "EPERM|EACCES"; "OK" is success.
type attempt struct{ call, want string }

// try has the probe make attempts in order, and compares the results.
func (b *box) try(attempts ...attempt) {
	b.t.Helper()
	b.tryAs("", attempts...)
}

// tryAs is try by a user of the box.
func (b *box) tryAs(user string, attempts ...attempt) {
	b.t.Helper()
	args := []string{probe, "try"}
	for _, a := range attempts {
		args = append(args, a.call)
	}
	got := lines(b.d.Output(b.t, b.ID, api.ExecRequest{Argv: args, User: user}))
	if len(got) != len(attempts) {
		b.t.Fatalf("%d answers to %d attempts: got %q, want len(got) == len(attempts)", len(got), len(attempts), got)
	}
	for i, a := range attempts {
		answer, ok := strings.CutPrefix(got[i], a.call+" ")
		if !ok || !slices.Contains(strings.Split(a.want, "|"), answer) {
			b.t.Errorf("%s: got %q, want %s", a.call, got[i], a.want)
		}
	}
}

// all makes attempts that have the same result.
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

// fields maps names to values, from lines of the form "NAME VALUE".
func fields(list []string) map[string]string {
	m := map[string]string{}
	for _, l := range list {
		name, value, _ := strings.Cut(l, " ")
		m[name] = value
	}
	return m
}

// hold runs a program that prints "ready" and then waits for EOF on its input, for an hour at most: an attack takes as long as
// it takes.
func (b *box) hold(argv ...string) *boxtest.Running {
	b.t.Helper()
	return b.d.Hold(b.t, b.ID, api.ExecRequest{Argv: argv, Timeout: boxtest.Duration("1h")})
}

// statOf returns the lstat of a file on the host.
func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

func decimal[T int64 | uint64](n T) string { return fmt.Sprint(n) }
