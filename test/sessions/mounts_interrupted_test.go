// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// tableOf lists the mounts of a box except its own basic ones: the mount id of the lowest mount on each path. A path with more
// than one mount is also in over.
func tableOf(t *testing.T, pid uint32) (at map[string]uint64, over []string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	at = map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		name := f[4]
		if !strings.HasPrefix(name, "/mnt/") && !strings.HasPrefix(name, "/workspace/") {
			continue
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, dup := at[name]; dup {
			over = append(over, name)
		}
		at[name] = id
	}
	return at, over
}

// agree compares a session's list of mounts with the mounts in its box.
func agree(t *testing.T, d *boxtest.Daemon, s *api.Session, when string) (listed map[string]api.SessionMount) {
	t.Helper()
	list, err := d.Mounts(t.Context(), s.ID)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	listed = map[string]api.SessionMount{}
	for _, m := range list {
		if !m.Live {
			continue
		}
		listed[m.Target] = m
		name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(s.PID)), "root", m.Target, "name"))
		if err != nil || string(name) != filepath.Base(m.Source) || !slices.Equal(m.Attributes, []string{"ro", "nosuid", "nodev"}) {
			t.Errorf(`%s: %+v is in the list, and the box has %q, %v, want no error and name == filepath.Base(m.Source) and m.Attributes == []string{"ro", "nosuid", "nodev"}`,
				when, m, name, err)
		}
	}
	at, over := tableOf(t, s.PID)
	if !slices.Equal(slices.Sorted(maps.Keys(at)), slices.Sorted(maps.Keys(listed))) {
		t.Errorf("%s: in the list %v, in the box %v", when, slices.Sorted(maps.Keys(listed)), at)
	}
	if len(over) > 0 && !keepsReplaced() {
		t.Errorf("%s: more than one on %q", when, over)
	}
	return listed
}

// keepsReplaced reports whether this kernel (before 6.5) keeps a replaced mount below the new one.
func keepsReplaced() bool {
	var u syscall.Utsname
	_ = syscall.Uname(&u) // does not fail
	var release []byte
	for _, c := range u.Release {
		release = append(release, byte(c))
	}
	var major, minor int
	_, _ = fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	return major < 6 || major == 6 && minor < 5
}

// changes changes mounts until stop is set, and signals the beginning of each change.
func changes(t *testing.T, d *boxtest.Daemon, source string, targets []string, random *rand.Rand, stop *atomic.Bool, begins chan<- struct{}) {
	two := filepath.Join(filepath.Dir(source), "two")
	for !stop.Load() {
		target := targets[random.IntN(len(targets))]
		req := api.MountRequest{Source: source, Target: target, Mode: "ro", Replace: random.IntN(3) > 0}
		if random.IntN(2) == 0 {
			req.Source = two
		}
		select {
		case begins <- struct{}{}:
		default:
		}
		if random.IntN(3) == 0 {
			_ = d.RemoveMount(t.Context(), "s", target, true)
			continue
		}
		_, _, _ = d.AddMount(t.Context(), "s", &req) // the result is checked afterwards
	}
}

// boxd or its keeper is killed while mounts are added, replaced and removed, at a random moment or as soon as the box has
// changed. Afterwards the mounts are those listed, all of them can be removed, and no others are in the way.
func TestChangesOfMountsSurviveTheirMakers(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
	source := d.NamedMountSource(t, "one", 0)
	d.NamedMountSource(t, "two", 0)
	s := d.NewSession(t, api.SessionRequest{ID: "s"})
	targets := []string{"/mnt/a", "/mnt/deep/b", "/workspace/in/c"}
	const rounds = 24
	for round := range rounds {
		keeper, killsKeeper, atChange := d.Keeper(), round%2 == 0, round%4 < 2
		var (
			stop   atomic.Bool
			begins = make(chan struct{})
			work   sync.WaitGroup
			own    = rand.New(rand.NewPCG(seed, uint64(round)+1)) //nolint:gosec // a test's
		)
		work.Go(func() { changes(t, d, source, targets, own, &stop, begins) })
		for range 1 + random.IntN(4) {
			<-begins
		}
		if atChange {
			before, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.PID))
			for now := before; string(now) == string(before); {
				now, _ = os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.PID))
			}
		} else {
			for range random.IntN(1 << 14) {
				runtime.Gosched()
			}
		}
		when := fmt.Sprintf("round %d, boxd killed", round)
		if killsKeeper {
			when = fmt.Sprintf("round %d, keeper killed", round)
			if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			stop.Store(true)
			work.Wait()
		} else {
			stop.Store(true)
			d.Kill()
			work.Wait()
			d.Restart()
			agree(t, d, &s, when) // before any other change
		}
		boxtest.Eventually(t, "mounts can be changed again", func() bool {
			_, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: source, Target: "/mnt/again", Mode: "ro"})
			return err == nil
		})
		listed := agree(t, d, &s, when)
		for _, target := range append(targets, "/mnt/again") {
			if _, found := listed[target]; !found {
				mount(t, d, "s", api.MountRequest{Source: source, Target: target})
			}
			unmount(t, d, "s", target)
		}
		if got := d.Sh(t, "s", "ls -A /mnt /workspace"); got != "/mnt:\n\n/workspace:\n" {
			t.Errorf(`%s: left is %q, want got == "/mnt:\n\n/workspace:\n"`, when, got)
		}
		agree(t, d, &s, when)
		if t.Failed() {
			t.Fatalf("seed %d; boxd:\n%s", seed, d.Log())
		}
	}
}

