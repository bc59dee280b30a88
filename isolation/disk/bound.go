// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// firstBound is the first project id for directories of the host; there are IDCount of these too.
const firstBound = 0x63000000

// otherError means that a directory, or something in it, has a project id that boxd has not set.
type otherError struct{ ID uint32 }

func (e *otherError) Error() string { return fmt.Sprintf("it has project %d already", e.ID) }

// Tree is a directory of the host with everything in it. What is mounted below it is not
// included: it is a clone of the directory's own mount only, as a box has it.
type Tree struct {
	q     *Quotas
	mount int
	top   *os.File
}

// openTree opens the tree of a directory, which need not be open for reading (O_PATH). An
// *UnavailableError says what its filesystem lacks.
func openTree(dir int) (*Tree, error) {
	if err := Available(dir); err != nil {
		return nil, err
	}
	mount, err := linux.CloneMount(dir, "", false)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(mount)
		return nil, err
	}
	t := &Tree{mount: mount, top: os.NewFile(uintptr(fd), "tree"), q: &Quotas{first: firstBound, count: IDCount}}
	t.q.dir = t.top
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = unix.Fstatfs(fd, &fs)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.q.dev, t.q.block = st.Dev, max(uint64(fs.Frsize), limitUnit)
	return t, nil
}

// Available returns an *UnavailableError that says what the filesystem of an open directory lacks
// for limits, or nil.
func Available(dir int) error {
	path := fmt.Sprintf("/proc/self/fd/%d", dir)
	name, err := os.Readlink(path)
	if err != nil {
		return err
	}
	kind := kindOf(dir)
	if kind != "ext4" && kind != "xfs" { // others, such as FUSE and NFS, are not asked anything else
		return &UnavailableError{Reason: NoKind, Path: name, Kind: kind}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	on, err := enforced(fd)
	switch {
	case err == nil && !on:
		return &UnavailableError{Reason: NotEnforced, Path: name, Kind: kind}
	case errors.Is(err, unix.ENOSYS) && !errors.Is(quotactl(-1, qGetQuota, 0, &dqblk{}), unix.ENOSYS):
		return &UnavailableError{Reason: Off, Path: name, Kind: kind} // also the error of a kernel without quotas for this filesystem
	case err != nil:
		return explain(name, fd, err)
	}
	return nil
}

// Close closes the tree.
func (t *Tree) Close() {
	t.top.Close()
	unix.Close(t.mount)
}

// identity returns the device and inode number of the tree.
func (t *Tree) identity() (dev, ino uint64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(t.q.fd(), &st)
	return st.Dev, st.Ino, err
}

// Project returns the project id of the directory itself, and whether files created in it inherit
// it; 0: none.
func (t *Tree) Project() (id uint32, inherit bool, err error) { return project(t.q.fd()) }

// Free returns an id that is not used on the filesystem and is not taken elsewhere.
func (t *Tree) Free(inUse func(id uint32) bool) (uint32, error) {
	for range t.q.count {
		id, err := t.q.free()
		if err != nil || !inUse(id) {
			return id, err
		}
	}
	return 0, errNoID
}

// Claim sets the project id of the directory itself, and returns false if something else has that
// id. What is created in it from then on is counted, and the kernel refuses to move or link
// anything into it that is not (EXDEV).
func (t *Tree) Claim(id uint32) (bool, error) {
	_, ours, err := t.q.claim(t.q.fd(), id, true)
	return ours, err
}

// leave removes a project id from the directory itself, if it has that id.
func (t *Tree) leave(id uint32) error {
	if now, _, err := t.Project(); err != nil || now != id {
		return err
	}
	return setProject(t.q.fd(), 0, false)
}

// fill sets the project id of the directory on everything in it. It visits each directory before
// what is in it, so that what is moved about meanwhile is found in its new place. An *otherError:
// something has another project id.
func (t *Tree) fill(ctx context.Context, id uint32, r Reach) error {
	return walk(ctx, t.q.fd(), r, func(fd int, directory bool) error {
		now, inherit, err := project(fd)
		switch {
		case err != nil:
			return err
		case now != 0 && now != id:
			return &otherError{now}
		case now == id && inherit == directory:
			return nil
		}
		return setProject(fd, id, directory)
	})
}

// passes is how often a tree is walked to remove a project id: things may be moved about
// meanwhile.
const passes = 3

// Empty removes a project id and its limits from a directory and everything in it. If something
// else still has the id, the error is a *UsedError and it goes on being counted.
func (t *Tree) Empty(ctx context.Context, id uint32, r Reach) error {
	if err := t.q.limit(id, Limits{}); err != nil {
		return err
	}
	for range passes {
		err := walk(ctx, t.q.fd(), r, func(fd int, _ bool) error {
			now, _, err := project(fd)
			if err != nil || now != id {
				return err
			}
			return setProject(fd, 0, false)
		})
		if err != nil {
			return err
		}
		u, err := t.q.usage(id)
		if err != nil || u.Inodes == 0 {
			return err
		}
	}
	u, err := t.q.usage(id)
	if err != nil {
		return err
	}
	return &UsedError{ID: id, Usage: u}
}

// Limit sets the limits of a project. A *UsedError: more than that is used, and the limits are as
// before.
func (t *Tree) Limit(id uint32, l Limits) error {
	want, err := t.q.round(l)
	if err != nil {
		return err
	}
	before, err := t.q.usage(id)
	if err != nil || before.Limits == want {
		return err
	}
	if err := t.q.limit(id, want); err != nil {
		return err
	}
	after, err := t.q.usage(id) // read after setting them: from then on the kernel refuses more
	if err == nil && after.exceeds(want) {
		err = &UsedError{ID: id, Usage: after, Want: want}
	}
	if err != nil {
		return errors.Join(err, t.q.limit(id, before.Limits))
	}
	return nil
}

// Used returns the usage and limits of a project on the filesystem of an open directory (O_PATH).
func Used(dir int, id uint32) (Usage, error) {
	var d dqblk
	if err := quotactl(dir, qGetQuota, id, &d); err != nil {
		return Usage{}, fmt.Errorf("usage of project %d: %w", id, err)
	}
	return d.usage(), nil
}

// Forget removes the limits of a project on the filesystem of an open directory. A *UsedError:
// something has its id.
func Forget(dir int, id uint32) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	q := &Quotas{dir: os.NewFile(uintptr(fd), "directory"), first: firstBound, count: IDCount}
	defer q.Close()
	return q.Remove(id)
}
