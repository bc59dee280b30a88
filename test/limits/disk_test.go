// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// filler fills the workspace in the way its first argument names, to at most ten times 64 MiB or 20,000
// files, and prints how far it came and what stopped it. SIGBUS is what stops a mapping.
const filler = `
import errno, mmap, os, sys
how, most, files = sys.argv[1], 640 << 20, 200000
n, why = 0, "NOTHING"
try:
    if how == "write":
        f = os.open("w", os.O_CREAT | os.O_WRONLY)
        while n < most: n += os.write(f, b"x" * (1 << 20))
    elif how == "fallocate":
        f = os.open("f", os.O_CREAT | os.O_WRONLY)
        step = 1 << 20 # of which a disk that is not fragmented gives all or nothing
        while n < most:
            try: os.posix_fallocate(f, n, step); n += step
            except OSError:
                if step == 4096: raise
                step = 4096
    elif how == "map":
        f = os.open("m", os.O_CREAT | os.O_RDWR)
        os.ftruncate(f, most)
        m = mmap.mmap(f, most)
        while n < most: m[n] = 1; n += 4096
    elif how == "xattr":
        while n < files:
            os.close(os.open("x%d" % n, os.O_CREAT)); os.setxattr("x%d" % n, "user.a", b"y" * 3000); n += 1
    elif how == "files":
        while n < files: os.close(os.open("e%d" % n, os.O_CREAT)); n += 1
    elif how == "dirs":
        while n < files: os.mkdir("d%d" % n); n += 1
    elif how == "links":
        while n < files: os.symlink("/etc/passwd", "l%d" % n); n += 1
    elif how == "hard":
        os.close(os.open("h", os.O_CREAT))
        d = 0
        while n < files:
            if n % 60000 == 0: os.mkdir("hd%d" % d); d += 1; os.close(os.open("hd%d/h" % (d-1), os.O_CREAT))
            os.link("hd%d/h" % (d-1), "hd%d/%s%d" % (d-1, "n" * 200, n)); n += 1
except OSError as e:
    why = errno.errorcode[e.errno]
print(n, why)
`

