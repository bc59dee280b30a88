// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// T30: however processes are created, their number is limited, and all die at the timeout. The neighbouring box is not affected.
func TestT30ForkBombs(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Pids: new(100), Memory: new(256 * quantity.MiB)}})
	d.NewSession(t, api.SessionRequest{ID: "neighbour"})
	arm(t, d, "s1")
	for _, kind := range []string{"fork", "setsid", "double", "vfork", "threads"} {
		// A slow machine takes long to reach the limit. A vfork storm replaces itself, and reaches it on a fast one only.
		for seconds := 3; bombed(t, d, s, kind, seconds) < 95 && kind != "vfork"; seconds *= 2 {
			if seconds > 60 {
				t.Errorf("%s: so many processes were never reached", kind)
				break
			}
		}
	}
	for _, id := range []string{"s1", "neighbour"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	d.NothingLeft(before)
}

// bombed creates processes for so many seconds in a session with a limit of 100, beside a neighbouring box, and returns the highest
// count.
func bombed(t *testing.T, d *boxtest.Daemon, s api.Session, kind string, seconds int) int {
	t.Helper()
	done := make(chan api.ExecResult, 1)
	start := time.Now()
	req := forkBomb(t, kind, fmt.Sprint(seconds, "s"))
	go func() { done <- d.Result(t, s.ID, req) }()
	var r api.ExecResult
	asked := 0
	for ; r.Status == ""; asked++ {
		select {
		case r = <-done:
		default:
			d.Sh(t, "neighbour", "echo here")
		}
	}
	if r.Status != "timed_out" || r.Usage.PidsPeak > 100 {
		t.Errorf(`%s: r = %s, want r.Status == "timed_out" and r.Usage.PidsPeak <= 100`, kind, boxtest.Show(r))
	}
	t.Logf("%s: %d at most; all dead %v after the time was up; the neighbour answered %d times", kind, r.Usage.PidsPeak, time.Since(start)-time.Duration(seconds)*time.Second, asked-1)
	if asked < 2 {
		t.Errorf("%s: the neighbour ran no program meanwhile", kind)
	}
	// Dead processes are counted until PID 1 has reaped them, and it removes the program's group when it has answered.
	boxtest.Eventually(t, kind+" has left no process and no group", func() bool {
		return boxtest.GroupFile(t, s.Group, "work/pids.current") == "0" && len(programs(t, s)) == 0
	})
	return int(r.Usage.PidsPeak)
}

// dying is how far a cgroup may exceed its limit: a process that is being killed may still allocate.
const dying = 8 * quantity.MiB

// T31: memory of any kind counts against the limit of the box. PID 1 and the neighbouring box survive.
func TestT31MemoryBombs(t *testing.T) {
	d := start(t)
	const limit = 64 * quantity.MiB
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(limit)}, Tmp: new(512 * quantity.MiB)})
	d.NewSession(t, api.SessionRequest{ID: "neighbour"})
	arm(t, d, "s1")
	for _, kind := range []string{"memory", "mapped", "shm", "tmp"} {
		r := d.Result(t, "s1", forkBomb(t, kind, "1m"))
		if r.Status != "oom_killed" || r.OOM == nil || r.OOM.Limit != limit || r.OOM.Of != "session" || r.OOM.Kills == 0 || r.OOM.Peak > limit+dying {
			t.Errorf(`%s: r = %s, want r.Status == "oom_killed" and r.OOM != nil and r.OOM.Limit == limit and r.OOM.Of == "session" and r.OOM.Kills != 0 and r.OOM.Peak <= limit + dying`,
				kind, boxtest.Show(r))
			continue
		}
		if !slices.Contains(r.OOM.Names, "bomb") {
			t.Errorf(`%s: the victims are %q, want r.OOM.Names containing "bomb"`, kind, r.OOM.Names)
		}
		d.Sh(t, "s1", "rm -f /dev/shm/x /tmp/x")
		d.Sh(t, "neighbour", "echo here")
	}
	// Kernel memory of a program counts too: it is bounded by the limit or by the death of the program.
	for _, kind := range []string{"pipes", "sockets"} {
		r := d.Result(t, "s1", forkBomb(t, kind, "5s"))
		if r.Status != "oom_killed" && r.Status != "timed_out" || r.Usage.MemoryPeak > limit+dying {
			t.Errorf(`%s: r = %s, want (r.Status == "oom_killed" or r.Status == "timed_out") and r.Usage.MemoryPeak <= limit + dying`,
				kind, boxtest.Show(r))
		}
		d.Sh(t, "neighbour", "echo here")
	}
	// It takes no more than that share of the memory that TCP may use on the host (tcp_mem).
	pages, others := make(chan int, 1), tcpPages(t)
	go func() {
		most := 0
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			most = max(most, tcpPages(t))
		}
		pages <- most
	}()
	r := d.Result(t, "s1", forkBomb(t, "tcp", "8s"))
	if r.Status != "oom_killed" && r.Status != "timed_out" || r.Usage.MemoryPeak > limit+dying {
		t.Errorf(`tcp: r = %s, want (r.Status == "oom_killed" or r.Status == "timed_out") and r.Usage.MemoryPeak <= limit + dying`,
			boxtest.Show(r))
	}
	if taken := (<-pages - others) * os.Getpagesize(); taken > int(limit+dying) || taken < int(limit/8) {
		t.Errorf("a box of %v has %d bytes of the host's TCP", limit, taken)
	}
	d.Sh(t, "neighbour", "echo here")
	// These are otherwise bounded by fs.epoll.max_user_watches only, which counts for the owner of each box.
	if r := d.Result(t, "s1", forkBomb(t, "watches", "1m")); r.Status != "oom_killed" && (r.ExitCode == nil || *r.ExitCode != 3 || !strings.Contains(r.Stderr, "No space left on device")) || r.Usage.MemoryPeak > limit+dying {
		t.Errorf("watches: %s", boxtest.Show(r))
	}
	d.Sh(t, "neighbour", "echo here")
	if peak := number(t, s, "work/memory.peak"); peak > int(limit+dying) {
		t.Errorf("at most %d bytes were used, the limit is %d", peak, limit)
	}
	// T32: no swap beside it.
	if got := boxtest.GroupFile(t, s.Group, "work/memory.swap.max"); got != "0" {
		t.Errorf(`memory.swap.max is %s, want "0"`, got)
	}
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.Usage == nil || now.Usage.OOMKills == 0 || now.PID != s.PID {
		t.Errorf("now.Usage = %+v, err = %v, want no error and now.Usage != nil and now.Usage.OOMKills != 0 and now.PID == s.PID",
			now.Usage, err)
	}
}

