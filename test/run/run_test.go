// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

const left = `{"Action":"run","Package":"p","Test":"TestLeft"}
{"Action":"output","Package":"p","Test":"TestLeft","Output":"    ground.go:30: left to another ground, for it needs a disk\n"}
{"Action":"skip","Package":"p","Test":"TestLeft"}
`

func of(action, name string) string {
	return `{"Action":"` + action + `","Package":"` + modulePath + `/p","Test":"` + name + `"}` + "\n"
}

func newRunner(t *testing.T) *runner {
	t.Helper()
	return &runner{dir: t.TempDir(), results: map[test][]result{}}
}

// A test that one ground skips must pass on another.
func TestWhatNoGroundHasRunHasFailed(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	r.want("p", []string{"TestGood", "TestLeft", "TestNeverBegun"})
	if err := r.read("boxes", hostGround, strings.NewReader(of("pass", "TestGood")+left)); err != nil {
		t.Fatal(err)
	}
	if got := r.unproven(); !slices.Equal(got, []test{{"p", "TestLeft"}, {"p", "TestNeverBegun"}}) {
		t.Errorf(`on no ground: got %v, want []test{{"p", "TestLeft"}, {"p", "TestNeverBegun"}}`, got)
	}
	if got := r.results[test{"p", "TestLeft"}]; len(got) != 1 || got[0].why != "a disk" {
		t.Errorf(`left: got %+v, want len(got) == 1 and got[0].why == "a disk"`, got)
	}
	if err := r.summary(); err == nil || !strings.Contains(err.Error(), "2 tests have run on no ground") {
		t.Errorf(`the summary ends with %v, want an error containing "2 tests have run on no ground"`, err)
	}
	if err := r.read("machine", groundUML, strings.NewReader(of("pass", "TestLeft")+of("pass", "TestNeverBegun"))); err != nil {
		t.Fatal(err)
	}
	if err := r.summary(); err != nil {
		t.Error(err)
	}
}

// A test that needs User-mode Linux or an unemulated processor may have run nowhere, on a host with another kind of machine that
// has tried it.
func TestWhatNoMachineOfTheHostHasMayRunNowhere(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		needs, ground string
		unproven      int
	}{
		{boxtest.OwnKernel, groundKVM, 0},
		{boxtest.OwnKernel, groundUML, 1},
		{boxtest.NotEmulated, groundEmulation, 0},
		{boxtest.NotEmulated, groundUML, 1},
		{boxtest.NotEmulated, groundKVM, 1},
	} {
		said := strings.ReplaceAll(left, "a disk", tc.needs)
		r := newRunner(t)
		r.want("p", []string{"TestLeft"})
		if err := r.read(layerBoxes, hostGround, strings.NewReader(said)); err != nil {
			t.Fatal(err)
		}
		if got := r.unproven(); len(got) != 1 {
			t.Errorf("before the machine: got %v, want len(got) == 1", got)
		}
		if err := r.read(layerMachine, tc.ground, strings.NewReader(said)); err != nil {
			t.Fatal(err)
		}
		if got := r.unproven(); len(got) != tc.unproven {
			t.Errorf("%s on %s: got %v, want len(got) == %v", tc.needs, tc.ground, got, tc.unproven)
		}
	}
}

// A test with a skipped subtest does not count as passed.
func TestAPartThatIsLeftIsNotProven(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	r.want("p", []string{"TestLeft"})
	part := strings.ReplaceAll(left, `"TestLeft"`, `"TestLeft/part"`)
	if err := r.read("boxes", hostGround, strings.NewReader(part+of("pass", "TestLeft"))); err != nil {
		t.Fatal(err)
	}
	if got := r.unproven(); len(got) != 1 {
		t.Errorf("on no ground: got %v, want len(got) == 1", got)
	}
}

// As many machines share the work as there is memory for, and no more than there is work.
func TestMachinesShareTheWork(t *testing.T) {
	t.Parallel()
	most := 2
	if hasMemory() {
		most = 3
	}
	for _, tc := range []struct {
		ground      string
		fleet       bool
		items, want int
	}{
		{groundUML, false, 9, most},
		{groundUML, false, 1, 1},
		{groundUML, true, 9, 2},
		{groundKVM, true, 9, 2},
		{groundKVM, false, 9, 1},
		{groundEmulation, false, 9, 1},
	} {
		r := newRunner(t)
		r.fleet = tc.fleet
		if got := (&machine{runner: r, ground: tc.ground}).count(make([]work, tc.items)); got != tc.want {
			t.Errorf("%+v: got %d, want %v", tc, got, tc.want)
		}
	}
}

