// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// asRoot runs a shell line as root of a box that must succeed.
func (b *box) asRoot(line string) string {
	b.t.Helper()
	return b.d.Output(b.t, b.ID, api.ExecRequest{Argv: []string{"/bin/sh", "-euc", line}, User: "root"})
}

// writable makes the root of a session one that can be written to.
func writable(r *api.SessionRequest) { r.ReadOnlyRoot = new(false) }

// Root of a box has the rights of root over what belongs to the box, and to its programs it looks as root does.
func TestProgramsRunAsRootOfTheirBox(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(writable)
		status := fields(lines(strings.ReplaceAll(b.asRoot("cat /proc/self/status"), ":\t", " ")))
		capabilities := "00000000000000fb" // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID
		if b.Enforcement["pids"] == "rlimit" {
			capabilities = "000000000000003b" // without cgroups a group tells to which program a process belongs, and limits are those of a user
		}
		for name, want := range map[string]string{
			"CapInh": "0000000000000000", "CapPrm": capabilities, "CapEff": capabilities, "CapBnd": capabilities, "CapAmb": "0000000000000000",
			"NoNewPrivs": "1", "Seccomp": "2", "Uid": "0\t0\t0\t0", "Gid": "0\t0\t0\t0",
		} {
			if status[name] != want {
				t.Errorf("%s is %q, want %q", name, status[name], want)
			}
		}
		if got := b.asRoot(`echo $HOME $USER $LOGNAME; id -un; cat /proc/self/uid_map | tr -s ' '; umask 077; echo mine > /workspace/mine; cp /bin/true /usr/local/bin/rooted; rooted`); got != "/root root root\nroot\n 0 65533 1\n 1 1 65532\n" {
			t.Errorf(`root is %q, want "/root root root\nroot\n 0 65533 1\n 1 1 65532\n"`, got)
		}
		b.sh(`mkdir -m 0 /workspace/closed; echo user > /tmp/file; chmod 0 /tmp/file; ! cat /workspace/mine; test "$(stat -c %u:%g /workspace/mine)" = 65533:65533; ! echo >> /usr/local/bin/rooted`)
		if got := b.asRoot("cat /tmp/file; touch /workspace/closed/in; chown 33:34 /workspace/closed/in; stat -c %u:%g /workspace/closed /workspace/closed/in; chown 1000:1000 /workspace/mine"); got != "user\n1000:1000\n33:34\n" {
			t.Errorf(`rights over the files of others: got %q, want "user\n1000:1000\n33:34\n"`, got)
		}
		if got := b.sh("cat /workspace/mine; chmod 700 /workspace/closed; stat -c %u:%g /workspace/closed/in"); got != "mine\n33:34\n" {
			t.Errorf(`a file that root gave to another user: got %q, want "mine\n33:34\n"`, got)
		}
		r := b.exec(&api.ExecRequest{Argv: []string{"python3", "-c", "import os; os.setgroups([33]); os.setgid(33); os.setuid(33); print(os.getresuid(), os.getgroups())\nfor i in (0, 65533): \n try: os.setuid(i); print('became', i)\n except PermissionError: pass"}, User: "root"})
		if want := "(33, 33, 33) [33]\n"; b.Enforcement["pids"] != "rlimit" && r.Stdout != want {
			t.Errorf(`a service: r = %s, want b.Enforcement["pids"] == "rlimit" or r.Stdout == %v`,
				boxtest.Show(r), want)
		}
		if b.Enforcement["pids"] == "rlimit" && !strings.Contains(r.Stderr, "Operation not permitted") {
			t.Errorf(`without cgroups a program leaves its process group: r = %s, want b.Enforcement["pids"] != "rlimit" or r.Stderr containing "Operation not permitted"`,
				boxtest.Show(r))
		}
		// On the host no file that it creates belongs to root, and no other user can reach them.
		found := 0
		err := filepath.WalkDir(h.workspace(), func(path string, _ os.DirEntry, err error) error {
			uid, made := map[string]uint32{"mine": 1000, "closed": 1000, "in": 33, "rooted": 65533}[filepath.Base(path)]
			if made {
				found++
				if st := statOf(t, path); st.Uid != uid {
					t.Errorf("%s belongs to %d, want %d", path, st.Uid, uid)
				}
			}
			return err
		})
		if err != nil || found != 4 {
			t.Errorf("%d files, %v", found, err)
		}
	})
}

