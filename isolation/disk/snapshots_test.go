// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

const boxKey = "0123456789abcdef0123456789abcdef"

// snapshotGround is the test bed of snapshots: the directories of boxes on a filesystem, and those of one box.
type snapshotGround struct {
	*Workspaces
	own   string // what the box has on disk
	snaps string // the directory of its snapshots
}

func openSnapshots(t *testing.T, dir string) *snapshotGround {
	t.Helper()
	w, err := OpenWorkspaces(dir, "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(false) })
	if err := w.MakeFor(&isolation.Spec{Key: boxKey, Writable: true, DiskHome: true}); err != nil {
		t.Fatal(err)
	}
	return &snapshotGround{w, filepath.Join(w.root.Name(), boxKey), filepath.Join(dir, statedir.Snapshots, boxKey)}
}

func (g *snapshotGround) do(ctx context.Context, op isolation.SnapshotOp, name string) ([]isolation.Snapshot, error) {
	is, err := g.ChangeSnapshots(ctx, &isolation.ChangeSnapshots{Key: boxKey, Op: op, Name: name})
	if err != nil {
		return nil, err
	}
	return is.List, nil
}

func (g *snapshotGround) must(t *testing.T, op isolation.SnapshotOp, name string) []isolation.Snapshot {
	t.Helper()
	list, err := g.do(t.Context(), op, name)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// nothingLeft fails the test if the directory of all snapshots is not empty.
func (g *snapshotGround) nothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(filepath.Dir(g.snaps))
	if err != nil || len(left) > 0 {
		t.Errorf("left: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
}

// try fails the test with the first of errs that is not nil.
func try(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// hostile fills a directory with everything that a box, or its overlay, can leave there.
func hostile(t *testing.T, own string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(own, name) }
	long := time.Unix(86_400, 123_456_789)
	try(t,
		os.WriteFile(at("workspace/file"), []byte("one"), 0o600),
		os.Chown(at("workspace/file"), 1000, 1000),
		os.WriteFile(at("workspace/setuid"), []byte("#!/bin/sh"), 0o600),
		os.Chown(at("workspace/setuid"), 7, 8),
		unix.Chmod(at("workspace/setuid"), 0o6755),
		unix.Setxattr(at("workspace/setuid"), "user.a", []byte("a\x00b"), 0),
		unix.Setxattr(at("workspace/setuid"), "user.empty", nil, 0),
		os.Chtimes(at("workspace/setuid"), long, long),
		os.WriteFile(at("workspace/sparse"), nil, 0o644),
		os.Truncate(at("workspace/sparse"), 16<<20),
		os.Link(at("workspace/file"), at("home/twin")),
		os.WriteFile(at("workspace/odd\n\xff name"), nil, 0),
		os.Symlink("/etc/passwd", at("workspace/out")),
		os.Symlink(strings.Repeat("../", 300)+"etc", at("workspace/up")),
		os.Symlink(own, at("workspace/loop")),
		os.Link(at("workspace/out"), at("workspace/out-twin")),
		unix.Lchown(at("workspace/out"), 9, 10),
		unix.Mkfifo(at("workspace/fifo"), 0o640),
		unix.Mknod(at("workspace/socket"), unix.S_IFSOCK|0o755, 0),
		unix.Mknod(at("upper/gone"), unix.S_IFCHR, 0),
		os.Mkdir(at("upper/opaque"), 0o755),
		unix.Setxattr(at("upper/opaque"), "user.overlay.opaque", []byte("y"), 0),
		unix.Setxattr(at("upper/opaque"), "trusted.overlay.origin", []byte("x"), 0),
		os.Mkdir(at("workspace/closed"), 0o700),
		os.WriteFile(at("workspace/closed/in"), []byte("in"), 0o644),
		// A default ACL, which files created in the directory would inherit.
		unix.Setxattr(at("workspace/closed"), "system.posix_acl_default", acl(), 0),
		unix.Chmod(at("workspace/closed"), 0o1000),
		os.Chtimes(at("workspace/closed"), long, long),
		os.MkdirAll(at("home/"+strings.Repeat("d/", 200)), 0o700),
		os.Chmod(at("home"), 0o2711),
	)
}

// acl returns user::rwx group::rwx other::rwx mask::rwx user:5:rwx as an extended attribute, see linux/posix_acl_xattr.h.
func acl() []byte {
	const none = "\xff\xff\xff\xff"
	return []byte("\x02\x00\x00\x00" + "\x01\x00\x07\x00" + none + "\x02\x00\x07\x00\x05\x00\x00\x00" + "\x04\x00\x07\x00" + none + "\x10\x00\x07\x00" + none + "\x20\x00\x07\x00" + none)
}

// describe returns, by path, all that must be the same in a copy.
func describe(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	first := map[uint64]string{} // of each inode
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if first[st.Ino] == "" {
			first[st.Ino] = name
		}
		text := fmt.Sprintf("mode %o of %d:%d, device %d, modified %v, the same as %q", st.Mode, st.Uid, st.Gid, st.Rdev, st.Mtim, first[st.Ino])
		switch {
		case e.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(", %d bytes %x, %d links", st.Size, sha256.Sum256(data), st.Nlink)
		case e.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " to " + to
		}
		list := make([]byte, 4096)
		n, err := unix.Llistxattr(path, list)
		if err != nil {
			return err
		}
		names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
		slices.Sort(names)
		for _, x := range names {
			value := make([]byte, 4096)
			if n, err := unix.Lgetxattr(path, x, value); err == nil {
				text += fmt.Sprintf(", %s=%q", x, value[:n])
			}
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A snapshot contains everything that a box has on disk, of any kind, takes up next to no space, and is restored as a whole.
func TestASnapshotIsAsTheOriginal(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := boxtest.NewFilesystem(t, kind)
			g := openSnapshots(t, dir)
			const large = 32 << 20
			hostile(t, g.own)
			try(t, os.WriteFile(filepath.Join(g.own, "workspace/large"), make([]byte, large), 0o600))
			was := describe(t, g.own)
			before := used(t, dir)
			list := g.must(t, isolation.SnapshotMake, "first")
			if len(list) != 1 || list[0].Name != "first" || list[0].Bytes < large || list[0].Bytes > large+4<<20 || int(list[0].Files) != len(was)-2 || // two links
				time.Since(time.Unix(0, int64(list[0].Created))).Abs() > time.Hour {
				t.Errorf("list = %+v", list)
			}
			if more := used(t, dir) - before; more > large/2 {
				t.Errorf("it takes up %d bytes", more)
			}
			try(t,
				os.WriteFile(filepath.Join(g.own, "workspace/file"), []byte("two"), 0o600),
				os.RemoveAll(filepath.Join(g.own, "workspace/closed")),
				os.Chown(filepath.Join(g.own, "home"), 3, 3),
				os.RemoveAll(filepath.Join(g.own, "upper")),
				os.Symlink("/etc", filepath.Join(g.own, "upper")),
			)
			is := describe(t, g.own)
			second := g.must(t, isolation.SnapshotMake, "second")
			for _, back := range []struct {
				name string
				want map[string]string
			}{{"first", was}, {"second", is}, {"first", was}, {"first", was}} {
				if list := g.must(t, isolation.SnapshotRestore, back.name); !slices.Equal(list, second) {
					t.Errorf("snapshots after a restore: list = %+v, want %+v", list, second)
				}
				if diff := cmp.Diff(back.want, describe(t, g.own)); diff != "" {
					t.Errorf("restored %s: %s", back.name, diff)
				}
			}
			if err := g.Remove(boxKey); err != nil {
				t.Error(err)
			}
			g.nothingLeft(t)
			if err := isEmpty(filepath.Dir(g.own)); err != nil {
				t.Error(err)
			}
			if data, err := os.ReadFile("/etc/passwd"); err != nil || len(data) == 0 {
				t.Errorf("the target of a link: err = %v, want no error and len(data) != 0", err)
			}
		})
	}
}

func isEmpty(dir string) error {
	list, err := os.ReadDir(dir)
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("%s: %v", dir, list)
	}
	return err
}

// used returns how many bytes of a filesystem are used.
func used(t *testing.T, dir string) int64 {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := errors.Join(unix.Syncfs(fd), unix.Fstatfs(fd, &st)); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// A filesystem without reflinks is refused by its name, and nothing is left there.
func TestASnapshotWithoutReflinkIsRefused(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ext4", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			boxtest.RequireRoot(t)
			var dir string
			if kind == "tmpfs" {
				dir = boxtest.TempDir(t)
				if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
					boxtest.Missing(t, "mounts: "+err.Error())
				}
				t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			} else {
				dir = boxtest.NewFilesystem(t, kind)
			}
			g := openSnapshots(t, dir)
			for op := isolation.SnapshotMake; op <= isolation.SnapshotRemove; op++ {
				_, err := g.do(t.Context(), op, "a")
				step, ok := errors.AsType[*isolation.StepError](err)
				if !ok || step.Errno != unix.EOPNOTSUPP || step.Refused == nil || step.Refused.Value != kind || !strings.Contains(err.Error(), "reflink") {
					t.Errorf(`err = %v, want ok == true and step.Errno == unix.EOPNOTSUPP and step.Refused != nil and step.Refused.Value == kind and err containing "reflink"`,
						err)
				}
				g.nothingLeft(t)
			}
		})
	}
}

