// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// fill writes to a new file in each directory in turn until the kernel refuses, and prints "DIR BYTES ERRNO" for each. The files
// stay.
func fill(dirs []string) error {
	block := bytes.Repeat([]byte{'x'}, 64<<10)
	for _, dir := range dirs {
		f, err := os.CreateTemp(dir, "fill")
		if err != nil {
			fmt.Println(dir, 0, nameOf(err))
			continue
		}
		var written int64
		for err == nil {
			var n int
			n, err = f.Write(block)
			written += int64(n)
		}
		fmt.Println(dir, written, nameOf(err))
		f.Close()
	}
	return nil
}

// inodes creates empty files in the directories until the kernel refuses, and prints "DIR COUNT ERRNO" for each. The files stay.
func inodes(dirs []string) error {
	for _, dir := range dirs {
		var err error
		count := 0
		for ; err == nil; count++ {
			var fd int
			fd, err = unix.Open(filepath.Join(dir, "inode"+strconv.Itoa(count)), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
			unix.Close(fd)
		}
		fmt.Println(dir, count-1, nameOf(err))
	}
	return nil
}

// data allocates memory in pieces of 1 MiB until the kernel refuses, and prints "refused ERRNO" and "data KIB" for the total.
// First it prints "reserve ERRNO" for a reservation of far more address space, without using any.
func data([]string) error {
	_, err := unix.Mmap(-1, 0, 64<<30, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	fmt.Println("reserve", nameOf(err))
	var refused error
	for refused == nil {
		_, refused = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}
	fmt.Println("refused", nameOf(refused))
	status, err := os.ReadFile("/proc/self/status")
	for line := range bytes.Lines(status) {
		if kib, ok := bytes.CutPrefix(line, []byte("VmData:")); ok {
			fmt.Printf("data %s\n", bytes.Fields(kib)[0])
		}
	}
	return err
}

// forks creates idle children until the kernel refuses one, and prints "refused ERRNO" and "tasks N", the number of processes and
// threads of the box user then. The children end with it.
func forks([]string) error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // its helpers would be threads too
	spare()
	var children []int
	var refused error
	for refused == nil && len(children) < 10_000 {
		pid, err := idle()
		if refused = err; err == nil {
			children = append(children, pid)
		}
	}
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, pid := range children {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, pid := range children {
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	fmt.Println("refused", nameOf(refused))
	fmt.Println("tasks", len(tasks))
	return err
}

// spare makes the runtime keep some idle threads: it crashes if it needs a new one when no more are allowed.
func spare() {
	var asleep sync.WaitGroup
	for range 4 {
		asleep.Go(func() {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000_000}, nil) // the scheduler needs another thread meanwhile
		})
	}
	asleep.Wait()
}

// idle forks a child that sleeps until it is killed. The child makes raw calls only: of the runtime just this thread exists in
// it.
func idle() (int, error) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_PPOLL, 0, 0, 0)
		}
	}
	return int(pid), nil
}

// threads prints "PID:TID FIELD VALUE" for every thread of a program with several, for the confining fields of
// /proc/<pid>/status.
func threads([]string) error {
	const extra = 8
	ready, stop := make(chan bool), make(chan bool)
	for range extra {
		go func() {
			runtime.LockOSThread()
			ready <- true
			<-stop
		}()
	}
	for range extra {
		<-ready
	}
	defer close(stop)
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return err
	}
	if len(tasks) < extra {
		return errors.New("too few threads")
	}
	for _, path := range tasks {
		status, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(status) {
			name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":\t"))
			switch string(name) {
			case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
				fmt.Printf("%s %s %s\n", filepath.Base(filepath.Dir(path)), name, value)
			}
		}
	}
	return nil
}

// fds prints "NUMBER TYPE" for every descriptor it was started with.
func fds([]string) error {
	// Descriptors opened by the runtime are close-on-exec; inherited ones are not.
	for fd := range 65536 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		types := map[uint32]string{
			unix.S_IFDIR: "directory", unix.S_IFCHR: "device", unix.S_IFIFO: "pipe", unix.S_IFREG: "file", unix.S_IFSOCK: "socket",
		}
		fmt.Println(fd, types[st.Mode&unix.S_IFMT])
	}
	return nil
}

// writable walks the directories and prints every directory, file and device below them that this user may write to, without
// entering those it has printed.
func writable(roots []string) error {
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
			if path == "/proc" {
				return filepath.SkipDir
			}
			// If an unreadable directory is writable, it has been printed before.
			if err == nil && e.Type()&os.ModeSymlink == 0 && unix.Access(path, unix.W_OK) == nil {
				fmt.Println(path)
				if e.IsDir() {
					return filepath.SkipDir
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
