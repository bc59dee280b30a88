// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestProgramsRunAsTheBoxUser(t *testing.T) {
	b := newBox(t, start(t))
	if got := b.sh("id -u; id -un; id -g; id -gn"); got != "1000\nbox\n1000\nbox\n" {
		t.Errorf(`id prints %q, want "1000\nbox\n1000\nbox\n"`, got)
	}
	s := statusFields(b.run("cat", "/proc/self/status"))
	for _, field := range []string{"Uid", "Gid"} { // real, effective, saved, filesystem
		if s[field] != "1000 1000 1000 1000" {
			t.Errorf(`%s is %s, want s[field] == "1000 1000 1000 1000"`, field, s[field])
		}
	}
	// Without cgroups boxd marks the processes of each program by one additional group; no file belongs to it.
	groups := `^1000 [3-5]\d{4}$`
	if boxtest.Grouped() {
		groups = `^1000$`
	}
	if !regexp.MustCompile(groups).MatchString(s["Groups"]) {
		t.Errorf(`groups are %s, want regexp.MustCompile(groups).MatchString(s["Groups"])`, s["Groups"])
	}
	b.try(all("EPERM", "setuid=0", "setgid=0", "setgroups", "setuid=1001", "raise", "ambient", "realtime")...)
	b.try(attempt{"setpriority", "EACCES"})
}

func statusFields(text string) map[string]string {
	m := map[string]string{}
	for _, l := range lines(text) {
		name, value, _ := strings.Cut(l, ":")
		m[name] = strings.Join(strings.Fields(value), " ")
	}
	return m
}

func TestEnvironmentIsTheConfiguredOneAndTheRequests(t *testing.T) {
	b := newBox(t, start(t), func(r *api.SessionRequest) { r.Env = map[string]string{"A": "session", "B": "session"} })
	r := b.exec(&api.ExecRequest{Argv: []string{"env"}, Env: map[string]string{"B": "exec", "LANG": "de_DE.UTF-8", "EMPTY": "", "ODD": "a=b\nc"}})
	want := []string{
		"A=session", "B=exec", "EMPTY=", "HOME=/home/box", "LANG=de_DE.UTF-8", "LOGNAME=box", "ODD=a=b", "PATH=/home/box/.local/bin:" +
			"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PIP_BREAK_SYSTEM_PACKAGES=1", "SHELL=/bin/sh", "USER=box", "c", "npm_config_prefix=/home/box/.local",
	}
	got := lines(r.Stdout)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got := b.run("sh", "-c", "echo $LANG $PWD ~"); got != "C.UTF-8 /workspace /home/box\n" {
		t.Errorf(`without an override: got %q, want "C.UTF-8 /workspace /home/box\n"`, got)
	}
}

func TestProgramsHearEverySignal(t *testing.T) {
	// Signal dispositions inherited by boxd must not reach programs. The Go runtime leaves these alone.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	ignore := [4]uint64{1} // SIG_IGN, also for the C libraries' own signals (sigaction(2), nptl(7))
	for _, sig := range []uintptr{32, 33} {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0); errno != 0 {
			t.Fatal(errno)
		}
	}
	b := newBox(t, start(t))
	s := statusFields(b.run("cat", "/proc/self/status"))
	for _, field := range []string{"SigIgn", "SigBlk", "SigCgt", "SigPnd", "ShdPnd"} {
		if strings.Trim(s[field], "0") != "" {
			t.Errorf(`%s is %s, want strings.Trim(s[field], "0") == ""`, field, s[field])
		}
	}
	for _, signal := range []string{"HUP", "INT", "QUIT", "PIPE", "TERM", "CHLD", "USR1"} {
		if got := b.sh(`trap "echo heard" ` + signal + `; kill -` + signal + ` $$`); got != "heard\n" {
			t.Errorf(`a program that waits for %s prints %q, want got == "heard\n"`, signal, got)
		}
	}
}

// Timers of a program are as precise as outside, though PID 1 has a thread with a larger timer slack (internal/linux).
func TestProgramsAreWokenOnTime(t *testing.T) {
	b := newBox(t, start(t))
	if got := b.run("cat", "/proc/self/timerslack_ns"); got != "50000\n" {
		t.Errorf("timers of a program may be %q nanoseconds late", got)
	}
}

// sandboxed returns what confines every program, with the names in /proc/<pid>/status.
func sandboxed() map[string]string {
	none := "0000000000000000"
	return map[string]string{
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2",
	}
}

