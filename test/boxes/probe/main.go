// SPDX-License-Identifier: Apache-2.0

// Command probe runs in boxes under test: it makes system calls as an attacker would, then prints the results.
//
//	probe try CALL[=ARG,ARG…]…    one line "CALL[=ARG,ARG…] ERRNO" each, in order; OK for success
//	probe VERB ARG…               one of verbs(), each explained there
//
// Lines are compared by a program, so nothing else is printed to standard output.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "probe: %v\n", err)
		os.Exit(1)
	}
}

// verbs returns the commands that are more than one call with one result.
func verbs() map[string]func(args []string) error {
	return map[string]func(args []string) error{
		"try":      try,
		"calls":    calls,
		"call":     callRange,
		"hold":     hold,
		"fds":      fds,
		"threads":  threads,
		"writable": writable,
		"forks":    forks,
		"fill":     fill,
		"inodes":   inodes,
		"data":     data,
		"pty":      pty,
		"loopback": loopback,
		"links":    links,
		"listen":   listenAt,
		"race":     race,
		"chase":    chase,
		"swap":     swap,
		"orphan":   orphan,
		"exhaust":  exhaust,
		"locks":    locks,
	}
}

// rootOfABox reports whether uid 0 of this process is another one of a box.
func rootOfABox() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.HasPrefix(strings.Join(strings.Fields(string(ids)), " "), "0 65533 1 ")
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no verb")
	}
	if os.Geteuid() == 0 && !rootOfABox() {
		return errors.New("it attacks what it runs on, so it does not run as root")
	}
	verb := verbs()[args[0]]
	if verb == nil {
		return fmt.Errorf("unknown verb %q", args[0])
	}
	return verb(args[1:])
}

// try makes the attempts in order. An unknown attempt prints UNKNOWN, which no test accepts as a refusal.
func try(args []string) error {
	known := attempts()
	for _, a := range args {
		name, rest, _ := strings.Cut(a, "=")
		answer := "UNKNOWN"
		if f := known[name]; f != nil {
			answer = nameOf(f(strings.Split(rest, ",")))
		}
		fmt.Println(a, answer)
	}
	return nil
}

// nameOf returns an errno as it is printed.
func nameOf(err error) string {
	if err == nil {
		return "OK"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		if errno == 0 {
			return "OK"
		}
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	return "OTHER:" + strings.ReplaceAll(err.Error(), " ", "_")
}

// hold prints "ready" and waits for EOF on its input, so that it can be inspected from outside.
func hold([]string) error {
	fmt.Println("ready")
	for in := bufio.NewReader(os.Stdin); ; {
		if _, err := in.ReadByte(); err != nil {
			return nil //nolint:nilerr // the end of the input is what it waits for
		}
	}
}
