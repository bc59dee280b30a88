// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const modulePath = "github.com/boxd-dev/boxd"

// suite is a package whose tests start real boxes.
type suite struct {
	pkg     string
	here    bool // this host runs it; otherwise it needs a machine
	machine int  // the phase in which a machine runs it, see test/vm/guest.sh; 0: only this host runs it
	parts   int  // into which its tests are split for machines that run in parallel
}

// suites are all suites, in the order in which they are started: the longest first.
var suites = []suite{
	{"test/sessions", true, 3, 8},
	{"test/fleet", true, 0, 0},
	{"test/install", false, 1, 6},
	{"test/host", false, 2, 4},
	{"test/limits", false, 3, 4},
	{"test/survival", true, 3, 4},
	{"test/e2b", true, 3, 2},
	{"test/network", true, 3, 4},
	{"test/console", true, 3, 2},
	{"test/abuse", true, 3, 4},
	{"cmd/boxctl", true, 3, 2},
	{"test/clients", true, 0, 0},
	{"test/boxes", true, 3, 4},
	{"test/api", true, 3, 2},
	{"test/langbot", true, 3, 2},
	{"test/images", true, 3, 2},
	{"test/buckets", true, 0, 0},
}

// raced are the suites in which boxd has the race detector on this host; with -whole it has in all. It doubles the processor time
// of most tests.
var raced = []string{"test/sessions", "test/api", "test/langbot"}

// foreignSuites are pure packages whose tests depend on the kernel, for a machine of another architecture.
var foreignSuites = []suite{
	{"isolation/seccomp", false, 3, 1},
}

// pairTests are the tests of test/install that need two machines, one each; only -fleet runs them.
var pairTests = []string{"TestTwoMachinesAreAFleet", "TestTheSecondMachineOfAFleet"}

// quickTests are the most useful tests of a minute: isolation of a box, life of a session, exit of a program, a process kept running.
var quickTests = map[string]*regexp.Regexp{
	"test/boxes":    regexp.MustCompile(`^TestT0[1-68]`),
	"test/sessions": regexp.MustCompile(`^Test(EveryEndOfAProgramIsTold|CreateIsGetOrCreate|SessionsOutliveBoxd|AProcessIsStartedOnce|DeleteLeavesNothing)$`),
	"cmd/boxctl":    regexp.MustCompile(`^TestARestartOfBoxdIsNotNoticed$`),
}

// selected reports whether a test is to be run.
func (r *runner) selected(pkg, name string) bool {
	if slices.Contains(pairTests, name) != r.fleet {
		return false
	}
	if r.chosen != nil {
		return slices.Contains(r.chosen[pkg], name)
	}
	if r.quick {
		return quickTests[pkg] != nil && quickTests[pkg].MatchString(name)
	}
	return r.only == nil || r.only.MatchString(name)
}

// lanes is how many suites this host runs at once.
const lanes = 2

// apart are packages whose tests are neither pure nor in a suite: they are in layers of their own.
var apart = []string{"test/packages", "test/soak", "test/bare"}

