// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// How long a call may take before its program is killed: one that is known to wait for ever, and any other.
const (
	shortWait = 200 * time.Millisecond
	longWait  = 30 * time.Second
)

// calls makes the calls of an ABI ("native", "x32" or "int80") with the numbers FROM to TO, with arguments that are all
// -1 where the ABI takes any, and prints "NUMBER ERRNO", "NUMBER OK", "NUMBER ENDED" where the program has ended of it,
// and "NUMBER HANGS". The numbers behind are those known to wait for ever.
//
// The calls are made by a program of its own: what is allowed may end it, and then the next one goes on behind that.
func calls(args []string) error {
	if len(args) < 3 {
		return errors.New("calls: want ABI FROM TO [NUMBER]")
	}
	from, to := int(number(args[1])), int(number(args[2]))
	waits := map[int]bool{}
	for _, a := range args[3:] {
		waits[int(number(a))] = true
	}
	for from <= to {
		next, err := callsFrom(args[0], from, to, waits)
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

// callsFrom starts one program, and returns the number from which the next has to go on.
func callsFrom(abi string, from, to int, waits map[int]bool) (next int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(context.Background(), self, "call", abi, strconv.Itoa(from), strconv.Itoa(to))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	said := make(chan string)
	go func() { // ends with the program, whose copies are its children and end with it or at once
		defer close(said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said <- lines.Text()
		}
	}()
	for next = from; ; {
		wait := longWait
		if waits[next] {
			wait = shortWait
		}
		select {
		case line, more := <-said:
			if more {
				fmt.Println(line)
				next++
				continue
			}
			_ = cmd.Wait() // it was to end of a call, or has come to its end
			if next <= to {
				fmt.Println(next, "ENDED")
				next++
			}
			return next, nil
		case <-time.After(wait):
			fmt.Println(next, "HANGS")
			_ = cmd.Process.Kill()
			for range said { // until it has ended
			}
			_ = cmd.Wait()
			return next + 1, nil
		}
	}
}

// callRange makes the calls, one after the other, and prints what came of each before it makes the next.
func callRange(args []string) error {
	if len(args) != 3 {
		return errors.New("call: want ABI FROM TO")
	}
	self := os.Getpid()
	for nr := int(number(args[1])); nr <= int(number(args[2])); nr++ {
		err := callOf(args[0], uintptr(nr))
		if pid, _, _ := unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0); int(pid) != self { // it was a fork, and this is the child
			unix.Exit(0)
		}
		// Not by package os, whose descriptors a call may have changed.
		line := []byte(strconv.Itoa(nr) + " " + nameOf(err) + "\n")
		if _, err := unix.Write(1, line); err != nil {
			return err
		}
	}
	return nil
}

// callOf makes one call.
func callOf(abi string, nr uintptr) error {
	switch abi {
	case "native":
		_, _, errno := unix.RawSyscall6(nr, bad, bad, bad, bad, bad, bad)
		return errnoOf(errno)
	case "x32":
		_, _, errno := unix.RawSyscall6(nr|1<<30, bad, bad, bad, bad, bad, bad) // __X32_SYSCALL_BIT
		return errnoOf(errno)
	case "int80":
		return foreignCall(uint32(nr))
	}
	return fmt.Errorf("unknown ABI %q", abi)
}
