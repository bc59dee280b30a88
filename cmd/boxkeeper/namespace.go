// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// beginRoot makes the mount namespace private, and an empty tree in it.
func beginRoot() (*rootBuilder, error) {
	unix.Umask(0)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make the mount namespace private: %w", err)
	}
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the host's root: %w", err)
	}
	root, err := linux.NewMount("tmpfs", 0, "mode", "0755", "size", treeSize)
	if err != nil {
		unix.Close(host)
		return nil, fmt.Errorf("tmpfs for the tree: %w", err)
	}
	b := &rootBuilder{root: root, host: host}
	if err := linux.AttachMount(root, unix.AT_FDCWD, staging); err != nil {
		b.close()
		return nil, fmt.Errorf("attach the tree: %w", err)
	}
	return b, nil
}

func (b *rootBuilder) close() {
	unix.Close(b.root)
	unix.Close(b.host)
}

// changeRoot makes a finished tree the root, and unmounts the host's.
func changeRoot(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the tree: %w", err)
	}
	// With both arguments "." the old root ends up on top of the new one and needs no directory
	// there (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's root: %w", err)
	}
	return nil
}
