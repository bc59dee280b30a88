// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// rootCapabilities are those of programs that run as root. They hold in the user namespace of such programs alone, which owns no
// other namespace: so they are rights over files whose ids it maps, which are those of the box, and over processes that are in it. CAP_SETFCAP,
// CAP_MKNOD and CAP_SYS_CHROOT would be of no use: the filter and the mounts of the box refuse what they allow.
const rootCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// rootMaps returns the id maps of such programs, which lack the ids of PID 1: what belongs to that, such as the skeleton of a root
// that can be written to, is nobody's to them. So that boxfiles can tell it, no user of theirs is nobody in another way; the group
// of nobody they have, as services run in it.
func rootMaps() (users, groups string) {
	users = "0 " + strconv.Itoa(isolation.RootID) + " 1\n1 1 " + strconv.Itoa(isolation.RootID-1) + "\n"
	nobody := strconv.Itoa(isolation.NobodyID)
	return users, users + nobody + " " + nobody + " 1\n"
}

// makeRootUser makes the user namespace that programs enter which run as root, if the box is to have one: later PID 1 could make
// none, nor could any other process of the box. It is owned by in-box root, as whom no program runs: so no program can enter it.
// A host that refuses it has boxes without such programs.
func (b *box) makeRootUser() (string, error) {
	b.rootUser, b.rootUserErr = -1, unix.EPERM
	defer func() {
		unix.Close(b.limits)
		b.limits = -1
	}()
	if !b.setup.Root {
		return "", nil
	}
	if err := writeFile(b.limits, maxUserNamespaces, "1"); err != nil {
		return maxUserNamespaces, err
	}
	if b.rootUser, b.rootUserErr = b.newRootUser(); b.rootUserErr != nil {
		b.rootUser = -1
	}
	return maxUserNamespaces, writeFile(b.limits, maxUserNamespaces, "0")
}

func (b *box) newRootUser() (int, error) {
	w := newWaiting()
	childPID, errno := cloneWaiting(uintptr(unsafe.Pointer(&w.clone)), unsafe.Sizeof(w.clone))
	runtime.KeepAlive(w) // the kernel has its addresses as numbers
	if errno != 0 {
		return -1, syscall.Errno(errno)
	}
	pid := int(childPID)
	defer func() {
		_ = unix.PidfdSendSignal(int(w.pidfd), unix.SIGKILL, nil, 0)
		unix.Close(int(w.pidfd))
		for {
			if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
				return
			}
		}
	}()
	dir := strconv.Itoa(pid) + "/"
	users, groups := rootMaps()
	for _, m := range [...][2]string{{"uid_map", users}, {"gid_map", groups}} {
		if err := writeFile(b.proc, dir+m[0], m[1]); err != nil {
			return -1, err
		}
	}
	return unix.Openat(b.proc, dir+"ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// waiting is a process that holds a user namespace until that is open.
type waiting struct {
	clone cloneArgs
	pidfd int32
}

// newWaiting allocates on the heap, where nothing moves: the kernel gets addresses.
//
//go:noinline
func newWaiting() *waiting {
	w := &waiting{pidfd: -1, clone: cloneArgs{
		flags: unix.CLONE_VM | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND | unix.CLONE_NEWUSER, exitSignal: uint64(unix.SIGCHLD),
	}}
	w.clone.pidFD = uint64(uintptr(unsafe.Pointer(&w.pidfd)))
	return w
}

// cloneWaiting clones this process by clone3(2), which gets args, into one that does nothing until it is killed.
//
//go:noescape
func cloneWaiting(args, size uintptr) (pid, errno uintptr)
