// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// confinedVariable is set in the environment of a confined boxd.
const confinedVariable = "BOXD_CONFINED"

// confine prevents boxd from sending signals to processes outside of it, which as root it could, and from connecting to
// their abstract Unix sockets, if the kernel supports that (Landlock, Linux 6.12). It executes boxd again: all its
// threads must be in one scope, so that the runtime's own signals between them arrive.
func confine() error {
	if os.Getenv(confinedVariable) != "" {
		return os.Unsetenv(confinedVariable) // no child may inherit it
	}
	if !isolation.CanScopeSockets() {
		return nil
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("confine boxd: %w", err)
	}
	runtime.LockOSThread() // execve keeps the restrictions of this thread
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = isolation.ScopeAll()
	}
	if err != nil {
		return fmt.Errorf("confine boxd: %w", err)
	}
	if err := unix.Exec(own, os.Args, append(os.Environ(), confinedVariable+"=1")); err != nil {
		return fmt.Errorf("execute %s: %w", own, err)
	}
	return nil
}
