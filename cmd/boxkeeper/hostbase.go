// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
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
	program int // descriptor of boxfiles
	work    *disk.Workspaces
	zygotes *zygoteSet
	log     *log.Logger

	mu      sync.Mutex        // guards the fields below, and is held while a base is made
	current string            // the one for new boxes; "": none
	dir     *os.File          // its directory
	stamp   string            // of the zygote that it was copied from
	users   map[string]string // keys of boxes, and what they use
}

// basePatience is how long the copying may take, which normally takes milliseconds.
const basePatience = 20 * time.Second

// Take opens the base for a new box. It stays until Release.
func (h *hostBases) Take(key string) (fd int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	root, stamp, err := h.zygotes.Of("").Root()
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	if h.current == "" || h.stamp != stamp {
		name, dir, err := h.work.MakeBase(func(dir int) error { return h.fill(root, dir) })
		if err != nil {
			return -1, fmt.Errorf("copy of /etc: %w", err)
		}
		h.dir.Close() // of nil it does nothing
		before := h.current
		h.current, h.dir, h.stamp = name, dir, stamp
		h.dropLocked(before)
	}
	if h.users == nil {
		h.users = map[string]string{}
	}
	h.users[key] = h.current
	return unix.FcntlInt(h.dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}

// Close closes what is open. The bases stay, as boxes use them.
func (h *hostBases) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dir.Close()
	h.current, h.dir = "", nil
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
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", program), []string{"boxfiles", isolation.BaseCommand}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{null.Fd(), say.Fd(), 2, uintptr(root), uintptr(dir)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	say.Close()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), basePatience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	text, err := io.ReadAll(io.LimitReader(said, 4096)) // until it has ended; the reaper collects it
	switch {
	case err != nil:
		return err
	case !stop():
		return fmt.Errorf("not done after %v", basePatience)
	case string(text) != isolation.BaseDone:
		return fmt.Errorf("%q", text)
	}
	return nil
}