// T34 and T35: the workspace is limited to its quota, however it is filled; the host loses no more space.
func TestT34And35AWorkspaceHoldsWhatItMay(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "neighbour"})
	for how, small := range map[string]bool{
		"write": false, "fallocate": false, "map": false, "files": false, "xattr": true, "dirs": true, "links": true, "hard": true,
	} {
		limit, inodes := 64*quantity.MiB, 20_000
		if small { // which takes as long as it is large
			limit, inodes = 8*quantity.MiB, 2_500
		}
		s := d.NewSession(t, api.SessionRequest{ID: "s " + how, Patch: limits.Patch{Memory: new(256 * quantity.MiB), WorkspaceQuota: &limit, WorkspaceInodes: &inodes}})
		req := api.ExecRequest{Argv: []string{"python3", "-c", filler, how}, Timeout: boxtest.Duration("10m")}
		r := d.Result(t, s.ID, req)
		d.Sh(t, "neighbour", "echo here > f")
		now, err := d.Session(t.Context(), s.ID)
		if err != nil || now.Workspace == nil {
			t.Fatalf("%s: now = %+v, err = %v, want no error and now.Workspace != nil", how, now, err)
		}
		w := *now.Workspace
		t.Logf("%s: %s %s %+v", how, r.Status, strings.TrimSpace(r.Stdout), w)
		if w.Used > limit || w.Files > uint64(inodes) || w.Limit != limit || w.FilesLimit != uint64(inodes) || !w.Hit {
			t.Errorf("%s: w = %+v, want w.Used <= %v and w.Files <= uint64(inodes) and w.Limit == %v and w.FilesLimit == uint64(inodes) and w.Hit == true",
				how, w, limit, limit)
		}
		if len(r.Quota) != 1 || r.Quota[0].Kind != "workspace" || !r.Quota[0].Hit {
			t.Errorf(`%s: the quota in the answer is %+v, want len(r.Quota) == 1 and r.Quota[0].Kind == "workspace" and r.Quota[0].Hit == true`,
				how, r.Quota)
		}
		hits := 0
		if err := d.Events(t.Context(), client.EventOptions{Session: s.ID, Types: []string{"quota"}}, func(e *api.Event) error {
			if hits++; e.Reason != "workspace" {
				t.Errorf("%s: an event of %+v", how, e)
			}
			return nil
		}); err != nil || hits != 1 {
			t.Errorf("%s: %d events, %v", how, hits, err)
		}
		switch how {
		case "map":
			if r.Status != "signaled" || r.Signal != "SIGBUS" {
				t.Errorf(`%s: r = %s, want r.Status == "signaled" and r.Signal == "SIGBUS"`, how, boxtest.Show(r))
			}
		default:
			if r.Status != "exited" || !strings.HasSuffix(r.Stdout, " EDQUOT\n") {
				t.Errorf(`%s: r = %s, want r.Status == "exited" and r.Stdout ending with " EDQUOT\n"`,
					how, boxtest.Show(r))
			}
		}
		switch how {
		case "write", "fallocate", "map":
			if w.Used+2*4096 < limit { // a block for the directory, and one that did not fit
				t.Errorf("%s: only %d bytes of %d", how, w.Used, limit)
			}
		case "files", "dirs", "links":
			if w.Files < uint64(inodes) && w.Used+2*4096 < limit {
				t.Errorf("%s: only %d files of %d", how, w.Files, inodes)
			}
		}
		if err := d.DeleteSession(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.DeleteSession(t.Context(), "neighbour"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}

// T36: a box cannot take its files out of the quota. The system call for that is blocked for programs; test/host checks what the
// filesystem answers where it is allowed.
func TestT36NoWayOutOfTheQuota(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}})
	const leave = `
import errno, fcntl, os, struct
GET, SET, QUOTACTL_FD = 0x801c581f, 0x401c5820, 443
def attempt(what, f):
    try: f(); print(what, "OK")
    except OSError as e: print(what, errno.errorcode[e.errno])
fd = os.open("/workspace", os.O_RDONLY)
a = bytearray(28); fcntl.ioctl(fd, GET, a)
flags, ext, nx, proj, cow = struct.unpack("IIIII", a[:20])
def put(flags, proj): fcntl.ioctl(fd, SET, struct.pack("IIIII8x", flags, ext, nx, proj, cow))
attempt("project 0", lambda: put(flags, 0))
attempt("another project", lambda: put(flags, proj + 1))
attempt("inherit", lambda: put(flags & ~0x200, proj))
open("f", "w").write("x")
attempt("rename", lambda: os.rename("f", "/tmp/f"))
attempt("link", lambda: os.link("f", "/tmp/f"))
attempt("proc", lambda: os.link("/proc/self/fd/%d" % os.open("f", os.O_RDONLY), "/tmp/g", follow_symlinks=True))
f = os.open("gone", os.O_CREAT | os.O_WRONLY); os.unlink("gone")
n = 0
try:
    while n < 64 << 20: n += os.write(f, b"x" * 65536)
except OSError as e: print("deleted", errno.errorcode[e.errno], n <= 8 << 20)
`
	got := d.Output(t, "s1", api.ExecRequest{Argv: []string{"python3", "-c", leave}})
	want := "project 0 EPERM\nanother project EPERM\ninherit EPERM\nrename EXDEV\nlink EXDEV\nproc EXDEV\ndeleted EDQUOT True\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestTheAnswerSaysThatTmpIsFull(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1", Tmp: new(quantity.MiB)})
	r := d.Result(t, "s1", boxtest.Shell("head -c 2000000 /dev/zero > /tmp/x"))
	if len(r.Quota) != 1 || r.Quota[0].Kind != "tmp" || r.Quota[0].Limit != quantity.MiB {
		t.Errorf(`r = %s, want len(r.Quota) == 1 and r.Quota[0].Kind == "tmp" and r.Quota[0].Limit == quantity.MiB`,
			boxtest.Show(r))
	}
	if r := d.Result(t, "s1", boxtest.Shell("rm /tmp/x")); len(r.Quota) != 0 {
		t.Errorf("r = %s, want len(r.Quota) == 0", boxtest.Show(r))
	}
}

