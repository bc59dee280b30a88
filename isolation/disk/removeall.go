// SPDX-License-Identifier: Apache-2.0

// Trees that boxes have created are removed however deep they are, with a few descriptors:
// walking to the bottom would need one for each level.

package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxDepth    = 32   // levels of one descent; what is deeper is moved to the top of the tree and removed from there
	removeBatch = 1024 // names that are read at a time
)

// removeAll removes an entry of a directory with everything below it. Symbolic links are removed,
// never followed. It is no error if the entry does not exist. Nothing else may write to the tree
// meanwhile but another removeAll.
func removeAll(root *os.Root, name string) error { return removeAllUntil(root, name, nil) }

// removeAllUntil is removeAll until stopped, if it is not nil, says so: then the error is errStopped, and a part is left.
func removeAllUntil(root *os.Root, name string, stopped func() bool) error {
	if err := checkEntry(name); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	t := removeTree{stopped: stopped}
	if err := t.remove(dir, name, 0); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// checkEntry refuses to remove what is no entry of a directory.
func checkEntry(name string) error {
	if strings.Contains(name, "/") || name == "." || name == ".." {
		return fmt.Errorf("remove %q: %w", name, unix.EINVAL)
	}
	return nil
}

// removeTree is a tree that is being removed.
type removeTree struct {
	top     *os.File // its uppermost directory
	stopped func() bool
}

// remove removes one entry of a directory.
func (t *removeTree) remove(dir *os.File, name string, depth int) error {
	err := ignoreGone(unix.Unlinkat(int(dir.Fd()), name, 0))
	if err == nil || !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	switch full := ignoreGone(unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)); {
	case errors.Is(full, unix.ENOTDIR):
		return err
	case !errors.Is(full, unix.ENOTEMPTY) && !errors.Is(full, unix.EEXIST):
		return full
	}
	if depth == maxDepth {
		return ignoreGone(unix.Renameat2(int(dir.Fd()), name, int(t.top.Fd()), ".removed-"+rand.Text(), unix.RENAME_NOREPLACE))
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ignoreGone(err)
	}
	child := os.NewFile(uintptr(fd), name)
	defer child.Close()
	if depth == 0 {
		t.top = child
	}
	if err := t.empty(child, depth+1); err != nil {
		return err
	}
	return ignoreGone(unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR))
}

// empty removes all entries of a directory. What cannot be removed because the disk is too full
// to move it is retried as long as others can be removed.
func (t *removeTree) empty(dir *os.File, depth int) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(removeBatch)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		var last error
		removed := 0
		for _, name := range names {
			if t.stopped != nil && t.stopped() {
				return errStopped
			}
			if err := t.remove(dir, name, depth); err != nil {
				last = err
			} else {
				removed++
			}
		}
		if removed == 0 {
			return last
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
