// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// orphans returns the keeper's own processes that must end with it: its zygote, the preforked boxes, and the workers.
func orphans(t *testing.T, keeper int, boxes ...int) (list []int) {
	t.Helper()
	boxtest.Eventually(t, "a zygote and a preforked box run", func() bool {
		var workers []int
		list = nil
		for _, child := range boxtest.Children(t, keeper) {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); err == nil && strings.HasPrefix(string(text), "boxkeeper\x00errands") {
				workers = append(workers, child)
				continue
			}
			list = append(list, child)
			for _, pid := range boxtest.Children(t, child) {
				if !slices.Contains(boxes, pid) {
					list = append(list, pid)
				}
			}
		}
		if len(list) != 2 {
			return false
		}
		list = append(list, workers...)
		return true
	})
	return list
}

// kill kills a process and waits until it, and others, are dead.
func kill(t *testing.T, pid int, others ...int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, fmt.Sprintf("%d is dead, and so are %v", pid, others), func() bool {
		return !slices.ContainsFunc(append(others, pid), boxtest.Lives)
	})
}

func TestBoxesLiveWithoutTheirKeeper(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "echo kept > file")
	running := make(chan api.ExecResult, 1)
	go func() {
		req := boxtest.Shell("echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo done")
		req.Timeout = new(quantity.Duration(boxtest.Longest))
		r, err := d.Exec(t.Context(), "s1", &req)
		if err != nil {
			t.Error(err)
		}
		running <- r
	}()
	for round := range 3 {
		keeper := d.Keeper()
		kill(t, keeper, orphans(t, keeper, int(s.PID))...)
		if got := d.Sh(t, "s1", "cat file"); got != "kept\n" {
			t.Errorf(`the session has %q, want "kept\n"`, got)
		}
		id := fmt.Sprintf("new%d", round)
		other := d.NewSession(t, api.SessionRequest{ID: id})
		if other.IDBase == s.IDBase {
			t.Error("a new box has the ids of a running one")
		}
		d.Sh(t, id, "true")
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	d.Sh(t, "s1", "touch /tmp/go")
	if r := <-running; r.Stdout != "begun\ndone\n" {
		t.Errorf(`r = %s, want r.Stdout == "begun\ndone\n"`, boxtest.Show(r))
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	d.Warm()
	d.NothingLeft(before)
	d.Stop()
	noBoxes(t, d)
	nothingInRunDir(t, d)
}

// nothingInRunDir waits until the keeper has removed all that it had of boxes in the run directory: that comes after their
// last process.
func nothingInRunDir(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	var left []fs.DirEntry
	var err error
	defer func() {
		if t.Failed() {
			t.Logf("left in the run directory: %v, %v", left, err)
		}
	}()
	boxtest.Eventually(t, "the run directory has no files of boxes", func() bool {
		left, err = os.ReadDir(filepath.Join(d.Dir, "run", "boxes"))
		return err == nil && len(left) == 0
	})
}

// A launch or removal that is interrupted by the keeper's death is undone by the next keeper.
func TestKeepersThatDieInTheMiddleLeaveNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	const workers = 4
	var wg sync.WaitGroup
	var done, failed atomic.Int64
	end := make(chan struct{})
	for w := range workers {
		wg.Go(func() {
			id := fmt.Sprintf("w%d", w)
			for {
				_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: id})
				if err == nil {
					_, err = d.Exec(t.Context(), id, new(boxtest.Shell("(setsid sleep 1000 &) ; echo x > file")))
				}
				if err == nil {
					err = d.DeleteSession(t.Context(), id)
				}
				if err != nil {
					failed.Add(1)
				}
				done.Add(1)
				select {
				case <-end:
					return
				default:
				}
			}
		})
	}
	for round := range int64(15) {
		boxtest.Eventually(t, "the rounds go on", func() bool { return done.Load() >= 7*round })
		old := d.Keeper()
		kill(t, old)
		boxtest.Eventually(t, "another keeper runs", func() bool { return d.Keeper() != old })
	}
	close(end)
	wg.Wait()
	for w := range workers {
		err := d.DeleteSession(t.Context(), fmt.Sprintf("w%d", w))
		if err != nil && !strings.Contains(err.Error(), "no session") {
			t.Error(err)
		}
	}
	t.Logf("%d rounds, %d of them failed", done.Load(), failed.Load())
	boxtest.Eventually(t, "every session has ended", func() bool { return len(sessions(t, d)) == 0 })
	d.Warm()
	d.NothingLeft(before)
	nothingInRunDir(t, d)
}

