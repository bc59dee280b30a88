// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// watchMask is what is wanted of each directory (inotify(7)). Files that are removed and still open are of no interest.
const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// Bounds of what is collected before it is told.
const (
	eventBuffer = 64 << 10  // bytes that are read of inotify at once
	maxBatch    = 128 << 10 // bytes of events in one notice, about
	eventWeight = 512       // bytes of an event in JSON besides its paths, about
)

// partnerPatience is how many milliseconds the second half of a renaming may come after the first. One that comes later is told
// as the coming of something new.
const partnerPatience = 2

// maxWatchedPath bounds the path of a watched directory relative to the first, in bytes.
const maxWatchedPath = files.MaxPath - 256

// watchDir tells what happens in a directory until that is gone or has another path.
func watchDir(req *files.Watch, tell func(*files.Notice) error) error {
	path, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	w := &watcher{req: req, root: path, dirs: map[int]string{}, wds: map[string]int{}, looked: map[string]bool{}, tell: tell}
	if err := w.check(); err != nil {
		return err
	}
	w.in, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		err = &files.Failure{Kind: files.TooMany, Text: "the kernel allows no more watches of this user", Hint: "end another one; the host's fs.inotify.max_user_instances is the limit"}
	}
	if err != nil {
		return err
	}
	defer unix.Close(w.in)
	return w.run()
}

type watcher struct {
	req      *files.Watch
	in       int    // inotify
	root     string // the directory; nobody keeps it open, or the kernel would not tell that it is gone
	device   uint64
	inode    uint64
	dirs     map[int]string  // paths of watched directories by their watch descriptors; "" is the first
	wds      map[string]int  // the reverse
	looked   map[string]bool // paths told because they were in a new directory: the kernel may be about to tell of them too
	describe describer
	over     bool // the directory is gone, or has another path
	batch    []files.Event
	weight   int
	tell     func(*files.Notice) error
}

// happening is an event of the kernel.
type happening struct {
	wd     int
	mask   uint32
	cookie uint32
	name   string
	from   string // of the second half of a renaming: the old path
	own    bool   // of the second half: what has that name is written, and had one of ours before
	paired bool   // of the first half: the second is there
}

// check looks what the directory is.
func (w *watcher) check() error {
	fd, err := unix.Open(w.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if generated(fd) {
		return &files.Failure{Kind: files.Unsupported, Text: "a directory of the kernel's, which tells of no changes"}
	}
	w.device, w.inode = st.Dev, st.Ino
	return nil
}

// generated reports whether what is open is of a filesystem whose files the kernel makes up: it tells of no changes to them.
func generated(fd int) bool {
	var where unix.Statfs_t
	return unix.Fstatfs(fd, &where) == nil && ofKernel(where.Type)
}

func (w *watcher) run() error {
	if err := w.scan("", true); err != nil {
		return err
	}
	if _, watched := w.wds[""]; !watched {
		return unix.EACCES
	}
	w.add(files.Event{What: files.Watching})
	for {
		if err := w.flush(); err != nil {
			return err
		}
		more, err := w.wait(-1)
		if err != nil {
			return err
		}
		if !more {
			continue
		}
		list, err := w.read()
		if err != nil {
			return err
		}
		for i := range list {
			if err := w.handle(&list[i], list[i+1:]); err != nil {
				return err
			}
			if w.over {
				return w.flush()
			}
		}
		if more, err = w.wait(0); err == nil && !more {
			clear(w.looked) // what the kernel had to tell of these has been told
		}
	}
}

// wait waits until there are events, for so many milliseconds; negative: as long as it takes.
func (w *watcher) wait(timeout int) (bool, error) {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.in), Events: unix.POLLIN}}, timeout)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}

// read returns the events that there are, with the second half of each renaming if it is to be had.
func (w *watcher) read() ([]happening, error) {
	buf := make([]byte, eventBuffer)
	list, err := w.readInto(nil, buf)
	if err != nil || w.pair(list) {
		return list, err
	}
	if more, err := w.wait(partnerPatience); err != nil || !more {
		return list, err
	}
	if list, err = w.readInto(list, buf); err == nil {
		w.pair(list)
	}
	return list, err
}