// Machines run beside real boxes, but for where they need their results, or would stand still.
func TestTheMachineRunsBesideBoxes(t *testing.T) {
	t.Parallel()
	small := !hasMemory() || runtime.NumCPU() < besideProcessors
	for _, tc := range []struct {
		ground      string
		abuse, want bool
	}{
		{groundUML, false, small},
		{groundKVM, false, small},
		{groundEmulation, false, true},
		{groundUML, true, true},
	} {
		r := newRunner(t)
		r.abuse = tc.abuse
		if got := (&machine{runner: r, ground: tc.ground}).runsApart(); got != tc.want {
			t.Errorf("%+v: got %v, want %v", tc, got, tc.want)
		}
	}
}

// Layers are summed up in one order, whichever has ended first.
func TestLayersAreSummedUpInOrder(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	for _, name := range []string{layerPure, layerMachine, layerBoxes, layerDemo} {
		r.layer(t.Context(), name, hostGround, func(context.Context) error { return nil })
	}
	if err := r.summary(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range r.layers {
		got = append(got, l.name)
	}
	if want := []string{layerPure, layerBoxes, layerMachine, layerDemo}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The temporary files of a suite are on an ext4 of its own, of which nothing is left.
func TestASuiteHasAFilesystemOfItsOwn(t *testing.T) {
	boxtest.NewFilesystem(t, "ext4") // skips where there are none
	t.Chdir(t.TempDir())
	r := newRunner(t)
	program := filepath.Join(r.dir, "tests", runtime.GOARCH, "p", "test")
	for _, name := range []string{program, "programs", "test2json"} {
		r.built.Store(name, func() error { return nil })
	}
	const (
		lists  = "#!/bin/sh\nif [ \"$1\" = -test.list ]; then echo TestScratch; exit; fi\n"
		writes = "echo text >\"$TMPDIR/file\" && [ \"$(stat -f -c %T \"$TMPDIR\")\" = ext2/ext3 ] && [ \"$(stat -c %m \"$TMPDIR\")\" = \"$TMPDIR\" ] && action=pass\n"
		says   = `echo "{\"Action\":\"${action-fail}\",\"Package\":\"p\",\"Test\":\"TestScratch\"}"` + "\n"
	)
	if err := errors.Join(os.Mkdir("p", 0o755), os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, []byte(lists+writes+says), 0o755), //nolint:gosec // it is a program
		os.WriteFile(filepath.Join(r.dir, "test2json"), []byte("#!/bin/sh\ncat\n"), 0o755)); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	if err := r.here(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if got := r.results[test{"p", "TestScratch"}]; len(got) != 1 || got[0].action != "pass" {
		t.Errorf(`got %+v, want len(got) == 1 and got[0].action == "pass"`, got)
	}
	if left, err := filepath.Glob(filepath.Join(r.dir, "scratch-*")); err != nil || len(left) > 0 {
		t.Errorf("left: left = %q, err = %v, want no error and len(left) == 0", left, err)
	}
}

// A test that has failed on one ground has failed, whatever its result on another.
func TestOneFailureIsAFailure(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	for _, events := range []string{of("fail", "TestBad"), of("fail", "TestBad/part"), of("fail", "")} {
		if err := r.read("boxes", hostGround, strings.NewReader(events)); !errors.Is(err, errFailed) {
			t.Errorf("%s: err = %v, want err is errFailed", events, err)
		}
	}
	if err := r.read("boxes", hostGround, strings.NewReader("no event")); err == nil {
		t.Error("no error for a line that is no event")
	}
}

// hearingOf reads a stream in which the lines of the machine begin with "W".
func hearingOf(t *testing.T, stream string) (*consoleReader, error) {
	t.Helper()
	r := newRunner(t)
	// A stand-in for test2json: it passes events on unchanged, and ends with its input.
	script := "#!/bin/sh\nwhile read -r line; do case $line in {*) echo \"$line\" ;; esac; done\n"
	if err := os.WriteFile(filepath.Join(r.dir, "test2json"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	m := &machine{runner: r, ground: groundUML, word: "W"}
	h := &consoleReader{machine: m, lines: bufio.NewReader(strings.NewReader(strings.ReplaceAll(stream, "; ", "\n"))), items: []work{{name: "3-00-p-0", pkg: "p"}}, done: map[string]bool{}}
	return h, h.read(t.Context())
}

// A machine has succeeded only in items that it reports as ended, without a failed test, and only if it reports its own end.
func TestAMachineThatBreaksOffHasFailed(t *testing.T) {
	t.Parallel()
	pass, fail := strings.TrimSpace(of("pass", "TestGood")), strings.TrimSpace(of("fail", "TestBad"))
	for _, tc := range []struct{ stream, want string }{
		{"", "before its work was done"},
		{"W begin 3-00-p-0; " + pass + "; ", "in the middle"},
		{"W begin 3-00-p-0; " + pass + "; W end 3-00-p-0 0; ", "before its work was done"},
		{"W begin 3-00-p-0; " + pass + "; W end 3-00-p-0 2; W all 0; ", "exit status 2"},
		{"W begin 3-00-p-0; " + fail + "; W end 3-00-p-0 1; W all 0; ", "tests have failed"},
		{"W begin 3-00-p-0; " + pass + "; W end 3-00-p-0 0; W all 1; ", "could not be set up"},
		{"W begin elsewhere; ", "is no item"},
		{"W end 3-00-p-0 0; ", "which it has not begun"},
		{"W begin 3-00-p-0; " + pass + "; all 0; W beat; ", "in the middle"}, // without the prefix it is output of a test
		{"W cut 5; W all 0; ", "asked to be cut off"},
		{"W begin 3-00-p-0; W cut; W end 3-00-p-0 0; W all 0; ", "asked to be cut off"},
		{"W begin 3-00-p-0; " + pass + "; W restore; W end 3-00-p-0 0; W all 0; ", "asked for the power of another"},
	} {
		if _, err := hearingOf(t, tc.stream); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.stream, err, tc.want)
		}
	}
	h, err := hearingOf(t, "noise; W beat; W begin 3-00-p-0; "+pass+"; W end 3-00-p-0 0; W all 0; ")
	if err != nil || !h.done["3-00-p-0"] || len(h.results) != 1 {
		t.Errorf("%v, done %v, results %v", err, h.done, h.results)
	}
}

// After a power cut a machine continues with the interrupted item.
func TestAMachineThatIsCutOffGoesOn(t *testing.T) {
	t.Parallel()
	h, err := hearingOf(t, "W begin 3-00-p-0; W cut 5; W all 1; ")
	if !errors.Is(err, errCut) || h.promised != "5" || h.item != "3-00-p-0" {
		t.Fatalf(`err = %v, h = %+v, want err is errCut and h.promised == "5" and h.item == "3-00-p-0"`, err, h)
	}
	hear := func(stream string) error {
		h.lines = bufio.NewReader(strings.NewReader(strings.ReplaceAll(stream, "; ", "\n")))
		return h.read(t.Context())
	}
	pass := strings.TrimSpace(of("pass", "TestGood"))
	if err := hear("W begin 3-00-p-0; W cut 6; W begin 3-00-p-0; " + pass + "; W end 3-00-p-0 0; W all 0; "); err == nil || !strings.Contains(err.Error(), "asked to be cut off") {
		t.Errorf(`cut off twice: err = %v, want an error containing "asked to be cut off"`, err)
	}
	if !h.done["3-00-p-0"] || len(h.results) != 1 || h.promised != "" {
		t.Errorf("done %v, results %v, promised %q", h.done, h.results, h.promised)
	}
}

// Tests that need two machines are run where there are two, and nowhere else; if they are requested, none may be missing.
func TestTestsOfTwoMachinesAreAskedForByName(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	if r.selected("test/install", pairTests[0]) || !r.selected("test/install", "TestAFreshInstallation") {
		t.Error("asked is wrong about tests of one and of two machines")
	}
	r.options = options{fleet: true, system: "bookworm", arch: "amd64"}
	if err := r.options.read("", ""); err != nil {
		t.Fatal(err)
	}
	if !r.selected("test/install", pairTests[0]) || !r.selected("test/install", pairTests[1]) || r.selected("test/install", "TestAFreshInstallation") {
		t.Error("with -run of the tests of two machines another test is asked for, or one of them is not")
	}
	r.want("test/install", pairTests)
	if err := r.summary(); err == nil {
		t.Error("the tests have not run, and the summary has no error")
	}
}

// A machine that was powered off is powered on when the other requests it.
func TestTheOtherMachineGetsItsPowerAgain(t *testing.T) {
	t.Parallel()
	m := &machine{runner: newRunner(t)}
	if err := m.connect(); err != nil {
		t.Fatal(err)
	}
	defer m.cable[0].Close()
	defer m.cable[1].Close()
	h := &consoleReader{machine: m, lines: bufio.NewReader(strings.NewReader("W restore\nW all 0\n"))}
	h.word = "W"
	if err := h.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.restore:
	default:
		t.Error("the machine has not asked for the power of the other one")
	}
	packet := make([]byte, 8)
	if _, err := m.cable[0].Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := m.cable[1].Read(packet); err != nil || string(packet[:n]) != "hello" {
		t.Errorf(`the other end has %q, %v, want no error and packet[:n] == "hello"`, packet[:n], err)
	}
}

// A test that has the power cut is a part of its own, so that no other test runs twice.
func TestTestsAreDealt(t *testing.T) {
	t.Parallel()
	got := split([]string{"TestA", "TestB", "TestCCutOff", "TestD"}, 2)
	if want := [][]string{{"TestA"}, {"TestB", "TestD"}, {"TestCCutOff"}}; !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// lastWords is a file that is empty on the first read; then its machine writes to it and ends.
type lastWords struct {
	ended chan struct{}
	text  *strings.Reader // nil: nothing is written yet
}

func (f *lastWords) Read(p []byte) (int, error) {
	if f.text == nil {
		f.text = strings.NewReader("last words")
		close(f.ended)
		return 0, io.EOF
	}
	return f.text.Read(p)
}

// Everything that a machine has written is read before its end is reported.
func TestTheLastWordsOfAMachineAreRead(t *testing.T) {
	t.Parallel()
	f := &lastWords{ended: make(chan struct{})}
	text, err := io.ReadAll(&tail{file: f, ended: f.ended, silent: func() { t.Error("the machine was ended for its silence") }})
	if err != nil || string(text) != "last words" {
		t.Errorf(`text = %q, err = %v, want no error and text == "last words"`, text, err)
	}
}

// Invalid values on the command line are refused by name, before anything is built.
func TestFlagsAreRefusedByName(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "run")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tc := range []struct{ args, want string }{
		{"-skip=boxen", `-skip is "boxen": must be one of pure, packages, boxes, machine, demo`},
		{"-run=(", `-run is "("`},
		{"-ground=xen", `-ground is "xen": must be one of kvm, uml, emulation`},
		{"-system=sid", `-system is "sid": must be one of bookworm, trixie`},
		{"-arch=mips", `-arch is "mips": must be one of amd64, arm64`},
		{"all", `argument "all" is not known`},
	} {
		out, err := exec.CommandContext(t.Context(), program, tc.args).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: err = %v, out = %s, want an error and out containing %q", tc.args, err, out, tc.want)
		}
	}
}

