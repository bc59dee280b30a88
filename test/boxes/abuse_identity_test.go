// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestT01NothingABoxMakesIsRootsOnTheHost(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(h.mounts())
		if got := strings.Join(strings.Fields(b.run("cat", "/proc/self/uid_map")), " "); got != fmt.Sprintf("0 %d %d", b.IDBase, idRange) {
			t.Errorf(`uid_map is %q, want fmt.Sprintf("0 %%d %%d", b.IDBase, idRange)`, got)
		}
		for _, dir := range []string{"/mnt", "/workspace"} {
			b.sh("cd " + dir + "; touch new; mkdir -p a/b; ln -s x s; ln new hard; mkfifo fifo; cp /usr/bin/id program")
		}
		for dir, uid := range map[string]uint32{h.rw: owner, h.workspace(): 1000} {
			found := 0
			err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
				found++
				if st := statOf(t, path); st.Uid != uid || st.Gid != uid {
					t.Errorf("%s belongs to %d:%d, want %d", path, st.Uid, st.Gid, uid)
				}
				return err
			})
			if err != nil || found < 8 {
				t.Errorf("%s: %d files, %v", dir, found, err)
			}
		}
		for _, dir := range []string{h.State, filepath.Dir(h.workspace())} { // no user of the host can reach a managed workspace
			if st := statOf(t, dir); st.Uid != 0 || st.Mode&0o077 != 0 {
				t.Errorf("%s has owner %d and mode %o", dir, st.Uid, st.Mode)
			}
		}
	})
}

func TestT02BoxesDoNotReachEachOther(t *testing.T) {
	attack(t, func(h *host) {
		a := h.box(withMounts(api.Mount{Source: h.rw, Target: "/mnt", Mode: "rw"}))
		b := h.box(withMounts(api.Mount{Source: h.rw, Target: "/mnt", Mode: "ro", Owner: stranger}))
		if a.IDBase == b.IDBase || a.IDBase%idRange != 0 || b.IDBase%idRange != 0 {
			t.Errorf("ids from %d and from %d", a.IDBase, b.IDBase)
		}
		a.sh("umask 077; echo secret > /mnt/secret; mkdir /mnt/closed; touch /mnt/closed/x; echo known > /mnt/known; chmod 644 /mnt/known")
		a.sh("touch /tmp/secret /dev/shm/secret /run/secret ~/secret /workspace/secret")
		b.try(
			attempt{"read=/mnt/known", "OK"}, attempt{"read=/mnt/secret", "EACCES"}, attempt{"list=/mnt/closed", "EACCES"},
			attempt{"write=/mnt/known", "EACCES|EROFS"}, attempt{"create=/mnt/x", "EROFS"}, attempt{"chmod=0777,/mnt/secret", "EROFS"},
		)
		b.try(all("ENOENT", "read=/tmp/secret", "read=/dev/shm/secret", "read=/run/secret", "read=/home/box/secret", "read=/workspace/secret")...)
		_, _, err := h.CreateSession(t.Context(), &api.SessionRequest{Mounts: []api.Mount{{Source: h.rw, Target: "/mnt", Mode: "rw", Owner: stranger}}})
		refused(t, err, 403, "mounts[0].source", "owned by uid 4343")
	})
}

func TestT03NoNamespaceCanBeMade(t *testing.T) {
	attack(t, func(h *host) {
		h.each(func(b *box) {
			b.try(all("EPERM",
				"unshare=user", "unshare=mnt", "unshare=pid", "unshare=net", "unshare=ipc", "unshare=uts", "unshare=cgroup", "unshare=time",
				"clone=user", "clone=mnt", "clone=pid", "clone=net", "clone=ipc", "clone=uts", "clone=cgroup", "clone=user,mnt,pid,net",
			)...)
			// The filter cannot inspect the arguments of clone3; the sysctl and the missing capabilities refuse it.
			b.try(all("ENOSPC", "clone3=user", "clone3=user,mnt", "clone3=user,pid,net,ipc,uts")...)
			b.try(all("EPERM", "clone3=mnt", "clone3=pid", "clone3=net", "clone3=ipc", "clone3=uts", "clone3=cgroup", "clone3=time")...)
			b.try(attempt{"clone3=", "OK"}, attempt{"clone=", "OK"}) // shows that the probe calls it correctly
			if got := b.run("cat", "/proc/sys/user/max_user_namespaces"); got != "0\n" {
				t.Errorf(`user namespaces: got %q, want "0\n"`, got)
			}
			b.try(attempt{"write=/proc/sys/user/max_user_namespaces", "EACCES|EROFS"})
		})
	})
}

func TestT04NoNamespaceCanBeEntered(t *testing.T) {
	attack(t, func(h *host) {
		h.each(func(b *box) {
			b.try(all("EPERM", "setns", "setnspid=1")...)
			b.try(all("ENOENT", "list=/proc/1/ns", "read=/proc/1/ns/mnt")...)
		})
	})
}

