// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/overlay"
)

// box is a box that is being set up. PID 1 starts in fresh pid, mount, net, ipc, uts and user
// namespaces, as in-box root with every capability there, in a copy of the image's mount tree.
// The mounts of the copy are locked (mount_namespaces(7)): what is read-only in the image stays
// so.
type box struct {
	setup       *isolation.Setup
	trees       []int           // detached mounts, one for each of setup.Mounts
	group       int             // parent of the programs' cgroups, -1 if there is none
	root        int             // "/", for openat2
	writable    bool            // programs can write to it
	shared      bool            // it shares the network of the host
	proc        int             // the box's own procfs
	scratch     int             // the scratch tmpfs, source of every writable directory
	covers      map[uint64]bool // mounts, by id, in which mount points are made; true: by PID 1, false: by the box user
	limits      int             // /proc/sys/user, where the kernel has the limits of this user namespace; -1 once it is closed
	rootUser    int             // user namespace of programs that run as root, -1 if there is none
	rootUserErr error           // why there is none
	openCovers  []int           // those of PID 1, until they are read-only

	listener int // where another boxd connects, -1 if the box cannot be adopted
}

type step struct {
	name isolation.Step
	do   func() (item string, err error)
}

// commonSteps returns the steps that are the same for every box. They run before PID 1 knows which box
// it will be. A step may depend on those above it, never on one below.
func (b *box) commonSteps() []step {
	return []step{
		{isolation.StepRoot, b.openRoot},
		{isolation.StepProc, b.mountProc},
		// Once CAP_SYS_RESOURCE is dropped, nothing in the box can raise these limits again.
		{isolation.StepSysctl, b.boundKernelObjects},
		{isolation.StepDevpts, b.mountDevpts},
		{isolation.StepLoopback, b.raiseLoopback},
		// After the last write to /proc/sys, which becomes read-only here.
		{isolation.StepMask, b.maskProc},
		{isolation.StepPrivileges, b.boundPrivileges},
	}
}

// boxSteps returns the steps that depend on the configuration of this box, and those that have to come
// last.
func (b *box) boxSteps() []step {
	return []step{
		{isolation.StepRoot, b.enterRoot},
		{isolation.StepRlimit, b.setRlimits},
		{isolation.StepScratch, b.mountScratch},
		{isolation.StepHostname, b.setHostname},
		{isolation.StepFiles, b.writeFiles},
		{isolation.StepFiles, b.showUser},
		{isolation.StepFiles, b.showLimits},
		{isolation.StepMount, b.attachMounts},
		// After the limits, which are those of the whole namespace too.
		{isolation.StepUser, b.makeRootUser},
		{isolation.StepPrivileges, b.dropPrivileges},
		{isolation.StepPrivileges, b.scopeSockets},
		// Last, since the filter forbids most of what the other steps do.
		{isolation.StepSeccomp, b.installFilter},
	}
}

func runSteps(steps []step) error {
	for _, s := range steps {
		if item, err := s.do(); err != nil {
			return stepError(s.name, item, err)
		}
	}
	return nil
}

// openRoot also closes every descriptor that PID 1 was not meant to have. A descriptor of a host directory would be a way out of
// the box: symbolic links in the box may lead PID 1 to /proc/self/fd. The Go runtime has opened none yet: the number of threads
// is given to it, so it need not look it up.
func (b *box) openRoot() (string, error) {
	unix.Umask(0o022)
	err := unix.CloseRange(idLockFD+1, math.MaxUint32, 0)
	if err != nil {
		return "descriptors", err
	}
	b.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return "/", err
}

// enterRoot sets up a writable root, or one with more mount points, if the box needs it.
func (b *box) enterRoot() (item string, err error) {
	b.writable, item, err = overlay.Enter(b.setup, &b.trees, &b.root, b.proc)
	if err != nil || b.writable {
		return item, err
	}
	return b.coverRoot()
}

// keptCapabilities are what PID 1 needs for its work: to become the box user in a child (SETUID
// and SETGID, both or clone fails) and to signal that user's processes (KILL). No program ever
// has one.
const keptCapabilities = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL

// Secure bits of capabilities(7), all locked: uid 0 gets no capability by exec, and none can be
// kept or made ambient.
const secureBits = 1<<0 | 1<<1 | // NOROOT
	1<<3 | // NO_SETUID_FIXUP locked off: leaving uid 0 clears the capabilities
	1<<5 | // KEEP_CAPS locked off
	1<<6 | 1<<7 // NO_CAP_AMBIENT_RAISE

// boundPrivileges takes every capability from what programs may get by execve. It takes none from PID 1 itself, so it need not
// wait for the configuration of the box, which a session waits for. The bounding set is that of this thread alone, which is the only
// one that forks; on the others no_new_privs (set by installFilter) keeps an execve from gaining anything (capabilities(7)).
func (b *box) boundPrivileges() (string, error) {
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			return "", nil // past the last capability of this kernel
		} else if err != nil {
			return "bounding set", err
		}
	}
}

// dropPrivileges leaves every thread of PID 1 with keptCapabilities at most.
//
// The secure bits matter only to execve, so they are set on this thread alone, as the bounding set is. Stopping all threads
// for each of these took longer than everything else that PID 1 does.
func (b *box) dropPrivileges() (string, error) {
	// A working directory of this thread's own: programs inherit it, and the other threads are
	// not disturbed.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return "unshare", err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return "dumpable", err
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
		return "securebits", err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "no_new_privs", err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keptCapabilities, Permitted: keptCapabilities}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&data)
	if errno != 0 {
		return "capset", errno
	}
	return "", nil
}

// scopeSockets keeps programs away from the abstract sockets of the host's network namespace, if the
// box shares that.
func (b *box) scopeSockets() (string, error) { return isolation.ScopeSockets(b.shared) }

// installFilter installs the programs' seccomp filter on every thread. TSYNC also sets
// no_new_privs on all of them (seccomp(2)).
func (b *box) installFilter() (string, error) {
	filter := b.setup.Filter
	n := len(filter) / int(unsafe.Sizeof(unix.SockFilter{}))
	if n == 0 || n > 4096 {
		return "length", unix.EINVAL
	}
	prog := unix.SockFprog{Len: uint16(n), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter)))}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	switch {
	case errno != 0:
		return "install", errno
	case r != 0:
		return "thread", unix.ESRCH // TSYNC returns the id of a thread that it could not synchronize
	}
	return "", nil
}
