// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
)

// hostBases makes the lowest layer of writable roots of the host's programs for everything outside the trees of the host: a copy of
// /etc, and of the symbolic links at the top of the root that other boxes have. All boxes that are made while the host stays the
// same share one. It is on the filesystem of the workspaces, whose ids the kernel maps for each box.
//
// It is a single overlay for some hundred small files. The parts of /etc that are directories of the host would need two overlays
// each, and each of those costs more than all the copies.
type hostBases struct {
	program int    // descriptor of boxfiles
	reader  uint32 // the id with whose rights it reads, which no process and no file has
	work    *disk.Workspaces
	zygotes *zygoteSet
	log     *log.Logger

	making sync.Mutex // guards the next fields, and is held while a base is made; taken before mu
	dir    *os.File   // of the current one; nil: none
	dirs   []string   // those of /etc that were copied
	stamp  string     // of them and their zygote

	mu      sync.Mutex        // guards the fields below
	current string            // the one for new boxes; "": none
	users   map[string]string // keys of boxes, and what they use
}

// nobody is an id of each box as which no process runs in it.
const nobody = 65534

// basePatience is how long the copying may take, which normally takes milliseconds.
const basePatience = 20 * time.Second

// Take opens the base for a new box. It stays until Release.
func (h *hostBases) Take(key string) (fd int, err error) {
	h.making.Lock()
	defer h.making.Unlock()
	root, stamp, err := h.zygotes.Of("").Root()
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	if h.dir == nil || h.stamp != stamp+etcStamp(root, h.dirs) {
		dirs, err := etcDirs(root)
		if err != nil {
			return -1, fmt.Errorf("/etc: %w", err)
		}
		stamp += etcStamp(root, dirs) // before the copy, so that what changes meanwhile is noticed
		name, dir, err := h.work.MakeBase(func(dir int) error { return h.fill(root, dir) })
		if err != nil {
			return -1, fmt.Errorf("copy of /etc: %w", err)
		}
		h.dir.Close() // of nil it does nothing
		h.dir, h.dirs, h.stamp = dir, dirs, stamp
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
	h.making.Lock()
	defer h.making.Unlock()
	h.dir.Close()
	h.dir = nil
}

// Release says that a box has ended, whether it has a base or not.
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

// fill has boxfiles make a base in dir, as a user without rights: what it copies packages and people have written.
func (h *hostBases) fill(root, dir int) error {
	program, err := unix.FcntlInt(uintptr(h.program), unix.F_DUPFD_CLOEXEC, 16) // above the descriptors that the child gets
	if err != nil {
		return err
	}
	defer unix.Close(program)
	said, say, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		say.Close()
		return err
	}
	defer null.Close()
	pidfd := -1
	_, err = syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", program), []string{"boxfiles", isolation.BaseCommand, strconv.FormatUint(uint64(h.reader), 10)}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{null.Fd(), say.Fd(), 2, uintptr(root), uintptr(dir)},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	say.Close()
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	var text []byte
	if err = said.SetReadDeadline(time.Now().Add(basePatience)); err == nil {
		text, err = io.ReadAll(io.LimitReader(said, 4096)) // until it has ended; the reaper collects it
	}
	if err != nil { // a filesystem below /etc may not answer: then nobody waits for the end
		return errors.Join(err, unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0))
	}
	if string(text) != isolation.BaseDone {
		return fmt.Errorf("%q", text)
	}
	return nil
}

// etcDirs lists the directories of /etc of a root by their paths below it.
func etcDirs(root int) (list []string, err error) {
	err = fs.WalkDir(os.DirFS(fmt.Sprintf("/proc/self/fd/%d", root)), "etc", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			list = append(list, path)
		}
		return nil
	})
	return list, err
}

// etcStamp returns a text that changes when an entry of one of these directories is made, replaced or removed. Directories of the host
// are shown in a root as they are, and change without the zygote.
func etcStamp(root int, dirs []string) string {
	var stamp []byte
	for _, dir := range dirs {
		var st unix.Stat_t
		_ = unix.Fstatat(root, dir, &st, unix.AT_SYMLINK_NOFOLLOW) // of what has gone all fields are 0
		stamp = fmt.Appendf(stamp, "%d.%d.%d.%d ", st.Dev, st.Ino, st.Mtim.Sec, st.Mtim.Nsec)
	}
	return string(stamp)
}
