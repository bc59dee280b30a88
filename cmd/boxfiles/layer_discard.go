// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
)

// discarding reverts a root to its image. It does so through the overlay, as any program would: the
// upper layer must not be changed while it is mounted (overlayfs.rst of the kernel). So what the
// image has is copied from the image.
type discarding struct {
	a    files.Discarded
	left int // number of files and directories that may still be visited
}

// discardChanges undoes the changes to a root: all of them, or those at some paths. After an error, what
// was done before stays done.
func discardChanges(req *files.Discard) (*files.Discarded, error) {
	l, err := openOverlay(req.Image, req.Changed)
	if err != nil {
		return nil, err
	}
	defer l.close()
	root, err := openLayerDir(unix.AT_FDCWD, string(req.Root))
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	u := &discarding{left: req.Walk}
	if len(req.Paths) == 0 {
		return &u.a, u.directory(l, root, "", 1)
	}
	for _, p := range req.Paths {
		name := string(p)
		if len(name) < 2 || name[0] != '/' || len(name) > files.MaxPath || path.Clean(name) != name || strings.IndexByte(name, 0) >= 0 {
			return nil, &files.Failure{Kind: files.BadPath, Path: p, Text: "not the absolute path of something in the root, in its shortest form"}
		}
		if err := u.at(l, root, "", name[1:]); err != nil {
			return nil, err
		}
	}
	return &u.a, nil
}

// at undoes the changes at a path.
func (u *discarding) at(l overlayDirs, dirfd int, prefix, rest string) error {
	name, below, more := strings.Cut(rest, "/")
	if !more {
		return u.name(l, dirfd, prefix, name, strings.Count(prefix, "/")+1)
	}
	cur, orig, err := l.both(name)
	if err != nil || orig == nil && (cur == nil || isWhiteout(cur)) {
		return failAt(prefix+name, err)
	}
	if cur == nil {
		if now, err := lstatAt(dirfd, name); err != nil || now != nil {
			return failAt(prefix+name, err) // nothing has changed below it
		}
	}
	if !isDir(cur) {
		return &files.Failure{Kind: files.NotDirectory, Path: []byte("/" + prefix + name), Text: "it was removed or replaced", Hint: "discard that"}
	}
	return u.into(l, dirfd, prefix, name, isDir(orig), func(next overlayDirs, fd int) error { return u.at(next, fd, prefix+name+"/", below) })
}

// both returns what each layer has under a name; nil: nothing.
func (l overlayDirs) both(name string) (cur, orig *unix.Stat_t, err error) {
	if cur, err = lstatAt(l.changed, name); err == nil {
		orig, err = lstatAt(l.image, name)
	}
	return cur, orig, err
}

// into opens a directory in both layers and in the root. A mount there is not part of the root,
// unless its upper layer is a mount as well: then it is a tree of the host, which has an overlay
// of its own.
func (u *discarding) into(l overlayDirs, dirfd int, prefix, name string, image bool, do func(next overlayDirs, fd int) error) error {
	fd, err := enterDir(dirfd, name)
	if errors.Is(err, unix.EXDEV) && isApart(l.changed, name) {
		fd, err = openLayerDir(dirfd, name)
	}
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return failAt(prefix+name, err)
	}
	defer unix.Close(fd)
	next, err := l.below(name, origin{image: image, changed: true})
	if err != nil {
		return failAt(prefix+name, err)
	}
	defer next.close()
	return do(next, fd)
}

