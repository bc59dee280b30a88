// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lockTop is where locks begin; each is below the previous one, where the kernel finds it at once.
const lockTop = 1 << 40

// locks acquires file locks in one of several ways. Only "some", which acquires a given number and holds them, ends by itself.
//
//	some N     by one process
//	hoard      by one process, on ever more files, without end
//	spread     8000, by 8 processes, and then waits
//	orphaned   by processes that share their descriptors with this one, and exit
//	hidden     open file description locks, without end, on files that are mapped and closed
func locks(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("locks of which kind")
	}
	f, err := os.CreateTemp("/tmp", "locks")
	if err != nil {
		return err
	}
	opened := []*os.File{f} // the collector would close them
	defer runtime.KeepAlive(opened)
	switch args[0] {
	case "some":
		n, err := strconv.Atoi(args[1])
		if err == nil {
			err = lockMany(f, 0, n, unix.F_SETLK)
		}
		if err != nil {
			return err
		}
		return hold(nil)
	case "hoard":
		for n := 1; ; n++ { // on many files, as the kernel scans all locks of a file to add one
			if err := lockMany(f, 0, 1000, unix.F_SETLK); err != nil {
				return err
			}
			name := "/tmp/locks-more" + strconv.Itoa(n)
			if f, err = os.Create(name); err != nil {
				return err
			}
			opened = append(opened, f)
		}
	case "spread":
		for range 8 {
			c := exec.CommandContext(context.Background(), "/proc/self/exe", "locks", "some", "1000")
			in, err := c.StdinPipe()
			if err == nil {
				defer in.Close()
				err = c.Start()
			}
			if err != nil {
				return err
			}
		}
		return unix.Pause()
	case "orphaned":
		for n := 0; ; n += 1000 {
			if err := lockInChild(f, n, 1000); err != nil {
				return err
			}
		}
	case "hidden":
		return lockHidden(f)
	}
	return fmt.Errorf("unknown way %q", args[0])
}

// lockMany acquires n locks from the number first on.
func lockMany(f *os.File, first, n, cmd int) error {
	for i := first; i < first+n; i++ {
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: lockTop - 2*int64(i), Len: 1}
		if err := unix.FcntlFlock(f.Fd(), cmd, &l); err != nil {
			return err
		}
	}
	return nil
}

// lockInChild acquires n locks in a process that shares this one's descriptors, and waits for its end. The kernel then lists them
// with the pid of a dead process.
func lockInChild(f *os.File, first, n int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, l := f.Fd(), &unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_FILES|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 { // a copy of one thread, which may only make system calls
		status := uintptr(0)
		for i := first; i < first+n; i++ {
			l.Start = lockTop - 2*int64(i)
			if _, _, errno := unix.RawSyscall(unix.SYS_FCNTL, fd, unix.F_SETLK, uintptr(unsafe.Pointer(l))); errno != 0 {
				status = uintptr(errno)
			}
		}
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0)
		}
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &status, 0, nil); err != nil {
		return err
	}
	if status.ExitStatus() != 0 {
		return unix.Errno(status.ExitStatus())
	}
	return nil
}

// lockHidden acquires open file description locks to which no descriptor refers any more.
func lockHidden(f *os.File) error {
	if err := f.Truncate(4096); err != nil {
		return err
	}
	for {
		again, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := lockMany(again, 0, 1000, unix.F_OFD_SETLK); err != nil {
			return err
		}
		if _, err := unix.Mmap(int(again.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return err
		}
		again.Close()
	}
}
