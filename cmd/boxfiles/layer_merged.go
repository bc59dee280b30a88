// SPDX-License-Identifier: Apache-2.0

// The writable root of a box is an image and the upper layer of overlayfs. This code runs inside
// the box, as root of it where there is one, and otherwise as the box user: it can do no more than any program there.

package main

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
)

// mergedMaxDepth bounds the levels of directories, as in images.
const mergedMaxDepth = 200

// noDir means that a layer has no directory of a name.
const noDir = -1

// overlayDirs are the directories of one name in both layers; either may be none.
type overlayDirs struct{ image, changed int }

func (l overlayDirs) close() {
	for _, fd := range []int{l.image, l.changed} {
		if fd != noDir {
			unix.Close(fd)
		}
	}
}

// openOverlay opens the roots of both.
func openOverlay(image, changed []byte) (l overlayDirs, err error) {
	l = overlayDirs{noDir, noDir}
	if l.image, err = openLayerDir(unix.AT_FDCWD, string(image)); err == nil {
		l.changed, err = openLayerDir(unix.AT_FDCWD, string(changed))
	}
	if err != nil {
		l.close()
	}
	return l, err
}

func openLayerDir(dir int, name string) (int, error) {
	if dir == noDir {
		return noDir, nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return noDir, err
	}
	return fd, nil
}

// lstatAt returns what a directory has under a name; nil: nothing.
func lstatAt(dir int, name string) (*unix.Stat_t, error) {
	if dir == noDir {
		return nil, nil //nolint:nilnil // nothing is no error
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, err
	}
	return &st, nil
}

func isDir(st *unix.Stat_t) bool     { return st != nil && st.Mode&unix.S_IFMT == unix.S_IFDIR }
func isRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// isWhiteout reports whether this is a whiteout, by which overlayfs marks something as removed from the image (overlayfs.rst of
// the kernel).
func isWhiteout(st *unix.Stat_t) bool {
	return st != nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// linkOf returns the target of a link of /etc that PID 1 makes in every box, and that programs may remove or replace; "": it is none.
func linkOf(name string) string {
	if path.Dir(name) != "etc" {
		return ""
	}
	return isolation.RootLinks()[name]
}

// isLinkOf reports whether an entry is such a link, whoever has made it.
func isLinkOf(name string, dir int, at string) bool {
	target := linkOf(name)
	return target != "" && string(targetOf(dir, at)) == target
}

// isOwn reports whether this is part of what PID 1 puts into every box: only that belongs to in-box root.
func isOwn(st *unix.Stat_t) bool { return st != nil && st.Uid == uidOfPID1() && !isWhiteout(st) }

// uidOfPID1 returns the id that PID 1, which owns / of a box, has for this process: to one that runs as root of the box it is nobody,
// and no other user is.
func uidOfPID1() uint32 {
	var st unix.Stat_t
	_ = unix.Stat("/", &st) // cannot fail
	return st.Uid
}

// isRootOfBox reports whether this process runs as root of its box.
func isRootOfBox() bool { return unix.Getuid() == 0 && uidOfPID1() == isolation.NobodyID }

// isOpaque reports whether a directory hides everything that the image has in its directory of that name (overlayfs.rst of the kernel).
func isOpaque(dir int, name string) bool {
	fd, err := openLayerDir(dir, name)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var value [1]byte
	n, err := unix.Fgetxattr(fd, "user.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

// names lists the names in both layers, sorted. left bounds how many there may be.
func (l overlayDirs) names(left int) ([]string, error) {
	var all []string
	for _, dir := range []int{l.image, l.changed} {
		some, err := namesOf(dir, left)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func namesOf(dir, left int) (names []string, err error) {
	if dir == noDir {
		return nil, nil
	}
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return nil, err
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
		if len(names) > left {
			return nil, tooMany(left)
		}
	}
}

func tooMany(allowed int) error {
	return &files.Failure{Kind: files.TooLarge, Text: "there are more than " + strconv.Itoa(allowed) + " files and directories (images.max_entries)", Hint: "remove what the image does not need"}
}

// holdsVisible reports whether programs have put anything into a directory that every box has. prefix is as for find.
func holdsVisible(dir int, prefix, name string, depth int) (bool, error) {
	fd, err := openLayerDir(dir, name)
	if err != nil || depth > mergedMaxDepth {
		return false, err
	}
	defer unix.Close(fd)
	names, err := namesOf(fd, 1<<20)
	for _, below := range names {
		st, bad := lstatAt(fd, below)
		switch {
		case bad != nil:
			return false, bad
		case st == nil || isWhiteout(st):
		case isLinkOf(prefix+name+"/"+below, fd, below):
		case !isOwn(st):
			return true, nil
		case isDir(st):
			if found, err := holdsVisible(fd, prefix+name+"/", below, depth+1); found || err != nil {
				return found, err
			}
		}
	}
	return false, err
}

// origin says which layers a name of the root comes from.
type origin struct {
	st             *unix.Stat_t // what it is; nil: nothing
	image, changed bool         // layers that its entries come from, or its content if it is no directory
	implied        bool         // a directory that an image need not contain
}

// find returns what a name of a directory of the root is; prefix is the path of that directory with a slash at its end.
func (l overlayDirs) find(prefix, name string) (o origin, err error) {
	orig, err := lstatAt(l.image, name)
	if err != nil {
		return o, err
	}
	cur, err := lstatAt(l.changed, name)
	if err != nil {
		return o, err
	}
	old := origin{st: orig, image: orig != nil}
	switch {
	case cur == nil:
		return old, nil
	case isWhiteout(cur):
		return o, nil
	case isOwn(cur) && isDir(cur):
		if isDir(orig) {
			return origin{st: orig, image: true, changed: true}, nil
		}
		used, err := holdsVisible(l.changed, prefix, name, 0)
		if !used { // boxes hide what the image has there
			return old, err
		}
		return origin{st: cur, changed: true, implied: true}, err
	case isOwn(cur), isLinkOf(prefix+name, l.changed, name):
		return old, nil
	case isDir(cur) && isDir(orig) && !isOpaque(l.changed, name):
		return origin{st: cur, image: true, changed: true}, nil
	}
	return origin{st: cur, changed: true}, nil
}

// below opens the directories of a name, in the layers that count.
func (l overlayDirs) below(name string, o origin) (next overlayDirs, err error) {
	next = overlayDirs{noDir, noDir}
	if o.image {
		next.image, err = openLayerDir(l.image, name)
	}
	if err == nil && o.changed {
		next.changed, err = openLayerDir(l.changed, name)
	}
	if err != nil {
		next.close()
	}
	return next, err
}

// failAt adds the path to an error; nil stays nil.
func failAt(path string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*files.Failure](err); ok {
		if f.Kind == files.Changed && len(f.Path) == 0 {
			f.Path = []byte("/" + path)
		}
		return f
	}
	f := failureOf("/"+strings.TrimSuffix(path, "/"), err)
	if f.Kind == files.NotPermitted {
		f.Hint = "the box user must be able to read it: chmod u+r, and u+rx if it is a directory"
	}
	return f
}