// The keeper outlives a boxd that is killed, and ends when it has nothing left to watch.
func TestAKeeperWithoutBoxdAndBoxesEnds(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	keeper := d.Keeper()
	d.Kill()
	boxtest.Eventually(t, "the keeper has ended", func() bool { return !boxtest.Lives(keeper) })
	noBoxes(t, d)
	if _, err := os.Lstat(filepath.Join(d.Dir, "run", "keeper", "socket")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its socket is left: err = %v, want err is fs.ErrNotExist", err)
	}
	d.Restart()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
}

// startKeeper starts a keeper the way its systemd unit does.
func startKeeper(t *testing.T, flags ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(boxtest.Programs(t), "boxkeeper"), append(flags, "-linger")...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestAKeeperOfItsOwnUnit(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.Keeper()))
	if err != nil {
		t.Fatal(err)
	}
	flags := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")[1:]
	d.Stop()
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	external := strings.Replace(string(text), "[daemon]\n", "[daemon]\nkeeper = \"external\"\n", 1)
	if err := os.WriteFile(d.Config, []byte(external), 0o600); err != nil {
		t.Fatal(err)
	}
	other := startKeeper(t, append(flags, "-allow=/srv/other")...)
	boxtest.Eventually(t, "a keeper with other flags runs", func() bool {
		_, err := os.Lstat(filepath.Join(d.Dir, "run", "keeper", "socket"))
		return err == nil
	})
	out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "restart it: its flags are not those of the configuration: \"-allow=/srv/other\" instead of \"-etc=") {
		t.Errorf(`with the other flags boxd prints %s, want an error and out containing "restart it: its flags are not those of the configuration: \"-allow=/srv/other\" instead of \"-etc="`,
			out)
	}
	stop := func(cmd *exec.Cmd) {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("a keeper that is stopped: %v", err)
		}
	}
	stop(other)
	first := startKeeper(t, flags...)
	d.Restart()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "true")
	stop(first)
	d.Sh(t, "s1", "true")
	second := startKeeper(t, flags...)
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	for _, id := range []string{"s1", "s2"} {
		d.Sh(t, id, "true")
	}
	d.Stop()
	boxtest.Eventually(t, "all boxes but the preforked one are dead", func() bool { return len(d.Look().Processes) <= 1 })
	if !boxtest.Lives(second.Process.Pid) {
		t.Error("the keeper has ended with boxd")
	}
	d.Restart()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Stop()
	stop(second)
	noBoxes(t, d)
}

// keeperSeries is a series of keepers that take over from each other in one run directory.
type keeperSeries struct {
	t   *testing.T
	cfg client.KeeperConfig
	log *os.File
}

func newKeeperSeries(t *testing.T) *keeperSeries {
	t.Helper()
	boxtest.RequireRoot(t)
	dir, programs := boxtest.TempDir(t), boxtest.Programs(t)
	for _, sub := range []string{"run", "state"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return &keeperSeries{t, client.KeeperConfig{
		KeeperConfig: isolation.KeeperConfig{
			RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), BoxInit: filepath.Join(programs, "boxinit"),
			IDBase: 0x7f000000, IDCount: 64, IDLock: "/run/boxd-test-shared-ids", Ahead: 1,
		},
		Program: filepath.Join(programs, "boxkeeper"), Stderr: log, Log: slog.New(slog.NewTextHandler(log, nil)),
	}, log}
}

func (tr *keeperSeries) enter() *client.Keeper {
	tr.t.Helper()
	k, err := client.StartKeeper(tr.t.Context(), tr.cfg)
	if err != nil {
		tr.t.Fatalf("%v\n%s", err, tr.said())
	}
	tr.t.Cleanup(k.Detach)
	return k
}