// A machine of another architecture runs the tests of its list, and those of packages that are pure on this host.
func TestAnotherArchitectureHasAListOfItsOwn(t *testing.T) {
	t.Chdir("../..")
	m := &machine{runner: newRunner(t)}
	for _, tc := range []struct {
		arch, pkg, name string
		want            bool
	}{
		{"amd64", "test/host", "TestScratchRoundsLeaveNothing", true}, // which is in no list
		{"arm64", "test/host", "TestScratchRoundsLeaveNothing", false},
		{"arm64", "test/boxes", "TestT43EveryCallOfEveryABI", true},
		{"arm64", "isolation/seccomp", "TestKernel", true},
	} {
		m.arch = tc.arch
		wanted, err := m.names()
		if err != nil {
			t.Fatal(err)
		}
		if got := wanted(tc.pkg, tc.name); got != tc.want {
			t.Errorf("%s runs %s of %s: got %v, want %v", tc.arch, tc.name, tc.pkg, got, tc.want)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		m.arch = arch
		asksKernel := slices.ContainsFunc(m.testPackages(), func(s suite) bool { return s.pkg == "isolation/seccomp" })
		if want := arch != runtime.GOARCH; asksKernel != want {
			t.Errorf("%s runs pure tests on this host: asksKernel = %v, want %v", arch, asksKernel, want)
		}
	}
}

func TestWhatAFailedTestSaysIsToldAgain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"=== RUN   TestX\n    x_test.go:1: no\n    boxtest.go:9: log of boxd:\n        lines\n--- FAIL: TestX\n": "=== RUN   TestX\n    x_test.go:1: no\n    boxtest.go:9:",
		"    x_test.go:1: no\n":          "    x_test.go:1: no",
		strings.Repeat("x", 2*maxOutput): strings.Repeat("x", maxOutput),
	} {
		if got := failure(text); got != want {
			t.Errorf("%.60q: got %.60q, want %q", text, got, want)
		}
	}
}

