// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
)

const storeSize = 96 << 20 // bytes

// plainDisk is on a disk without project quota; /tmp is in memory on some systems.
const plainDisk = "/var/tmp"

// newState creates a state directory on the disk without project quota.
func newState(t *testing.T) *os.Root {
	t.Helper()
	boxtest.RequireRoot(t)
	path := filepath.Join(plainDisk, strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// openStore opens a store that is unmounted at the end of the test, if it is still mounted.
func openStore(t *testing.T, state *os.Root, size uint64) *disk.Store {
	t.Helper()
	return openStoreAs(t, state, isolation.StoreExt4, size)
}

func openStoreAs(t *testing.T, state *os.Root, kind string, size uint64) *disk.Store {
	t.Helper()
	s, err := disk.OpenStore(t.Context(), state, kind, size)
	require(t, err)
	t.Cleanup(func() {
		_ = unix.Unmount(filepath.Join(state.Name(), disk.StoreDir), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	})
	return s
}

func closeStore(t *testing.T, state *os.Root, s *disk.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A program that probes new devices, such as udev, may have this one open for a moment.
	if !within(5*time.Minute, func() bool { return len(mounts(t, state)) == 0 && len(loops(t, state)) == 0 }) {
		t.Fatalf("left: mounts %v, loop devices %v", mounts(t, state), loops(t, state))
	}
}

// within polls until a condition holds, for at most that long.
func within(patience time.Duration, so func() bool) bool {
	deadline, ticker := time.After(patience), time.NewTicker(10*time.Millisecond)
	defer ticker.Stop()
	for !so() {
		select {
		case <-deadline:
			return false
		case <-ticker.C:
		}
	}
	return true
}

// mounts lists the mounts below a state directory.
func mounts(t *testing.T, state *os.Root) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, state.Name()+"/") {
			list = append(list, line)
		}
	}
	return list
}

// loops lists the loop devices of images in a state directory.
func loops(t *testing.T, state *os.Root) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(data), state.Name()+"/") {
			list = append(list, file)
		}
	}
	return list
}

func TestStoreHasTheQuotaThatTheDiskLacks(t *testing.T) {
	state := newState(t)
	_, err := disk.OpenQuotas(state)
	why, ok := errors.AsType[*disk.UnavailableError](err)
	if !ok || why.Reason != disk.Off || why.Kind != "ext4" || !strings.Contains(why.Hint(), "tune2fs") {
		t.Fatalf(`the disk below: err = %v, want ok == true and why.Reason == disk.Off and why.Kind == "ext4" and why.Hint() containing "tune2fs"`,
			err)
	}
	if names, err := os.ReadDir(state.Name()); err != nil || len(names) != 0 {
		t.Errorf("looking has left %v, %v, want no error and len(names) == 0", names, err)
	}
	start := time.Now()
	s := openStore(t, state, storeSize)
	t.Logf("made and mounted in %v", time.Since(start))
	if m := mounts(t, state); len(m) != 1 || !strings.Contains(m[0], "nosuid,nodev") || !strings.Contains(m[0], "prjquota") {
		t.Errorf(`mounts: m = %v, want len(m) == 1 and m[0] containing "nosuid,nodev" and m[0] containing "prjquota"`,
			m)
	}
	if info, err := s.Root().Stat("."); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("root of the store: info.Mode() = %v, err = %v, want no error and info.Mode().Perm() == 0o700",
			info.Mode(), err)
	}
	if n := allocated(t, state); n > storeSize/8 {
		t.Errorf("an empty store takes %d bytes", n)
	}
	p := placeAt(t, filepath.Join(state.Name(), disk.StoreDir))
	w := p.make("w", here())
	w.expect("write f", outcome{255, "EDQUOT"}, bytesHere, 2)
	w.expect("files", outcome{inodesHere - 2, "EDQUOT"}, bytesHere, inodesHere)
}