// A snapshot that a keeper has not finished is removed by the next keeper, and so are snapshots of a box that has nothing on disk.
func TestAnInterruptedSnapshotIsUndone(t *testing.T) {
	t.Parallel()
	g := openSnapshots(t, boxtest.NewFilesystem(t, "xfs"))
	list := g.must(t, isolation.SnapshotMake, "whole")
	other := filepath.Join(filepath.Dir(g.snaps), strings.Repeat("b", isolation.KeyLen))
	try(t, os.MkdirAll(filepath.Join(g.snaps, partial+"X/workspace/a/b"), 0o700), os.MkdirAll(filepath.Join(other, entryName(&list[0])), 0o700), g.SweepSnapshots())
	if found, err := os.ReadDir(g.snaps); err != nil || len(found) != 1 {
		t.Errorf("found = %v, err = %v, want no error and len(found) == 1", found, err)
	}
	if _, err := os.Lstat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("snapshots of no box: err = %v, want err is fs.ErrNotExist", err)
	}
	if again := g.must(t, isolation.SnapshotList, ""); !slices.Equal(again, list) {
		t.Errorf("again = %+v, want %+v", again, list)
	}
	g.must(t, isolation.SnapshotRestore, "whole")
}

// A snapshot or restore that is canceled or fails, as of too deep a tree, leaves nothing behind.
func TestASnapshotThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	g := openSnapshots(t, boxtest.NewFilesystem(t, "xfs"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.do(gone, isolation.SnapshotMake, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context: err = %v, want err is context.Canceled", err)
	}
	g.nothingLeft(t)
	if _, err := g.do(t.Context(), isolation.SnapshotRestore, "a"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a snapshot that does not exist: err = %v, want err is unix.ENOENT", err)
	}
	if _, err := g.do(t.Context(), isolation.SnapshotRemove, "a"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a snapshot that does not exist: err = %v, want err is unix.ENOENT", err)
	}
	g.nothingLeft(t)
	g.must(t, isolation.SnapshotMake, "flat")
	deep := filepath.Join(g.own, "workspace")
	for range 5 {
		deep = filepath.Join(deep, strings.Repeat("d/", 60))
	}
	try(t, os.MkdirAll(deep, 0o700))
	was := describe(t, g.own)
	_, err := g.do(t.Context(), isolation.SnapshotMake, "deep")
	if step, ok := errors.AsType[*isolation.StepError](err); !ok || step.Errno != unix.E2BIG || step.Refused == nil {
		t.Errorf("too deep: err = %v, want ok == true and step.Errno == unix.E2BIG and step.Refused != nil", err)
	}
	if _, err := g.do(gone, isolation.SnapshotRestore, "flat"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context: err = %v, want err is context.Canceled", err)
	}
	if diff := cmp.Diff(was, describe(t, g.own)); diff != "" {
		t.Errorf("after a restore that was given up: %s", diff)
	}
	if found, err := os.ReadDir(g.snaps); err != nil || len(found) != 1 {
		t.Errorf("found = %v, err = %v, want no error and len(found) == 1", found, err)
	}
}

func TestInvalidSnapshotNamesAreRefused(t *testing.T) {
	t.Parallel()
	g := openSnapshots(t, boxtest.NewFilesystem(t, "xfs"))
	for _, name := range []string{"", ".", "..", "-a", ".partial-x", "a/b", "../a", "a b", "é", strings.Repeat("a", isolation.MaxSnapshotName+1)} {
		for op := isolation.SnapshotMake; op <= isolation.SnapshotRemove; op++ {
			if _, err := g.do(t.Context(), op, name); !errors.As(err, new(*isolation.Refusal)) {
				t.Errorf("%q: err = %v, want errors.As(err, new(*isolation.Refusal))", name, err)
			}
		}
	}
	want := map[string]bool{}
	for i, name := range []string{"a", "A-1.b_c", "_", "0-0-0-0", strings.Repeat("z", isolation.MaxSnapshotName)} {
		want[name] = true
		if list := g.must(t, isolation.SnapshotMake, name); len(list) != i+1 || list[i].Name != name {
			t.Errorf("list = %+v, want len(list) == i + 1 and list[i].Name == name", list)
		}
		if _, err := g.do(t.Context(), isolation.SnapshotMake, name); !errors.Is(err, unix.EEXIST) {
			t.Errorf("%s again: err = %v, want err is unix.EEXIST", name, err)
		}
	}
	for i := len(want); i < isolation.MaxSnapshots; i++ {
		try(t, os.Mkdir(filepath.Join(g.snaps, entryName(&isolation.Snapshot{Name: fmt.Sprint("n", i)})), 0o700))
	}
	if _, err := g.do(t.Context(), isolation.SnapshotMake, "more"); !errors.Is(err, unix.EMFILE) {
		t.Errorf("one too many: err = %v, want err is unix.EMFILE", err)
	}
	for name := range maps.Clone(want) {
		g.must(t, isolation.SnapshotRemove, name)
		delete(want, name)
		for _, s := range g.must(t, isolation.SnapshotList, "") {
			if s.Name == name {
				t.Errorf("%s is still there", name)
			}
		}
	}
	if _, err := g.ChangeSnapshots(t.Context(), &isolation.ChangeSnapshots{Key: strings.Repeat("c", isolation.KeyLen), Op: isolation.SnapshotMake, Name: "a"}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("of a box that has nothing: err = %v, want err is unix.ENOENT", err)
	}
}

func TestASnapshotMustFitTheQuota(t *testing.T) {
	t.Parallel()
	most := Limits{Bytes: 100, Inodes: 10}
	for _, tc := range []struct {
		size, used Limits
		ok         bool
	}{
		{Limits{60, 5}, Limits{40, 5}, true},
		{Limits{61, 5}, Limits{40, 5}, false},
		{Limits{60, 6}, Limits{40, 5}, false},
		{Limits{0, 0}, Limits{101, 5}, false},
	} {
		err := roomFor(tc.size, tc.used, most)
		if (err == nil) != tc.ok {
			t.Errorf("%v beside %v: err = %v, want (err == nil) == %v", tc.size, tc.used, err, tc.ok)
		}
		if step, is := errors.AsType[*isolation.StepError](err); err != nil && (!is || step.Errno != unix.EDQUOT) {
			t.Errorf("err = %v, want no error or is == true and step.Errno == unix.EDQUOT", err)
		}
	}
	const want = `workspace_quota = "64MiB, 200 files": must be at least 81MiB and 11 files, for 51MiB and 8 files in use and those of the snapshot`
	if err := roomFor(Limits{30 << 20, 3}, Limits{50<<20 + 1, 8}, Limits{64 << 20, 200}); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("err = %v, want an error and err ending with want", err)
	}
}
