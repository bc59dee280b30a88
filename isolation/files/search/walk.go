// SPDX-License-Identifier: Apache-2.0

// Package search finds files by name and by content, inside a box.
package search

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// errPass means that what is in a directory does not count.
var errPass = errors.New("pass it by")

// walk is a walk through directories. It goes from descriptor to descriptor, so that a directory that is
// swapped under it leads it nowhere else, and no path is too long. Links are seen and not followed.
type walk struct {
	left   int  // entries that may still be looked at
	ignore bool // rules count
	depth  int  // how deep to go; 1: the directory alone
	deep   bool // there was something below the depth
	buf    []byte
	// visit is called for each entry, in the order of the names, a directory before what is in it. dir is
	// valid during the call.
	visit func(dir int, path, name string, kind byte) error
	// closed is called for a directory that is there and cannot be read; nil: nobody cares.
	closed func(path string)
}

// run walks what is below a directory. errEnough means that left is used up, or visit has said so.
func (w *walk) run(dir int) error {
	w.buf = make([]byte, 64<<10)
	var above *rules
	if w.ignore {
		above = rulesAbove(dir)
	}
	return w.enter(dir, "", above, 1)
}

type entry struct {
	name string
	kind byte // DT_…
}

func (w *walk) enter(dir int, prefix string, above *rules, depth int) error {
	entries, cut, err := w.read(dir)
	if err != nil {
		return err
	}
	if w.ignore && slices.ContainsFunc(entries, func(e entry) bool { return e.name == ".gitignore" }) {
		above = readRules(dir, prefix, above)
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range entries {
		p, directory := prefix+e.name, e.kind == unix.DT_DIR
		if w.ignore && (directory && slices.Contains(leftOut(), e.name) || above.ignored(p, e.name, directory)) {
			continue
		}
		if err := w.visit(dir, p, e.name, e.kind); errors.Is(err, errPass) {
			continue
		} else if err != nil {
			return err
		}
		if !directory {
			continue
		}
		if depth >= min(w.depth, files.MaxDepth) {
			w.deep = true
			continue
		}
		fd, err := unix.Openat(dir, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil { // not ours to read, or not there any more
			if w.closed != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
				w.closed(p)
			}
			continue
		}
		err = w.enter(fd, p+"/", above, depth+1)
		unix.Close(fd)
		if errors.Is(err, errEnough) {
			return err
		}
		if err != nil && w.closed != nil {
			w.closed(p)
		}
	}
	if cut {
		return errEnough
	}
	return nil
}

// read returns what is in a directory, or as much of it as may still be looked at.
func (w *walk) read(dir int) (entries []entry, cut bool, err error) {
	for {
		n, err := unix.Getdents(dir, w.buf)
		if err != nil || n == 0 {
			return entries, false, err
		}
		for rest := w.buf[:n]; len(rest) > 0; {
			var e entry
			e, rest = parseEntry(rest)
			if e.name == "." || e.name == ".." || e.name == "" {
				continue
			}
			if w.left--; w.left < 0 {
				return entries, true, nil
			}
			if e.kind == unix.DT_UNKNOWN {
				e.kind = look(dir, e.name)
			}
			entries = append(entries, e)
		}
	}
}

// parseEntry takes one struct linux_dirent64 off a buffer the kernel has filled (getdents(2)).
func parseEntry(b []byte) (e entry, rest []byte) {
	const header = 8 + 8 + 2 + 1
	length := int(binary.NativeEndian.Uint16(b[16:]))
	name := b[header:length]
	if i := slices.Index(name, 0); i >= 0 {
		name = name[:i]
	}
	return entry{string(name), b[18]}, b[length:]
}

// look asks for the type where the filesystem does not tell it beside the name.
func look(dir int, name string) byte {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return unix.DT_UNKNOWN
	}
	return byte(st.Mode & unix.S_IFMT >> 12) // as in include/linux/fs_types.h
}

func openDir(path []byte) (int, error) {
	if len(path) == 0 || len(path) > files.MaxPath || slices.Contains(path, 0) {
		return -1, &files.Failure{Kind: files.BadPath, Text: "no path: it is empty, too long, or has NUL"}
	}
	return unix.Open(string(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}