func TestT05ProcLeadsToNoOtherProcess(t *testing.T) {
	const secret = "hunter2-of-the-session"
	attack(t, func(h *host) {
		b := h.box(func(r *api.SessionRequest) { r.Env = map[string]string{"SECRET": secret} })
		for _, name := range []string{
			"environ", "root", "root/etc/shadow", "fd", "fd/3", "fdinfo", "cwd", "exe", "mem", "maps", "map_files", "ns", "task", "io", "stack", "syscall",
			"status", "stat", "cmdline", "mountinfo", "limits", "oom_score_adj", "attr/current",
		} {
			b.try(attempt{"read=/proc/1/" + name, "ENOENT"}, attempt{"list=/proc/1/" + name, "ENOENT"})
		}
		b.try(attempt{"chdir=/proc/1/root", "ENOENT"}, attempt{"chdir=/proc/1/cwd", "ENOENT"})
		// Nor does PID 1 leave its secrets in the parts of its memory that are shown here.
		for _, name := range []string{"environ", "cmdline"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.PID, name))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), secret) || len(text) > 64 {
				t.Errorf("%s of PID 1 is %q, want text without secret and len(text) <= 64", name, text)
			}
		}
		if got := b.sh("echo $SECRET"); got != secret+"\n" {
			t.Errorf(`a program has %q, want secret + "\n"`, got)
		}
		if got := h.box().sh("cat /proc/[0-9]*/environ"); strings.Contains(got, secret) {
			t.Errorf("another box reads %q, want got without secret", got)
		}
	})
}

func TestT06PID1SurvivesEverySignal(t *testing.T) {
	attack(t, func(h *host) {
		b, neighbour := h.box(), h.box()
		other := neighbour.hold(probe, "hold")
		for _, signal := range []syscall.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGCHLD, unix.SIGCONT, unix.SIGSEGV, unix.SIGQUIT} {
			b.try(attempt{fmt.Sprintf("kill=1,%d", signal), "EPERM"})
		}
		b.try(all("EPERM", "tgkill=1", "queueinfo=1", "pidfd_signal=1", "pidfd_getfd=1")...)
		b.try(attempt{"kcmp=1", "EPERM|ENOSYS"}, attempt{"move_pages=1", "EPERM|ENOSYS"}) // not all kernels have them
		// All processes that it can signal: programs of this box. They can be stopped, continued and killed.
		held := b.hold(probe, "hold")
		b.try(attempt{"kill=-1,19", "OK"}, attempt{"kill=-1,18", "OK"})
		if _, r := held.Release(); r.Status != "exited" {
			t.Errorf(`after stop and continue: r = %s, want r.Status == "exited"`, boxtest.Show(r))
		}
		held = b.hold(probe, "hold")
		b.try(attempt{"kill=-1,9", "OK"})
		if _, r := held.Release(); r.Status != "signaled" || r.Signal != "SIGKILL" {
			t.Errorf(`after kill -1: r = %s, want r.Status == "signaled" and r.Signal == "SIGKILL"`, boxtest.Show(r))
		}
		now, err := h.Session(t.Context(), b.ID)
		if err != nil || now.State != "ready" || now.PID != b.PID {
			t.Errorf(`the session is %+v, %v, want no error and now.State == "ready" and now.PID == %v`,
				now, err, b.PID)
		}
		b.run("true")
		if _, r := other.Release(); r.Status != "exited" {
			t.Errorf(`the program of another box: r = %s, want r.Status == "exited"`, boxtest.Show(r))
		}
	})
}

func TestT07NothingIsTracedBeforeItRuns(t *testing.T) {
	const rounds = 1000
	attack(t, func(h *host) {
		b := h.box()
		b.try(all("EPERM", "attach=1", "seize=1", "readv=1", "writev=1")...)
		race := b.hold(probe, "race")
		for n, start := 0, time.Now(); n < rounds && time.Since(start) < boxtest.Longest*3/4; n++ { // fewer on a slow host
			b.run("true")
		}
		answer, _ := race.Release()
		got := fields(lines(answer))
		if got["caught"] != "0" {
			t.Errorf("%s processes were traced before their exec", got["caught"])
		}
		// Programs may trace each other, and a race that never took place proves nothing.
		if len(got["seized"]) < 2 || len(got["rounds"]) < 3 {
			t.Errorf(`the two sides of the race did not both run: got %v, want len(got["seized"]) >= 2 and len(got["rounds"]) >= 3`, got)
		}
	})
}

func TestT08NoMountCanBeMadeOrUndone(t *testing.T) {
	attack(t, func(h *host) {
		h.each(func(b *box) {
			mounts := b.run("cat", "/proc/self/mountinfo")
			b.try(all("EPERM",
				"mount", "bind=/tmp,/home/box", "bind=/etc,/workspace", "remount=/usr", "remount=/proc/sys", "umount=/proc", "umount=/proc/sys", "umount=/tmp", "umount=/",
				"pivot", "chroot", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr", "mount_setattr=/usr",
			)...)
			b.try(attempt{"statmount", "ENOSYS"})
			if now := b.run("cat", "/proc/self/mountinfo"); now != mounts {
				t.Errorf("the mounts are\n%swere\n%s", now, mounts)
			}
		})
	})
}

