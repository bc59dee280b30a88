// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Grounds of a machine, from the fastest to the slowest.
const (
	groundKVM       = "kvm"
	groundUML       = "uml"             // User-mode Linux, a kernel that is an ordinary program of this host
	groundEmulation = boxtest.Emulation // qemu without KVM
)

// machine is a Debian with systemd, cgroup v2 and project quotas, or two of them that share the work.
type machine struct {
	*runner
	ground string
	kernel string // for uml
	image  string // directory of the system

	items []work // what is on the disk of the suites
	word  string // prefix of the lines of test/vm/guest.sh

	// With -fleet: the two ends of the network between the machines, and a message for each time that one requests to power the
	// other on. The network is a pair of sockets, which nothing else is connected to: no packet gets to a network of this host.
	cable   [2]*os.File
	restore chan struct{}
}

// Timeouts of a machine.
const (
	silence = 5 * time.Minute  // it prints something three times a minute, so one that is silent for this long is dead
	most    = 3 * time.Hour    // the whole run
	slowest = 10 * time.Hour   // the whole run on an emulated processor
	item    = 30 * time.Minute // the tests of one item

	firstLine = 10 * time.Second // of a kernel that tryKVM boots
)

// The resources that a host needs for machines beside real boxes: bytes of memory, as many again for a third machine, and
// processors. With two processors it took 1,379 s in all, but in one of two runs two tests met what they had not waited for.
const (
	besideMemory     = 7 << 30
	besideProcessors = 4
)

// runsApart reports whether the machine has to wait for the real boxes of this host: for their results, or as one of both would hardly move.
func (m *machine) runsApart() bool {
	if !hasMemory() {
		return true
	}
	return m.abuse || m.ground == groundEmulation || runtime.NumCPU() < besideProcessors
}

// hasMemory reports whether the host has memory for machines beside real boxes, or for a third machine.
func hasMemory() bool {
	var host unix.Sysinfo_t
	return unix.Sysinfo(&host) == nil && uint64(host.Totalram)*uint64(host.Unit) >= besideMemory
}

// choose determines which kind of machine this host can run.
func (m *machine) choose(ctx context.Context) error {
	if m.ground = m.options.ground; m.ground != "" {
		return nil
	}
	if m.ground = m.withoutKVM(); m.kvmOpens(ctx) {
		m.ground = groundKVM // unless prepare finds that it cannot run a kernel
	}
	return nil
}

// withoutKVM returns the best ground of a host without KVM.
func (m *machine) withoutKVM() string {
	if m.selinux || m.arch != "amd64" || runtime.GOARCH != "amd64" {
		return groundEmulation
	}
	return groundUML
}

// kvmOpens tries to use KVM: a host may have the device without permission to it, or a virtual processor without nested virtualization.
func (m *machine) kvmOpens(ctx context.Context) bool {
	if _, err := os.Stat("/dev/kvm"); err != nil || m.arch != runtime.GOARCH {
		return false
	}
	cmd := m.command(ctx, m.qemu(), "-accel", "kvm", "-machine", m.board(), "-cpu", "host", "-display", "none", "-nodefaults", "-S", "-monitor", "stdio")
	cmd.Stdin = strings.NewReader("quit\n")
	return cmd.Run() == nil
}

