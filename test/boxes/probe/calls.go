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

// How long a call may take before its program is killed: one that is known to block forever, and any other.
const (
	shortWait = 200 * time.Millisecond
	longWait  = 30 * time.Second
)

// calls makes the calls of an ABI ("native", "x32" or "int80") with the numbers FROM to TO, with all arguments -1 where the ABI
// takes any, and prints "NUMBER ERRNO", "NUMBER OK", "NUMBER ENDED" if it has ended the program, and "NUMBER HANGS". The numbers
// after TO are those known to block forever.
//
// The calls are made by a separate program: an allowed call may end it, and then another continues after that call.
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

// callsFrom starts one such program, and returns the number at which the next has to continue.
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
	results := make(chan string)
	go func() { // ends with the program, whose forks are its children and end with it or at once
		defer close(results)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			results <- lines.Text()
		}
	}()
	for next = from; ; {
		wait := longWait
		if waits[next] {
			wait = shortWait
		}
		select {
		case line, more := <-results:
			if more {
				fmt.Println(line)
				next++
				continue
			}
			_ = cmd.Wait() // a call has ended it, or it is done
			if next <= to {
				fmt.Println(next, "ENDED")
				next++
			}
			return next, nil
		case <-time.After(wait):
			fmt.Println(next, "HANGS")
			_ = cmd.Process.Kill()
			for range results { // until it has ended
			}
			_ = cmd.Wait()
			return next + 1, nil
		}
	}
}

// callRange makes the calls one after the other, and prints the result of each before the next.
func callRange(args []string) error {
	if len(args) != 3 {
		return errors.New("call: want ABI FROM TO")
	}
	self := os.Getpid()
	for nr := int(number(args[1])); nr <= int(number(args[2])); nr++ {
		err := callOf(args[0], uintptr(nr))
		if pid, _, _ := unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0); int(pid) != self { // the call was a fork, and this is the child
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
