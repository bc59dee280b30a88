// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childMode tells the test binary that it is the child and which filter to install: a filter
// cannot be removed again.
const childMode = "BOXD_SECCOMP_TEST_CHILD"

// findings are what the child saw with the filter installed.
type findings struct {
	Probes  []unix.Errno // answers to probes()
	Sweep   []string     // calls that were not refused as the policy says
	Threads []string     // Seccomp: lines of all threads
	Int80   string       // how the int 0x80 program ended
}

// TestKernel installs the native filter in a child and compares the running kernel's answers. As
// root, an EPERM can only come from the filter.
func TestKernel(t *testing.T) {
	if mode := os.Getenv(childMode); mode != "" {
		child(t, mode)
		return
	}
	if runtime.GOARCH == "amd64" {
		switch end := runInt80(t); end {
		case "exit status 9":
		case "exit status 38":
			t.Log("int 0x80 answers ENOSYS before our filter does")
		default:
			t.Logf("this kernel has no int 0x80 (%s), so there is nothing to test", end)
		}
	}
	for _, mode := range []string{"plain", "hostrw", "aio"} {
		t.Run(mode, func(t *testing.T) { checkFindings(t, runChild(t, mode), mode) })
	}
}

func runChild(t *testing.T, mode string) findings {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(report, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKernel$")
	cmd.Env = append(os.Environ(), childMode+"="+mode, "REPORT="+report)
	// Without a terminal, in case vhangup gets through.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var f findings
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatalf("report of the child: %v", err)
	}
	return f
}

func checkFindings(t *testing.T, f findings, mode string) {
	t.Helper()
	for i, p := range probes() {
		want := p.want
		if mode == "hostrw" && p.hostrw != 0 {
			want = p.hostrw
		}
		if mode == "aio" && p.aio != 0 {
			want = p.aio
		}
		got := f.Probes[i]
		if want == anyOther && got != unix.EPERM && got != unix.ENOSYS || got == notHere || want == got {
			continue
		}
		t.Errorf("%s: errno %d (%s), want %d", p.what, got, got, want)
	}
	for _, s := range f.Sweep {
		t.Error(s)
	}
	if len(f.Threads) < 2 {
		t.Errorf("saw %d threads, too few to tell", len(f.Threads))
	}
	for _, s := range f.Threads {
		if s != "Seccomp:\t2" {
			t.Errorf("a thread runs with %q", s)
		}
	}
	if runtime.GOARCH == "amd64" && f.Int80 != "exit status 38" && f.Int80 != "signal: segmentation fault" {
		t.Errorf("int 0x80 behind the filter: %s, want exit status 38 (ENOSYS)", f.Int80)
	}
}

func child(t *testing.T, mode string) {
	o := Options{Arch: runtime.GOARCH, HostWritable: mode == "hostrw", AIO: mode == "aio"}
	install(t, mustCompile(t, Default(), o))
	var f findings
	for _, p := range probes() {
		f.Probes = append(f.Probes, p.run(t))
	}
	f.Sweep = sweep(t, o)
	statuses, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statuses {
		text, err := os.ReadFile(s)
		if err != nil {
			continue // The thread has ended.
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Seccomp:") {
				f.Threads = append(f.Threads, strings.TrimSpace(line))
			}
		}
	}
	if runtime.GOARCH == "amd64" {
		f.Int80 = runInt80(t)
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("REPORT"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func install(t *testing.T, f Filter) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	program := unix.SockFprog{Len: uint16(f.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(&f[0]))}
	r, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if e != 0 || r != 0 {
		t.Fatalf("install the filter: %v, thread %d", e, r)
	}
}

// sweep makes every call that the policy refuses whatever the arguments, every unknown number,
// and all of x32. All arguments are all ones, with which no call would do anything even if it got
// through.
func sweep(t *testing.T, o Options) []string {
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	var wrong []string
	check := func(nr uint32, name string, want uint32) {
		_, _, e := unix.RawSyscall6(uintptr(nr), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0))
		if uint32(e) != want {
			wrong = append(wrong, name+": "+e.Error())
		}
	}
	names := numbers(t, o.Arch)
	for nr := range uint32(601) {
		valid := inForce(rules[names[nr]], &o)
		if len(valid) > 1 {
			continue
		}
		_, verdict := expect(valid, [6]uint64{})
		if verdict != allowed {
			check(nr, names[nr], verdict&0xffff)
		}
	}
	for nr := range uint32(601) {
		check(nr|0x40000000, "x32 "+names[nr], uint32(unix.ENOSYS))
	}
	return wrong
}

// int80 is a 64-bit program that calls close(-1) through the i386 entry point and exits with the
// errno: EBADF (9) where that entry works, ENOSYS (38) where a filter refuses foreign calls. It
// exits through the native entry point.
var int80 = []byte{
	0xb8, 6, 0, 0, 0, // mov eax, 6 (i386 close)
	0xbb, 0xff, 0xff, 0xff, 0xff, // mov ebx, -1
	0xcd, 0x80, // int 0x80
	0xf7, 0xd8, // neg eax
	0x89, 0xc7, // mov edi, eax
	0xb8, 60, 0, 0, 0, // mov eax, 60 (amd64 exit)
	0x0f, 0x05, // syscall
}

// runInt80 makes int80 an executable in memory, runs it and returns how it ended.
func runInt80(t *testing.T) string {
	t.Helper()
	const base, headers = 0x400000, 64 + 56
	size := uint64(headers + len(int80))
	image := elfHeader(base+headers, base, size)
	fd, err := unix.MemfdCreate("int80", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "/proc/self/fd/3")
	defer file.Close()
	if _, err := file.Write(append(image, int80...)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file.Name())
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Run(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}