func TestT09ReadOnlyMountStaysReadOnly(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(h.mounts(), withMounts(api.Mount{Source: h.ro, Target: "/mnt/ro", Mode: "ro"}))
		b.sh("mkdir /workspace/d; touch /workspace/f /mnt/f")
		for _, dir := range []string{"/data", "/mnt/ro"} {
			b.try(all("EPERM", "remount="+dir, "mount_setattr="+dir, "umount="+dir, "bind=/workspace,"+dir)...)
			b.try(all("EROFS", "create="+dir+"/x", "write="+dir+"/file", "remove="+dir+"/canary", "rename="+dir+"/file,"+dir+"/canary", "link=/workspace/f,"+dir+"/x")...)
			b.try(all("EXDEV", "rename=/workspace/f,"+dir+"/file", "link="+dir+"/canary,/workspace/x", "rename="+dir+"/file,/workspace/x")...)
			b.try(all("EBUSY|EXDEV|EROFS", "rename="+dir+",/workspace/gone", "swap=/workspace/d,"+dir, "remove="+dir)...)
			i := slices.IndexFunc(lines(b.run("cat", "/proc/self/mountinfo")), func(l string) bool { return strings.Fields(l)[4] == dir })
			flags := strings.Fields(lines(b.run("cat", "/proc/self/mountinfo"))[i])[5]
			if !strings.HasPrefix(flags, "ro,nosuid,nodev,") {
				t.Errorf(`%s is %s, want flags starting with "ro,nosuid,nodev,"`, dir, flags)
			}
		}
		// Renaming or removing the mount point in its writable parent fails.
		b.try(all("EBUSY", "rename=/mnt/ro,/mnt/away", "remove=/mnt/ro", "swap=/mnt/ro,/mnt/f")...)
	})
}

func TestT10NoDeviceCanBeMadeOrUsed(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(h.mounts())
		for _, dir := range []string{"/workspace", "/tmp", "/home/box", "/dev/shm", "/mnt"} {
			b.try(all("EPERM", "mknod=020666,259,"+dir+"/null", "mknod=060666,65024,"+dir+"/disk")...)
			b.try(all("OK", "mknod=010644,0,"+dir+"/fifo", "mknod=0140644,0,"+dir+"/socket", "mknod=0100644,0,"+dir+"/plain")...)
		}
		// Device nodes that were created otherwise, for example by root unpacking an archive.
		for dir, inside := range map[string]string{h.rw: "/mnt", h.ro: "/data", h.workspace(): "/workspace"} {
			node := filepath.Join(dir, "smuggled")
			if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(node, 0o666); err != nil {
				t.Fatal(err)
			}
			b.try(all("EACCES", "read="+inside+"/smuggled", "write="+inside+"/smuggled", "rdwr="+inside+"/smuggled")...)
		}
	})
}

func TestT11SetuidProgramGivesNothing(t *testing.T) {
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	attack(t, func(h *host) {
		b := h.box(h.mounts())
		for dir, inside := range map[string]string{h.rw: "/mnt", h.ro: "/data", h.workspace(): "/workspace"} {
			put(t, filepath.Join(dir, "suid"), string(id), 0o6755|os.ModeSetuid|os.ModeSetgid, 0)
			if mode := statOf(t, filepath.Join(dir, "suid")).Mode; mode&0o7777 != 0o6755 {
				t.Fatalf("mode %o on the host", mode)
			}
			if got := b.sh(inside + "/suid -u; " + inside + "/suid -g"); got != "1000\n1000\n" {
				t.Errorf("setuid-root program in %s runs as %q", inside, got)
			}
		}
		// Conversely: a host user whose uid is the one that the box's files have on disk.
		b = h.box() // here it can set the bits
		h.boxes[0].remove()
		h.boxes = h.boxes[1:]
		b.sh("cp /usr/bin/id /workspace/trap; chmod 6755 /workspace/trap")
		trap := filepath.Join(h.workspace(), "trap")
		if st := statOf(t, trap); st.Mode&0o7777 != 0o6755 || st.Uid != 1000 {
			t.Errorf("on the host it has mode %o and owner %d", st.Mode, st.Uid)
		}
		for _, uid := range []uint32{1000, b.IDBase + 1000, b.IDBase, owner} {
			cmd := exec.CommandContext(t.Context(), trap)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			if out, err := cmd.CombinedOutput(); err == nil || !errors.Is(err, fs.ErrPermission) {
				t.Errorf("a host user %d runs it: out = %q, err = %v, want an error and err is fs.ErrPermission",
					uid, out, err)
			}
		}
	})
}
