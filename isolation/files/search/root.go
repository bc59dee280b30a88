// SPDX-License-Identifier: Apache-2.0

package search

import (
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/isolation/files/verbs"
)

// difference is a survey of what overlayfs keeps of the changes of a root.
type difference struct {
	comparison
	image  int             // the image, of which nothing changes
	shared map[string]bool // directories that the image has too: no link is followed to what is in them
}

// Diff says what is other in a root than in the image below it, with absolute paths. A file that was opened for writing
// is changed.
func Diff(req *files.Diff) (*files.ChangesAnswer, error) {
	image, err := openDir(req.Image)
	if err != nil {
		return nil, err
	}
	defer unix.Close(image)
	d := &difference{comparison: comparison{req: &files.Changes{Limit: req.Limit}}, image: image, shared: map[string]bool{".": true}}
	s := &survey{found: d.found}
	if err := s.run(req.Changed, nil, req.Walk); err != nil {
		return nil, err
	}
	d.a.Unread = s.unread
	return &d.a, nil
}

func (d *difference) found(dir int, name string, is *state, st *unix.Statx_t) error {
	var was unix.Stat_t
	there := d.shared[path.Dir(is.path)] && unix.Fstatat(d.image, is.path, &was, unix.AT_SYMLINK_NOFOLLOW) == nil
	both := there && is.mode&unix.S_IFMT == unix.S_IFDIR && was.Mode&unix.S_IFMT == unix.S_IFDIR
	if both && !opaque(dir, name) {
		d.shared[is.path] = true
		both = is.mode != was.Mode // permissions
	}
	removed := is.mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev_major == 0 && st.Rdev_minor == 0
	switch {
	case st.Uid == 0 && !removed: // what every box has
	case removed && there:
		d.a.Removed++
		d.list(files.WasRemoved, files.Entry{Path: []byte("/" + is.path), Type: verbs.TypeOf(was.Mode), Size: was.Size, Mode: was.Mode & 0o7777, Time: time.Unix(0, 0).UTC()})
	case removed, d.shared[is.path] && !both:
	default:
		e := verbs.EntryOf("/"+is.path, &unix.Stat_t{Mode: is.mode, Size: is.size, Mtim: unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}})
		if e.Type == files.TypeLink {
			e.Target = verbs.Target(dir, name)
		}
		if there {
			d.a.Changed++
			d.list(files.WasChanged, e)
		} else {
			d.a.Created++
			d.list(files.WasCreated, e)
		}
	}
	return nil
}

// opaque reports whether a directory hides all that the image has in the one of its name (overlayfs.rst of the kernel).
func opaque(dir int, name string) bool {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var value [1]byte
	n, err := unix.Fgetxattr(fd, "user.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}