// allocated returns how much of the disk the image occupies, in bytes.
func allocated(t *testing.T, state *os.Root) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(state.Name(), disk.StoreImage), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestStoreIsFoundAgain(t *testing.T) {
	state := newState(t)
	if err := state.WriteFile(disk.StoreImage+".new", []byte("interrupted"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := openStore(t, state, storeSize)
	if err := first.Root().WriteFile("f", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	// As after a crash of the first: it is mounted without an owner.
	second := openStore(t, state, storeSize)
	if m, l := mounts(t, state), loops(t, state); len(m) != 1 || len(l) != 1 {
		t.Errorf("mounts %v, loop devices %v", m, l)
	}
	f, err := first.Root().Open("f")
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmounted while it is used: err = %v, want err is unix.EBUSY", err)
	}
	f.Close()
	closeStore(t, state, first)
	if _, err := state.Stat(disk.StoreDir + "/f"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still mounted: err = %v, want err is os.ErrNotExist", err)
	}
	third := openStore(t, state, storeSize)
	if data, err := third.Root().ReadFile("f"); string(data) != "kept" || err != nil {
		t.Errorf(`after unmounting: data = %q, err = %v, want data == "kept" and no error`, data, err)
	}
	closeStore(t, state, third)
}

func TestStoreGrowsWhileUsed(t *testing.T) {
	state := newState(t)
	s := openStore(t, state, storeSize)
	t.Run("from within", func(t *testing.T) {
		w := placeAt(t, filepath.Join(state.Name(), disk.StoreDir)).make("w", disk.Limits{Bytes: 200 << 20, Inodes: 10})
		if got := w.as("fallocate f 110000000"); got.err != "ENOSPC" {
			t.Errorf("more than the store: %+v", got)
		}
		if err := s.Grow(256 << 20); err != nil {
			t.Fatal(err)
		}
		if got := w.as("fallocate f 110000000"); got.err != "" {
			t.Errorf(`after growing: got %+v, want got.err == ""`, got)
		}
		if err := s.Grow(storeSize); err != nil {
			t.Errorf("a smaller size: %v", err)
		}
	})
	// Interrupted between the creation of the image and of the filesystem in it.
	if err := os.Truncate(filepath.Join(state.Name(), disk.StoreImage), 320<<20); err != nil {
		t.Fatal(err)
	}
	closeStore(t, state, s)
	s = openStore(t, state, storeSize)
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(state.Name(), disk.StoreDir), &st); err != nil {
		t.Fatal(err)
	}
	if size := st.Blocks * uint64(st.Bsize); size < 280<<20 {
		t.Errorf("%d bytes in a store of 320 MiB", size)
	}
	closeStore(t, state, s)
}

func TestStoreGivesBackWhatIsDeleted(t *testing.T) {
	state := newState(t)
	s := openStore(t, state, storeSize)
	if err := s.Root().WriteFile("f", make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	syncStore(t, s)
	full := allocated(t, state)
	if err := s.Root().Remove("f"); err != nil {
		t.Fatal(err)
	}
	syncStore(t, s) // the kernel frees the blocks soon after
	now := full
	if !within(5*time.Minute, func() bool { now = allocated(t, state); return now < full-(28<<20) }) || full < 32<<20 {
		t.Errorf("%d bytes with 32 MiB in it, %d without", full, now)
	}
	closeStore(t, state, s)
}

// An xfs store works like one on ext4, and its files can share blocks. An existing store keeps its filesystem.
func TestAStoreCanBeXFS(t *testing.T) {
	const size = 300 << 20
	state := newState(t)
	boxtest.RequireProgram(t, "mkfs.xfs")
	if _, err := disk.OpenStore(t.Context(), state, isolation.StoreXFS, size-1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("too small: err = %v, want err is unix.EINVAL", err)
	}
	if _, err := disk.OpenStore(t.Context(), state, "vfat", size); !errors.Is(err, unix.EINVAL) {
		t.Errorf("vfat: err = %v, want err is unix.EINVAL", err)
	}
	s := openStoreAs(t, state, isolation.StoreXFS, size)
	if m := mounts(t, state); len(m) != 1 || !strings.Contains(m[0], "nosuid,nodev") || !strings.Contains(m[0], "- xfs ") || !strings.Contains(m[0], "prjquota") {
		t.Errorf(`mounts: m = %v, want len(m) == 1 and m[0] containing "nosuid,nodev" and m[0] containing "- xfs " and m[0] containing "prjquota"`,
			m)
	}
	if info, err := s.Root().Stat("."); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("root of the store: info.Mode() = %v, err = %v, want no error and info.Mode().Perm() == 0o700",
			info.Mode(), err)
	}
	if n := allocated(t, state); n > size/3 { // its log is 64 MiB
		t.Errorf("an empty store takes %d bytes", n)
	}
	t.Run("quota", func(t *testing.T) {
		w := placeAt(t, filepath.Join(state.Name(), disk.StoreDir)).make("w", disk.Limits{Bytes: 4 << 20, Inodes: 20})
		if got := w.as("write f"); got.err != "ENOSPC" || w.usage().Bytes > 4<<20 || w.usage().Bytes < 3<<20 {
			t.Errorf(`got %+v, w.usage() = %+v, want got.err == "ENOSPC" and w.usage().Bytes <= 4 << 20 and w.usage().Bytes >= 3 << 20`,
				got, w.usage())
		}
		if err := w.place.root.Remove("w/f"); err != nil {
			t.Fatal(err)
		}
		if !within(5*time.Minute, func() bool { return w.usage().Inodes == 1 }) { // xfs frees it in the background
			t.Fatalf("the removed file still counts: %+v", w.usage())
		}
		if got := w.as("files"); got.err != "ENOSPC" || w.usage().Inodes != 20 {
			t.Errorf(`got %+v, w.usage() = %+v, want got.err == "ENOSPC" and w.usage().Inodes == 20`, got, w.usage())
		}
	})
	t.Run("grow", func(t *testing.T) {
		w := placeAt(t, filepath.Join(state.Name(), disk.StoreDir)).make("w", disk.Limits{Bytes: 400 << 20, Inodes: 10})
		if got := w.as("fallocate f 260000000"); got.err != "ENOSPC" {
			t.Errorf("more than the store: %+v", got)
		}
		if err := s.Grow(512 << 20); err != nil {
			t.Fatal(err)
		}
		if got := w.as("fallocate f 260000000"); got.err != "" {
			t.Errorf(`after growing: got %+v, want got.err == ""`, got)
		}
		if err := s.Grow(size); err != nil {
			t.Errorf("a smaller size: %v", err)
		}
	})
	if err := s.Root().WriteFile("f", make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	from, err := s.Root().Open("f")
	if err != nil {
		t.Fatal(err)
	}
	to, err := s.Root().Create("g")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil {
		t.Errorf("files share no blocks: %v", err)
	}
	from.Close()
	to.Close()
	// Interrupted between the creation of the image and of the filesystem in it, and configured differently since.
	if err := os.Truncate(filepath.Join(state.Name(), disk.StoreImage), 640<<20); err != nil {
		t.Fatal(err)
	}
	closeStore(t, state, s)
	s = openStore(t, state, storeSize)
	if s.Kind() != isolation.StoreXFS {
		t.Errorf("it has become %s", s.Kind())
	}
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(state.Name(), disk.StoreDir), &st); err != nil {
		t.Fatal(err)
	}
	if size := st.Blocks * uint64(st.Bsize); size < 560<<20 {
		t.Errorf("%d bytes in a store of 640 MiB", size)
	}
	syncStore(t, s)
	full := allocated(t, state)
	for _, name := range []string{"f", "g"} {
		if err := s.Root().Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	syncStore(t, s)
	now := full
	if !within(5*time.Minute, func() bool { syncStore(t, s); now = allocated(t, state); return now < full-(28<<20) }) {
		t.Errorf("%d bytes with 32 MiB in it, %d without", full, now)
	}
	closeStore(t, state, s)
}

func syncStore(t *testing.T, s *disk.Store) {
	t.Helper()
	f, err := s.Root().Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}

// TestStoreOfAnotherMountNamespaceIsTheSame: a second loop device for an image that is mounted in another mount namespace would
// destroy its content.
func TestStoreOfAnotherMountNamespaceIsTheSame(t *testing.T) {
	state := newState(t)
	closeStore(t, state, openStore(t, state, storeSize)) // a store is possible here
	dir, err := state.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := actor(t.Context(), "hold-store", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	printed, err := bufio.NewReader(out).ReadString('\n')
	if printed != "held\n" {
		t.Fatalf(`printed = %q, err = %v, want printed == "held\n"`, printed, err) // the reason is on standard error
	}
	if m := mounts(t, state); len(m) != 0 {
		t.Fatalf("its mounts show here: m = %v, want len(m) == 0", m)
	}
	s := openStore(t, state, storeSize)
	if data, err := s.Root().ReadFile("f"); string(data) != "from there" || err != nil {
		t.Errorf(`data = %q, err = %v, want data == "from there" and no error`, data, err)
	}
	if l := loops(t, state); len(l) != 1 {
		t.Errorf("loop devices: l = %v, want len(l) == 1", l)
	}
	hold.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	closeStore(t, state, s)
}

// holdStore opens the store of the directory on descriptor 3 and keeps it open until EOF on its input.
func holdStore() error {
	path, err := os.Readlink("/proc/self/fd/3")
	if err != nil {
		return err
	}
	state, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	s, err := disk.OpenStore(context.Background(), state, isolation.StoreExt4, storeSize)
	if err != nil {
		return err
	}
	if err := s.Root().WriteFile("f", []byte("from there"), 0o600); err != nil {
		return err
	}
	if _, err := io.WriteString(os.Stdout, "held\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// TestAQuotaThatIsNotEnforcedIsNotUsed: without the mount option ext4 accounts and has limits, but does not enforce them.
func TestAQuotaThatIsNotEnforcedIsNotUsed(t *testing.T) {
	state := newState(t)
	closeStore(t, state, openStore(t, state, storeSize))
	dir := filepath.Join(state.Name(), disk.StoreDir)
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", filepath.Join(state.Name(), disk.StoreImage), dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err = disk.OpenQuotas(root)
	why, ok := errors.AsType[*disk.UnavailableError](err)
	if !ok || why.Reason != disk.NotEnforced {
		t.Errorf("err = %v, want ok == true and why.Reason == disk.NotEnforced", err)
	}
	if all := accounts(t, dir); len(all) != 0 {
		t.Errorf("left: all = %v, want len(all) == 0", all)
	}
}

func TestQuotaOnOverlayIsRefused(t *testing.T) {
	state := newState(t)
	for _, dir := range []string{"l", "u", "w", "m"} {
		if err := state.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(state.Name(), name) }
	if err := unix.Mount("overlay", at("m"), "overlay", 0, "lowerdir="+at("l")+",upperdir="+at("u")+",workdir="+at("w")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at("m"), unix.MNT_DETACH) }()
	root, err := os.OpenRoot(at("m"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err = disk.OpenQuotas(root)
	if why, ok := errors.AsType[*disk.UnavailableError](err); !ok || why.Reason != disk.NoKind || why.Kind != "overlay" {
		t.Errorf(`err = %v, want ok == true and why.Reason == disk.NoKind and why.Kind == "overlay"`, err)
	}
}
