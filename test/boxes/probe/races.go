// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// untilEOF prints "ready", runs step repeatedly until EOF on its input, and returns how often. If there is another processor, it
// leaves the one that its box was put on, so that it does not have to wait for its turn in a race with PID 1.
func untilEOF(step func() error) (rounds int, err error) {
	runtime.LockOSThread()
	var all unix.CPUSet
	for cpu := range len(all) * 64 {
		all.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		return 0, err
	}
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	fmt.Println("ready")
	for !stop.Load() && err == nil {
		err = step()
		rounds++
	}
	return rounds, err
}

// newest returns the pid of the last process created in this pid namespace (proc(5), loadavg).
func newest() (int, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text[bytes.LastIndexByte(text, ' ')+1:])))
}

// initName is the name of a process while it runs PID 1's program.
const initName = "boxinit\n"

// race seizes processes while they are created, until EOF on its input. It prints "rounds N", "seized N", which are programs that
// have started and may be traced, and "caught N", which were still children of PID 1 before their execve.
func race([]string) error {
	runtime.LockOSThread() // the tracer is a thread
	seized, caught := 0, 0
	rounds, err := untilEOF(func() error {
		last, err := newest()
		if err != nil {
			return err
		}
		for pid := last; pid < last+3; pid++ {
			if unix.PtraceSeize(pid) != nil {
				continue
			}
			seized++
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(name) == initName {
				caught++
			}
			release(pid)
		}
		return nil
	})
	fmt.Println("rounds", rounds)
	fmt.Println("seized", seized)
	fmt.Println("caught", caught)
	return err
}

// release stops and detaches a tracee; one that has ended is reaped.
func release(pid int) {
	if unix.PtraceInterrupt(pid) != nil {
		return
	}
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); errors.Is(err, unix.EINTR) {
			continue
		}
		break
	}
	if status.Stopped() {
		_ = unix.PtraceDetach(pid)
	}
}

// chase tries to open the program of every new process for writing, until EOF on its input. It prints "rounds N", "opened N" and
// "ERRNO N" for each error.
func chase([]string) error {
	answers := map[string]int{}
	rounds, err := untilEOF(func() error {
		last, err := newest()
		if err != nil {
			return err
		}
		for _, pid := range []int{1, last, last + 1, last + 2} {
			answers[nameOf(openFor(fmt.Sprintf("/proc/%d/exe", pid), os.O_WRONLY))]++
		}
		return nil
	})
	fmt.Println("rounds", rounds)
	for name, n := range answers {
		fmt.Println(name, n)
	}
	return err
}

// swap replaces a link by others in turn, until EOF on its input; arguments: the link, its targets.
func swap(args []string) error {
	link, targets := args[0], args[1:]
	next := 0
	rounds, err := untilEOF(func() error {
		next = (next + 1) % len(targets)
		temporary := link + ".new"
		if err := os.Symlink(targets[next], temporary); err != nil {
			return err
		}
		return os.Rename(temporary, link)
	})
	fmt.Println("rounds", rounds)
	return err
}

// orphan enters a new directory, removes it, and makes a link to its working directory, until EOF on its input; arguments: the
// directory, the link.
func orphan(args []string) error {
	dir, link := args[0], args[1]
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	if err := os.Symlink(fmt.Sprintf("/proc/%d/cwd", os.Getpid()), link); err != nil {
		return err
	}
	return hold(nil)
}