func (m *machine) qemu() string {
	if m.arch == "arm64" {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

func (m *machine) board() string {
	if m.arch == "arm64" {
		return "virt"
	}
	return "pc"
}

// count returns how many machines share the work. A machine of User-mode Linux has one processor, and often waits:
// three took 669 s on two processors, where two took 816.
func (m *machine) count(items []work) int {
	switch {
	case m.fleet || m.ground == groundUML && !hasMemory():
		return min(2, len(items))
	case m.ground == groundUML:
		return min(3, len(items))
	}
	return 1
}

// make builds the kernel and the system, unless an earlier run has.
func (m *machine) make(ctx context.Context) error {
	cache := os.Getenv("BOXD_VM_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		cache = filepath.Join(dir, "boxd-vm")
	}
	script, kind := "test/vm/image.sh", "qemu"
	switch {
	case m.selinux:
		kind = "selinux"
	case m.ground == groundUML:
		kind = groundUML
	}
	var err error
	if m.image, err = m.do(ctx, []string{"ARCH=" + m.arch}, "nice", script, m.system, kind, cache); err != nil {
		return err
	}
	if m.ground == groundUML {
		m.kernel, err = m.do(ctx, nil, "nice", "test/vm/kernel.sh", cache)
	}
	return err
}

// prepare builds the kernel and the system. If KVM cannot run a kernel, the ground changes to the next best. If User-mode Linux
// cannot be built or run, as where the system calls that it needs are forbidden, it changes to emulation. A ground that was
// requested is kept.
func (m *machine) prepare(ctx context.Context) error {
	err := m.make(ctx)
	if m.ground == groundKVM && m.options.ground == "" && err == nil {
		if err = m.tryKVM(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		m.ground = m.withoutKVM()
		m.printf("KVM is not used, %s is: %v", m.ground, err)
		err = m.make(ctx)
	}
	if m.ground != groundUML || ctx.Err() != nil {
		return err
	}
	if err == nil {
		err = m.tryUML(ctx)
	}
	if err == nil || m.options.ground == groundUML || ctx.Err() != nil {
		return err
	}
	m.printf("User-mode Linux is not to be had here, so that a processor is emulated, which takes hours: %v", err)
	m.ground = groundEmulation
	return m.make(ctx)
}

// tryKVM boots the system's kernel with a program that exits at once. Some hosts have an incomplete KVM, with which a kernel
// stops halfway, or does not start; one that does start writes its first line in less than a second.
func (m *machine) tryKVM(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := m.command(ctx, m.qemu(), m.kernelArgs("init=/bin/true", []string{filepath.Join(m.image, "root.img") + ",format=raw,snapshot=on"})...)
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	var errs strings.Builder
	cmd.Stderr = &errs
	console, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	mute := time.AfterFunc(firstLine, cancel)
	var first [1]byte
	_, _ = io.ReadFull(console, first[:]) // the rest says what is wrong
	mute.Stop()
	out, _ := io.ReadAll(console)
	err = cmd.Wait()
	if !strings.Contains(string(out), "Attempted to kill init!") {
		return fmt.Errorf("a kernel does not get to its first program: %w\n%s%s", err, errs.String(), out[max(len(out)-2000, 0):])
	}
	return nil
}

// tryUML starts a kernel whose only program exits at once, which ends the kernel too.
func (m *machine) tryUML(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp(m.dir, "try")
	if err != nil {
		return err
	}
	cmd := m.command(ctx, "unshare", umlCommand(dir, m.kernel, "mem=64M", "ubd0r="+filepath.Join(m.image, "root.img"), "ro", "panic=-1", "init=/bin/true")...)
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	out, err := cmd.CombinedOutput()
	if !strings.Contains(string(out), "Run /bin/true as init process") {
		return fmt.Errorf("%s does not start: %w\n%s", m.kernel, err, out)
	}
	return nil
}

// umlCommand returns arguments of unshare that start User-mode Linux. Its memory is a file on a tmpfs that is mounted in a
// directory for it alone.
func umlCommand(dir, kernel string, args ...string) []string {
	return append([]string{
		"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		`mkdir -p "$0/memory" && mount -t tmpfs -o mode=700,size=4g boxd-vm "$0/memory" && export TMPDIR="$0/memory" && "$@"`, dir,
		kernel, "ncpus=1", "seccomp=on", "root=/dev/ubda", "con=null", "con0=null,fd:1", "con1=null", "ssl=null",
	}, args...)
}

// build makes the disk of the suites, once.
func (m *machine) build(ctx context.Context) error {
	return m.once("disk", func() (err error) {
		if err := m.converterProgram(ctx); err != nil {
			return err
		}
		suite := filepath.Join(m.dir, "suite")
		if m.items, err = m.fill(ctx, suite); err != nil {
			return err
		}
		return m.disk(ctx, suite)
	})
}

// suites runs the tests of all suites in the machine, except those named in test/vm/elsewhere.
func (m *machine) suites(ctx context.Context) error {
	if err := m.build(ctx); err != nil {
		return err
	}
	err := m.boot(ctx, m.items)
	if m.ground == groundEmulation && errors.Is(err, errSilent) {
		m.printf("the machine has stood still for %v: once more, from the beginning", silence)
		err = m.boot(ctx, m.items)
	}
	return err
}

// testPackages returns the suites, and on another architecture also the pure packages that depend on its kernel.
func (r *runner) testPackages() []suite {
	if r.arch == runtime.GOARCH {
		return suites
	}
	return slices.Concat(suites, foreignSuites)
}

// work is an item of the queue: tests of a suite.
type work struct {
	name, pkg string
	args      []string
}

// fill writes packages, programs, tests and the queue into a directory, and returns the items of the queue.
func (m *machine) fill(ctx context.Context, suite string) ([]work, error) {
	for _, dir := range []string{"bin", "packages", "queue", "packaging", "systemd"} {
		if err := os.MkdirAll(filepath.Join(suite, dir), 0o755); err != nil {
			return nil, err
		}
	}
	elsewhere, err := m.names()
	if err != nil {
		return nil, err
	}
	var items []work
	for _, s := range m.testPackages() {
		if s.machine == 0 || !m.defines(s.pkg) {
			continue
		}
		names, err := m.tests(ctx, s.pkg)
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !elsewhere(s.pkg, name) })
		if len(names) == 0 {
			continue
		}
		program, err := m.testProgram(ctx, s.pkg, m.arch)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(suite, s.pkg)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.Link(program, filepath.Join(dir, "test")); err != nil { // this host may still run it
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(s.pkg, "testdata")); err == nil {
			if _, err := m.do(ctx, nil, "cp", "-r", filepath.Join(s.pkg, "testdata"), dir); err != nil {
				return nil, err
			}
		}
		for part, mine := range split(names, s.parts) {
			if len(mine) > 0 {
				w := work{pkg: s.pkg, name: fmt.Sprintf("%d-%02d-%s-%d", s.machine, len(items), strings.ReplaceAll(s.pkg, "/", "_"), part)}
				w.args = []string{"-test.v=test2json", "-test.timeout=" + item.String(), "-test.run", exactly(mine)}
				items = append(items, w)
			}
		}
	}
	return items, errors.Join(m.fillQueue(suite, items), m.fillPrograms(ctx, suite), m.fillNode(ctx, suite, items))
}

// clientPackages are the npm packages that suites use in the machine.
var clientPackages = map[string][]string{
	"test/e2b":     {boxtest.E2BPackages, boxtest.ScaleboxPackages},
	"test/network": {boxtest.E2BPackages},
}

// fillNode adds this host's node with packages of npm, which the machine has no network for, and what the console tests need except
// the browser, which is in the machine's system. If this host has no npm, the tests say what is missing.
func (m *machine) fillNode(ctx context.Context, suite string, items []work) error {
	if m.ground == groundEmulation || m.arch != runtime.GOARCH {
		return nil
	}
	var packages []string
	console := false
	for _, w := range items {
		packages = append(packages, clientPackages[w.pkg]...)
		if slices.ContainsFunc(w.args, func(arg string) bool { return strings.Contains(arg, "TestOlderSDKsOfE2B") }) {
			packages = append(packages, boxtest.OldE2BPackages)
		}
		console = console || w.pkg == "test/console"
	}
	_, err := exec.LookPath("npm")
	if len(packages) == 0 && !console || err != nil {
		return nil //nolint:nilerr // the tests say so
	}
	node, err := boxtest.FetchNode(ctx)
	if err != nil { // the tests say so
		m.printf("the machine lacks node: %v", err)
		return ctx.Err()
	}
	if _, err := m.do(ctx, nil, "test/vm/node.sh", node, filepath.Join(suite, "npm")); err != nil {
		return err
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	errs := make([]error, len(packages))
	var wg sync.WaitGroup
	for i, list := range packages { // at once, since npm tries for a minute where there is no network
		wg.Go(func() { errs[i] = m.fillPackages(ctx, suite, list) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !console {
		return nil
	}
	_, err = m.do(ctx, nil, "test/vm/console.sh", suite)
	return err
}

// fillPackages adds npm packages. Where npm cannot fetch them, as without a network, the tests that use them are left out.
func (m *machine) fillPackages(ctx context.Context, suite, packages string) error {
	from, err := boxtest.FetchPackages(ctx, packages)
	if err != nil {
		lines := strings.SplitN(err.Error(), "\n", 3) // of npm's, only the first
		m.printf("the machine lacks packages of npm: %s", strings.Join(lines[:min(len(lines), 2)], ": "))
		return ctx.Err()
	}
	to := filepath.Join(suite, "npm", boxtest.PackagesDir(packages))
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	_, err = m.do(ctx, nil, "cp", "-r", "-t", to, filepath.Join(from, "node_modules"))
	return err
}

// split splits tests into parts. A test that cuts the machine's power is a part of its own, since an interrupted part starts over.
func split(names []string, parts int) [][]string {
	dealt := make([][]string, parts)
	for i, name := range names {
		if strings.Contains(name, "CutOff") {
			dealt = append(dealt, []string{name})
		} else {
			dealt[i%parts] = append(dealt[i%parts], name)
		}
	}
	return dealt
}

// names returns which tests run in the machine: with -selinux and on another architecture those of a list, with -abuse those that
// have not passed on this host, otherwise all except those of a list.
func (m *machine) names() (func(pkg, name string) bool, error) {
	file, in := "test/vm/elsewhere", false
	switch {
	case m.selinux:
		file, in = "test/vm/selinux", true
	case m.abuse && !m.whole:
		return func(pkg, name string) bool { return !m.hasPassed(test{pkg, name}) }, nil
	case m.whole || m.only != nil:
		return func(string, string) bool { return true }, nil
	case m.arch != "amd64":
		file, in = "test/vm/arm64", true
	}
	list, err := lines(file)
	return func(pkg, name string) bool { return slices.Contains(list, pkg+"/"+name) == in }, err
}

func (m *machine) fillQueue(suite string, items []work) error {
	for _, w := range items {
		text := w.pkg + "\n" + strings.Join(w.args, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(suite, "queue", w.name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	env := "export BOXD_TEST_GROUND=" + m.ground + " BOXD_TEST_BIN=/suite/bin BOXD_TEST_PACKAGES=/suite/packages BOXD_TEST_CONSOLE=/suite/console BOXD_TEST_NPM=/suite/npm\n"
	if m.ground != groundKVM { // processes start more slowly there
		env += "export SURVIVAL_KILLS=8 ABUSE_FLOOD_SHARE=50\n"
	}
	if m.soak {
		env += "export SOAK=1 SURVIVAL_KILLS=200\n"
	}
	if m.bench != "" {
		env += fmt.Sprintf("export BENCH_ROUNDS=%d\n", benchRounds)
	}
	if n, err := strconv.Atoi(os.Getenv("SURVIVAL_KILLS")); err == nil {
		env += fmt.Sprintf("export SURVIVAL_KILLS=%d\n", n)
	}
	for name, on := range map[string]bool{"selinux": m.selinux, "fleet": m.fleet} {
		if !on {
			continue
		}
		if err := os.WriteFile(filepath.Join(suite, name), nil, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(suite, "environment"), []byte(env), 0o644)
}

// picks reports whether only some tests are run, which do not need everything.
func (r *runner) picks() bool { return r.only != nil || r.chosen != nil }

// installs reports whether selected tests of test/install need more than the package under test.
func (m *machine) installs() bool {
	if m.picks() {
		return m.defines("test/install")
	}
	return m.arch == runtime.GOARCH // the list for another architecture has none
}

// machineFiles are the files of this repository that tests read in the machine, where they are at the same paths.
var machineFiles = []string{"box.toml", "packaging/man", "packaging/completion", "packaging/selinux", "systemd/units"}

// fillPrograms adds other files: the package under test, an earlier version of it, and files that tests read.
func (m *machine) fillPrograms(ctx context.Context, suite string) error {
	formats, installs := []string{"deb", "rpm"}, m.installs()
	if !installs || m.fleet {
		formats = formats[:1]
	}
	version, err := m.do(ctx, nil, "packaging/version.sh")
	if err != nil {
		return err
	}
	versions := map[string]string{"boxd": version}
	if installs && !m.fleet {
		versions["boxd-previous"] = "0.0.1~previous"
	}
	for name, version := range versions {
		built := filepath.Join(m.dir, "packaged", name)
		env := []string{"VERSION=" + version, "PROGRAMS="}
		if _, err := m.do(ctx, env, "packaging/programs.sh", m.arch, built); err != nil {
			return err
		}
		env[1] += built
		for _, format := range formats {
			if err := m.pack(ctx, env, "build.sh", format, filepath.Join(suite, "packages", name)); err != nil {
				return err
			}
		}
		if installs && name == "boxd" {
			if err := m.pack(ctx, env, "fleet.sh", "deb", filepath.Join(suite, "packages", "boxd-fleet")); err != nil {
				return err
			}
		}
	}
	_, err = m.do(ctx, []string{"CGO_ENABLED=0", "GOARCH=" + m.arch}, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(suite, "bin")+"/", "./test/boxes/probe", "./test/survival/mcpserver")
	for _, file := range machineFiles {
		if err == nil {
			_, err = m.do(ctx, nil, "cp", "-r", "-t", filepath.Join(suite, filepath.Dir(file)), file)
		}
	}
	if err != nil {
		return err
	}
	_, err = m.do(ctx, nil, "cp", "-t", suite, "test/vm/guest.sh")
	return err
}

// pack makes a package by a script of packaging/, and renames it to a path without the extension.
func (m *machine) pack(ctx context.Context, env []string, script, format, path string) error {
	file, err := m.do(ctx, env, "packaging/"+script, format, m.arch, filepath.Dir(path))
	if err != nil {
		return err
	}
	return os.Rename(file, path+"."+format)
}

// disk creates a disk image of the suite.
func (m *machine) disk(ctx context.Context, suite string) error {
	out, err := m.do(ctx, nil, "du", "-sm", suite)
	if err != nil {
		return err
	}
	var size int
	if _, err := fmt.Sscan(out, &size); err != nil {
		return fmt.Errorf("size of the suite: %q: %w", out, err)
	}
	_, err = m.do(ctx, []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}, "mke2fs", "-qF", "-t", "ext4", "-L", "boxd-suite", "-d", suite, filepath.Join(m.dir, "suite.img"), fmt.Sprintf("%dM", size*5/4+512))
	return err
}

// errSilent says that a machine has printed nothing for too long.
var errSilent = errors.New("the machine has said nothing for minutes")

// boot starts the machines and waits until they have ended. Every item must have been done by one of them.
func (m *machine) boot(ctx context.Context, items []work) error {
	limit := most
	if m.ground == groundEmulation {
		limit = slowest
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m.word = "boxd" + strings.ToLower(rand.Text())
	out := filepath.Join(m.dir, "out")
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if m.ground == groundUML {
		if _, err := m.do(ctx, nil, "cp", "-r", filepath.Join(m.dir, "suite", "queue"), out); err != nil {
			return err
		}
	}
	if m.fleet {
		if err := m.connect(); err != nil {
			return err
		}
		defer func() { _ = errors.Join(m.cable[0].Close(), m.cable[1].Close()) }()
	}
	errs := make([]error, m.count(items))
	done := make([]map[string]bool, m.count(items))
	var wg sync.WaitGroup
	for n := range m.count(items) {
		wg.Go(func() {
			done[n], errs[n] = m.one(ctx, n, items)
			_ = m.askRestore() // whoever has no power yet finds itself alone, and ends
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	for _, w := range items {
		if !slices.ContainsFunc(done, func(d map[string]bool) bool { return d[w.name] }) {
			err = errors.Join(err, fmt.Errorf("%s was not done by a machine", w.name))
		}
	}
	if err != nil {
		m.keep(out)
	}
	return err
}

// connect makes the network between two machines.
func (m *machine) connect() error {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for n, end := range pair {
		m.cable[n] = os.NewFile(uintptr(end), fmt.Sprintf("cable.%d", n))
	}
	m.restore = make(chan struct{}, 1)
	return nil
}

// plugged is the descriptor of its end of the network in a machine.
const plugged = 3

// address returns the hardware address of a machine in the network of the two.
func address(n int) string { return fmt.Sprintf("52:54:00:00:00:%02x", n+1) }

// askRestore gives the other machine, which was cut off, its power again.
func (m *machine) askRestore() error {
	select {
	case m.restore <- struct{}{}:
		return nil
	default:
		return errors.New("the machine has asked for the power of another one again, or there is none")
	}
}

// keep saves consoles and journals of failed machines.
func (m *machine) keep(out string) {
	to, err := os.MkdirTemp("", "boxd-vm-failed.")
	if err == nil {
		err = os.Rename(out, filepath.Join(to, "out"))
	}
	if err != nil {
		m.printf("what the machines have written is lost: %v", err)
		return
	}
	m.printf("streams, consoles and journals of the machines are in %s", filepath.Join(to, "out"))
}

// one runs one machine and returns the items that it has done. A machine whose power a test has cut is started again.
func (m *machine) one(ctx context.Context, n int, items []work) (map[string]bool, error) {
	out := filepath.Join(m.dir, "out")
	stream, err := os.OpenFile(filepath.Join(out, fmt.Sprintf("stream.%d", n)), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	console, err := os.Create(filepath.Join(out, fmt.Sprintf("console.%d", n)))
	if err != nil {
		return nil, err
	}
	defer console.Close()
	if err := m.disks(ctx, n); err != nil {
		return nil, err
	}
	h := &consoleReader{machine: m, items: items, done: map[string]bool{}}
	for {
		if err = m.power(ctx, n, h, stream, console); !errors.Is(err, errCut) {
			return h.done, err
		}
		if m.fleet {
			select {
			case <-m.restore:
			case <-ctx.Done():
			}
		}
	}
}

// errCut says that a test has requested a power cut.
var errCut = errors.New("the machine has been cut off")

// power runs a machine until it ends or its power is cut.
func (m *machine) power(all context.Context, n int, h *consoleReader, stream io.Reader, console io.Writer) error {
	ctx, cancel := context.WithCancelCause(all)
	defer cancel(nil)
	words := fmt.Sprintf("boxd.word=%s boxd.number=%d", m.word, n) // for test/vm/guest.sh
	if h.in != nil {
		words += fmt.Sprintf(" boxd.item=%s boxd.promised=%s", h.item, h.promised)
	}
	cmd := m.userModeLinux(ctx, words, n)
	if m.ground != groundUML {
		cmd = m.emulator(ctx, words, n)
	}
	cmd.Stdout, cmd.Stderr = console, console
	if m.fleet {
		cmd.ExtraFiles = m.cable[n : n+1]
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the stream says how it ended
	}()
	defer func() {
		cancel(nil)
		<-ended
	}()
	h.lines = bufio.NewReader(&tail{file: stream, ended: ended, silent: func() { cancel(errSilent) }})
	err := h.read(all)                   // the reader of an item outlives the power cut
	if context.Cause(ctx) == errSilent { //nolint:errorlint // it is that one
		err = errors.Join(err, errSilent)
	}
	if errors.Is(err, errCut) {
		cancel(nil)
		_, _ = io.Copy(io.Discard, h.lines) // what it wrote until its end
	}
	return err
}

// tail reads a file that grows until the machine that writes it has ended.
type tail struct {
	file     io.Reader // may grow after EOF
	ended    chan struct{}
	finished bool
	silent   func() // ends a machine that is silent for too long
	last     time.Time
}

func (t *tail) Read(p []byte) (int, error) {
	if t.last.IsZero() {
		t.last = time.Now()
	}
	for {
		n, err := t.file.Read(p)
		if n > 0 || t.finished || err != nil && !errors.Is(err, io.EOF) {
			t.last = time.Now()
			return n, err
		}
		if time.Since(t.last) > silence {
			t.silent()
		}
		select {
		case <-t.ended:
			t.finished = true // read on to the end of the file
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// consoleReader is the state of reading one machine's stream.
type consoleReader struct {
	*machine
	lines *bufio.Reader
	items []work
	done  map[string]bool

	in   io.WriteCloser // input of the converter for the current item; nil: none
	wait func() error
	item string // its name

	promised string // what its test has promised before the power cut
}

// read reads the stream of a machine to its end.
func (h *consoleReader) read(ctx context.Context) (failed error) {
	whole := false
	for {
		line, err := h.lines.ReadString('\n')
		if words := strings.Fields(line); len(words) > 1 && words[0] == h.word {
			switch words[1] {
			case "begin":
				err = errors.Join(err, h.begin(ctx, words[2]))
			case "end":
				failed = errors.Join(failed, h.end(words[2], words[3]))
			case "cut":
				if h.in != nil && h.promised == "" && len(words) == 3 {
					h.promised = words[2]
					return errors.Join(failed, errCut)
				}
				failed = errors.Join(failed, errors.New("the machine has asked to be cut off, which an item may once, with a word"))
			case "restore":
				failed = errors.Join(failed, h.askRestore())
			case "all":
				whole = true
				if words[2] != "0" {
					failed = errors.Join(failed, errors.New("the machine could not be set up"))
				}
			}
		} else if h.in != nil {
			_, _ = io.WriteString(h.in, line) // a failed write shows when the item ends
		} else if line = strings.TrimSpace(line); line != "" {
			h.printf("%s: %s", h.ground, line)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				failed = errors.Join(failed, err)
			}
			break
		}
	}
	if h.in != nil {
		failed = errors.Join(failed, endItem(h.in, h.wait, errors.New("the machine has ended in the middle")))
	}
	if !whole {
		failed = errors.Join(failed, errors.New("the machine has ended before its work was done"))
	}
	return failed
}

func (h *consoleReader) begin(ctx context.Context, name string) (err error) {
	if h.in != nil && name == h.item {
		return nil // it continues after a power cut
	}
	i := slices.IndexFunc(h.items, func(w work) bool { return w.name == name })
	if i < 0 {
		return fmt.Errorf("the machine has begun %q, which is no item", name)
	}
	h.item = name
	h.in, h.wait, err = h.converter(ctx, layerMachine, h.ground, h.items[i].pkg)
	return err
}

func (h *consoleReader) end(name, status string) error {
	if h.in == nil {
		return fmt.Errorf("the machine has ended %q, which it has not begun", name)
	}
	h.done[name] = true
	var err error
	if status != "0" {
		err = fmt.Errorf("%s: exit status %s", name, status)
	}
	in := h.in
	h.in, h.promised = nil, ""
	return endItem(in, h.wait, err)
}

// changes returns the directory of a machine's overlay files for its disks, which survive a power cut.
func (m *machine) changes(n int) string { return filepath.Join(m.dir, fmt.Sprintf("machine.%d", n)) }

// images returns the disk images of every machine.
func (m *machine) images() []string {
	return []string{filepath.Join(m.image, "root.img"), filepath.Join(m.image, "data.img"), filepath.Join(m.dir, "suite.img")}
}

// disks resets the overlay files of an earlier machine. User-mode Linux creates its own.
func (m *machine) disks(ctx context.Context, n int) error {
	dir := m.changes(n)
	if err := os.RemoveAll(dir); err != nil || m.ground == groundUML {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i, disk := range m.images() {
		if _, err := m.do(ctx, nil, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", disk, filepath.Join(dir, fmt.Sprintf("changes.%d", i))); err != nil {
			return err
		}
	}
	return nil
}

// userModeLinux returns a machine that runs as an ordinary process.
func (m *machine) userModeLinux(ctx context.Context, words string, n int) *exec.Cmd {
	dir := m.changes(n)
	args := umlCommand(dir, m.kernel, "mem=2G", "rw", "quiet")
	for i, disk := range m.images() {
		args = append(args, fmt.Sprintf("ubd%d=%s,%s", i, filepath.Join(dir, fmt.Sprintf("changes.%d", i)), disk))
	}
	args = append(args, strings.Fields(words)...)
	args = append(args, "boxd.out="+filepath.Join(m.dir, "out"))
	if m.fleet {
		args = append(args, fmt.Sprintf("vec0:transport=fd,fd=%d,mac=%s", plugged, address(n)))
	}
	cmd := m.command(ctx, "unshare", args...)
	cmd.Cancel = func() error { return cmd.Process.Kill() } // which also ends everything it has started
	return cmd
}

// kernelArgs returns the qemu arguments of a machine that boots the system, with disks in the format of -drive file=.
func (m *machine) kernelArgs(words string, disks []string) []string {
	processors := "2"
	if m.arch == "arm64" { // a second one is untested
		processors = "1"
	}
	args := []string{"-machine", m.board(), "-smp", processors, "-m", "2048", "-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot"}
	line, console := words+" root=/dev/vda rw panic=-1", "ttyS0"
	if m.arch == "arm64" {
		console = "ttyAMA0"
	}
	switch {
	case m.ground == groundKVM:
		args = append(args, "-accel", "kvm", "-cpu", "host")
	case m.arch == "arm64": // the default pointer authentication takes half the machine's time
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", "max,pauth-impdef=on")
	default: // some versions emulate cmpxchg16b wrongly, and one boot in three crashes
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", "max,cx16=off")
	}
	if m.ground == groundEmulation {
		line += " maxcpus=1" // see test/vm/guest.sh
	}
	if m.selinux {
		line += " security=selinux selinux=1 enforcing=1"
	}
	args = append(args, "-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"), "-append", "console="+console+" "+line, "-serial", "stdio")
	for _, disk := range disks {
		args = append(args, "-drive", "if=virtio,file="+disk)
	}
	return args
}

// emulator returns a machine in qemu.
func (m *machine) emulator(ctx context.Context, words string, n int) *exec.Cmd {
	var disks []string
	for i := range m.images() {
		disks = append(disks, filepath.Join(m.changes(n), fmt.Sprintf("changes.%d,format=qcow2", i)))
	}
	args := m.kernelArgs(words, disks)
	out := filepath.Join(m.dir, "out")
	args = append(args, "-device", "virtio-serial", "-device", "virtio-rng-pci")
	for name, file := range map[string]string{"suite": "stream", "journal": "journal"} {
		args = append(args, "-chardev", fmt.Sprintf("file,id=%s,append=on,path=%s", name, filepath.Join(out, fmt.Sprintf("%s.%d", file, n))), "-device", fmt.Sprintf("virtserialport,chardev=%s,name=%s", name, name))
	}
	if m.fleet {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=cable,local.type=fd,local.str=%d", plugged), "-device", "virtio-net-pci,netdev=cable,mac="+address(n))
	}
	return m.command(ctx, m.qemu(), args...)
}
