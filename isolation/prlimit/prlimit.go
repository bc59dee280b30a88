// SPDX-License-Identifier: Apache-2.0

// Package prlimit executes a program with resource limits of its own. Programs inherit theirs
// from PID 1 of the box, which cannot give one program others than it has itself.
package prlimit

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

// Command is the first argument of boxfiles that makes it do this. The limits follow, and then
// the program.
const Command = "limited"

// Argv returns what to execute for a program with limits.
func Argv(limits []isolation.Rlimit, argv []string) []string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = fmt.Sprintf("%d=%d:%d", l.Resource, l.Soft, l.Hard)
	}
	return append([]string{isolation.FilesProgram, Command, strings.Join(texts, ",")}, argv...)
}

// Ahead is how many arguments come before those of the program.
const Ahead = 3

// Program returns the arguments of the program inside an Argv.
func Program(argv []string) []string {
	if len(argv) > Ahead && argv[0] == isolation.FilesProgram && argv[1] == Command {
		return argv[Ahead:]
	}
	return argv
}

// Exit codes of a shell for a program that cannot be executed.
const (
	cannot   = 126
	notFound = 127
)

// Main executes the program; args are those of Argv without the first two. It returns only if
// that fails.
func Main(args []string, stderr io.Writer) int {
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
	limits, err := parse(args[0])
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

func parse(text string) (list []limit, err error) {
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
