// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// scratchDirs returns the directories that share the limit "tmp".
func scratchDirs() []string { return []string{"/tmp", "/dev/shm", "/run", "/home/box", "/var/tmp"} }

func withTmp(size quantity.Size) func(*api.SessionRequest) {
	return func(r *api.SessionRequest) { r.Tmp = &size }
}

func TestTmpBoundsAllScratchDirectoriesTogether(t *testing.T) {
	const size = 4 * quantity.MiB
	d := start(t)
	for i, first := range scratchDirs() {
		b := newBox(t, d, withTmp(size))
		dirs := append([]string{first}, scratchDirs()...)
		var total int64
		for n, l := range b.ask("fill", dirs...) {
			f := strings.Fields(l)
			written, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil || f[2] != "ENOSPC" {
				t.Errorf(`box %d: l = %s, want no error and f[2] == "ENOSPC"`, i, l)
			}
			if n == 0 && written < int64(size)*9/10 {
				t.Errorf("%s took %d bytes of %d", f[0], written, size)
			}
			total += written
		}
		if total > int64(size) {
			t.Errorf("together they took %d bytes of %d", total, size)
		}
		// A full box still works and does not affect others, and removing files frees space.
		b.try(attempt{"create=/workspace/x", "OK"}, attempt{"create=" + first + "/x", "ENOSPC"})
		newBox(t, d, withTmp(size)).try(attempt{"create=" + first + "/x", "OK"})
		b.sh("rm " + first + "/fill*")
		b.try(attempt{"create=" + first + "/y", "OK"})
	}
}

func TestTmpBoundsTheNumberOfFilesToo(t *testing.T) {
	b := newBox(t, start(t), withTmp(4*quantity.MiB))
	answers := b.ask("inodes", "/dev/shm", "/tmp", "/run", "/home/box")
	f := strings.Fields(answers[0])
	if count, err := strconv.Atoi(f[1]); err != nil || count < 900 || count > 1024 || f[2] != "ENOSPC" {
		t.Errorf("the first directory: %q, want about 1024 files and ENOSPC", answers[0])
	}
	for _, l := range answers[1:] {
		if !strings.HasSuffix(l, " 0 ENOSPC") {
			t.Errorf(`when there is no space for a file: l = %q, want l ending with " 0 ENOSPC"`, l)
		}
	}
}

func TestResourceLimitsAreThePromisedOnes(t *testing.T) {
	// A host may allow its services to raise priorities; boxes do not inherit that.
	for _, resource := range []int{unix.RLIMIT_NICE, unix.RLIMIT_RTPRIO} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: 20, Max: 20}); err != nil && !errors.Is(err, unix.EPERM) { // a container cannot
			t.Fatal(err)
		}
	}
	memory, pids := 100*quantity.MiB, 77
	b := newBox(t, start(t), func(r *api.SessionRequest) { r.Memory, r.Pids = &memory, &pids })
	var host unix.Rlimit // a lower limit of the host takes precedence
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &host); err != nil {
		t.Fatal(err)
	}
	files := fmt.Sprintf("%d %d", min(4096, host.Max), min(65536, host.Max))
	text := b.run("cat", "/proc/self/limits")
	data, processes, stack, group, none := "104857600 104857600", "77 77", "8388608 104857600", "rlimit", "none"
	if boxtest.Grouped() { // then these two have the host's values
		data, processes, stack, group, none = "unlimited unlimited", `\d+ \d+`, "8388608 unlimited", "cgroup2", "cgroup2"
	}
	for name, want := range map[string]string{
		"Max core file size": "0 0", "Max open files": files, "Max locked memory": "65536 65536", "Max nice priority": "0 0", "Max realtime priority": "0 0", "Max stack size": stack,
		"Max data size": data, "Max processes": processes, "Max address space": "unlimited unlimited",
	} {
		m := regexp.MustCompile(`(?m)^` + name + `\s+(\S+)\s+(\S+)`).FindStringSubmatch(text)
		if m == nil || !regexp.MustCompile("^"+want+"$").MatchString(m[1]+" "+m[2]) {
			t.Errorf("%s: %q, want %s", name, m, want)
		}
	}
	b.try(all("EPERM", "prlimit_nproc", "prlimit_core")...)
	if !boxtest.Grouped() {
		b.try(all("EPERM", "prlimit_data")...)
	}
	if s := b.Enforcement; s["tmp"] != "tmpfs" || s["pids"] != group || s["memory"] != group || s["cpu"] != none {
		t.Errorf("enforced by %v, according to the answer", s)
	}
}

