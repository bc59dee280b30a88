// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// fileState detects changes of an entry. No program in a box can set an inode's change time: it is the time of the last change of
// content, size, permissions or links.
type fileState struct {
	path    string
	mode    uint32 // including the type
	inode   uint64
	size    int64
	changed int64 // nanoseconds since 1970
}

// mountWalk is a walk through everything in a directory that is on the directory's own mount.
type mountWalk struct {
	walk
	out    globFilter
	mount  uint64
	across bool // include what is mounted in it
	unread int
	err    error // why the walk was ended
	found  func(dir int, name string, s *fileState, st *unix.Statx_t) error
}

const statxMask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID

// run walks. More than limit entries are a Failure.
func (s *mountWalk) run(path []byte, exclude []string, limit int) error {
	var err error
	if s.out, err = newFilter(nil, exclude); err != nil {
		return err
	}
	dir, err := openDirPath(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Statx_t
	if err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, statxMask, &st); err != nil {
		return err
	}
	s.mount = st.Mnt_id
	s.left, s.depth, s.visit = limit, files.MaxDepth, s.compare
	closed := s.closed
	s.closed = func(path string) {
		s.unread++
		if closed != nil {
			closed(path)
		}
	}
	err = s.walk.run(dir)
	if s.err != nil {
		return s.err
	}
	if errors.Is(err, errEnough) {
		return &files.Failure{Kind: files.TooMany, Text: "there are too many files and directories for one search", Hint: "skip directories with exclude"}
	}
	return err
}

func (s *mountWalk) compare(dir int, path, name string, kind byte) error {
	if !s.out.wants(path) {
		return errPass
	}
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statxMask, &st)
	if err != nil || st.Mnt_id != s.mount && !s.across { // it was removed, or is on another mount
		return errPass
	}
	e := &fileState{path: path, mode: uint32(st.Mode), inode: st.Ino, size: int64(min(st.Size, 1<<62)), changed: st.Ctime.Sec*int64(time.Second) + int64(st.Ctime.Nsec)}
	if kind == unix.DT_DIR || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		e.inode, e.size, e.changed = 0, 0, 0 // a change in a directory is reported for its entries
	}
	if s.err = s.found(dir, name, e, &st); s.err != nil {
		return errEnough
	}
	return nil
}

// takeSnapshot writes the state of everything in a directory to w.
func takeSnapshot(req *files.Snapshot, w io.Writer) (*files.SnapshotAnswer, error) {
	out := newSnapshotWriter(w, req.Most)
	a := &files.SnapshotAnswer{}
	newest := int64(0)
	s := &mountWalk{found: func(_ int, _ string, e *fileState, _ *unix.Statx_t) error {
		a.Entries++
		newest = max(newest, e.changed)
		return out.add(e)
	}}
	if err := s.run(req.Path, req.Exclude, req.Walk); err != nil {
		return nil, err
	}
	a.Unread = s.unread
	awaitClock(newest)
	return a, out.end()
}

// awaitClock waits until the clock of change times has passed the time of the last change, so
// that later changes have another time. The clock advances every few milliseconds. If it was set
// back, there is no wait.
func awaitClock(last int64) {
	const timeout = 50 * time.Millisecond
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for start := time.Now(); time.Since(start) < timeout; <-ticker.C {
		var now unix.Timespec
		if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil || now.Nano() > last {
			return
		}
	}
}

// comparison is a mountWalk alongside a snapshot: both have the same order.
type comparison struct {
	req  *files.Changes
	want globFilter
	old  *snapshotReader
	was  *fileState // the next state of the snapshot; nil at its end
	a    files.ChangesAnswer
	left int64 // bytes that may be read for digests
	name int   // bytes of names in the answer
}

// changesSince returns what has changed in a directory since a snapshot.
func changesSince(req *files.Changes, snapshot io.Reader) (*files.ChangesAnswer, error) {
	want, err := newFilter(req.Include, nil)
	if err != nil {
		return nil, err
	}
	c := &comparison{req: req, want: want, old: newSnapshotReader(snapshot), left: req.Digest}
	if err := c.next(); err != nil {
		return nil, err
	}
	s := &mountWalk{found: c.found}
	var broken error // error in a directory that cannot be read
	s.closed = func(path string) { broken = errors.Join(broken, c.skip(path+"/")) }
	err = s.run(req.Path, req.Exclude, req.Walk)
	if err = errors.Join(err, broken); err != nil {
		return nil, err
	}
	for c.was != nil {
		if err := c.removed(); err != nil {
			return nil, err
		}
	}
	c.a.Unread = s.unread
	return &c.a, nil
}

func (c *comparison) next() (err error) {
	c.was, err = c.old.next()
	return err
}

// skip skips the states of a directory, whose changes are unknown.
func (c *comparison) skip(prefix string) error {
	for c.was != nil && strings.HasPrefix(c.was.path, prefix) {
		if err := c.next(); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) removed() error {
	was := c.was
	if c.want.wants(was.path) {
		c.a.Removed++
		c.list(files.WasRemoved, files.Entry{Path: []byte(was.path), Type: typeOf(was.mode), Size: was.size, Mode: was.mode & 0o7777, Time: time.Unix(0, 0).UTC()})
	}
	return c.next()
}

func (c *comparison) found(dir int, name string, cur *fileState, st *unix.Statx_t) error {
	for c.was != nil && before(c.was.path, cur.path) {
		if err := c.removed(); err != nil {
			return err
		}
	}
	what := files.WasCreated
	if c.was != nil && c.was.path == cur.path {
		was := *c.was
		if err := c.next(); err != nil {
			return err
		}
		if was == *cur {
			return nil
		}
		what = files.WasChanged
	}
	if !c.want.wants(cur.path) {
		return nil
	}
	if what == files.WasCreated {
		c.a.Created++
	} else {
		c.a.Changed++
	}
	e := entryOf(cur.path, &unix.Stat_t{Mode: cur.mode, Size: cur.size, Mtim: unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}})
	if e.Type == files.TypeLink {
		e.Target = targetOf(dir, name)
	}
	if c.hasRoom(&e) && e.Type == files.TypeFile && e.Size <= c.left && c.req.Digest > 0 {
		c.left -= e.Size
		e.Digest = digestAt(dir, name, max(e.Size, 1))
	}
	c.list(what, e)
	return nil
}

// hasRoom reports whether an entry will be listed.
func (c *comparison) hasRoom(e *files.Entry) bool {
	return len(c.a.Changes) < c.req.Limit && c.name+len(e.Path)+len(e.Target) <= maxNames && (c.req.MaxSize == 0 || e.Size <= c.req.MaxSize)
}

func (c *comparison) list(what string, e files.Entry) {
	switch {
	case c.req.MaxSize > 0 && e.Type == files.TypeFile && e.Size > c.req.MaxSize:
		c.a.Large++
	case !c.hasRoom(&e):
		c.a.Cut = files.CutEntries
	default:
		c.name += len(e.Path) + len(e.Target)
		c.a.Changes = append(c.a.Changes, files.Change{What: what, Entry: e})
	}
}

// before reports whether a path comes before another one in a walk: the entries of a directory
// come right after it.
func before(a, b string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if a[i] == '/' || b[i] == '/' {
			return a[i] == '/'
		}
		return a[i] < b[i]
	}
	return len(a) < len(b)
}
