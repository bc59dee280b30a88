// SPDX-License-Identifier: Apache-2.0

// Package disk limits what is written below a directory: with project quota of its filesystem, or
// in a store, which is a filesystem in a file that has project quota.
//
// No list of project ids is kept: the filesystem's own accounting says which are taken. An id belongs to the keeper that has put
// an inode into its project and then found no other inode there; the kernel counts them atomically, for all keepers on the
// filesystem and across their crashes.
package disk

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// These project ids are ours unless another program has used one first: far from those that /etc/projid and other runtimes count
// up from, and as many as there are id ranges for boxes.
const (
	FirstID = 0x62000000
	IDCount = 1 << 16
)

// Limits are what one directory may hold. Neither can be zero.
type Limits struct {
	// Bytes are rounded down to blocks of the filesystem. Directories and extended attributes
	// count. xfs creates a file only if dozens of blocks are free.
	Bytes  uint64
	Inodes uint64 // the directory itself counts as one
}

// Usage is what one directory holds, including deleted files that are still open, and its limits.
type Usage struct {
	Bytes  uint64
	Inodes uint64
	Limits Limits // zero: none
}

// Quotas gives directories of one filesystem project ids of their own. It is safe for concurrent
// use.
type Quotas struct {
	dir   *os.File // a directory on the filesystem
	dev   uint64
	block uint64 // block size in bytes
	first uint32
	count uint32

	mu   sync.Mutex // held while limits change; guards the field below
	next uint32     // where the search for a free id starts, from 0
}

// OpenQuotas tests whether project quota is enforced below dir, by exceeding one, and takes back
// ids whose directories are gone. dir must be closed to all but root. An *UnavailableError says
// what the host lacks.
func OpenQuotas(dir *os.Root) (*Quotas, error) {
	q, err := open(dir, FirstID, IDCount)
	if err != nil {
		return nil, err
	}
	if err := q.testEnforced(dir); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

func open(dir *os.Root, first, count uint32) (*Quotas, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, fmt.Errorf("project quota: %w", err)
	}
	q := &Quotas{dir: f, first: first, count: count}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err = unix.Fstat(q.fd(), &st); err == nil {
		err = unix.Fstatfs(q.fd(), &fs)
	}
	if err == nil {
		q.dev, q.block = st.Dev, max(uint64(fs.Frsize), limitUnit)
		err = q.Sweep()
	}
	if err != nil {
		err = explain(dir.Name(), q.fd(), err)
		f.Close()
		return nil, err
	}
	return q, nil
}

// Close ends the use of q. All limits stay.
func (q *Quotas) Close() { q.dir.Close() }

func (q *Quotas) fd() int { return int(q.dir.Fd()) }

// Make gives an empty directory a project id of its own with these limits, and returns the id.
// What is created in the directory from then on counts; set its owner and mode before. dir must
// be open for reading. It may return errNoID, ErrNotEmpty or ErrForeign.
func (q *Quotas) Make(dir int, l Limits) (uint32, error) {
	want, err := q.round(l)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.fit(dir); err != nil {
		return 0, err
	}
	for {
		id, err := q.free()
		if err != nil {
			return 0, err
		}
		undo, ours, err := q.claim(dir, id, true)
		if err != nil {
			return 0, fmt.Errorf("set project %d: %w", id, err)
		}
		if !ours {
			continue
		}
		if err := q.limit(id, want); err != nil {
			return 0, errors.Join(err, q.limit(id, Limits{}), undo())
		}
		return id, nil
	}
}

// fit returns an error if a directory cannot get a project id.
func (q *Quotas) fit(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return fmt.Errorf("project of a directory: %w", err)
	}
	if st.Dev != q.dev {
		return fmt.Errorf("project of a directory on another filesystem: %w", ErrForeign)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("project of a file: %w", unix.ENOTDIR)
	}
	empty, err := linux.IsEmpty(dir, ".")
	if err != nil {
		return fmt.Errorf("project of a directory: %w", err)
	}
	if !empty {
		return ErrNotEmpty
	}
	if id, err := q.ID(dir); err == nil {
		return fmt.Errorf("the directory has project %d already: %w", id, unix.EEXIST)
	}
	return nil
}

// round returns the limits as the filesystem can store them.
func (q *Quotas) round(l Limits) (Limits, error) {
	least := Limits{Bytes: 2 * q.block, Inodes: 2} // the directory and something in it
	l.Bytes -= l.Bytes % q.block
	if l.Bytes < least.Bytes || l.Inodes < least.Inodes {
		return Limits{}, fmt.Errorf("limits of %d bytes and %d inodes: want at least %d and %d: %w", l.Bytes, l.Inodes, least.Bytes, least.Inodes, unix.EINVAL)
	}
	return l, nil
}

// free returns the next unused id, starting over after the last. Whether it is still free when it
// is used, claim finds out.
func (q *Quotas) free() (uint32, error) {
	n, err := firstFree(q.first, q.count, q.next, q.entry)
	if err != nil {
		return 0, err
	}
	q.next = n + 1
	return q.first + n, nil
}

// firstFree returns the offset from first of an unused id, out of count, beginning the search at
// from.
func firstFree(first, count, from uint32, entry func(id uint32) (*dqblk, error)) (uint32, error) {
	for i := range count {
		n := (from%count + i) % count
		d, err := entry(first + n)
		if err != nil {
			return 0, err
		}
		if d == nil || d.id != first+n || !d.limited() && !d.used() {
			return n, nil
		}
	}
	return 0, errNoID
}