// tcpPages is the number of pages that TCP uses on this host, in all network namespaces.
func tcpPages(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "\nTCP: ")
	_, rest, _ = strings.Cut(rest, " mem ")
	n := 0
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Error(err)
	}
	return n
}

func TestTheOOMSettingSelectsWhatIsKilled(t *testing.T) {
	d := start(t)
	for _, tc := range []struct {
		oom, bomb, status string
		code              int
		sibling           bool
	}{
		{"program", "memory", "oom_killed", 0, true},
		{"program", "child", "oom_killed", 0, true}, // its parent goes with it
		{"process", "child", "exited", 7, true},     // its parent hears of it
		{"process", "memory", "oom_killed", 0, true},
		{"session", "memory", "oom_killed", 0, false},
	} {
		id := tc.oom + " " + tc.bomb
		d.NewSession(t, api.SessionRequest{ID: id, Patch: limits.Patch{Memory: new(64 * quantity.MiB), OOM: &tc.oom}})
		arm(t, d, id)
		sibling := make(chan api.ExecResult, 1)
		// It allocates no memory meanwhile: a process that does so just when the bomb dies may be killed too, before the memory of
		// the bomb is free.
		go func() {
			sibling <- d.Result(t, id, boxtest.Shell("mkfifo end && touch up && read -r line <end && echo alive"))
		}()
		d.Sh(t, id, "until [ -e up ]; do sleep 0.05; done")
		r := d.Result(t, id, forkBomb(t, tc.bomb, "1m"))
		if r.Status != tc.status || r.OOM == nil || r.OOM.Kills == 0 || r.Status == "exited" && *r.ExitCode != tc.code {
			t.Errorf(`%s: r = %s, want r.Status == %v and r.OOM != nil and r.OOM.Kills != 0 and (r.Status != "exited" or *r.ExitCode == %v)`,
				id, boxtest.Show(r), tc.status, tc.code)
		}
		d.Sh(t, id, "echo end 1<>end") // opened like this it waits for no reader
		other := <-sibling
		if tc.sibling && (other.Status != "exited" || other.Stdout != "alive\n" || other.OOM != nil) || !tc.sibling && other.Status != "oom_killed" {
			t.Errorf("%s: the sibling %s", id, boxtest.Show(other))
		}
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnExecutionMayHaveLessThanItsSession(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(256 * quantity.MiB), Pids: new(64)}})
	arm(t, d, "s1")
	req := forkBomb(t, "memory", "1m")
	req.Memory = new(32 * quantity.MiB)
	if r := d.Result(t, "s1", req); r.Status != "oom_killed" || r.OOM == nil || r.OOM.Of != "execution" || r.OOM.Limit != 32*quantity.MiB || r.Usage.MemoryPeak > 32*quantity.MiB+dying {
		t.Errorf("r = %s", boxtest.Show(r))
	}
	req = forkBomb(t, "fork", "2s")
	req.Pids = new(10)
	if r := d.Result(t, "s1", req); r.Status != "timed_out" || r.Usage.PidsPeak > 10 || r.Usage.PidsPeak < 9 {
		t.Errorf(`r = %s, want r.Status == "timed_out" and r.Usage.PidsPeak <= 10 and r.Usage.PidsPeak >= 9`,
			boxtest.Show(r))
	}
	for field, spoil := range map[string]func(*api.ExecRequest){
		"memory": func(r *api.ExecRequest) { r.Memory = new(257 * quantity.MiB) },
		"pids":   func(r *api.ExecRequest) { r.Pids = new(0) },
		"cpus":   func(r *api.ExecRequest) { r.CPUs = new(-1.0) },
	} {
		req := boxtest.Shell("true")
		spoil(&req)
		_, err := d.Exec(t.Context(), "s1", &req)
		boxtest.Refused(t, err, 400, field)
	}
}