// Without cgroups no process is killed for memory: calls fail, and the answer says how that shows.
func TestLackOfMemoryIsReported(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	memory := 64 * quantity.MiB
	b := newBox(t, start(t), func(r *api.SessionRequest) { r.Memory = &memory })
	r := b.exec(&api.ExecRequest{Argv: []string{"python3", "-c", "x = bytearray(500 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"}})
	want := api.OOM{Limit: memory, Of: "process", Sign: "MemoryError"}
	if boxtest.Grouped() {
		want = api.OOM{Limit: memory, Of: "session", Kills: 1}
	}
	if o := r.OOM; o == nil || o.Limit != want.Limit || o.Of != want.Of || o.Sign != want.Sign || (o.Kills > 0) != (want.Kills > 0) {
		t.Errorf("%+v of %+v", o, r)
	}
}

// Programs find the limits of their box in the usual files of the host, and count as many processors as the box may use.
func TestProgramsSizeThemselvesByTheirBox(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	memory, cpus, pids := 96*quantity.MiB, 1.0, 77
	b := newBox(t, start(t), func(r *api.SessionRequest) { r.Memory, r.CPUs, r.Pids = &memory, &cpus, &pids })
	look := func() string {
		return b.run("sh", "-c", `nproc; grep -E '^(MemTotal|MemAvailable|SwapTotal)' /proc/meminfo | tr -s ' '; cd /sys/fs/cgroup && head -n1 memory.max cpu.max pids.max; `+
			`cat /sys/devices/system/cpu/online; python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'`)
	}
	want := "1\nMemTotal: 98304 kB\nMemAvailable: 98304 kB\nSwapTotal: 0 kB\n==> memory.max <==\n100663296\n\n==> cpu.max <==\n100000 100000\n\n==> pids.max <==\n77\n0\n1 1\n"
	if got := look(); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := b.run("sh", "-c", "for f in /proc/meminfo /sys/fs/cgroup/memory.max /sys/x; do (echo x > $f) 2>/dev/null && echo $f; done; ls /sys /sys/fs | grep -c .; ls /sys/kernel 2>/dev/null || true"); got != "5\n" {
		t.Errorf(`got %q, want "5\n"`, got)
	}
	if n := runtime.NumCPU(); n > 1 { // half of one more
		cpus = 1.5
		wide := newBox(t, b.d, func(r *api.SessionRequest) { r.CPUs = &cpus })
		if got := wide.run("sh", "-c", "nproc; cat /sys/devices/system/cpu/online /sys/fs/cgroup/cpu.max"); got != "2\n0-1\n150000 100000\n" {
			t.Errorf(`got %q, want "2\n0-1\n150000 100000\n"`, got)
		}
	}
	if boxtest.Grouped() {
		memory = 128 * quantity.MiB
		if _, err := b.d.ChangeSession(t.Context(), b.ID, &api.SessionChange{Patch: limits.Patch{Memory: &memory}}); err != nil {
			t.Fatal(err)
		}
		if got := look(); !strings.Contains(got, "MemTotal: 131072 kB") || !strings.Contains(got, "134217728") {
			t.Errorf(`got %q, want got containing "MemTotal: 131072 kB" and got containing "134217728"`, got)
		}
	}
}

