// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Exit codes of a shell for a program that cannot be executed.
const (
	cannot   = 126
	notFound = 127
)

// runLimited executes a program with resource limits; args are those of isolation.LimitedArgv without the first two.
// It returns only if that fails.
func runLimited(args []string, stderr io.Writer) int {
	fail := func(what string, err error) int {
		fmt.Fprintf(stderr, "boxd: %s: %v\n", what, err)
		if errors.Is(err, unix.ENOENT) {
			return notFound
		}
		return cannot
	}
	if len(args) < 2 {
		return fail("limits", unix.EINVAL)
	}
	limits, err := parseLimits(args[0])
	if err != nil {
		return fail("limits", err)
	}
	env := os.Environ()
	path, err := isolation.LookPath(args[1], env)
	if err != nil {
		return fail(args[1], err)
	}
	// Allocate everything before setting limits, which may be lower than what this Go runtime
	// uses.
	name, err1 := unix.BytePtrFromString(path)
	argv, err2 := syscall.SlicePtrFromStrings(args[1:])
	envp, err3 := syscall.SlicePtrFromStrings(env)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fail(args[1], err)
	}
	runtime.LockOSThread()
	for i := range limits {
		var now unix.Rlimit // a hard limit can only be lowered
		if err := unix.Getrlimit(int(limits[i].Resource), &now); err != nil {
			return fail("limits", err)
		}
		l := &limits[i].lim
		l.Max = min(l.Max, now.Max)
		l.Cur = min(l.Cur, l.Max)
	}
	for i := range limits {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, uintptr(limits[i].Resource), uintptr(unsafe.Pointer(&limits[i].lim)), 0, 0, 0); errno != 0 {
			return fail("limits", errno)
		}
	}
	_, _, errno := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envp[0])))
	return fail(args[1], errno)
}

type limit struct {
	Resource uint32
	lim      unix.Rlimit
}

func parseLimits(text string) (list []limit, err error) {
	for part := range strings.SplitSeq(text, ",") {
		name, values, ok1 := strings.Cut(part, "=")
		soft, hard, ok2 := strings.Cut(values, ":")
		resource, err1 := strconv.ParseUint(name, 10, 32)
		s, err2 := strconv.ParseUint(soft, 10, 64)
		h, err3 := strconv.ParseUint(hard, 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil || !ok1 || !ok2 {
			return nil, unix.EINVAL
		}
		list = append(list, limit{uint32(resource), unix.Rlimit{Cur: s, Max: h}})
	}
	return list, nil
}
