// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// objects each create one more kernel object, and keep it.
func objects() map[string]func(n int) error {
	var instances []int
	inotify := func(int) error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		instances = append(instances, fd)
		return err
	}
	// Watches count per file and instance.
	const files = 2048
	watches := func(n int) error {
		if n/files >= len(instances) {
			return unix.EBADF
		}
		name := "/tmp/watched" + strconv.Itoa(n%files)
		if n < files {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
		}
		_, err := unix.InotifyAddWatch(instances[n/files], name, unix.IN_MODIFY)
		return err
	}
	var id uint64 // the kernel's id for the new object; in one place, as functions share it
	return map[string]func(n int) error{
		"inotify": inotify,
		"watches": watches,
		"timers": func(int) error {
			id = 0
			return call(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
		},
		"queues": func(n int) error {
			name, _ := syscall.BytePtrFromString("queue" + strconv.Itoa(n)) // contains no NUL
			defer runtime.KeepAlive(name)
			return call(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600, 0)
		},
		"aio": func(int) error {
			id = 0
			return call(unix.SYS_IO_SETUP, 1024, uintptr(unsafe.Pointer(&id)))
		},
		"huge-pages": func(int) error {
			_, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
			return err
		},
		"huge-files": func(int) error {
			_, err := unix.MemfdCreate("x", unix.MFD_HUGETLB)
			return err
		},
		"huge-segments": func(int) error { return call(unix.SYS_SHMGET, unix.IPC_PRIVATE, 2<<20, 0o4000|0o600) }, // SHM_HUGETLB
		"pipes": func(int) error {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return err
			}
			_, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<20)
			return err
		},
		"terminals": func(int) error {
			_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			return err
		},
		"locked": func(int) error {
			page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				return err
			}
			return unix.Mlock(page)
		},
		"keys": func(int) error {
			_, err := unix.AddKey("user", "x", []byte("y"), unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		},
		"segments":   func(int) error { return call(unix.SYS_SHMGET, unix.IPC_PRIVATE, 4096, 0o600) },
		"messages":   func(int) error { return call(unix.SYS_MSGGET, unix.IPC_PRIVATE, 0o600) },
		"semaphores": func(int) error { return call(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, 0o600) },
	}
}

// exhaust creates objects of each kind until the kernel refuses one, prints "ready", holds them until EOF on its input, and then
// prints "KIND ERRNO COUNT" for each.
func exhaust(kinds []string) error {
	const most = 300_000 // reaching this means there is no limit
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	files.Cur = files.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	known, found := objects(), []string{}
	for _, kind := range kinds {
		n, err := 0, error(nil)
		for n < most {
			if err = known[kind](n); err != nil {
				break
			}
			n++
		}
		found = append(found, fmt.Sprintf("%s %s %d", kind, nameOf(err), n))
	}
	err := hold(nil)
	fmt.Println(strings.Join(found, "\n"))
	return err
}
