// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// difference is a mountWalk of the upper layer of a root.
type difference struct {
	comparison
	image  int             // the image, which does not change
	shared map[string]bool // directories that the image has too, so that no link is followed to what is in them
}

// diffOverlay returns how a root differs from the image below it, with absolute paths. A file that was
// opened for writing and is unchanged does not count.
func diffOverlay(req *files.Diff) (*files.ChangesAnswer, error) {
	image, err := openDirPath(req.Image)
	if err != nil {
		return nil, err
	}
	defer unix.Close(image)
	d := &difference{comparison: comparison{req: &files.Changes{Limit: req.Limit}}, image: image, shared: map[string]bool{".": true}}
	s := &mountWalk{found: d.found, across: true} // nothing is mounted there but what PID 1 shows
	if err := s.run(req.Changed, nil, req.Walk); err != nil {
		return nil, err
	}
	d.a.Unread = s.unread
	slices.SortStableFunc(d.a.Changes, func(a, b files.Change) int {
		switch x, y := string(a.Entry.Path), string(b.Entry.Path); {
		case before(x, y):
			return -1
		case before(y, x):
			return 1
		}
		return 0
	})
	return &d.a, nil
}

// same reports whether a file is as in the image: it was opened for writing and nothing was
// written, or it was restored.
func (d *difference) same(dir int, name string, cur *fileState, st *unix.Statx_t, orig *unix.Stat_t) bool {
	if users := usersOf(cur.path); users != nil && cur.mode == orig.Mode && sameOwner(orig, st.Uid, st.Gid) && isUsers(dir, name, users) {
		return true
	}
	above, err := openat(d.image, path.Dir(cur.path))
	if err != nil {
		return false
	}
	defer unix.Close(above)
	return sameFile(above, orig, dir, &unix.Stat_t{Mode: cur.mode, Size: cur.size, Uid: st.Uid, Gid: st.Gid, Mtim: unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}}, name)
}

// hidden reports the image's entries in a directory that was removed and made again, as far as they no longer exist.
func (d *difference) hidden(dir int, name, at string) {
	now, err := openat(dir, name)
	if err != nil {
		return
	}
	defer unix.Close(now)
	old, err := openat(d.image, at)
	if err != nil {
		return
	}
	defer unix.Close(old)
	w := walk{left: maxHidden, buf: make([]byte, 32<<10)}
	entries, _, err := w.read(old)
	if err != nil {
		return
	}
	for _, e := range entries {
		var orig, cur unix.Stat_t
		if unix.Fstatat(old, e.name, &orig, unix.AT_SYMLINK_NOFOLLOW) != nil || !errors.Is(unix.Fstatat(now, e.name, &cur, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
			continue
		}
		d.a.Removed++
		d.list(files.WasRemoved, files.Entry{Path: []byte("/" + at + "/" + e.name), Type: typeOf(orig.Mode), Size: orig.Size, Mode: orig.Mode & 0o7777, Time: time.Unix(0, 0).UTC()})
	}
}

// maxHidden bounds how many entries of such a directory are visited.
const maxHidden = 100_000

func openat(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func (d *difference) found(dir int, name string, cur *fileState, st *unix.Statx_t) error {
	var orig unix.Stat_t
	exists := d.shared[path.Dir(cur.path)] && unix.Fstatat(d.image, cur.path, &orig, unix.AT_SYMLINK_NOFOLLOW) == nil
	both := exists && cur.mode&unix.S_IFMT == unix.S_IFDIR && orig.Mode&unix.S_IFMT == unix.S_IFDIR
	if both {
		d.shared[cur.path] = true
		if isOpaque(dir, name) {
			d.hidden(dir, name, cur.path)
		}
		both = cur.mode != orig.Mode || !sameOwner(&orig, st.Uid, st.Gid)
	}
	removed := cur.mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev_major == 0 && st.Rdev_minor == 0
	switch {
	case (st.Uid == uidOfPID1() || isLinkOf(cur.path, dir, name)) && !removed: // part of what every box has
	case removed && exists:
		d.a.Removed++
		d.list(files.WasRemoved, files.Entry{Path: []byte("/" + cur.path), Type: typeOf(orig.Mode), Size: orig.Size, Mode: orig.Mode & 0o7777, Time: time.Unix(0, 0).UTC()})
	case removed, d.shared[cur.path] && !both, exists && d.same(dir, name, cur, st, &orig):
	default:
		e := entryOf("/"+cur.path, &unix.Stat_t{Mode: cur.mode, Size: cur.size, Mtim: unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}})
		if e.Type == files.TypeLink {
			e.Target = targetOf(dir, name)
		}
		if exists {
			d.a.Changed++
			d.list(files.WasChanged, e)
		} else {
			d.a.Created++
			d.list(files.WasCreated, e)
		}
	}
	return nil
}