// startWithStore starts a boxd whose state directory is on the root disk, which has no quotas, so that a store is made.
func startWithStore(t *testing.T, kind, size string) (d *boxtest.Daemon, dir string) {
	t.Helper()
	if kind == isolation.StoreXFS {
		boxtest.RequireProgram(t, "mkfs.xfs")
		_ = exec.CommandContext(t.Context(), "modprobe", "xfs").Run() // it may be built in
		kernel, err := os.ReadFile("/proc/filesystems")
		if err != nil || !strings.Contains(string(kernel), "\txfs\n") {
			boxtest.Missing(t, "xfs")
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "boxd") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return start(t, fmt.Sprintf("state_dir = %q\n[workspaces]\nstore_size = %q\nstore_filesystem = %q\n[host]\nkeep_free_disk = \"16MiB\"\n", dir, size, kind)), dir
}

// Where the filesystem of the state directory has no quotas, the store has.
func TestTheStoreKeepsQuotas(t *testing.T) { theStoreKeepsQuotas(t, isolation.StoreExt4, "256MiB") }

func TestAStoreOfXFSKeepsQuotas(t *testing.T) { theStoreKeepsQuotas(t, isolation.StoreXFS, "320MiB") }

// writes is a shell command that writes a file where others have just been removed. xfs counts their blocks a moment longer, as
// it frees them in the background (xfs_inodegc in fs/xfs/xfs_icache.c).
func writes(kind string, bytes int, file string) string {
	write := fmt.Sprintf("head -c %d /dev/zero > %s", bytes, file)
	if kind == isolation.StoreXFS {
		return "until " + write + "; do sleep 0.05; done 2>&1"
	}
	return write
}

func theStoreKeepsQuotas(t *testing.T, kind, size string) {
	d, dir := startWithStore(t, kind, size)
	attached := func() bool { // whether a loop device has the store
		list, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		return err == nil && slices.ContainsFunc(list, func(path string) bool {
			text, _ := os.ReadFile(path) // it may be gone just now
			return strings.HasPrefix(string(text), dir)
		})
	}
	if !attached() {
		t.Errorf("no loop device has a file below %s", dir)
	}
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}})
	if s.Enforcement["workspace"] != "store" {
		t.Errorf(`s.Enforcement = %v, want s.Enforcement["workspace"] == "store"`, s.Enforcement)
	}
	full := map[string]string{isolation.StoreExt4: "quota", isolation.StoreXFS: "No space left"} // EDQUOT, ENOSPC
	r := d.Result(t, "s1", boxtest.Shell("head -c 20000000 /dev/zero > big"))
	if r.Status != "exited" || *r.ExitCode == 0 || !strings.Contains(r.Stderr, full[kind]) || len(r.Quota) != 1 {
		t.Errorf(`r = %s, want r.Status == "exited" and *r.ExitCode != 0 and r.Stderr containing full[kind] and len(r.Quota) == 1`,
			boxtest.Show(r))
	}
	killKeeper(t, d) // the store is found mounted, and in use
	d.Sh(t, "s1", "rm big && "+writes(kind, 6000000, "big"))
	d.NewSession(t, api.SessionRequest{ID: "s2", Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}})
	if changed, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(16 * quantity.MiB)}}); err != nil || changed.Workspace == nil || changed.Workspace.Limit != 16*quantity.MiB {
		t.Errorf("changed = %+v, err = %v, want no error and changed.Workspace != nil and changed.Workspace.Limit == 16 * quantity.MiB",
			changed, err)
	}
	d.Kill() // boxd: the store is found again, and what was in it is cleaned up
	d.Restart()
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}})
	d.Sh(t, "s1", "head -c 6000000 /dev/zero > big")
	d.Close()
	d.Stop()
	boxtest.Eventually(t, "its loop device is gone, which a program that probes devices, such as udev, may have open for a moment", func() bool { return !attached() })
	mounts, err := os.ReadFile("/proc/thread-self/mounts")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("%v: mounts = %s, want no error and mounts without %q", err, mounts, dir)
	}
}