// putBelow mounts a directory in a box below what is mounted on its target, as the first step of a keeper that replaces it; on a
// kernel without MOVE_MOUNT_BENEATH it mounts on top, as the keeper does there.
func putBelow(t *testing.T, pid uint32, source, target string) {
	t.Helper()
	const beneath = 0x200 // MOVE_MOUNT_BENEATH
	put := func() error {
		tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(tree)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return err
		}
		ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ns)
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(ns, unix.CLONE_NEWNS)); err != nil {
			return err
		}
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH|beneath)
		if errors.Is(err, unix.EINVAL) {
			err = unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		return err
	}
	done := make(chan error)
	go func() { // waited for below
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- put()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A change that a killed boxd has made and not recorded is recovered from the record that it wrote before.
func TestAChangeNobodyHeardOfIsSettled(t *testing.T) {
	t.Parallel()
	type record = map[string]json.RawMessage
	read := func(t *testing.T, d *boxtest.Daemon) (r record) {
		t.Helper()
		path := d.Record(t, "s")
		if all, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.json")); err != nil || len(all) != 1 {
			t.Fatalf("all = %q, err = %v, want no error and len(all) == 1", all, err)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const target = "/workspace/in/deep"
	for name, tc := range map[string]struct {
		has    bool   // whether there is a mount before
		change string // the change as recorded
		make   func(t *testing.T, d *boxtest.Daemon, s *api.Session, two string)
		left   string // what is mounted in the end
	}{
		"added": {change: `{"source":%q,"target":%q,"mode":"ro","known":%s,"missing":"/workspace/in"}`, make: func(t *testing.T, d *boxtest.Daemon, _ *api.Session, two string) {
			mount(t, d, "s", api.MountRequest{Source: two, Target: target})
		}},
		"not added": {change: `{"source":%q,"target":%q,"mode":"ro","known":%s,"missing":"/workspace/in"}`, make: func(t *testing.T, d *boxtest.Daemon, _ *api.Session, _ string) {
			d.Sh(t, "s", "mkdir -p "+target)
		}},
		"replaced": {has: true, change: `{"source":%q,"target":%q,"mode":"ro","known":%s}`, left: "two", make: func(t *testing.T, d *boxtest.Daemon, _ *api.Session, two string) {
			if _, _, err := d.AddMount(t.Context(), "s", &api.MountRequest{Source: two, Target: target, Mode: "ro", Replace: true}); err != nil {
				t.Fatal(err)
			}
		}},
		"half replaced": {has: true, change: `{"source":%q,"target":%q,"mode":"ro","known":%s}`, left: "two", make: func(t *testing.T, _ *boxtest.Daemon, s *api.Session, two string) {
			putBelow(t, s.PID, two, target)
			if _, over := tableOf(t, s.PID); !slices.Equal(over, []string{target}) {
				t.Fatalf("more than one on %q", over)
			}
		}},
		"not replaced": {has: true, change: `{"source":%q,"target":%q,"mode":"ro","known":%s}`, left: "one", make: func(*testing.T, *boxtest.Daemon, *api.Session, string) {}},
		"removed": {has: true, change: `{"source":"","target":%[2]q,"mode":"","known":%[3]s}`, make: func(t *testing.T, d *boxtest.Daemon, _ *api.Session, _ string) {
			unmount(t, d, "s", target)
		}},
		"not removed": {has: true, change: `{"source":"","target":%[2]q,"mode":"","known":%[3]s}`, left: "one", make: func(*testing.T, *boxtest.Daemon, *api.Session, string) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
			one := d.NamedMountSource(t, "one", 0)
			d.NamedMountSource(t, "two", 0)
			two := filepath.Join(filepath.Dir(one), "two")
			s := d.NewSession(t, api.SessionRequest{ID: "s"})
			mount(t, d, "s", api.MountRequest{Source: one, Target: "/mnt/other"})
			if tc.has {
				mount(t, d, "s", api.MountRequest{Source: one, Target: target})
			}
			before, _ := tableOf(t, s.PID)
			known, err := json.Marshal(slices.Collect(maps.Values(before)))
			if err != nil {
				t.Fatal(err)
			}
			r := read(t, d)
			tc.make(t, d, &s, two)
			d.Kill()
			r["mounting"] = json.RawMessage(fmt.Sprintf(tc.change, two, target, known))
			text, err := json.Marshal(r)
			if err == nil {
				err = os.WriteFile(d.Record(t, "s"), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			d.Restart()
			listed := agree(t, d, &s, name)
			if m, found := listed[target]; found != (tc.left != "") || found && filepath.Base(m.Source) != tc.left {
				t.Errorf(`the mounts are %+v, want found == (tc.left != "") and (found == false or filepath.Base(m.Source) == tc.left)`,
					listed)
			}
			if _, still := read(t, d)["mounting"]; still {
				t.Error("the record still has the interrupted change")
			}
			if tc.left == "" {
				if got := d.Sh(t, "s", "ls -A /workspace"); got != "" {
					t.Errorf(`left is %q, want ""`, got)
				}
				mount(t, d, "s", api.MountRequest{Source: one, Target: target})
			}
			unmount(t, d, "s", target)
			unmount(t, d, "s", "/mnt/other")
			if got := d.Sh(t, "s", "ls -A /mnt /workspace"); got != "/mnt:\n\n/workspace:\n" {
				t.Errorf(`left is %q, want "/mnt:\n\n/workspace:\n"`, got)
			}
		})
	}
}