func (w *watcher) readInto(list []happening, buf []byte) ([]happening, error) {
	n, err := unix.Read(w.in, buf)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
		var h happening
		h.wd, h.mask = int(int32(binary.NativeEndian.Uint32(rest))), binary.NativeEndian.Uint32(rest[4:])
		h.cookie = binary.NativeEndian.Uint32(rest[8:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
		name, _, _ := bytes.Cut(rest[unix.SizeofInotifyEvent:end], []byte{0})
		h.name, rest = string(name), rest[end:]
		list = append(list, h)
	}
	return list, nil
}

// pair finds where things have been renamed to, and reports whether it has found that for all directories.
func (w *watcher) pair(list []happening) bool {
	all := true
	for i := range list {
		from := &list[i]
		if from.mask&unix.IN_MOVED_FROM == 0 {
			continue
		}
		for j := i + 1; j < len(list) && !from.paired; j++ {
			from.paired = list[j].mask&unix.IN_MOVED_TO != 0 && list[j].cookie == from.cookie
		}
		all = all && from.paired
	}
	return all
}

// handle handles an event, after which those come.
func (w *watcher) handle(h *happening, after []happening) error {
	if h.mask&unix.IN_Q_OVERFLOW != 0 {
		w.add(files.Event{What: files.Overflow})
		return w.scan("", false) // directories may have come
	}
	dir, known := w.dirs[h.wd]
	switch {
	case !known:
		return nil
	case h.mask&unix.IN_IGNORED != 0: // it is gone, or nobody needs it
		w.forget(h.wd)
		w.over = dir == ""
		return nil
	case h.name == "":
		if dir == "" {
			w.self(h.mask)
			w.over = h.mask&unix.IN_MOVE_SELF != 0
		}
		return nil
	}
	if isTemporary(h.name) {
		if to := partner(h, after); to != nil {
			to.own = true
		}
		return nil
	}
	path, directory := joinPath(dir, h.name), h.mask&unix.IN_ISDIR != 0
	kind := ""
	if directory {
		kind = files.TypeDirectory
	}
	switch {
	case h.mask&unix.IN_CREATE != 0, h.mask&unix.IN_MOVED_TO != 0:
		if w.looked[path] {
			delete(w.looked, path)
		} else {
			if size := w.found(files.Created, path, h.from, kind); size > 0 && h.own {
				w.found(files.Written, path, "", kind)
			}
		}
		if directory && w.req.Recursive {
			if err := w.scan(path, false); err != nil {
				return err
			}
		}
	case h.mask&unix.IN_MOVED_FROM != 0:
		delete(w.looked, path)
		w.add(files.Event{What: files.Renamed, Path: []byte(path), Type: kind})
		return w.moved(h, path, after)
	}
	if h.mask&unix.IN_ATTRIB != 0 {
		w.found(files.Chmodded, path, "", kind)
	}
	if h.mask&unix.IN_MODIFY != 0 {
		w.found(files.Written, path, "", kind)
	}
	if h.mask&unix.IN_DELETE != 0 {
		delete(w.looked, path)
		w.add(files.Event{What: files.Removed, Path: []byte(path), Type: kind})
	}
	return w.full()
}

// self tells of the directory itself.
func (w *watcher) self(mask uint32) {
	for _, is := range []struct {
		mask uint32
		what string
	}{{unix.IN_MOVE_SELF, files.Renamed}, {unix.IN_ATTRIB, files.Chmodded}, {unix.IN_DELETE_SELF | unix.IN_UNMOUNT, files.Removed}} {
		if mask&is.mask != 0 {
			w.add(files.Event{What: is.what, Path: []byte("."), Type: files.TypeDirectory})
		}
	}
}

// partner finds the second half of a renaming whose first half is h.
func partner(h *happening, after []happening) *happening {
	for i := range after {
		if a := &after[i]; h.mask&unix.IN_MOVED_FROM != 0 && a.mask&unix.IN_MOVED_TO != 0 && a.cookie == h.cookie {
			return a
		}
	}
	return nil
}

// moved follows what has been moved: the directories in it have other paths now, or are out of sight.
func (w *watcher) moved(h *happening, path string, after []happening) error {
	to, inside := "", false
	if a := partner(h, after); a != nil {
		dir, known := w.dirs[a.wd]
		to, inside, a.from = joinPath(dir, a.name), known, path
	}
	if h.mask&unix.IN_ISDIR != 0 {
		if inside {
			delete(w.wds, to) // an empty directory whose place it takes; the kernel says that it is gone
		}
		for wd, dir := range w.dirs {
			rest, below := strings.CutPrefix(dir, path)
			if !below || rest != "" && rest[0] != '/' {
				continue
			}
			if inside {
				w.set(wd, to+rest)
			} else {
				w.forget(wd)
				_, _ = unix.InotifyRmWatch(w.in, uint32(wd)) // it may be gone
			}
		}
	}
	return w.full()
}

func (w *watcher) set(wd int, path string) {
	if old, known := w.dirs[wd]; known && w.wds[old] == wd {
		delete(w.wds, old)
	}
	w.dirs[wd], w.wds[path] = path, wd
}

func (w *watcher) forget(wd int) {
	if path := w.dirs[wd]; w.wds[path] == wd {
		delete(w.wds, path)
	}
	delete(w.dirs, wd)
}

// scan watches a directory and, if that is wanted, those below it. What is in a directory that has not been watched before has
// come with it, and is told, unless this is the beginning.
func (w *watcher) scan(path string, first bool) error {
	seen := map[int]bool{} // a directory may have two places
	for list := []string{path}; len(list) > 0; {
		path, list = list[len(list)-1], list[:len(list)-1]
		if len(path) > maxWatchedPath {
			w.add(files.Event{What: files.Overflow, Path: []byte(path), Type: files.TypeDirectory})
			continue
		}
		fd, err := w.open(path, unix.O_DIRECTORY)
		if err != nil {
			continue // it is gone, or something else by now: of that there is an event
		}
		wd, isNew, err := w.watch(fd, path)
		if err == nil && w.req.Recursive && !seen[wd] {
			seen[wd] = true
			var below []string
			if below, err = w.readDir(fd, path, isNew && !first); err == nil {
				list = append(list, below...)
			}
		}
		unix.Close(fd)
		if f, ok := errors.AsType[*files.Failure](err); ok {
			return f
		}
		// One that may not be read is not watched, as it is not listed, and neither is /proc.
		if err := w.full(); err != nil {
			return err
		}
	}
	return nil
}

// open opens something below the directory by its path, as a place. No link is followed on the way.
func (w *watcher) open(path string, flags int) (int, error) {
	at, err := unix.Open(w.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Dev != w.device || st.Ino != w.inode { // another one has its path
		unix.Close(at)
		return -1, unix.ENOENT
	}
	for rest := path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		how := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if rest != "" {
			how |= unix.O_DIRECTORY
		} else {
			how |= flags
		}
		fd, err := unix.Openat(at, name, how, 0)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

func (w *watcher) watch(fd int, path string) (wd int, isNew bool, err error) {
	if generated(fd) {
		return 0, false, unix.ENOTSUP
	}
	wd, err = unix.InotifyAddWatch(w.in, byDescriptor(fd), watchMask)
	if errors.Is(err, unix.ENOSPC) {
		return 0, false, &files.Failure{Kind: files.TooMany, Text: "the kernel allows no more watched directories of this user", Hint: "watch a narrower path; the host's fs.inotify.max_user_watches is the limit"}
	}
	if err != nil {
		return 0, false, err
	}
	if _, known := w.dirs[wd]; !known && len(w.dirs) >= w.req.Limit {
		return 0, false, &files.Failure{Kind: files.TooMany, Text: fmt.Sprintf("more than %d directories", w.req.Limit), Hint: "watch a narrower path, or without the directories below"}
	} else if !known {
		isNew = true
	}
	w.set(wd, path)
	return wd, isNew, nil
}

// readDir returns the directories in a directory, and tells of what is in it if that is wanted.
func (w *watcher) readDir(fd int, path string, report bool) (below []string, err error) {
	open, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(open), path)
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if isTemporary(e.Name()) {
				continue
			}
			at, kind := joinPath(path, e.Name()), ""
			if e.IsDir() {
				below, kind = append(below, at), files.TypeDirectory
			}
			if !report {
				continue
			}
			w.looked[at] = true
			if size := w.found(files.Created, at, "", kind); size > 0 {
				w.found(files.Written, at, "", kind)
			}
			if err := w.full(); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return below, err
		}
	}
}