func (u *discarding) directory(l overlayDirs, dirfd int, prefix string, depth int) error {
	if depth > files.MaxDepth {
		return failAt(prefix, unix.ENAMETOOLONG)
	}
	names, err := namesOf(l.changed, u.left)
	if err != nil {
		return failAt(prefix, err)
	}
	if u.left -= len(names); u.left < 0 {
		return failAt(prefix, unix.E2BIG)
	}
	for _, name := range names {
		if err := u.name(l, dirfd, prefix, name, depth); err != nil {
			return err
		}
	}
	if prefix != "etc/" {
		return nil
	}
	for name := range isolation.RootLinks() { // where the image has nothing of that name, a removed one leaves no whiteout
		if linkOf(name) != "" {
			if err := u.link(dirfd, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// link makes a link of PID 1 in /etc again. It belongs to the box user now, but is still no change to the root.
func (u *discarding) link(etc int, name string) error {
	base, target := path.Base(name), linkOf(name)
	now, err := lstatAt(etc, base)
	switch {
	case err != nil:
		return failAt(name, err)
	case now != nil && string(targetOf(etc, base)) == target:
		return nil
	case now != nil:
		err = removeAllAt(etc, base)
	}
	u.a.Restored++
	if err == nil {
		err = unix.Symlinkat(target, etc, base)
	}
	if err == nil { // what could not be removed keeps its owner
		err = giveBack(etc, base, &unix.Stat_t{Uid: isolation.BoxUID, Gid: isolation.BoxGID})
	}
	return failAt(name, err)
}

// name undoes the changes to one name in a directory.
func (u *discarding) name(l overlayDirs, dirfd int, prefix, name string, depth int) error {
	if linkOf(prefix+name) != "" {
		return u.link(dirfd, prefix+name)
	}
	cur, orig, err := l.both(name)
	if err != nil || cur == nil {
		return failAt(prefix+name, errors.Join(err, u.missing(l.image, dirfd, name, orig)))
	}
	down := func(next overlayDirs, fd int) error { return u.directory(next, fd, prefix+name+"/", depth+1) }
	switch {
	case isOwn(cur) && isDir(cur):
		return u.into(l, dirfd, prefix, name, isDir(orig), down)
	case isOwn(cur), isWhiteout(cur) && orig == nil:
		return nil
	case orig == nil:
		u.a.Removed++
		return failAt(prefix+name, removeAllAt(dirfd, name))
	case isDir(cur) && isDir(orig):
		if cur.Mode != orig.Mode || !sameOwner(orig, cur.Uid, cur.Gid) {
			u.a.Restored++
			if err := errors.Join(giveBack(dirfd, name, orig), chmodAt(dirfd, name, orig.Mode)); err != nil {
				return failAt(prefix+name, err)
			}
		}
		again := isOpaque(l.changed, name) // opaque: what the image has in it is hidden
		return u.into(l, dirfd, prefix, name, true, func(next overlayDirs, fd int) error {
			if err := down(next, fd); err != nil || !again {
				return err
			}
			return u.all(next.image, fd, prefix+name+"/")
		})
	case sameFile(l.image, orig, l.changed, cur, name):
		return nil
	}
	users := usersOf(prefix + name)
	if users != nil && cur.Mode == orig.Mode && sameOwner(orig, cur.Uid, cur.Gid) && isUsers(l.changed, name, users) {
		return nil
	}
	u.a.Restored++
	now, err := lstatAt(dirfd, name)
	if err == nil && now != nil && (isDir(now) || isDir(orig)) {
		err = removeAllAt(dirfd, name)
	}
	switch {
	case err != nil:
	case users != nil:
		err = restoreUsers(dirfd, name, orig, users)
	default:
		err = u.restore(l.image, dirfd, name, orig)
	}
	return failAt(prefix+name, err)
}

// restoreUsers restores a file that had another text than the image's from the start.
func restoreUsers(dirfd int, name string, orig *unix.Stat_t, text []byte) error {
	fresh := stagePrefix + rand.Text()
	fd, err := unix.Openat(dirfd, fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), fresh)
	if _, err = f.Write(text); err == nil {
		err = errors.Join(giveBack(dirfd, fresh, orig), unix.Fchmod(fd, orig.Mode&0o777))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unix.Renameat(dirfd, fresh, dirfd, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dirfd, fresh, 0)
	}
	return err
}

// missing restores what the image has under a name, if the root has nothing there.
func (u *discarding) missing(image, dirfd int, name string, orig *unix.Stat_t) error {
	if orig == nil {
		return nil
	}
	now, err := lstatAt(dirfd, name)
	if err != nil || now != nil {
		return err
	}
	u.a.Restored++
	return u.restore(image, dirfd, name, orig)
}

// all restores what a directory lacks compared with the image's.
func (u *discarding) all(image, dirfd int, prefix string) error {
	names, err := namesOf(image, u.left)
	if err != nil {
		return failAt(prefix, err)
	}
	for _, name := range names {
		orig, err := lstatAt(image, name)
		if err = errors.Join(err, u.missing(image, dirfd, name, orig)); err != nil {
			return failAt(prefix+name, err)
		}
	}
	return nil
}

// enterDir opens a directory for reading. EXDEV: something else is mounted there.
func enterDir(dirfd int, name string) (int, error) {
	return unix.Openat2(dirfd, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH})
}

// isApart reports whether something is mounted on a directory.
func isApart(dirfd int, name string) bool {
	fd, err := enterDir(dirfd, name)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EXDEV)
}

// chmodAt sets the permissions of a directory, even if it may not be opened.
func chmodAt(dirfd int, name string, mode uint32) error {
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode&0o7777)
}