// Deep recursion works with a larger stack, whether the program itself or its session raises the limit.
func TestTheStackCanBeRaised(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	d := start(t)
	deep := `import sys, resource
sys.setrecursionlimit(10**7)
import threading
def f(n): return 0 if n == 0 else 1 + max([f(n - 1)])
print(f(60000))`
	b := newBox(t, d)
	if got := b.run("sh", "-c", `ulimit -s 100000 && python3 -c "$0"`, deep); got != "60000\n" {
		t.Errorf(`got %q, want "60000\n"`, got)
	}
	raised := newBox(t, d, func(r *api.SessionRequest) {
		r.Rlimits = map[string]string{"stack": "100MiB", "nofile": "2000:3000", "core": "0"}
	})
	if got := raised.run("python3", "-c", deep); got != "60000\n" {
		t.Errorf(`got %q, want "60000\n"`, got)
	}
	if got := raised.run("sh", "-c", "ulimit -s; ulimit -Sn; ulimit -Hn"); got != "102400\n2000\n3000\n" {
		t.Errorf(`got %q, want "102400\n2000\n3000\n"`, got)
	}
	if s := raised.Rlimits; s["stack"] != "100MiB" || s["nofile"] != "2000:3000" {
		t.Errorf("enforced by %v, according to the answer", s)
	}
}

// Limits that PID 1 itself cannot have apply to each program, and a request for one program affects that program only.
func TestAProgramHasLimitsOfItsOwn(t *testing.T) {
	d := start(t)
	b := newBox(t, d, func(r *api.SessionRequest) { r.Rlimits = map[string]string{"fsize": "1MiB", "cpu": "100"} })
	const look = "ulimit -f; ulimit -t; ulimit -Sn; ulimit -v"
	if got := b.run("sh", "-c", look); got != "2048\n100\n4096\nunlimited\n" {
		t.Errorf(`got %q, want "2048\n100\n4096\nunlimited\n"`, got)
	}
	own := func(argv ...string) api.ExecResult {
		return b.exec(&api.ExecRequest{Argv: argv, Rlimits: map[string]string{"cpu": "1:2", "nofile": "1024", "as": "200MiB"}})
	}
	if r := own("sh", "-c", look); r.Stdout != "2048\n1\n1024\n204800\n" {
		t.Errorf(`r = %+v, want r.Stdout == "2048\n1\n1024\n204800\n"`, r)
	}
	if r := own("sh", "-c", "while :; do :; done"); r.Signal != "SIGXCPU" && r.Signal != "SIGKILL" {
		t.Errorf(`r = %+v, want r.Signal == "SIGXCPU" or r.Signal == "SIGKILL"`, r)
	}
	if r := b.exec(&api.ExecRequest{Command: new("head -c 2000000 /dev/zero > f; stat -c %s f")}); !strings.Contains(r.Stdout, "1048576") {
		t.Errorf(`r = %+v, want r.Stdout containing "1048576"`, r)
	}
	if r := own("no-such-program"); r.Status != "exited" || *r.ExitCode != 127 || !strings.Contains(r.Stderr, "no-such-program: no such file or directory") {
		t.Errorf(`r = %+v, want r.Status == "exited" and *r.ExitCode == 127 and r.Stderr containing "no-such-program: no such file or directory"`,
			r)
	}
	if got := b.run("sh", "-c", look); got != "2048\n100\n4096\nunlimited\n" { // of another program
		t.Errorf(`got %q, want "2048\n100\n4096\nunlimited\n"`, got)
	}
	long := "echo $0 $((6*7)) #" + strings.Repeat("x", 200_000) // long scripts are passed as a file
	if r := b.exec(&api.ExecRequest{Code: &long, Language: "sh"}); !strings.HasSuffix(r.Stdout, " 42\n") {
		t.Errorf(`r = %+v, want r.Stdout ending with " 42\n"`, r)
	}
	for field, asked := range map[string]string{"rlimits.cpu": "101", "rlimits.fsize": "2MiB", "rlimits.nofile": "x"} {
		_, err := d.Exec(t.Context(), b.ID, &api.ExecRequest{Argv: []string{"true"}, Rlimits: map[string]string{strings.TrimPrefix(field, "rlimits."): asked}})
		refused(t, err, 400, field, "")
	}
}