// Root of a box gets no further than any program of it.
func TestRootOfABoxIsNoWayOut(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(writable, h.mounts())
		b.tryAs("root", all("EPERM",
			"unshare=user", "unshare=mnt", "unshare=net", "clone=user", "clone=mnt", "mount", "umount=/workspace", "bind=/tmp,/mnt", "pivot", "chroot",
			"move_mount", "fsopen", "open_tree", "mount_setattr=/mnt", "kill=1,9",
		)...)
		b.tryAs("root", all("ENOSPC", "clone3=user", "clone3=user,mnt")...)
		b.tryAs("root", all("EPERM", "clone3=mnt", "clone3=pid", "clone3=net", "clone3=ipc", "clone3=uts", "clone3=cgroup", "clone3=time")...)
		b.tryAs("root", all("ENOENT", "list=/proc/1/ns", "read=/proc/1/root", "read=/proc/1/environ")...)
		b.tryAs("root", all("EACCES|EROFS|EPERM|ENOENT",
			"write=/proc/sys/user/max_user_namespaces", "write=/proc/sysrq-trigger",
		)...)
		b.tryAs("root", all("EACCES|EROFS|EPERM",
			"create=/var/lib/boxd/x", "write=/var/lib/boxd/boxfiles", "chmod=0777,/var/lib/boxd/boxfiles",
			"remove=/var/lib/boxd/boxfiles", "rename=/var/lib/boxd,/var/lib/moved", "chown=0,/var/lib/boxd/boxfiles", "rename=/var,/moved", "create=/skills/x",
			"mknod=0x2000,0x103,/usr/null", "mknod=0x6000,0x103,/usr/block",
		)...)
		// A directory of the host has one owner, who is not root: root of the box reads and changes what that owner could.
		b.tryAs("root", attempt{"read=/mnt/file", "OK"}, attempt{"create=/mnt/roots", "EOVERFLOW|EACCES"}, attempt{"chown=33,/mnt/file", "EOVERFLOW|EINVAL|EPERM"}, attempt{"chmod=04755,/mnt/file", "EPERM"})
		st := statOf(t, filepath.Join(h.rw, "file"))
		// The group of that directory on the host has no id in the box, whichever group root takes.
		const group = 2000
		put(t, filepath.Join(h.rw, "groups"), "secret", 0o640, 0)
		put(t, filepath.Join(h.rw, "own"), "own", 0o644, owner)
		if err := errors.Join(os.Chown(h.rw, owner, group), os.Chown(filepath.Join(h.rw, "groups"), 0, group)); err != nil {
			t.Fatal(err)
		}
		c := h.box(writable, h.mounts())
		const take = `
import os, sys
for gid in (0, 1000, 1001, 65532, 65533, 65534, 65535):
    try: os.chown("/mnt/own", -1, gid)
    except OSError: pass
    if os.fork() == 0:
        try: os.setgroups([gid]); os.setresgid(gid, gid, gid)
        except OSError: pass
        try: print(open("/mnt/groups").read())
        except PermissionError: print("closed")
        sys.exit()
    os.wait()
`
		if got := c.d.Output(t, c.ID, api.ExecRequest{Argv: []string{"python3", "-uc", take}, User: "root"}); got != strings.Repeat("closed\n", 7) {
			t.Errorf(`files that a group of the host may read: got %q, want strings.Repeat("closed\n", 7)`, got)
		}
		if st := statOf(t, filepath.Join(h.rw, "own")); st.Uid != owner || st.Gid != owner {
			t.Errorf("a file of the host belongs to %d:%d", st.Uid, st.Gid)
		}
		if st.Uid != owner || st.Mode&0o7000 != 0 {
			t.Errorf("the file of the host has owner %d, mode %o", st.Uid, st.Mode)
		}
	})
}