// removeAllAt removes an entry of a directory with everything below it. EBUSY: something is mounted
// there, which is not ours.
func removeAllAt(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	fd, err := enterDir(dirfd, name)
	if errors.Is(err, unix.EACCES) {
		if err = chmodAt(dirfd, name, 0o700); err == nil {
			fd, err = enterDir(dirfd, name)
		}
	}
	if errors.Is(err, unix.EXDEV) {
		return unix.EBUSY
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := namesOf(fd, maxRemoved)
	for _, below := range names {
		if err == nil {
			err = removeAllAt(fd, below)
		}
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
}

// maxRemoved bounds the number of names in one directory.
const maxRemoved = 10_000_000

// restore copies what the image has under a name.
func (u *discarding) restore(image, dirfd int, name string, orig *unix.Stat_t) error {
	if isDir(orig) {
		return u.restoreDir(image, dirfd, name, orig)
	}
	fresh := stagePrefix + rand.Text() // name until it is complete
	var err error
	switch orig.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if err = unix.Symlinkat(string(targetOf(image, name)), dirfd, fresh); err == nil {
			err = giveBack(dirfd, fresh, orig)
		}
	case unix.S_IFREG:
		err = copyFile(image, name, dirfd, fresh, orig)
	default:
		return nil // images have nothing else
	}
	if err == nil {
		err = unix.Renameat(dirfd, fresh, dirfd, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dirfd, fresh, 0) // it may not exist
	}
	return err
}

func copyFile(image int, name string, dirfd int, fresh string, orig *unix.Stat_t) error {
	in, err := unix.Openat(image, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	from := os.NewFile(uintptr(in), name)
	defer from.Close()
	out, err := unix.Openat(dirfd, fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(out), fresh)
	if _, err = io.Copy(to, from); err == nil {
		err = giveBack(dirfd, fresh, orig)
	}
	if err == nil {
		err = unix.Fchmod(out, orig.Mode&0o777)
	}
	if err := errors.Join(err, to.Close()); err != nil {
		return err
	}
	return unix.UtimesNanoAt(dirfd, fresh, []unix.Timespec{orig.Atim, orig.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func (u *discarding) restoreDir(image, dirfd int, name string, orig *unix.Stat_t) error {
	if err := unix.Mkdirat(dirfd, name, 0o700); err != nil {
		return err
	}
	from, err := openLayerDir(image, name)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := openLayerDir(dirfd, name)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	names, err := namesOf(from, u.left)
	if err != nil {
		return err
	}
	u.left -= len(names)
	for _, below := range names {
		st, err := lstatAt(from, below)
		if err == nil && st != nil {
			err = u.restore(from, to, below, st)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(giveBack(dirfd, name, orig), unix.Fchmod(to, orig.Mode&0o7777))
}

// giveBack gives what was restored to whom it belongs in the image; only root of a box can. What belongs to nobody it knows
// becomes the box user's.
func giveBack(dirfd int, name string, orig *unix.Stat_t) error {
	if !isRootOfBox() {
		return nil
	}
	err := unix.Fchownat(dirfd, name, int(orig.Uid), int(orig.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Fchownat(dirfd, name, isolation.BoxUID, isolation.BoxGID, unix.AT_SYMLINK_NOFOLLOW)
	}
	return err
}
