// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// open opens the directory of an entry with O_PATH, which needs no permission to read it. It
// walks from a root and stays on that root's filesystem: it asks no other one, which may hang. If
// there are no roots it goes by the path.
func (h *HostQuotas) open(e *entry) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	if len(h.roots) == 0 {
		return linux.Openat2(unix.AT_FDCWD, e.path, how)
	}
	how.Resolve |= unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV
	for _, root := range h.roots {
		real, dir, _, err := openRoot(root)
		if err != nil {
			continue
		}
		defer unix.Close(dir)
		if name, err := filepath.Rel(real, e.path); err == nil && isolation.Within(e.path, real) {
			fd, err := linux.Openat2(dir, name, how)
			if !errors.Is(err, unix.EXDEV) { // another root may be nearer
				return fd, err
			}
		}
	}
	return -1, errMoved
}

// openRoot opens a root, and returns its path without symbolic links and its device number.
func openRoot(root string) (real string, dir int, dev uint64, err error) {
	if real, err = filepath.EvalSymlinks(root); err != nil {
		return "", -1, 0, err
	}
	if dir, err = unix.Open(real, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return "", -1, 0, fmt.Errorf("%s: %w", root, err)
	}
	if dev, err = device(dir); err != nil {
		unix.Close(dir)
		return "", -1, 0, err
	}
	return real, dir, dev, nil
}

// device returns the device number of a descriptor's filesystem. Even a filesystem that hangs
// returns it: a call that asks for nothing else, and accepts cached values, sends no request to a
// server (statx(2)).
func device(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		return 0, err
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor), nil
}

func available(root string) error {
	_, dir, _, err := openRoot(root)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return Available(dir)
}

// place is where a directory is that a box may write to.
type place struct {
	path string // without symbolic links
	in   bool   // at or below one of the roots, and on the same filesystem
	off  bool   // below one of the roots, but on another filesystem
}

func (h *HostQuotas) below(fd int) (p place, err error) {
	if p.path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		return p, err
	}
	dev, err := device(fd)
	if err != nil {
		return p, err
	}
	for _, root := range h.roots {
		real, dir, at, err := openRoot(root)
		if err != nil {
			continue
		}
		unix.Close(dir)
		if isolation.Within(p.path, real) {
			p.in, p.off = p.in || at == dev, p.off || at != dev
		}
	}
	return p, nil
}