// command returns a command that is ended with ctx, along with everything it has started.
func (r *runner) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = os.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// do runs a command whose output is only reported if it fails.
func (r *runner) do(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := r.command(ctx, name, args...)
	cmd.Env = append(cmd.Env, env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", name, err, out, errs.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// once runs do on the first call with a name, and returns its result then and on later calls.
func (r *runner) once(name string, do func() error) error {
	f, _ := r.built.LoadOrStore(name, sync.OnceValue(do))
	return f.(func() error)() //nolint:forcetypeassert // all are
}

// packageFlags returns the flags that packages are built with, so that nothing is compiled twice.
func (r *runner) packageFlags(ctx context.Context) ([]string, error) {
	version, err := r.do(ctx, nil, "packaging/version.sh")
	return []string{"-buildvcs=false", "-trimpath", "-ldflags", "-s -w -X main.version=" + version + " -X " + modulePath + "/cmd/boxctl.version=" + version}, err
}

// bin returns the directory of the programs, those with the race detector if race is set.
func (r *runner) bin(race bool) string {
	if race {
		return filepath.Join(r.dir, "race")
	}
	return filepath.Join(r.dir, "bin")
}

// programs builds boxd and its other programs for this host.
func (r *runner) programs(ctx context.Context) error {
	return r.once("programs", func() error {
		flags, err := r.packageFlags(ctx)
		if err != nil {
			return err
		}
		_, err = r.do(ctx, []string{"CGO_ENABLED=0"}, "go", slices.Concat([]string{"build", "-o", r.bin(false) + "/"}, flags, []string{"./cmd/...", "./test/boxes/probe", "./test/survival/mcpserver"})...)
		return err
	})
}

// racePrograms builds the programs and a boxd with the race detector. The others never have it: boxinit and boxkeeper make calls
// on all threads (syscall.AllThreadsSyscall), which a cgo program cannot.
func (r *runner) racePrograms(ctx context.Context) error {
	return r.once("race", func() error {
		var wg sync.WaitGroup
		var err error
		boxd := filepath.Join(r.dir, "boxd.race")
		wg.Go(func() {
			_, err = r.do(ctx, []string{"CGO_ENABLED=1"}, "go", "build", "-race", "-o", boxd, "./cmd/boxd")
		})
		built := r.programs(ctx)
		wg.Wait()
		if err := errors.Join(built, err); err != nil {
			return err
		}
		if _, err = r.do(ctx, nil, "cp", "-r", r.bin(false), r.bin(true)); err != nil {
			return err
		}
		return os.Rename(boxd, filepath.Join(r.bin(true), "boxd"))
	})
}

// programsOf builds what a suite runs on this host, and returns the directory it is in.
func (r *runner) programsOf(ctx context.Context, pkg string) (string, error) {
	bin, build := r.bin(false), r.programs
	if !r.quick && (r.whole || slices.Contains(raced, pkg)) {
		bin, build = r.bin(true), r.racePrograms
	}
	if err := build(ctx); err != nil || pkg != "test/buckets" {
		return bin, err
	}
	with := filepath.Join(r.dir, "s3")
	if _, err := r.do(ctx, nil, "cp", "-r", bin, with); err != nil {
		return "", err
	}
	_, err := r.do(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-modfile=packaging/tools/s3.mod", "-o", with+"/", "github.com/versity/versitygw/cmd/versitygw")
	return with, err
}

// testProgram builds the test binary of a suite, for this host or a machine, and returns its path.
func (r *runner) testProgram(ctx context.Context, pkg, arch string) (string, error) {
	path := filepath.Join(r.dir, "tests", arch, pkg, "test")
	return path, r.once(path, func() error {
		flags, err := r.packageFlags(ctx)
		if err != nil {
			return err
		}
		_, err = r.do(ctx, []string{"CGO_ENABLED=0", "GOARCH=" + arch}, "go", slices.Concat([]string{"test", "-c", "-o", path}, flags, []string{"./" + pkg})...)
		return err
	})
}

// converterProgram builds test2json, which turns the output of tests into events.
func (r *runner) converterProgram(ctx context.Context) error {
	return r.once("test2json", func() error {
		_, err := r.do(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-o", filepath.Join(r.dir, "test2json"), "cmd/test2json")
		return err
	})
}

// tests returns the names of the selected tests of a suite.
func (r *runner) tests(ctx context.Context, pkg string) ([]string, error) {
	program, err := r.testProgram(ctx, pkg, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	cmd := r.command(ctx, program, "-test.list", ".")
	cmd.Dir = pkg
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tests of %s: %w", pkg, err)
	}
	var names []string
	for name := range strings.Lines(string(out)) {
		if name = strings.TrimSpace(name); strings.HasPrefix(name, "Test") && r.selected(pkg, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// want records that tests must pass on some ground.
func (r *runner) want(pkg string, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if t := (test{pkg, name}); !slices.Contains(r.wanted, t) {
			r.wanted = append(r.wanted, t)
		}
	}
}

func exactly(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// defines reports whether a file of a package has a selected test.
func (r *runner) defines(pkg string) bool {
	isSuite := slices.ContainsFunc(suites, func(s suite) bool { return s.pkg == pkg })
	switch {
	case r.chosen != nil:
		return r.chosen[strings.TrimPrefix(pkg, "./")] != nil
	case r.quick && isSuite:
		return quickTests[pkg] != nil
	case r.only == nil:
		return true
	}
	files, _ := filepath.Glob(filepath.Join(pkg, "*_test.go")) // the pattern is valid
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "func "); ok {
				if name, _, ok = strings.Cut(name, "("); ok && strings.HasPrefix(name, "Test") && r.only.MatchString(name) {
					return true
				}
			}
		}
	}
	return false
}

// raceOptions has a program with the race detector wait for a tenth of a second before it exits, instead of one second in which it does
// nothing: it waits for what other threads have to report, and each test program, and many that tests start, end so.
const raceOptions = "GORACE=atexit_sleep_ms=100"

// pure runs tables, golden files, parsers with their fuzz seeds, and test/arch, with the race detector.
func (r *runner) pure(ctx context.Context) error {
	list, err := r.do(ctx, nil, "go", "list", "-f", `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}`, "./...")
	if err != nil {
		return err
	}
	var args []string
	for pkg := range strings.FieldsSeq(list) {
		dir := strings.TrimPrefix(strings.TrimPrefix(pkg, modulePath), "/")
		if !slices.Contains(apart, dir) && !slices.ContainsFunc(suites, func(s suite) bool { return s.pkg == dir }) && r.defines("./"+dir) {
			args = append(args, pkg)
		}
	}
	if len(args) == 0 {
		return nil
	}
	env := []string{"CGO_ENABLED=1", raceOptions}
	if os.Geteuid() == 0 { // some of them need root, and are skipped without it
		env = append(env, "BOXD_TEST_STRICT=1")
	}
	switch {
	case r.quick:
		return r.goTest(ctx, layerPure, []string{"CGO_ENABLED=0"}, args...)
	case r.chosen != nil:
		var names []string
		for _, list := range r.chosen {
			names = append(names, list...)
		}
		return r.goTest(ctx, layerPure, env, slices.Concat([]string{"-race", "-timeout=10m", "-run", exactly(names)}, args)...)
	case r.only != nil:
		return r.goTest(ctx, layerPure, env, slices.Concat([]string{"-race", "-timeout=10m", "-run", r.only.String()}, args)...)
	}
	return r.goTest(ctx, layerPure, env, slices.Concat([]string{"-race", "-shuffle=on", "-timeout=10m"}, args)...)
}

// packages makes a release, checks its packages with the distributions' tools, and builds them again.
func (r *runner) packages(ctx context.Context) error {
	if err := r.programs(ctx); err != nil {
		return err
	}
	return r.goTest(ctx, layerPackages, []string{"BOXD_TEST_STRICT=1", "CGO_ENABLED=0", "BOXD_TEST_BIN=" + r.bin(false)}, "-count=1", "-timeout=15m", "./test/packages")
}

// demo runs what README.md shows.
func (r *runner) demo(ctx context.Context) error {
	if err := r.programs(ctx); err != nil {
		return err
	}
	cmd := r.command(ctx, "test/demo/demo.sh", r.bin(false))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// boxes runs real boxes with the real programs on this host, some suites at once.
func (r *runner) boxes(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("missing: root, which starts the boxes")
	}
	queue := make(chan suite, len(suites))
	for _, s := range suites {
		if r.defines(s.pkg) {
			queue <- s
		}
	}
	close(queue)
	errs := make([][]error, lanes)
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			for s := range queue {
				do := r.list
				if s.here {
					do = r.here
				}
				if err := do(ctx, s.pkg); !slices.Contains(errs[lane], err) { // what cannot be built is said once
					errs[lane] = append(errs[lane], err)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(slices.Concat(errs...)...)
}

// list records the tests of a suite as wanted without running them.
func (r *runner) list(ctx context.Context, pkg string) error {
	if !r.defines(pkg) {
		return nil
	}
	names, err := r.tests(ctx, pkg)
	r.want(pkg, names)
	return err
}

// here runs a suite on this host, in a PID namespace of its own: what it leaves running ends with it.
func (r *runner) here(ctx context.Context, pkg string) error {
	var bin string
	var built error
	var wg sync.WaitGroup
	wg.Go(func() {
		if bin, built = r.programsOf(ctx, pkg); built == nil {
			built = r.converterProgram(ctx)
		}
	})
	names, err := r.tests(ctx, pkg)
	wg.Wait()
	if built != nil {
		return built
	}
	if err != nil || len(names) == 0 {
		return err
	}
	r.want(pkg, names)
	env := []string{"BOXD_TEST_BIN=" + bin}
	if r.whole && os.Getenv("SURVIVAL_KILLS") == "" {
		env = append(env, "SURVIVAL_KILLS=200")
	}
	s, err := r.newScratch(ctx)
	if err != nil {
		return err
	}
	defer s.remove()
	return r.inNamespace(ctx, layerBoxes, pkg, "40m", names, append(env, "BOXD_RUN_SCRATCH="+s.image, "BOXD_RUN_TMPDIR="+s.at)...)
}

// scratch is a filesystem for the temporary files of a suite: an ext4 with a journal, like the disk of a host. The filesystem of
// this host may be anything: a tmpfs, or an ext4 without a journal, which takes five times as long to create files where others
// were removed recently.
type scratch struct {
	image string // file
	at    string // directory where the suite mounts it, in a namespace of its own
}

// scratchSize is how much the files of a suite may take. Its file takes no more than is written.
const scratchSize = 16 << 30

// newScratch makes a filesystem in a file.
func (r *runner) newScratch(ctx context.Context) (_ *scratch, err error) {
	s := &scratch{}
	if s.at, err = os.MkdirTemp("", "t"); err != nil { // a short name, since sockets are in it
		return nil, err
	}
	file, err := os.CreateTemp(r.dir, "scratch-")
	if err != nil {
		return nil, errors.Join(err, os.Remove(s.at))
	}
	s.image = file.Name()
	if err = errors.Join(file.Truncate(scratchSize), file.Close()); err == nil {
		_, err = r.do(ctx, []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}, "mke2fs", "-qF", "-t", "ext4", "-m", "0", s.image)
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

func (s *scratch) remove() { _ = errors.Join(os.Remove(s.image), os.Remove(s.at)) }

// soaks runs the tests that take hours.
func (r *runner) soaks(ctx context.Context) error {
	if err := errors.Join(r.racePrograms(ctx), r.converterProgram(ctx)); err != nil {
		return err
	}
	docs, err := filepath.Abs(filepath.Dir(soakReport))
	if err != nil {
		return err
	}
	return r.inNamespace(ctx, layerSoak, "test/soak", "4h", []string{"Test.*"}, "SOAK=1", "SOAK_REPORT="+docs, "BOXD_TEST_BIN="+r.bin(true))
}

// inSuite is the shell that is PID 1 of the namespace of a suite, and has to reap orphans. Where it cannot mount the filesystem of a suite,
// temporary files are where those of this host are.
const inSuite = `if [ -n "${BOXD_RUN_SCRATCH-}" ] && mount -o loop,noatime,discard "$BOXD_RUN_SCRATCH" "$BOXD_RUN_TMPDIR"; then
	chmod 1777 "$BOXD_RUN_TMPDIR" && export TMPDIR="$BOXD_RUN_TMPDIR"
fi
"$@"
exit $?`

func (r *runner) inNamespace(ctx context.Context, layer, pkg, limit string, names []string, env ...string) error {
	program, err := r.testProgram(ctx, pkg, runtime.GOARCH)
	if err != nil {
		return err
	}
	in, wait, err := r.converter(ctx, layer, hostGround, pkg)
	if err != nil {
		return err
	}
	// Two tests for each processor: many wait for times and programs.
	args := []string{"--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inSuite, "sh", program, "-test.v=test2json", "-test.shuffle=on", fmt.Sprintf("-test.parallel=%d", 2*runtime.NumCPU()), "-test.timeout=" + limit, "-test.run", exactly(names)}
	cmd := r.command(ctx, "unshare", args...)
	cmd.Dir = pkg
	cmd.Env = append(append(cmd.Env, "BOXD_TEST_GROUND="+hostGround), env...)
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Run()
	return endItem(in, wait, err)
}

// endItem ends the conversion of a test program's output, and joins the errors of both.
func endItem(in io.Closer, wait func() error, err error) error {
	closed := in.Close()
	if failed := wait(); failed != nil {
		return failed // the failed tests were reported already
	}
	return errors.Join(err, closed)
}

// lines returns the lines of a file except empty ones and comments.
func lines(path string) (found []string, err error) {
	text, err := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			found = append(found, line)
		}
	}
	return found, err
}