func TestEveryThreadOfAProgramIsConfined(t *testing.T) {
	b := newBox(t, start(t))
	threads := map[string]map[string]string{}
	for _, l := range b.ask("threads") {
		f := strings.Fields(l)
		if threads[f[0]] == nil {
			threads[f[0]] = map[string]string{}
		}
		threads[f[0]][f[1]] = f[2]
	}
	if len(threads) < 8 {
		t.Fatalf("%d threads, too few to tell", len(threads))
	}
	for tid, got := range threads {
		if diff := cmp.Diff(sandboxed(), got); diff != "" {
			t.Errorf("thread %s (-want +got):\n%s", tid, diff)
		}
	}
}

// kept are the capabilities of PID 1: KILL, SETGID and SETUID.
const kept = 1<<5 | 1<<6 | 1<<7

func TestEveryThreadOfPID1IsConfinedToo(t *testing.T) {
	b := newBox(t, start(t))
	b.run("true") // a thread that only starts programs would exist now
	pid := int(b.PID)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("PID 1 on the host: tasks = %v, err = %v, want no error and len(tasks) != 0", tasks, err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		s := boxtest.ProcessStatus(t, tid)
		if s["NoNewPrivs"] != "1" || s["Seccomp"] != "2" {
			t.Errorf("thread %d: no_new_privs %s, seccomp %s", tid, s["NoNewPrivs"], s["Seccomp"])
		}
		for _, set := range []string{"CapEff", "CapPrm"} {
			if bits, err := strconv.ParseUint(s[set], 16, 64); err != nil || bits&^kept != 0 {
				t.Errorf("thread %d: %s is %s, want no error and bits &^ kept == 0", tid, set, s[set])
			}
		}
		for _, set := range []string{"CapInh", "CapAmb"} {
			if strings.Trim(s[set], "0") != "" {
				t.Errorf(`thread %d: %s is %s, want strings.Trim(s[set], "0") == ""`, tid, set, s[set])
			}
		}
	}
	if bound := boxtest.ProcessStatus(t, pid)["CapBnd"]; strings.Trim(bound, "0") != "" { // of the thread that forks
		t.Errorf(`the bounding set of what PID 1 starts is %s, want strings.Trim(bound, "0") == ""`, bound)
	}
	if uid := boxtest.ProcessStatus(t, pid)["Uid"]; uid != repeat(b.IDBase) {
		t.Errorf("PID 1 has the ids %s on the host", uid)
	}
}

// repeat returns an id as the status file shows it: real, effective, saved, filesystem.
func repeat(id uint32) string { return strings.TrimSpace(strings.Repeat(decimal(uint64(id))+" ", 4)) }

// idRange is the number of host ids of a box.
const idRange = 1 << 16

func TestEverySessionHasHostIDsOfItsOwn(t *testing.T) {
	d := start(t)
	bases := map[uint32]string{}
	for range 5 {
		b := newBox(t, d)
		if other := bases[b.IDBase]; other != "" || b.IDBase%idRange != 0 || b.IDBase < idRange {
			t.Errorf("box %s has the ids from %d, as %q has", b.ID, b.IDBase, other)
		}
		bases[b.IDBase] = b.ID
		held := b.hold(probe, "hold")
		children := boxtest.Children(t, int(b.PID))
		if len(children) != 1 {
			t.Fatalf("PID 1 of box %s has the children %v", b.ID, children)
		}
		s := boxtest.ProcessStatus(t, children[0])
		if s["Uid"] != repeat(b.IDBase+1000) || s["Gid"] != repeat(b.IDBase+1000) {
			t.Errorf(`a program in box %s has the host ids %s and %s, base is %d, want s["Uid"] == repeat(b.IDBase + 1000) and s["Gid"] == repeat(b.IDBase + 1000)`,
				b.ID, s["Uid"], s["Gid"], b.IDBase)
		}
		want := fmt.Sprintf("0 %d %d", b.IDBase, idRange)
		for _, file := range []string{"uid_map", "gid_map"} {
			inside := strings.Join(strings.Fields(b.run("cat", "/proc/self/"+file)), " ")
			outside, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", children[0], file))
			if err != nil {
				t.Fatal(err)
			}
			if inside != want || strings.Join(strings.Fields(string(outside)), " ") != want {
				t.Errorf("%s is %q, from outside %q, want %q", file, inside, outside, want)
			}
		}
		held.Release()
	}
}

func TestBoxHasNamespacesOfItsOwn(t *testing.T) {
	d := start(t)
	one, two := newBox(t, d), newBox(t, d)
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts"} {
		host, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		init, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", one.PID, ns))
		if err != nil {
			t.Fatal(err)
		}
		a, b := strings.TrimSpace(one.run("readlink", "/proc/self/ns/"+ns)), strings.TrimSpace(two.run("readlink", "/proc/self/ns/"+ns))
		if a == host || a == b || a != init {
			t.Errorf("%s: host %s, one box %s, its PID 1 %s, another %s", ns, host, a, init, b)
		}
	}
}