// The longest test is the first row, with its layer, ground and package.
func TestDurationsAreSorted(t *testing.T) {
	r := &runner{options: options{durations: filepath.Join(t.TempDir(), "durations")}, results: map[test][]result{
		{"test/a", "TestShort"}: {{layer: layerPure, ground: hostGround, action: "pass", seconds: 0.25}},
		{"test/b", "TestLong"}:  {{layer: layerBoxes, ground: hostGround, action: "pass", seconds: 2}, {layer: layerMachine, ground: groundUML, action: "fail", seconds: 10}},
	}}
	if err := r.writeDurations(); err != nil {
		t.Fatal(err)
	}
	const want = "10.00\tmachine\tuml\ttest/b\tTestLong\n2.00\tboxes\tthis host\ttest/b\tTestLong\n0.25\tpure\tthis host\ttest/a\tTestShort\n"
	if got, err := os.ReadFile(r.durations); err != nil || string(got) != want {
		t.Errorf("err = %v, got %q, want no error and got == want", err, got)
	}
}

// Packages that npm fetches are in the suite unchanged. Without a network, the suite lacks only them.
func TestPackagesOfNPMAreInTheSuite(t *testing.T) {
	for name, tc := range map[string]struct{ npm, want string }{
		"fetched":     {"mkdir -p \"$3/node_modules/$7\" && echo code >\"$3/node_modules/$7/index.js\"", "code\n"},
		"not fetched": {"echo no network >&2; exit 1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			bin, suite := t.TempDir(), t.TempDir()
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			if err := errors.Join(os.Mkdir(filepath.Join(suite, "npm"), 0o755), os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\n"+tc.npm+"\n"), 0o755)); err != nil { //nolint:gosec // it is a program
				t.Fatal(err)
			}
			m := &machine{runner: newRunner(t)}
			if err := m.fillPackages(t.Context(), suite, "p@1"); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(suite, "npm", boxtest.PackagesDir("p@1"), "node_modules/p@1/index.js"))
			if string(got) != tc.want || tc.want == "" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf(`the suite has %q: err = %v, want got == tc.want and (tc.want != "" or err is fs.ErrNotExist)`,
					got, err)
			}
		})
	}
}

// A test of a suite that reads a file which the machine has not says so, and is left to this host.
func TestTestsInTheMachineReadWhatItHas(t *testing.T) {
	t.Parallel()
	exists := func(path string) bool {
		return slices.ContainsFunc(machineFiles, func(file string) bool {
			return path == file || strings.HasPrefix(file, path+"/") || strings.HasPrefix(path, file+"/")
		})
	}
	found := 0
	for _, s := range suites {
		if s.machine == 0 {
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", s.pkg, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no tests (%v)", s.pkg, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			asks := regexp.MustCompile(`\b(boxtest\.R|r)equireSources\(t\)`).Match(text)
			for _, m := range regexp.MustCompile(`"\.\./\.\./([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
				if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil || strings.HasPrefix(m[1], "..") {
					continue // what a test tries on boxd
				}
				found++
				if !asks && !exists(m[1]) {
					t.Errorf("%s reads %s, which the machine has not: boxtest.RequireSources leaves the test to this host", file, m[1])
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d paths are found", found)
	}
}