// claim puts an inode into a project and returns whether it is alone there. A claimant that finds another one takes its own out
// again, so that two may both fail but never both succeed. undo takes the inode out.
func (q *Quotas) claim(fd int, id uint32, inherit bool) (undo func() error, ours bool, err error) {
	before, handed, err := project(fd)
	if err != nil {
		return nil, false, err
	}
	undo = func() error { return setProject(fd, before, handed) }
	if err := setProject(fd, id, inherit); err != nil {
		return undo, false, err
	}
	d := dqblk{}
	if err := quotactl(q.fd(), qGetQuota, id, &d); err != nil {
		return undo, false, errors.Join(err, undo())
	}
	if d.inodes == 1 {
		return undo, true, nil
	}
	return undo, false, undo()
}

// limit sets the limits of a project, zero for none, and reads them back.
func (q *Quotas) limit(id uint32, l Limits) error {
	set := dqblk{spaceHard: l.Bytes / limitUnit, inodesHard: l.Inodes, valid: setLimits}
	if err := quotactl(q.fd(), qSetQuota, id, &set); err != nil {
		return fmt.Errorf("limit project %d: %w", id, err)
	}
	now, err := q.usage(id)
	if err != nil {
		return err
	}
	if now.Limits != l {
		return fmt.Errorf("project %d has limits %v after setting %v", id, now.Limits, l)
	}
	return nil
}

func (q *Quotas) usage(id uint32) (Usage, error) {
	var d dqblk
	err := quotactl(q.fd(), qGetQuota, id, &d)
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: xfs has no account for it, where ext4 would create one
		return Usage{}, fmt.Errorf("usage of project %d: %w", id, err)
	}
	return d.usage(), nil
}

func (d *dqblk) usage() Usage {
	return Usage{Bytes: d.space, Inodes: d.inodes, Limits: Limits{Bytes: d.spaceHard * limitUnit, Inodes: d.inodesHard}}
}

// entry returns the account of the first project from id on that has one, or nil.
func (q *Quotas) entry(id uint32) (*dqblk, error) {
	var d dqblk
	err := quotactl(q.fd(), qGetNextQuota, id, &d)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

func (q *Quotas) known(id uint32) bool { return id >= q.first && id-q.first < q.count }

// ID returns the project id that Make gave to an open directory, in this run of the keeper or an
// earlier one. ErrForeign: it gave none.
func (q *Quotas) ID(dir int) (uint32, error) {
	id, inherit, err := project(dir)
	if err != nil {
		return 0, fmt.Errorf("project of a directory: %w", err)
	}
	if !q.known(id) || !inherit {
		return 0, ErrForeign
	}
	return id, nil
}

// Usage returns the usage and limits of one of our projects.
func (q *Quotas) Usage(id uint32) (Usage, error) {
	if !q.known(id) {
		return Usage{}, ErrForeign
	}
	return q.usage(id)
}

// Set changes the limits of a project while it is used. A *UsedError: more than that is used
// already, and nothing has changed. ErrForeign: it has no limits that could be changed.
func (q *Quotas) Set(id uint32, l Limits) error {
	want, err := q.round(l)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	before, err := q.Usage(id)
	if err != nil {
		return err
	}
	if before.Limits == (Limits{}) {
		return ErrForeign
	}
	if before.exceeds(want) {
		return &UsedError{ID: id, Usage: before, Want: want}
	}
	if err := q.limit(id, want); err != nil {
		return err
	}
	// What was written in between counts too; from here on the kernel refuses more.
	after, err := q.usage(id)
	if err != nil {
		return err
	}
	if after.exceeds(want) {
		return errors.Join(&UsedError{ID: id, Usage: after, Want: want}, q.limit(id, before.Limits))
	}
	return nil
}

func (u Usage) exceeds(l Limits) bool { return u.Bytes > l.Bytes || u.Inodes > l.Inodes }

// Remove takes a project id back after its directory is gone. A *UsedError: something is still in
// the project, such as a deleted file that is open, or what xfs has yet to clean up; its limits
// stay, and Sweep takes it back later.
func (q *Quotas) Remove(id uint32) error {
	if !q.known(id) {
		return ErrForeign
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	u, err := q.usage(id)
	if err != nil {
		return err
	}
	if u.Bytes != 0 || u.Inodes != 0 {
		return &UsedError{ID: id, Usage: u}
	}
	if u.Limits == (Limits{}) {
		return nil
	}
	// Limits are removed by the claimant with the project's only inode: then no other keeper, which may also have found it
	// unused, can be giving it to a new directory.
	token, err := unix.Openat(q.fd(), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("take back project %d: %w", id, err)
	}
	defer unix.Close(token) // the inode leaves the project when it is closed
	_, ours, err := q.claim(token, id, false)
	if err != nil {
		return fmt.Errorf("take back project %d: %w", id, err)
	}
	if !ours {
		return &UsedError{ID: id, Usage: u}
	}
	return q.limit(id, Limits{})
}

// Sweep takes back all project ids that have limits and whose directories are gone, whichever keeper set them.
func (q *Quotas) Sweep() error {
	ids, err := leftOver(q.first, q.count, q.entry)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := q.Remove(id); err != nil {
			if _, used := errors.AsType[*UsedError](err); !used {
				return err
			}
		}
	}
	return nil
}

// leftOver returns the ids that have limits and are not used.
func leftOver(first, count uint32, entry func(id uint32) (*dqblk, error)) ([]uint32, error) {
	var ids []uint32
	for n := uint32(0); n < count; {
		d, err := entry(first + n)
		if err != nil {
			return nil, err
		}
		if d == nil || d.id < first+n { // no more entries, or an impossible one
			break
		}
		if n = d.id - first; n < count && d.limited() && !d.used() {
			ids = append(ids, d.id)
		}
		n++
	}
	return ids, nil
}