// found tells of something that should be there, and returns its size if it is a file. One that is written to many times is told
// once.
func (w *watcher) found(what, path, from, kind string) (size int64) {
	if n := len(w.batch); n > 0 && what != files.Created && w.batch[n-1].What == what && string(w.batch[n-1].Path) == path {
		return 0
	}
	e := files.Event{What: what, Path: []byte(path), From: []byte(from), Type: kind}
	var st unix.Stat_t
	if fd, err := w.open(path, 0); err == nil {
		if unix.Fstat(fd, &st) == nil {
			e.Type = typeOf(st.Mode)
			if w.req.Entries {
				e.Entry = w.entry(fd, path, &st)
			}
		}
		unix.Close(fd)
	}
	if e.Type == files.TypeFile {
		size = st.Size
	}
	w.add(e)
	return size
}

// entry describes what is open as a place.
func (w *watcher) entry(fd int, path string, st *unix.Stat_t) *files.Entry {
	if typeOf(st.Mode) != files.TypeLink {
		return new(w.describe.Describe(fd, "", path, st))
	}
	// An open link leads nowhere by itself: it takes its name and its directory.
	dir, err := w.open(strings.TrimSuffix(path[:strings.LastIndexByte(path, '/')+1], "/"), unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	return new(w.describe.Describe(dir, baseOf(path), path, st))
}

func (w *watcher) add(e files.Event) {
	w.batch = append(w.batch, e)
	w.weight += eventWeight + 4*len(e.Path) + 2*len(e.From)
	if e.Entry != nil {
		w.weight += 2 * (len(e.Entry.Target) + len(e.Entry.Resolved))
	}
}

// full tells what has been collected, if it is much.
func (w *watcher) full() error {
	if w.weight < maxBatch {
		return nil
	}
	return w.flush()
}

func (w *watcher) flush() error {
	if len(w.batch) == 0 {
		return nil
	}
	err := w.tell(&files.Notice{Events: w.batch})
	w.batch, w.weight = nil, 0
	return err
}

func joinPath(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