// T42: CPU time is limited whatever the number of loops, and boxd answers meanwhile.
func TestT42BusyLoops(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{CPUs: new(0.25)}})
	done := make(chan api.ExecResult, 1)
	req := boxtest.Shell("for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait")
	req.Timeout = boxtest.Duration("8s")
	go func() { done <- d.Result(t, "s1", req) }()
	for r := (api.ExecResult{}); r.Status == ""; {
		select {
		case r = <-done:
			used, most := r.Usage.UserMS+r.Usage.SystemMS, r.DurationMS*0.25
			t.Logf("%.0f ms in %.0f ms of time", used, r.DurationMS)
			// One period more, in which the quota may have been used on all CPUs at once.
			if r.Status != "timed_out" || used > most*1.1+200 {
				t.Errorf(`r = %s, want r.Status == "timed_out" and used <= most*1.1 + 200`, boxtest.Show(r))
			}
		default:
			if err := d.Ready(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if s, err := d.Session(t.Context(), "s1"); err != nil || s.Usage == nil || s.Usage.ThrottledMS == 0 {
		t.Errorf("s.Usage = %+v, err = %v, want no error and s.Usage != nil and s.Usage.ThrottledMS != 0", s.Usage, err)
	}
}

// The prescribed library reads what we have written.
func TestEveryLimitReadsBackThroughTheLibrary(t *testing.T) {
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{
		ID: "s1", Patch: limits.Patch{
			CPUs: new(0.5), CPUWeight: new(50), Memory: new(100 * quantity.MiB), MemoryHigh: new(80 * quantity.MiB), Pids: new(77), OOM: new("session"),
			IORead: new(10 * quantity.MiB), IOWrite: new(5 * quantity.MiB), Swap: new(quantity.MiB),
		},
	})
	m, err := cgroup2.Load("/work", cgroup2.WithMountpoint(s.Group))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := m.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if l := stat.GetMemory().GetUsageLimit(); l != 100<<20 {
		t.Errorf("memory: l = %d, want 100 << 20", l)
	}
	if l := stat.GetMemory().GetSwapLimit(); l != 1<<20 {
		t.Errorf("swap: l = %d, want 1 << 20", l)
	}
	if l := stat.GetPids().GetLimit(); l != 77 {
		t.Errorf("pids: l = %d, want 77", l)
	}
	for name, want := range map[string]string{
		"work/cpu.max": "50000 100000", "work/memory.high": "83886080", "work/memory.oom.group": "1", "cpu.weight": "50",
		"memory.max": "239075328", "pids.max": "141", "cgroup.max.descendants": "1024",
	} {
		if got := boxtest.GroupFile(t, s.Group, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := boxtest.GroupFile(t, s.Group, "work/io.max"); !strings.Contains(got, "rbps=10485760 wbps=5242880") {
		t.Errorf(`io.max is %q, want got containing "rbps=10485760 wbps=5242880"`, got)
	}
	if want := map[string]string{"memory": "cgroup2", "cpu": "cgroup2", "pids": "cgroup2", "io": "cgroup2", "tmp": "tmpfs", "workspace": "project-quota"}; len(s.Enforcement) != len(want) {
		t.Errorf("enforced by %v, want %v", s.Enforcement, want)
	}
	if dir := filepath.Dir(s.Group); filepath.Base(dir) != "owner-0" || filepath.Dir(dir) != d.GroupPath() {
		t.Errorf(`the cgroup is %s, want filepath.Base(dir) == "owner-0" and filepath.Dir(dir) == d.GroupPath()`,
			s.Group)
	}
}

// Programs that size themselves find limits wherever they look: in the cgroup that /proc/self/cgroup names, as the JVM does, at the
// root of what is mounted, and after a change too, however many start meanwhile.
func TestProgramsFindTheirLimitsInTheirCgroup(t *testing.T) {
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(64 * quantity.MiB), CPUs: new(0.5), Pids: new(50)}})
	own := []string{"sh", "-c", `cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max`}
	if got := d.Sh(t, "s1", "cd /sys/fs/cgroup; cat memory.max pids.max cpu.max"); got != "67108864\n50\n50000 100000\n" {
		t.Errorf(`got %q, want "67108864\n50\n50000 100000\n"`, got)
	}
	const more = 2<<20 + 64<<10
	req := api.ExecRequest{Argv: own}
	if r := d.Result(t, "s1", req); r.Stdout != fmt.Sprintln(64<<20+more) {
		t.Errorf("r = %s, want r.Stdout == fmt.Sprintln(64<<20 + more)", boxtest.Show(r))
	}
	req.Memory = new(32 * quantity.MiB)
	if r := d.Result(t, "s1", req); r.Stdout != fmt.Sprintln(32<<20) {
		t.Errorf("with a limit of its own: r = %s, want r.Stdout == fmt.Sprintln(32 << 20)", boxtest.Show(r))
	}
	change := func(memory quantity.Size) {
		t.Helper()
		if _, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: &memory}}); err != nil {
			t.Error(err)
		}
	}
	var starting sync.WaitGroup
	starting.Go(func() {
		for i := range 20 {
			if _, _, err := d.StartProcess(t.Context(), "s1", fmt.Sprint("p", i), &api.ProcessRequest{Argv: []string{"sleep", "100000"}}); err != nil {
				t.Error(err)
			}
		}
	})
	for range 10 {
		change(128 * quantity.MiB)
		change(100_000_001) // of which the kernel keeps whole pages
	}
	starting.Wait()
	change(112 * quantity.MiB)
	groups, err := filepath.Glob(filepath.Join(s.Group, "work/e*/memory.max"))
	if err != nil || len(groups) != 20 {
		t.Fatalf("groups = %v, err = %v, want no error and len(groups) == 20", groups, err)
	}
	for _, file := range groups {
		if text, err := os.ReadFile(file); err != nil || string(text) != fmt.Sprintln(112<<20+more) {
			t.Errorf("%s is %q, %v, want no error and text == fmt.Sprintln(112<<20 + more)", file, text, err)
		}
	}
	if got := d.Sh(t, "s1", "cat /sys/fs/cgroup/memory.max"); got != fmt.Sprintln(112<<20) {
		t.Errorf("got %q, want fmt.Sprintln(112 << 20)", got)
	}
}

