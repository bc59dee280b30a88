// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"debug/elf"
	"net"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// unprivileged is a boxd that runs as another user than root.
type unprivileged struct {
	name     string
	uid, gid uint32
	socket   *os.File
	keeper   *exec.Cmd // nil: none has been started
}

// newUnprivileged returns the boxd of a user, for a Daemon whose configuration has been written.
func newUnprivileged(t testing.TB, d *Daemon, name string) *unprivileged {
	t.Helper()
	who, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, uerr := strconv.ParseUint(who.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(who.Gid, 10, 32)
	if uerr != nil || gerr != nil {
		t.Fatalf("uerr = %v, gerr = %v, want no error and no error", uerr, gerr)
	}
	u := &unprivileged{name: name, uid: uint32(uid), gid: uint32(gid)}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if u.socket, err = ln.File(); err != nil {
		t.Fatal(err)
	}
	_ = ln.Close() // u.socket is the one that is used
	group, err := user.LookupGroup("nogroup")
	if err != nil {
		t.Fatal(err)
	}
	if gid, err := strconv.Atoi(group.Gid); err != nil || os.Chown(d.Socket, 0, gid) != nil || os.Chmod(d.Socket, 0o660) != nil {
		t.Fatal("the socket cannot be given to its group")
	}
	return u
}

// RunAs makes boxd run as another user of the host from now on, as after an upgrade. Its boxes have to outlive it, see Kept.
func (d *Daemon) RunAs(name string) {
	d.t.Helper()
	d.Stop()
	if err := syscall.Kill(d.Keeper(), syscall.SIGKILL); err != nil {
		d.t.Fatal(err)
	}
	d.user = newUnprivileged(d.t, d, name)
	d.Restart()
}

// command changes the command of a boxd to one that runs as this user, after what its unit does before.
func (u *unprivileged) command(d *Daemon, cmd *exec.Cmd) *exec.Cmd {
	d.t.Helper()
	if err := os.Chmod(d.Config, 0o644); err != nil {
		d.t.Fatal(err)
	}
	program, log := cmd.Args[0], cmd.Stderr
	prepare := exec.Command(program, "-prepare", "-user", u.name, "-config", d.Config)
	if out, err := prepare.CombinedOutput(); err != nil {
		d.t.Fatalf("prepare the directories: %v: %s", err, out)
	}
	if u.keeper == nil || !Lives(u.keeper.Process.Pid) {
		u.end()
		u.keeper = exec.Command(program, "-keeper", "-user", u.name, "-config", d.Config)
		u.keeper.Env, u.keeper.Stderr = cmd.Env, log
		u.keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := u.keeper.Start(); err != nil {
			d.t.Fatal(err)
		}
	}
	const itself = `LISTEN_PID=$$ exec "$0" "$@"` // exec keeps the PID
	as := exec.Command("/bin/sh", append([]string{"-c", itself, program, "-keeper-unit"}, cmd.Args[1:]...)...)
	as.Stderr, as.ExtraFiles = log, []*os.File{u.socket}
	as.Env = append(cmd.Env, "LISTEN_FDS=1", "LISTEN_FDNAMES=boxd-api")
	if dynamic(d.t, program) { // the race detector needs libraries, which a boxd that confines itself may not execute
		as.Env = append(as.Env, "BOXD_CONFINED=1")
	}
	as.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.uid, Gid: u.gid}}
	return as
}

// dynamic reports whether a program needs an interpreter, ld.so(8).
func dynamic(t testing.TB, program string) bool {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// end ends the keeper, whose boxes a boxd has ended.
func (u *unprivileged) end() {
	if u.keeper == nil {
		return
	}
	_ = u.keeper.Process.Signal(syscall.SIGTERM) // it may have been killed
	_ = u.keeper.Wait()
	u.keeper = nil
}

// close ends what the boxd of a user has had.
func (u *unprivileged) close() {
	if u != nil {
		u.end()
		_ = u.socket.Close()
	}
}
