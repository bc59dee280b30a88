// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
)

// hostBases makes the lowest layer of writable roots of the host's programs for everything outside the trees of the host: what
// every box has (overlay.Skeleton), and a copy of /etc and of the symbolic links at the top of the root that other boxes have. All
// boxes that are made while the host stays the same share one. It is on the filesystem of the workspaces, whose ids the kernel maps
// for each box.
//
// It is a single overlay for some hundred small files. The parts of /etc that are directories of the host would need two overlays
// each, and each of those costs more than all the copies.
type hostBases struct {
	program int    // descriptor of boxfiles
	reader  uint32 // the id with whose rights it reads, which no process and no file has
	work    *disk.Workspaces
	zygotes *zygoteSet
	log     *log.Logger

	makeMu sync.Mutex // guards the next fields, and is held while a base is made; taken before mu
	dir    *os.File   // of the current one; nil: none
	zygote string     // stamp of the one whose root it was copied from
	etc    *etcState  // of that

	mu      sync.Mutex        // guards the fields below
	current string            // the one for new boxes; "": none
	users   map[string]string // keys of boxes, and what they use
}

// nobody is an id of each box as which no process runs in it.
const nobody = 65534

// baseTimeout is how long the copying may take, which normally takes milliseconds.
const baseTimeout = 20 * time.Second

// take opens the base for a new box. It stays until Release.
func (h *hostBases) take(key string) (fd int, err error) {
	h.makeMu.Lock()
	defer h.makeMu.Unlock()
	root, stamp, err := h.zygotes.of("").Root()
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	if h.dir == nil || h.zygote != stamp || !h.etc.is(root) {
		etc, err := readEtc(root)
		if err != nil {
			return -1, err
		}
		name, dir, err := h.work.MakeBase(func(dir int) error { return h.fill(root, dir) })
		if err != nil {
			return -1, fmt.Errorf("copy of /etc: %w", err)
		}
		h.dir.Close() // of nil it does nothing
		h.dir, h.zygote, h.etc = dir, stamp, etc
		h.replace(name)
	}
	fd, err = unix.FcntlInt(h.dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == nil {
		h.users = map[string]string{}
	}
	h.users[key] = h.current
	return fd, nil
}

func (h *hostBases) replace(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.current
	h.current = name
	h.dropLocked(before)
}

// Close closes what is open. The bases stay, as boxes use them.
func (h *hostBases) Close() {
	h.makeMu.Lock()
	defer h.makeMu.Unlock()
	h.dir.Close()
	h.dir = nil
}

// Release records that a box has ended, whether it has a base or not.
func (h *hostBases) Release(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := h.users[key]
	delete(h.users, key)
	h.dropLocked(name)
}

// dropLocked removes a base that no box uses, unless new ones will.
func (h *hostBases) dropLocked(name string) {
	if name == "" || name == h.current || slices.Contains(slices.Collect(maps.Values(h.users)), name) {
		return
	}
	if err := h.work.DropBase(name); err != nil {
		h.log.Printf("cannot remove a copy of /etc: %v", err)
	}
}

// fill has boxfiles make a base in dir. It copies as a user without rights: what it reads packages and people have written.
func (h *hostBases) fill(root, dir int) error {
	program, err := unix.FcntlInt(uintptr(h.program), unix.F_DUPFD_CLOEXEC, 16) // above the descriptors that the child gets
	if err != nil {
		return err
	}
	defer unix.Close(program)
	output, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	defer output.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		stdout.Close()
		return err
	}
	defer null.Close()
	pidfd := -1
	_, err = syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", program), []string{"boxfiles", isolation.BaseCommand, strconv.FormatUint(uint64(h.reader), 10)}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{null.Fd(), stdout.Fd(), 2, uintptr(root), uintptr(dir)},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	stdout.Close()
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	var text []byte
	if err = output.SetReadDeadline(time.Now().Add(baseTimeout)); err == nil {
		text, err = io.ReadAll(io.LimitReader(output, 4096)) // until it has ended; the reaper collects it
	}
	if err != nil { // a filesystem below /etc may not answer: then nobody waits for the end
		return errors.Join(err, unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0))
	}
	if string(text) != isolation.BaseDone {
		return fmt.Errorf("%q", text)
	}
	return nil
}

// etcState is what of a root's /etc tells whether it has changed since it was copied. Directories of the host are shown in a root as
// they are, and change without the zygote.
type etcState struct {
	dirs  []string // directories, by their paths below the root
	stamp []byte
	last  time.Time // the latest change
}

// readEtc reads the state of a root's /etc. It is not of a filesystem that is mounted in a directory of the host: that may belong to a
// user, and need not answer. If something has just changed, the state counts as changed too, so that the next box has another copy:
// a further change may leave the same time.
func readEtc(root int) (*etcState, error) {
	start := time.Now()
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return nil, err
	}
	e := &etcState{}
	if err := e.add(root, "etc", st.Dev, 0); err != nil {
		return nil, fmt.Errorf("/etc: %w", err)
	}
	if start.Sub(e.last).Abs() < tick { // a time that is further ahead is of a clock that was set back
		e.stamp = nil
	}
	return e, nil
}

// add adds a directory and those in it. tree is the device of the tree itself, in which directories of the host are mounted.
func (e *etcState) add(root int, at string, tree uint64, depth int) error {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(root, at, &how)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), at)
	defer f.Close()
	st := e.stat(root, at) // before it is read, so that a change after this is noticed
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, in := range entries {
		if !in.IsDir() || depth == watchedDepth {
			continue
		}
		if st.Dev != tree {
			how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
			entry, err := unix.Openat2(fd, in.Name(), &how)
			if err != nil { // EXDEV: something is mounted there
				continue
			}
			unix.Close(entry)
		}
		if err := e.add(root, path.Join(at, in.Name()), tree, depth+1); errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return err // any other one is of a directory that has gone or may not be read: it is not copied either
		}
	}
	return nil
}

// watchedDepth is more than boxfiles copies.
const watchedDepth = 20

// stat adds the state of one directory.
func (e *etcState) stat(root int, dir string) (st unix.Stat_t) {
	_ = unix.Fstatat(root, dir, &st, unix.AT_SYMLINK_NOFOLLOW) // of what has gone all fields are 0
	e.dirs = append(e.dirs, dir)
	e.stamp = fmt.Appendf(e.stamp, "%d.%d.%d.%d ", st.Dev, st.Ino, st.Mtim.Sec, st.Mtim.Nsec)
	if at := time.Unix(st.Mtim.Unix()); at.After(e.last) {
		e.last = at
	}
	return st
}

// is reports whether the directories of a root are still in this state.
func (e *etcState) is(root int) bool {
	now := &etcState{}
	for _, dir := range e.dirs {
		now.stat(root, dir)
	}
	return bytes.Equal(now.stamp, e.stamp)
}

// tick is more than the resolution of the times that the kernel gives to files. Two changes within it may leave one time.
const tick = 20 * time.Millisecond
