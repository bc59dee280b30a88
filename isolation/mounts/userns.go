// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// UserNamespaces caches the user namespaces that serve as id maps of mounts (mount_setattr(2)).
// Each maps a single owner on disk to the box user of one id range. Making one costs a process,
// so they are kept for the next box of the same owner and range.
type UserNamespaces struct {
	mu   sync.Mutex // guards the field below, and is held while a namespace is made
	open map[idMap]int
}

type idMap struct {
	owner Owner
	base  uint32
}

// maxOpen bounds the cache; every entry is one descriptor and one namespace. A new box always gets the lowest free id range, so a
// few entries serve a caller that runs one box after the other.
const maxOpen = 16

// Get returns a user namespace for the map. The descriptor is the caller's.
func (u *UserNamespaces) Get(o Owner, base uint32) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := idMap{o, base}
	fd, ok := u.open[key]
	if !ok {
		var err error
		if fd, err = newUserNamespace(o, base); err != nil {
			return -1, err
		}
		if u.open == nil || len(u.open) >= maxOpen {
			u.closeLocked()
		}
		u.open[key] = fd
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

// Close closes all cached namespaces.
func (u *UserNamespaces) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeLocked()
}

func (u *UserNamespaces) closeLocked() {
	for _, fd := range u.open {
		unix.Close(fd)
	}
	u.open = map[idMap]int{}
}

// strangerGID is the group that a box sees on a mounted directory whose group is not its owner's. No program is ever in it: the last
// id of the range is none that root of a box can become (isolation.RootID).
const strangerGID = isolation.IDRange - 1

// maps returns the id maps: ContainerID is the id on disk, and HostID the one of the box.
func (o *Owner) maps(base int) (users, groups []syscall.SysProcIDMap) {
	if o.host {
		// The ids of root of the box and what the kernel shows for none are nobody's here, so nobody of the host has another one.
		const last, nobody = isolation.IDRange - 1, isolation.RootID - 1
		all := []syscall.SysProcIDMap{
			{ContainerID: 0, HostID: base + isolation.BoxUID, Size: 1},
			{ContainerID: 1, HostID: base + 1, Size: isolation.BoxUID - 1},
			{ContainerID: isolation.BoxUID, HostID: base + last, Size: 1},
			{ContainerID: isolation.BoxUID + 1, HostID: base + isolation.BoxUID + 1, Size: nobody - isolation.BoxUID - 1},
			{ContainerID: isolation.NobodyID, HostID: base + nobody, Size: 1},
		}
		return all, all
	}
	groups = []syscall.SysProcIDMap{{ContainerID: int(o.gid), HostID: base + isolation.BoxGID, Size: 1}}
	if o.dirGID != o.gid {
		groups = append(groups, syscall.SysProcIDMap{ContainerID: int(o.dirGID), HostID: base + strangerGID, Size: 1})
	}
	return []syscall.SysProcIDMap{{ContainerID: int(o.uid), HostID: base + isolation.BoxUID, Size: 1}}, groups
}

func newUserNamespace(o Owner, base uint32) (int, error) {
	var stdin [2]int
	if err := unix.Pipe2(stdin[:], unix.O_CLOEXEC); err != nil {
		return -1, err
	}
	defer unix.Close(stdin[1]) // closing its standard input ends the holder if the kill below does not
	defer unix.Close(stdin[0])
	users, groups := o.maps(int(base))
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"boxkeeper", isolation.HoldCommand}, &syscall.ProcAttr{
		Files: []uintptr{uintptr(stdin[0])},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: users,
			GidMappings: groups,
		},
	})
	if err != nil {
		return -1, fmt.Errorf("user namespace: %w", err)
	}
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }() // the reaper collects it, and not before this
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("user namespace: %w", err)
	}
	return fd, nil
}

func slicePointer(list []uint32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(list))) }
