// SPDX-License-Identifier: Apache-2.0

// The writable root of a box is an image and the upper layer of overlayfs. This code runs inside
// the box, as the box user: it can do no more than any program there.

package layers

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/isolation/files/ops"
)

// mergedMaxDepth bounds the levels of directories, as in images.
const mergedMaxDepth = 200

// none means that a layer has no directory of a name.
const none = -1

// layers are the directories of one name in both layers; either may be none.
type layers struct{ image, changed int }

func (l layers) close() {
	for _, fd := range []int{l.image, l.changed} {
		if fd != none {
			unix.Close(fd)
		}
	}
}

// open opens the roots of both.
func open(image, changed []byte) (l layers, err error) {
	l = layers{none, none}
	if l.image, err = openDir(unix.AT_FDCWD, string(image)); err == nil {
		l.changed, err = openDir(unix.AT_FDCWD, string(changed))
	}
	if err != nil {
		l.close()
	}
	return l, err
}

func openDir(dir int, name string) (int, error) {
	if dir == none {
		return none, nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return none, err
	}
	return fd, nil
}

// look returns what a directory has under a name; nil: nothing.
func look(dir int, name string) (*unix.Stat_t, error) {
	if dir == none {
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

// isWhiteout reports whether this is a whiteout, by which overlayfs marks something removed of the
// image (overlayfs.rst of the kernel).
func isWhiteout(st *unix.Stat_t) bool {
	return st != nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// ours reports whether this belongs to what every box has, which PID 1 has put there: only that
// belongs to in-box root.
func ours(st *unix.Stat_t) bool { return st != nil && st.Uid == 0 && !isWhiteout(st) }

// opaque reports whether a directory hides everything that the image has in the directory of its
// name.
func opaque(dir int, name string) bool {
	fd, err := openDir(dir, name)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var value [1]byte
	n, err := unix.Fgetxattr(fd, "user.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

// names lists the names in both layers, sorted. left bounds how many there may be.
func (l layers) names(left int) ([]string, error) {
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
	if dir == none {
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

// holds reports whether programs have put anything into a directory that every box has.
func holds(dir int, name string, depth int) (bool, error) {
	fd, err := openDir(dir, name)
	if err != nil || depth > mergedMaxDepth {
		return false, err
	}
	defer unix.Close(fd)
	names, err := namesOf(fd, 1<<20)
	for _, below := range names {
		st, bad := look(fd, below)
		switch {
		case bad != nil:
			return false, bad
		case st == nil || isWhiteout(st):
		case !ours(st):
			return true, nil
		case isDir(st):
			if found, err := holds(fd, below, depth+1); found || err != nil {
				return found, err
			}
		}
	}
	return false, err
}

// origin says which layers a name of the root comes from.
type origin struct {
	st             *unix.Stat_t // what it is; nil: nothing
	image, changed bool         // the layers that its entries come from, or the content of what is no directory
	implied        bool         // a directory that an image need not contain
}

// find returns what a name of the root is.
func (l layers) find(name string) (o origin, err error) {
	was, err := look(l.image, name)
	if err != nil {
		return o, err
	}
	is, err := look(l.changed, name)
	if err != nil {
		return o, err
	}
	old := origin{st: was, image: was != nil}
	switch {
	case is == nil:
		return old, nil
	case isWhiteout(is):
		return o, nil
	case ours(is) && isDir(is):
		if isDir(was) {
			return origin{st: was, image: true, changed: true}, nil
		}
		used, err := holds(l.changed, name, 0)
		if !used { // boxes hide whatever the image has there
			return old, err
		}
		return origin{st: is, changed: true, implied: true}, err
	case ours(is):
		return old, nil
	case isDir(is) && isDir(was) && !opaque(l.changed, name):
		return origin{st: is, image: true, changed: true}, nil
	}
	return origin{st: is, changed: true}, nil
}

// below opens the directories of a name, in the layers that count.
func (l layers) below(name string, o origin) (next layers, err error) {
	next = layers{none, none}
	if o.image {
		next.image, err = openDir(l.image, name)
	}
	if err == nil && o.changed {
		next.changed, err = openDir(l.changed, name)
	}
	if err != nil {
		next.close()
	}
	return next, err
}

// fail adds the path to an error; nil stays nil.
func fail(path string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*files.Failure](err); ok {
		if f.Kind == files.Changed && len(f.Path) == 0 {
			f.Path = []byte("/" + path)
		}
		return f
	}
	f := ops.Fail("/"+strings.TrimSuffix(path, "/"), err)
	if f.Kind == files.NotPermitted {
		f.Hint = "the box user must be able to read it: chmod u+r, and u+rx if it is a directory"
	}
	return f
}