// T39: there is no way to other groups.
func TestT39NoWayOutOfTheGroup(t *testing.T) {
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	own := d.Sh(t, "s1", "cat /proc/self/cgroup; stat -f -c %T /sys/fs/cgroup /sys; cd /sys/fs/cgroup; find . -type d | sort; cat init/cgroup.procs work/e1/cgroup.procs | grep -cx 0; grep -c cgroup2 /proc/self/mounts; true")
	if own != "0::/work/e1\ncgroup2fs\ntmpfs\n.\n./init\n./work\n./work/e1\n0\n1\n" { // its own, and no process from outside
		t.Errorf(`own = %q, want "0::/work/e1\ncgroup2fs\ntmpfs\n.\n./init\n./work\n./work/e1\n0\n1\n"`, own)
	}
	for _, line := range []string{
		"mkdir -p /tmp/c && mount -t cgroup2 none /tmp/c", "mount -t cgroup none /tmp/c", "unshare -C true", "echo 0 > /proc/1/cgroup",
		"echo 0 > /sys/fs/cgroup/cgroup.procs", "echo max > /sys/fs/cgroup/memory.max",
		"echo max > /sys/fs/cgroup/work/memory.max", "echo max > /sys/fs/cgroup/work/e1/memory.max", "echo 1 > /sys/fs/cgroup/work/cgroup.kill",
		"echo 1 > /sys/fs/cgroup/work/cgroup.freeze", "mkdir /sys/fs/cgroup/x", "mkdir /sys/fs/cgroup/work/x", "rmdir /sys/fs/cgroup/work/e1",
		"mount -o remount,rw /sys/fs/cgroup", "umount /sys/fs/cgroup/memory.max", "ls /sys/fs/cgroup/.." + s.Group, "echo 0 > " + s.Group + "/cgroup.procs", "cat /proc/1/root" + s.Group + "/cgroup.procs",
	} {
		if r := d.Result(t, "s1", boxtest.Shell(line)); r.Status == "exited" && *r.ExitCode == 0 {
			t.Errorf(`%s: r = %s, want r.Status != "exited" or *r.ExitCode != 0`, line, boxtest.Show(r))
		}
	}
}