func TestNumberOfProcessesIsExact(t *testing.T) {
	d := start(t)
	for _, pids := range []int{16, 40, 128} {
		ask := func(r *api.SessionRequest) { r.Pids = &pids }
		b, neighbour := newBox(t, d, ask), newBox(t, d, ask)
		held := neighbour.hold(probe, "hold") // another box has a count of its own
		for range 2 {
			got := fields(b.ask("forks"))
			if got["refused"] != "EAGAIN" || got["tasks"] != strconv.Itoa(pids) {
				t.Errorf("of %d processes and threads %s could be had, then %s", pids, got["tasks"], got["refused"])
			}
		}
		held.Release()
	}
}

// dying is how much a cgroup may exceed its limit: a process that is being killed may allocate some more before it ends.
const dying = 8 * quantity.MiB

// The helper for file operations is a program of the box and runs within its limits.
func TestFilesWorkInTheSmallestBox(t *testing.T) {
	d := start(t)
	b := newBox(t, d, func(r *api.SessionRequest) { r.Memory, r.Pids = new(32*quantity.MiB), new(64) })
	b.run("sh", "-c", "mkdir tree; for i in $(seq 100); do echo $i > tree/$i; done; head -c 4000000 /dev/zero > large")
	out := t.TempDir()
	for _, args := range [][]string{
		{"fs", "ls", b.ID, "tree"},
		{"fs", "read", b.ID, "tree/1"},
		{"fs", "grep", b.ID, "^77$", "tree"},
		{"fs", "glob", b.ID, "**"},
		{"cp", b.ID + ":/workspace/tree", out},
		{"cp", out + "/tree", b.ID + ":/workspace/again"},
		{"cp", b.ID + ":/workspace/large", out},
	} {
		if text, err := d.Boxctl(t, args...).CombinedOutput(); err != nil {
			t.Errorf("%q: %v: %s", args, err, text)
		}
	}

	// If the caller's own limits leave no room for the helper, not even to be loaded, the error says so, and nothing of boxd has failed.
	b = newBox(t, d, func(r *api.SessionRequest) { r.Rlimits = map[string]string{"data": "32MiB"} })
	text, err := d.Boxctl(t, "fs", "ls", b.ID).CombinedOutput()
	if err == nil || !strings.Contains(string(text), "helper for file operations") || !strings.Contains(string(text), "hint: ") {
		t.Errorf(`%v: text = %s, want an error and text containing "helper for file operations" and text containing "hint: "`,
			err, text)
	}
	if strings.Contains(d.Log(), "level=ERROR") {
		t.Error("the log has an error of boxd")
	}
}

func TestMemoryBoundsDataAndNotAddresses(t *testing.T) {
	memory := 100 * quantity.MiB
	b := newBox(t, start(t), func(r *api.SessionRequest) { r.Memory = &memory })
	if boxtest.Grouped() { // the whole box is limited, and a process that takes too much is killed
		r := b.exec(&api.ExecRequest{Argv: []string{probe, "data"}, Timeout: new(quantity.Duration(10 * time.Minute))}) // the kernel throttles it before killing it
		if r.Status != "oom_killed" || r.OOM == nil || r.OOM.Limit != memory || r.Usage.MemoryPeak > memory+dying {
			t.Errorf(`r = %+v, want r.Status == "oom_killed" and r.OOM != nil and r.OOM.Limit == %v and r.Usage.MemoryPeak <= memory + dying`,
				r, memory)
		}
		return
	}
	got := fields(b.ask("data"))
	if got["reserve"] != "OK" {
		t.Errorf(`reserving addresses: got["reserve"] = %s, want "OK"`, got["reserve"])
	}
	kib, err := strconv.Atoi(got["data"])
	if err != nil || kib <= 99<<10 || kib > 100<<10 || got["refused"] != "ENOMEM" {
		t.Errorf("of 100 MiB %s KiB could be had, then %s", got["data"], got["refused"])
	}
	if got := b.run("true"); got != "" {
		t.Errorf(`afterwards: got %q, want ""`, got)
	}
}
