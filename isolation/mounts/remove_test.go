// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// aBox starts a process in a mount namespace of its own, with a directory there that belongs to
// its user.
func aBox(t *testing.T) (b *Box, dir string) {
	t.Helper()
	boxtest.RequireRoot(t) // entering a mount namespace needs root
	// As in a box, /tmp is a mount: it is not covered.
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "mount --bind /tmp /tmp && echo && exec sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS} // with its own PID namespace, as a box has
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	dir, err = os.MkdirTemp("/tmp", "live-") //nolint:usetesting // mounts of living boxes are below /tmp, and TMPDIR may be elsewhere
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	const base = 0x7ff00000
	if err := os.Chown(dir, base+isolation.BoxUID, base+isolation.BoxUID); err != nil {
		t.Fatal(err)
	}
	return &Box{PID: cmd.Process.Pid, IDBase: base, Alive: func() bool { return true }}, dir
}

// given adds a mount to a box.
func given(t *testing.T, b *Box, target string) *isolation.Mounted {
	t.Helper()
	tree := aTree(t)
	defer unix.Close(tree)
	done, err := b.Add(tree, &isolation.Mount{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	if at, err := b.find(done.ID); err != nil || at != target {
		t.Fatalf("mounted on %q, %v", at, err)
	}
	return done
}

func aTree(t *testing.T) int {
	t.Helper()
	tree, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err == nil {
		err = linux.RestrictMount(tree, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// deep moves a directory into many others, one inside the other, as a program that uses none of
// the paths can do.
func deep(t *testing.T, dir, name string, depth int) {
	t.Helper()
	long := strings.Repeat("d", unix.NAME_MAX)
	top, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(top)
	at, err := unix.Dup(top)
	for range depth {
		if err == nil {
			err = unix.Mkdirat(at, long, 0o755)
		}
		next := -1
		if err == nil {
			next, err = unix.Openat(at, long, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		at = next
	}
	if err == nil {
		err = unix.Renameat(top, name, at, name)
	}
	unix.Close(at)
	if err != nil {
		t.Fatal(err)
	}
}

// A mount is removed wherever a box has moved it, and whatever it has named the directories
// above: also from a name with white space that the kernel does not escape, and from a path
// longer than a system call takes.
func TestAMountIsRemovedFromWhereverItIs(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(t *testing.T, dir string){
		"in its place": func(*testing.T, string) {},
		"strange names": func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "a\r\u00a0\u3000\v b\n\\040")); err != nil {
				t.Fatal(err)
			}
		},
		"below a path too long for a call":   func(t *testing.T, dir string) { deep(t, dir, "a", 20) },
		"below a path too long for a buffer": func(t *testing.T, dir string) { deep(t, dir, "a", 300) },
	} {
		for _, force := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b, dir := aBox(t)
				done := given(t, b, dir+"/a/b/t")
				move(t, dir)
				gone, err := b.Remove(dir+"/a/b/t", []uint64{done.ID}, done.Made, force)
				if err != nil || gone.Busy {
					t.Fatalf("gone = %+v, err = %v, want no error and gone.Busy == false", gone, err)
				}
				if at, err := b.find(done.ID); err != nil || at != "" {
					t.Errorf("it is still on a path of %d bytes, %v", len(at), err)
				}
			})
		}
	}
}

// Only mounts in places where a live box is given mounts are removed, whatever mount id the
// request names.
func TestOnlyMountsOfLivingBoxesAreRemoved(t *testing.T) {
	t.Parallel()
	b, dir := aBox(t)
	done := given(t, b, dir+"/t")
	ids := map[string]uint64{}
	if err := b.mounts(func(e entry) { ids[e.path] = e.id }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Remove(dir+"/t", []uint64{ids["/proc"]}, "", true); err != unix.EPERM { //nolint:errorlint // as it is
		t.Errorf("/proc: err = %v, want unix.EPERM", err)
	}
	if at, err := b.find(ids["/proc"]); err != nil || at != "/proc" {
		t.Errorf("/proc is on %q, %v", at, err)
	}
	if _, err := b.Remove(dir+"/t", []uint64{done.ID}, done.Made, false); err != nil {
		t.Error(err)
	}
}

// A mount does not count as busy because a process outside the box was just forked, and has the
// descriptors of its parent until its execve.
func TestAForkOutsideTheBoxMakesNoMountBusy(t *testing.T) {
	t.Parallel()
	b, dir := aBox(t)
	done := given(t, b, dir+"/t")
	held := -1
	if err := b.enter(func(p *nsThread) (err error) {
		held, err = p.open(dir + "/t")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	root := os.NewFile(uintptr(held), "root")
	// It is in another PID namespace, as the keeper's children are, so it is no process of the
	// box.
	child := exec.CommandContext(t.Context(), "sleep", "0.1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	child.ExtraFiles = []*os.File{root}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	root.Close()
	if gone, err := b.Remove(dir+"/t", []uint64{done.ID}, done.Made, false); err != nil || gone.Busy {
		t.Errorf("gone = %+v, err = %v, want no error and gone.Busy == false", gone, err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// After a replacement the target has the new mount alone, and removing that also removes every
// directory made for it.
func TestReplacingLeavesOneMount(t *testing.T) {
	t.Parallel()
	b, dir := aBox(t)
	old := given(t, b, dir+"/t")
	tree := aTree(t)
	done, err := b.Replace(tree, &isolation.Mount{Target: dir + "/t"}, old.ID)
	unix.Close(tree)
	if err != nil {
		t.Fatal(err)
	}
	if at, err := b.find(done.ID); err != nil || at != dir+"/t" {
		t.Errorf("the new one is on %q, %v", at, err)
	}
	if at, err := b.find(old.ID); err != nil || (at == "") == done.Below {
		t.Errorf("the old one is on %q, below %v, %v", at, done.Below, err)
	}
	ids := []uint64{done.ID}
	if done.Below {
		ids = append(ids, old.ID)
	}
	if gone, err := b.Remove(dir+"/t", ids, old.Made, false); err != nil || gone.Busy {
		t.Errorf("gone = %+v, err = %v, want no error and gone.Busy == false", gone, err)
	}
	if _, err := os.Lstat(dir + "/t"); !os.IsNotExist(err) {
		t.Errorf("the target is left: err = %v, want os.IsNotExist(err)", err)
	}
}

// Where a mount cannot be attached beneath another, the old version of a skill is unmounted
// before the new one is mounted.
func TestSwappingLeavesOneMount(t *testing.T) {
	t.Parallel()
	b, dir := aBox(t)
	old := given(t, b, dir+"/t")
	tree := aTree(t)
	done, err := b.swap(tree, &isolation.Mount{Target: dir + "/t"}, 1)
	unix.Close(tree)
	if err != nil {
		t.Fatal(err)
	}
	if at, err := b.find(done.ID); err != nil || at != dir+"/t" {
		t.Errorf("the new one is on %q, %v", at, err)
	}
	if at, err := b.find(old.ID); err != nil || at != "" {
		t.Errorf("the old one is on %q, %v", at, err)
	}
	if gone, err := b.Remove(dir+"/t", []uint64{done.ID}, old.Made, false); err != nil || gone.Busy {
		t.Errorf("gone = %+v, err = %v, want no error and gone.Busy == false", gone, err)
	}
}