// Files of the host that other users cannot read cannot be read by root of a box, whatever it does to the file in its root.
func TestRootOfABoxDoesNotReadWhatTheHostKeepsFromOthers(t *testing.T) {
	attack(t, func(h *host) {
		dir, err := os.MkdirTemp("/usr/local", "boxd-test-") //nolint:usetesting // below a directory of the host
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		const secret = "only for root of the host"
		for i, of := range []struct {
			mode os.FileMode
			uid  int
		}{{0o600, 0}, {0o640, 0}, {0o4711, 0}, {0o600, 33}, {0o000, 0}, {0o600, 1000}, {0o600, 65533}} {
			put(t, filepath.Join(dir, fmt.Sprint("file", i)), secret, of.mode, of.uid)
		}
		closed := filepath.Join(dir, "closed")
		if err := os.Mkdir(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(closed, "in"), secret, 0o644, 0)
		b := h.box(writable)
		r := b.exec(&api.ExecRequest{Argv: []string{"/bin/sh", "-c", `cd ` + dir + `; for at in . /var/lib/boxd/image` + dir + `; do
				for f in $at/file* $at/closed/in; do
					cat $f; cp $f /workspace/copy; chmod 644 $f; chown 0:0 $f; cat $f; mv $f $f.moved; cat $f.moved; ln $f.moved $f; cat $f; echo >> $f; cat $f
				done
				chmod 755 $at/closed; cat $at/closed/in; mv $at/closed $at/open; cat $at/open/in
			done; tar c . 2>/dev/null | cat; cat /workspace/copy; exit 0`}, User: "root"})
		if strings.Contains(r.Stdout, secret) {
			t.Errorf("it reads %s, want r.Stdout without secret", boxtest.Show(r))
		}
		if strings.Count(r.Stderr, "ermission denied") < 10 {
			t.Errorf(`the refused operations: r.Stderr = %q, want strings.Count(r.Stderr, "ermission denied") >= 10`,
				r.Stderr)
		}
	})
}

// No program of the box user enters the user namespace of root, even if it is handed over.
func TestTheUserNamespaceOfRootIsNotEntered(t *testing.T) {
	attack(t, func(h *host) {
		b := h.box(writable)
		const get = `
import ctypes, os, socket
s = socket.socket(socket.AF_UNIX); s.bind("/tmp/pass"); os.chmod("/tmp/pass", 0o777); s.listen(); print("ready", flush=True)
c = s.accept()[0]
_, fds, _, _ = socket.recv_fds(c, 1, 1)
libc = ctypes.CDLL(None, use_errno=True)
for kind in (0, 0x10000000):
    print(libc.setns(fds[0], kind), os.strerror(ctypes.get_errno()), os.getuid())
`
		p := b.d.Hold(t, b.ID, api.ExecRequest{Argv: []string{"python3", "-c", get}, Timeout: boxtest.Duration("1h")})
		b.d.Output(t, b.ID, api.ExecRequest{Argv: []string{"python3", "-c", `
import os, socket
s = socket.socket(socket.AF_UNIX); s.connect("/tmp/pass")
socket.send_fds(s, [b"x"], [os.open("/proc/self/ns/user", os.O_RDONLY)])
s.recv(1)
`}, User: "root"})
		out, r := p.Release()
		if want := strings.Repeat("-1 Operation not permitted 1000\n", 2); out != want {
			t.Errorf("out = %q, r = %s, want out == %q", out, boxtest.Show(r), want)
		}
	})
}

// A caller that may not have root gets an error that names the field.
func TestRootIsRefusedByField(t *testing.T) {
	attack(t, func(h *host) {
		closed, open := h.box(), h.box(writable)
		for _, c := range []struct {
			b             *box
			user, allowed string
		}{
			{closed, "root", "left out in a session whose root cannot be written to"}, {closed, "www-data", "box or root"}, {open, "0", "box or root"}, {open, "ROOT", "box or root"}, {open, "root:root", "box or root"},
		} {
			_, err := h.Exec(t.Context(), c.b.ID, &api.ExecRequest{Argv: []string{"true"}, User: c.user})
			if e := boxtest.Refused(t, err, http.StatusBadRequest, "user"); e.Value != c.user || !strings.Contains(e.Allowed, c.allowed) {
				t.Errorf("%s is refused with %+v", c.user, e)
			}
			_, _, err = h.StartProcess(t.Context(), c.b.ID, "p", &api.ProcessRequest{Argv: []string{"true"}, User: c.user})
			boxtest.Refused(t, err, http.StatusBadRequest, "user")
		}
		for _, b := range []*box{closed, open} {
			if got := b.d.Output(t, b.ID, api.ExecRequest{Argv: []string{"id", "-u"}, User: "box"}); got != "1000\n" {
				t.Errorf(`the box user by its name is %q, want "1000\n"`, got)
			}
		}
	})
}
