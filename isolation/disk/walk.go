// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// Reach bounds a walk through a tree that other programs made and may change meanwhile.
type Reach struct {
	Entries int
	Depth   int // each level holds a descriptor
	Time    time.Duration
}

// defaultReach returns the Reach of a walk that a session waits for.
func defaultReach() Reach { return Reach{Entries: 1_000_000, Depth: 256, Time: 30 * time.Second} }

// reachError means that a tree is too large to be walked.
type reachError struct {
	Path string // where the walk was given up, relative to the top
	What string // which bound was exceeded
}

func (e *reachError) Error() string {
	return "more than " + e.What + " at " + strconv.Quote(e.Path)
}

// walkError says at what path a walk has failed.
type walkError struct {
	Path string // relative to the top
	Err  error
}

func (e *walkError) Error() string { return strconv.Quote(e.Path) + ": " + e.Err.Error() }

func (e *walkError) Unwrap() error { return e.Err }

// batch is how many names are read at a time.
const batch = 256

// level is a directory on the current path, with names in it that are yet to be visited.
type level struct {
	dir   *os.File
	path  string
	names []string
	eof   bool // all names have been read
}

// walker is the state of a walk.
type walker struct {
	Reach
	each    func(fd int, directory bool) error
	until   time.Time
	entries int
	stack   []*level
}

// walk calls each for a directory, and then for every directory and regular file below it, a
// directory before what is in it. It looks up nothing but names in open directories, so it
// follows no symbolic link and enters no mount. When others rename things meanwhile, each is
// visited where the walk meets it, in its old place or its new one. What cannot be opened without
// side effects, such as a FIFO, is skipped.
func walk(ctx context.Context, top int, r Reach, each func(fd int, directory bool) error) error {
	w := walker{Reach: r, each: each, until: time.Now().Add(r.Time)}
	defer func() {
		for _, l := range w.stack {
			l.dir.Close()
		}
	}()
	fd, err := unix.Openat(top, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &walkError{".", err}
	}
	for err = w.enter(fd, "."); err == nil && len(w.stack) > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = w.step(w.stack[len(w.stack)-1])
	}
	return err
}

// enter takes over a directory, visits it, and continues in it.
func (w *walker) enter(fd int, at string) error {
	if len(w.stack) == w.Depth {
		unix.Close(fd)
		return &reachError{at, strconv.Itoa(w.Depth) + " nested directories"}
	}
	w.stack = append(w.stack, &level{dir: os.NewFile(uintptr(fd), at), path: at})
	if err := w.each(fd, true); err != nil {
		return &walkError{at, err}
	}
	return nil
}

// step visits the next entry of a directory, or leaves it.
func (w *walker) step(l *level) error {
	name, err := l.next()
	if errors.Is(err, io.EOF) {
		l.dir.Close()
		w.stack = w.stack[:len(w.stack)-1]
		return nil
	}
	at := path.Join(l.path, name)
	switch w.entries++; {
	case err != nil:
		return &walkError{l.path, err}
	case w.entries > w.Entries:
		return &reachError{at, strconv.Itoa(w.Entries) + " entries"}
	case time.Now().After(w.until):
		return &reachError{at, w.Time.String() + " of work"}
	}
	fd, directory, err := openEntry(int(l.dir.Fd()), name)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && fd < 0: // it was moved to where it will be found, or it is of a kind that is skipped
		return nil
	case err != nil:
		return &walkError{at, err}
	case directory:
		return w.enter(fd, at)
	}
	err = w.each(fd, false)
	unix.Close(fd)
	if err != nil {
		return &walkError{at, err}
	}
	return nil
}

// next returns the next name in a directory, io.EOF after the last.
func (l *level) next() (string, error) {
	if len(l.names) == 0 && !l.eof {
		names, err := l.dir.Readdirnames(batch)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		l.names, l.eof = names, err != nil
	}
	if len(l.names) == 0 {
		return "", io.EOF
	}
	name := l.names[0]
	l.names = l.names[1:]
	return name, nil
}

// openEntry opens a directory or regular file. Anything else is not opened and no error: fd is
// -1.
func openEntry(dir int, name string) (fd int, directory bool, err error) {
	at, err := linux.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, false, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, false, err
	}
	flags := unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOATIME // O_NONBLOCK: do not wait for a lease to be broken
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		directory = true
		flags |= unix.O_DIRECTORY
	case unix.S_IFREG:
	default:
		return -1, false, nil
	}
	fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), flags, 0)
	return fd, directory, err
}
