// SPDX-License-Identifier: Apache-2.0

package main

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

// errPass means that the content of a directory is skipped.
var errPass = errors.New("pass it by")

// walk is a walk through directories. It goes from descriptor to descriptor, so that replacing a directory does not lead it
// elsewhere, and no path is too long. Symbolic links are visited, not followed.
type walk struct {
	left   int  // entries that may still be visited
	ignore bool // apply rules
	depth  int  // levels to descend; 1: only the directory itself
	deep   bool // there was something below that
	buf    []byte
	// visit is called for each entry, sorted by name, a directory before what is in it. dir is
	// valid during the call.
	visit func(dir int, path, name string, kind byte) error
	// closed is called for a directory that exists and cannot be read; may be nil.
	closed func(path string)
}

// run walks what is below a directory. errEnough means that left is used up, or that visit has
// returned it.
func (w *walk) run(dir int) error {
	w.buf = make([]byte, 64<<10)
	var above *ignoreRules
	if w.ignore {
		above = rulesAbove(dir)
	}
	return w.enter(dir, "", above, 1)
}

type walkEntry struct {
	name string
	kind byte // DT_…
}

func (w *walk) enter(dir int, prefix string, above *ignoreRules, depth int) error {
	entries, truncated, err := w.read(dir)
	if err != nil {
		return err
	}
	if w.ignore && slices.ContainsFunc(entries, func(e walkEntry) bool { return e.name == ".gitignore" }) {
		above = readRules(dir, prefix, above)
	}
	slices.SortFunc(entries, func(a, b walkEntry) int { return strings.Compare(a.name, b.name) })
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
		if err != nil { // not readable, or removed meanwhile
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
	if truncated {
		return errEnough
	}
	return nil
}

// read returns the entries of a directory, or as many of them as may still be visited.
func (w *walk) read(dir int) (entries []walkEntry, truncated bool, err error) {
	for {
		n, err := unix.Getdents(dir, w.buf)
		if err != nil || n == 0 {
			return entries, false, err
		}
		for rest := w.buf[:n]; len(rest) > 0; {
			var e walkEntry
			e, rest = parseEntry(rest)
			if e.name == "." || e.name == ".." || e.name == "" {
				continue
			}
			if w.left--; w.left < 0 {
				return entries, true, nil
			}
			if e.kind == unix.DT_UNKNOWN {
				e.kind = typeAt(dir, e.name)
			}
			entries = append(entries, e)
		}
	}
}

// parseEntry takes one struct linux_dirent64 off a buffer that the kernel has filled
// (getdents(2)).
func parseEntry(b []byte) (e walkEntry, rest []byte) {
	const header = 8 + 8 + 2 + 1
	length := int(binary.NativeEndian.Uint16(b[16:]))
	name := b[header:length]
	if i := slices.Index(name, 0); i >= 0 {
		name = name[:i]
	}
	return walkEntry{string(name), b[18]}, b[length:]
}

// typeAt reads the type of an entry where the filesystem does not return it with the name.
func typeAt(dir int, name string) byte {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return unix.DT_UNKNOWN
	}
	return byte(st.Mode & unix.S_IFMT >> 12) // as in include/linux/fs_types.h
}

func openDirPath(path []byte) (int, error) {
	if len(path) == 0 || len(path) > files.MaxPath || slices.Contains(path, 0) {
		return -1, &files.Failure{Kind: files.BadPath, Text: "no path: it is empty, too long, or has NUL"}
	}
	return unix.Open(string(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}
