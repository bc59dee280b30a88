// SPDX-License-Identifier: Apache-2.0

// Restrictions that a process puts on itself and on what it starts, by Landlock (landlock(7)).

package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Versions of Landlock's ABI, with the Linux that has it.
const (
	// minFiles is the first with which a file can be renamed to another directory (5.19).
	minFiles = 2
	// minTruncate is the first that can forbid to truncate (6.2).
	minTruncate = 3
)

// landlockVersion returns the version of Landlock's ABI here; 0: the kernel has none, or it is disabled.
func landlockVersion() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// canRestrictFiles reports whether this kernel can restrict which files a process opens.
func canRestrictFiles() bool { return landlockVersion() >= minFiles }

// fileAccess is what a process may do with a file, or with everything below a directory.
type fileAccess uint64

// Kinds of access.
const (
	readFiles  fileAccess = unix.LANDLOCK_ACCESS_FS_READ_FILE | listFiles
	listFiles  fileAccess = unix.LANDLOCK_ACCESS_FS_READ_DIR
	useFile    fileAccess = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE // not to remove or replace it
	runFile    fileAccess = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE
	writeFiles            = readFiles | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER

	// toFiles is what may be allowed for a file that is no directory.
	toFiles = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// allFiles is what a restricted process needs permission for. Device files are left out: nothing here opens one but by name.
	allFiles = writeFiles | runFile | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO
)

// fileRule allows a process that restricts itself access to a path. It holds for the file or directory that is there now, and stays with it
// if it is renamed; a path that cannot be opened is left out.
type fileRule struct {
	path   string
	access fileAccess
}

// restrict keeps this thread, and every process that it starts, from signals to other processes and from their abstract Unix sockets (Linux
// 6.12), and from all files but those that rules allow (Linux 5.19). What the kernel cannot do is left out. Files that are open stay usable. The
// thread must have no_new_privs. All threads of a process must have the same restrictions, so the caller executes a program next.
func restrict(rules []fileRule) error {
	var attr unix.LandlockRulesetAttr
	if isolation.CanScopeSockets() {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	if canRestrictFiles() {
		attr.Handled_access_fs = uint64(allFiles)
		if landlockVersion() < minTruncate {
			attr.Handled_access_fs &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
		}
	}
	if attr == (unix.LandlockRulesetAttr{}) {
		return nil
	}
	// A kernel need not know the fields that are zero.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	if attr.Handled_access_fs != 0 {
		for _, r := range rules {
			if err := allow(int(fd), r, attr.Handled_access_fs); err != nil {
				return fmt.Errorf("%s: %w", r.path, err)
			}
		}
	}
	if _, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

// allow adds a rule.
func allow(ruleset int, r fileRule, handled uint64) error {
	fd, err := unix.Open(r.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // the process could not open what is there anyway
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: uint64(r.access) & handled, Parent_fd: int32(fd)}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		beneath.Allowed_access &= toFiles
	}
	if beneath.Allowed_access == 0 {
		return nil
	}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_add_rule: %w (a copy of boxd.service must have it in SystemCallFilter=; after a change: systemctl daemon-reload)", errno)
	}
	return nil
}