// update replaces the keeper's program file with another one.
func (tr *keeperSeries) update() {
	tr.t.Helper()
	data, err := os.ReadFile(tr.cfg.Program)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.cfg.Program = filepath.Join(filepath.Dir(tr.cfg.RunDir), "boxkeeper")
	if err := os.WriteFile(tr.cfg.Program, data, 0o700); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *keeperSeries) said() string {
	text, err := os.ReadFile(tr.log.Name())
	if err != nil {
		tr.t.Fatal(err)
	}
	return string(text)
}

func (tr *keeperSeries) pid() (pid int) {
	tr.t.Helper()
	text, err := os.ReadFile(filepath.Join(tr.cfg.RunDir, "keeper", "lock"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		tr.t.Fatal(err)
	}
	return pid
}

func key(letter string) string { return strings.Repeat(letter, isolation.KeyLen) }

func (tr *keeperSeries) launch(k *client.Keeper, letter string) *client.Box {
	tr.t.Helper()
	b, err := k.Launch(tr.t.Context(), &isolation.Spec{
		Key: key(letter), Hostname: letter, Scratch: isolation.Scratch{Bytes: 1 << 20, Inodes: 1 << 10}, ManagedWork: true,
	})
	if err != nil {
		tr.t.Fatalf("%v\n%s", err, tr.said())
	}
	return b
}

func (tr *keeperSeries) works(b *client.Box) {
	tr.t.Helper()
	p, err := b.Start(&isolation.Command{Argv: []string{"/bin/sh", "-c", "echo x >/workspace/file"}, Dir: "/workspace", ScriptArg: -1}, client.Files{})
	if err != nil {
		tr.t.Fatal(err)
	}
	defer p.Close()
	if x, err := p.Wait(tr.t.Context()); err != nil || x.Code != 0 {
		tr.t.Errorf("a program: x = %+v, err = %v, want no error and x.Code == 0", x, err)
	}
}

func (tr *keeperSeries) wantList(k *client.Keeper, letters ...string) {
	tr.t.Helper()
	want := make([]string, len(letters))
	for i, l := range letters {
		want[i] = key(l)
	}
	var got []string
	defer func() {
		if tr.t.Failed() {
			tr.t.Logf("boxes: %q, want %q", got, want)
		}
	}()
	boxtest.Eventually(tr.t, "the keeper lists the running boxes", func() bool { // dead boxes may still be in clean-up
		var err error
		got, err = k.List(tr.t.Context())
		return err == nil && slices.Equal(got, want)
	})
}

// A box is adopted by one keeper after the other, however the previous keeper ended.
func TestKeepersFollowEachOther(t *testing.T) {
	t.Parallel()
	tr := newKeeperSeries(t)
	k := tr.enter()
	a, b := tr.launch(k, "a"), tr.launch(k, "b")
	first := tr.pid()
	k.Detach()
	k = tr.enter()
	if tr.pid() != first {
		t.Errorf("a keeper with boxes has ended without boxd")
	}
	tr.wantList(k, "a", "b")
	kill(t, first, orphans(t, first, int(a.PID), int(b.PID))...)
	tr.wantList(k, "a", "b") // from the next keeper
	second := tr.pid()
	c := tr.launch(k, "c")
	if bases := []uint32{a.IDBase, b.IDBase}; second == first || slices.Contains(bases, c.IDBase) {
		t.Errorf("the next keeper is %d and gives ids %d; %v are in use", second, c.IDBase, bases)
	}
	k.Detach()
	tr.cfg.Ahead = 2 // a different configuration
	k = tr.enter()
	third := tr.pid()
	if third == second {
		t.Errorf("the keeper is %d still, whatever the configuration", third)
	}
	boxtest.Eventually(t, "the second keeper has ended", func() bool { return !boxtest.Lives(second) }) // maybe only its lock is released so far
	k.Detach()
	tr.update()
	k = tr.enter()
	if fourth := tr.pid(); fourth == third {
		t.Errorf("the keeper is %d still, after an update", fourth)
	}
	boxtest.Eventually(t, "the third keeper has ended", func() bool { return !boxtest.Lives(third) })
	tr.wantList(k, "a", "b", "c")
	for _, box := range []*client.Box{a, b, c} {
		tr.works(box)
	}
	if err := k.End(t.Context(), key("b"), true); err != nil {
		t.Error(err)
	}
	<-b.Done()
	tr.wantList(k, "a", "c")
	if _, err := os.Stat(filepath.Join(tr.cfg.StateDir, "workspaces", key("b"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its workspace is left: err = %v, want err is fs.ErrNotExist", err)
	}
	again := tr.launch(k, "b")
	if slices.Contains([]uint32{a.IDBase, c.IDBase}, again.IDBase) {
		t.Errorf("a new box has the ids of a running one: again.IDBase = %d, want []uint32{a.IDBase, c.IDBase} without again.IDBase",
			again.IDBase)
	}
	last := tr.pid()
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "the last keeper has ended", func() bool { return !boxtest.Lives(last) })
	if boxtest.Lives(int(a.PID)) || boxtest.Lives(int(c.PID)) {
		t.Error("a box outlived Close of its keeper")
	}
	for _, box := range []*client.Box{a, b, c, again} {
		box.Close()
	}
	if left, err := os.ReadDir(filepath.Join(tr.cfg.RunDir, "boxes")); err != nil || len(left) > 0 {
		t.Errorf("left: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
}

// A new keeper cleans up boxes that are dead or half started, and leaves a box alone whose record it cannot parse.
func TestAKeeperFindsWhatIsLeft(t *testing.T) {
	t.Parallel()
	tr := newKeeperSeries(t)
	k := tr.enter()
	a, b, c := tr.launch(k, "a"), tr.launch(k, "b"), tr.launch(k, "c")
	k.Detach()
	kill(t, tr.pid())
	kill(t, int(b.PID))
	boxes := filepath.Join(tr.cfg.RunDir, "boxes")
	if err := os.Mkdir(filepath.Join(boxes, key("d")), 0o700); err != nil { // an interrupted start
		t.Fatal(err)
	}
	damaged := filepath.Join(boxes, key("c"), "record")
	whole, err := os.ReadFile(damaged)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	k = tr.enter()
	tr.wantList(k, "a")
	if said := tr.said(); !strings.Contains(said, "DAMAGED RECORD: record of box "+key("c")) {
		t.Errorf("the log does not name the damaged record:\n%s", said)
	}
	if err := k.End(t.Context(), key("c"), true); !errors.Is(err, unix.EUCLEAN) {
		t.Errorf("the end of a box that is not understood: err = %v, want err is unix.EUCLEAN", err)
	}
	if _, err := k.Launch(t.Context(), &isolation.Spec{Key: key("c"), Hostname: "c", Scratch: isolation.Scratch{Bytes: 1 << 20, Inodes: 1 << 10}}); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second box in its place: err = %v, want err is unix.EEXIST", err)
	}
	tr.works(a)
	tr.works(c) // no keeper has touched it
	d := tr.launch(k, "d")
	if slices.Contains([]uint32{a.IDBase, c.IDBase}, d.IDBase) {
		t.Errorf("a new box has the ids of a running one: d.IDBase = %d, want []uint32{a.IDBase, c.IDBase} without d.IDBase",
			d.IDBase)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(boxes)
	if err != nil || len(left) != 1 || left[0].Name() != key("c") {
		t.Errorf(`left: left = %v, err = %v, want no error and len(left) == 1 and left[0].Name() == key("c")`,
			left, err)
	}
	for _, box := range []*client.Box{a, b, c, d} {
		box.Close()
	}
	boxtest.Eventually(t, "the last box has ended with its connection", func() bool { return !boxtest.Lives(int(c.PID)) })
}

// A compromised boxd may leave the workspace of each box that it ends: their number is limited, whatever they are called, and the
// next keeper counts the existing ones. An honest boxd goes on with those that it has.
func TestACompromisedBoxdLeavesABoundedNumberOfWorkspaces(t *testing.T) {
	t.Parallel()
	tr := newKeeperSeries(t)
	const most = 4
	tr.cfg.Workspaces = most
	k := tr.enter()
	leave := func(letter string) {
		t.Helper()
		b := tr.launch(k, letter)
		if err := k.End(t.Context(), key(letter), false); err != nil {
			t.Fatal(err)
		}
		b.Close()
	}
	full := func(when string, err error) {
		t.Helper()
		if step, ok := errors.AsType[*isolation.StepError](err); !ok || step.Step != isolation.StepWorkspace || step.Refused == nil || step.Refused.Field != isolation.FieldWorkspaces || step.Refused.Allowed != "at most 4" {
			t.Errorf("%s, one more: %v", when, err)
		}
	}
	refused := func(when string) {
		t.Helper()
		for _, change := range []func(*isolation.Spec){func(s *isolation.Spec) { s.ManagedWork = true }, func(s *isolation.Spec) { s.DiskHome = true }} {
			spec := &isolation.Spec{Key: key("z"), Hostname: "z", Scratch: isolation.Scratch{Bytes: 1 << 20, Inodes: 1 << 10}}
			change(spec)
			b, err := k.Launch(t.Context(), spec)
			if full(when, err); err == nil {
				b.Close()
			}
		}
		full(when, k.ChangeSpace(t.Context(), &isolation.ChangeSpace{Key: key("y")}))
		if n := len(tr.left()); n != most {
			t.Errorf("%s there are %d, want %d", when, n, most)
		}
	}
	leave("a")
	if err := k.Keep(t.Context(), key("a"), strings.Repeat("a", 26)); err != nil { // an image
		t.Fatal(err)
	}
	leave("b")
	if err := k.Keep(t.Context(), key("b"), isolation.SpacesDir+"/"+key("x")); err != nil {
		t.Fatal(err)
	}
	if err := k.ChangeSpace(t.Context(), &isolation.ChangeSpace{Key: key("w")}); err != nil {
		t.Fatal(err)
	}
	leave("c")
	refused("with as many as there may be")
	if err := k.ChangeSpace(t.Context(), &isolation.ChangeSpace{Key: key("w")}); err != nil {
		t.Errorf("a named workspace that exists: %v", err)
	}
	kill(t, tr.pid())
	refused("by the next keeper")
	b, err := k.Launch(t.Context(), &isolation.Spec{
		Key: key("c"), Hostname: "c", Scratch: isolation.Scratch{Bytes: 1 << 20, Inodes: 1 << 10}, ManagedWork: true, Resume: true,
	})
	if err != nil {
		t.Fatalf("a box whose workspace exists: %v", err)
	}
	tr.works(b)
	b.Close()
	if err := k.End(t.Context(), key("c"), true); err != nil {
		t.Fatal(err)
	}
	leave("d") // in the place of that
	refused("again")
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}

// left returns the workspaces and images of a keeper.
func (tr *keeperSeries) left() (list []string) {
	tr.t.Helper()
	for _, dir := range []string{"workspaces", isolation.SpacesDir, statedir.ImageTrees} {
		names, err := filepath.Glob(filepath.Join(tr.cfg.StateDir, dir, "*"))
		if err != nil {
			tr.t.Fatal(err)
		}
		list = append(list, names...)
	}
	return list
}

// Callers get the reason of a refusal by the keeper: which limit it is, and what to remove.
func TestAHostHasSoManyWorkspaces(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax = 2\n[workspaces]\nmax = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	stop(t, d, "s1")
	space(t, d, "named")
	full := func(err error) {
		t.Helper()
		e := boxtest.Refused(t, err, http.StatusTooManyRequests, "")
		if !strings.Contains(e.Detail, "at most 2 (workspaces.max)") || !strings.Contains(e.Hint, "workspaces.max") {
			t.Errorf(`e = %+v, want e.Detail containing "at most 2 (workspaces.max)" and e.Hint containing "workspaces.max"`,
				e)
		}
	}
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s2"})
	full(err)
	_, err = d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "other"})
	full(err)
	d.NewSession(t, api.SessionRequest{ID: "s3", Workspace: "named"}) // it makes none
	startAgain(t, d, "s1")
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s2"})
}