// Blocks that a snapshot shares with the session count for both, so that neither can grow beyond the quota when the other changes;
// a restore is possible however much is used.
func TestSnapshotsCountInTheQuotaOfTheirSession(t *testing.T) {
	d, dir := startWithStore(t, isolation.StoreXFS, "400MiB")
	d.NewSession(t, api.SessionRequest{ID: "s", Patch: limits.Patch{WorkspaceQuota: new(64 * quantity.MiB)}})
	sum := d.Sh(t, "s", "head -c 20000000 /dev/urandom > a; sha256sum a")
	stop := func() {
		t.Helper()
		if _, err := d.StopSession(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
	again := func() {
		t.Helper()
		if _, err := d.StartSession(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	one, err := d.CreateSnapshot(t.Context(), "s", "one")
	if err != nil || one.Size < 20_000_000 || one.Size > 21_000_000 {
		t.Fatalf("one = %+v, err = %v, want no error and one.Size >= 20_000_000 and one.Size <= 21_000_000", one, err)
	}
	again()
	if r := d.Result(t, "s", boxtest.Shell("head -c 40000000 /dev/zero > b")); *r.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left") || len(r.Quota) != 1 {
		t.Errorf(`with the snapshot on disk: r = %s, want *r.ExitCode != 0 and r.Stderr containing "No space left" and len(r.Quota) == 1`,
			boxtest.Show(r))
	}
	d.Sh(t, "s", "rm b; "+writes(isolation.StoreXFS, 15000000, "b")+"; echo changed >> a")
	stop()
	_, err = d.CreateSnapshot(t.Context(), "s", "two")
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, "workspace_quota"); e.Denial == nil || e.Denial.Rule != "workspace_quota" {
		t.Errorf(`a snapshot that does not fit: e = %+v, want e.Denial != nil and e.Denial.Rule == "workspace_quota"`, e)
	}
	if _, err := d.RestoreSnapshot(t.Context(), "s", "one"); err != nil {
		t.Fatal(err)
	}
	again()
	if got := d.Sh(t, "s", "ls; sha256sum a"); got != "a\n"+sum {
		t.Errorf("back: %q, want a and %q", got, sum)
	}
	if r := d.Result(t, "s", boxtest.Shell("head -c 40000000 /dev/zero > b")); *r.ExitCode == 0 || len(r.Quota) != 1 {
		t.Errorf("after it was restored: r = %s, want *r.ExitCode != 0 and len(r.Quota) == 1", boxtest.Show(r))
	}
	d.Sh(t, "s", "rm b")
	if err := d.DeleteSnapshot(t.Context(), "s", "one"); err != nil {
		t.Fatal(err)
	}
	d.Sh(t, "s", writes(isolation.StoreXFS, 40000000, "b"))
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"workspaces", "snapshots"} {
		if left, err := filepath.Glob(filepath.Join(dir, "store", name, "*")); err != nil || len(left) > 0 {
			t.Errorf("left in %s: left = %v, err = %v, want no error and len(left) == 0", name, left, err)
		}
	}
}

// Spooled output counts against the quota of the workspace: if that is full the program goes on and loses output, no more than the
// quota is used on the host, and the space is free again when the process is removed.
func TestSpooledOutputIsWithinTheQuota(t *testing.T) {
	d := start(t)
	const quota = 16 * quantity.MiB
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{WorkspaceQuota: new(quantity.Size(quota))}})
	used := func() quantity.Size {
		t.Helper()
		now, err := d.Session(t.Context(), s.ID)
		if err != nil || now.Workspace == nil {
			t.Fatalf("now = %+v, err = %v, want no error and now.Workspace != nil", now, err)
		}
		return now.Workspace.Used
	}
	before := used()
	req := boxtest.ShellProcess("head -c 64M /dev/zero | tr '\\0' x; echo last")
	req.Spool = new(quantity.Size(128 * quantity.MiB))
	d.NewProcess(t, s.ID, "p", req)
	end := d.Ended(t, s.ID, "p")
	if end.Result == nil || end.Result.Status != "exited" || *end.Result.ExitCode != 0 || end.Output[0].Bytes != 64<<20+5 || end.Output[0].From < 48<<20 {
		t.Errorf("end = %+v", end)
	}
	if n := used(); n > quota || n < before+quantity.MiB {
		t.Errorf("%v of %v are used", n, quantity.Size(quota))
	}
	if err := d.DeleteProcess(t.Context(), s.ID, "p"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the disk space of the spooled output is free again", func() bool { return used() == before })
	if r := d.Result(t, s.ID, boxtest.Shell("head -c 14M /dev/zero > f")); r.Status != "exited" || *r.ExitCode != 0 {
		t.Errorf(`afterwards: r = %s, want r.Status == "exited" and *r.ExitCode == 0`, boxtest.Show(r))
	}
}
