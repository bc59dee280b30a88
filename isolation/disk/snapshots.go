// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Snapshots of a box's files on disk are clones of its directory whose files share their blocks with it (FICLONE), in
// snapshots/KEY beside the workspaces. All metadata is in the name, CREATED-BYTES-FILES-NAME, so a snapshot exists completely or
// not at all. They belong to the project of the box, and count in its quota. A box is dead while it is snapshotted, so its
// directory does not change meanwhile; its content is as hostile as ever.

// partial is the prefix of incomplete or removed snapshots. No snapshot has such a name.
const partial = ".partial-"

// ChangeSnapshots carries out a request, and returns the snapshots that the box has afterwards. The box must not run while one is
// made or restored, and calls for one box must not overlap. EEXIST and ENOENT are about the name.
func (w *Workspaces) ChangeSnapshots(ctx context.Context, m *isolation.ChangeSnapshots) (*isolation.Snapshots, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	all, err := openWork(filepath.Dir(w.root.Name()), statedir.Snapshots, 0)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	s := &snapshots{w: w, all: all, key: m.Key}
	switch m.Op {
	case isolation.SnapshotMake:
		err = s.inside(func() error { return s.create(ctx, m.Name) })
	case isolation.SnapshotRestore:
		err = s.inside(func() error { return s.restore(ctx, m.Name) })
	case isolation.SnapshotRemove:
		err = s.inside(func() error { return s.remove(m.Name) })
	case isolation.SnapshotList:
	}
	if err != nil {
		return nil, err
	}
	list, err := s.list()
	return &isolation.Snapshots{List: list}, err
}

// DropSnapshots removes all snapshots of a box.
func (w *Workspaces) DropSnapshots(key string) error {
	dir := filepath.Join(filepath.Dir(w.root.Name()), statedir.Snapshots)
	if _, err := os.Lstat(filepath.Join(dir, key)); errors.Is(err, fs.ErrNotExist) || !isolation.ValidKey(key) {
		return nil // most boxes have no snapshots
	}
	all, err := openWork(filepath.Dir(dir), statedir.Snapshots, 0)
	if err != nil {
		return err
	}
	defer all.Close()
	id, _ := w.idOf(key)
	_, err = w.removed.take(all, key, id)
	return err
}

// SweepSnapshots removes snapshots that an earlier keeper has not finished making or removing, and those of boxes whose files are
// gone. No snapshots may be changed meanwhile.
func (w *Workspaces) SweepSnapshots() error {
	if _, err := os.Lstat(filepath.Join(filepath.Dir(w.root.Name()), statedir.Snapshots)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	all, err := openWork(filepath.Dir(w.root.Name()), statedir.Snapshots, 0)
	if err != nil {
		return err
	}
	defer all.Close()
	keys, err := fs.ReadDir(all.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range keys {
		if _, err := w.root.Lstat(k.Name()); errors.Is(err, fs.ErrNotExist) {
			_, err := w.removed.take(all, k.Name(), 0)
			errs = append(errs, err)
			continue
		}
		s := &snapshots{w: w, all: all, key: k.Name()}
		errs = append(errs, s.inside(s.sweep))
	}
	return errors.Join(errs...)
}

// snapshots are the snapshots of one box.
type snapshots struct {
	w   *Workspaces
	all *os.Root // of all boxes
	key string
	dir *os.Root // of this one; only during inside
}

// inside calls f with the box's directory of snapshots, which it makes, and removes afterwards if empty.
func (s *snapshots) inside(f func() error) (err error) {
	if err = s.all.Mkdir(s.key, 0o700); err == nil {
		err = s.count()
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		s.dir, err = s.all.OpenRoot(s.key)
	}
	if err == nil {
		err = f()
		s.dir.Close()
	}
	if rerr := s.all.Remove(s.key); rerr != nil && !errors.Is(rerr, unix.ENOTEMPTY) && !errors.Is(rerr, fs.ErrExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

// count puts a new directory of snapshots, and so its future content, into the box's project, if the box has one.
func (s *snapshots) count() error {
	id, limited := s.w.idOf(s.key)
	if !limited {
		return nil
	}
	dir, err := s.all.Open(s.key)
	if err != nil {
		return err
	}
	defer dir.Close()
	return setProject(int(dir.Fd()), id, true)
}

// list returns the snapshots, the oldest first.
func (s *snapshots) list() ([]isolation.Snapshot, error) {
	entries, err := fs.ReadDir(s.all.FS(), s.key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []isolation.Snapshot
	for _, e := range entries {
		if snapshot, ok := readName(e.Name()); ok {
			list = append(list, snapshot)
		}
	}
	slices.SortFunc(list, func(a, b isolation.Snapshot) int {
		return strings.Compare(entryName(&a), entryName(&b))
	})
	return list, err
}

// entryName is the name of the directory of a snapshot. Names sort by time.
func entryName(s *isolation.Snapshot) string {
	return fmt.Sprintf("%020d-%d-%d-%s", s.Created, s.Bytes, s.Files, s.Name)
}

// readName is the reverse of entryName.
func readName(entry string) (s isolation.Snapshot, ok bool) {
	parts := strings.SplitN(entry, "-", 4)
	if len(parts) < 4 {
		return s, false
	}
	for i, n := range []*uint64{&s.Created, &s.Bytes, &s.Files} {
		*n, _ = strconv.ParseUint(parts[i], 10, 64)
	}
	s.Name = parts[3]
	return s, isolation.ValidSnapshotName(s.Name) && entryName(&s) == entry
}

// find returns a snapshot by its name. ENOENT: there is none.
func (s *snapshots) find(name string) (*isolation.Snapshot, []isolation.Snapshot, error) {
	list, err := s.list()
	if err != nil {
		return nil, nil, err
	}
	for i := range list {
		if list[i].Name == name {
			return &list[i], list, nil
		}
	}
	return nil, list, unix.ENOENT
}

// create makes a snapshot. EEXIST: there is one with this name.
func (s *snapshots) create(ctx context.Context, name string) error {
	switch _, list, err := s.find(name); {
	case err == nil:
		return unix.EEXIST
	case !errors.Is(err, unix.ENOENT):
		return err
	case len(list) >= isolation.MaxSnapshots:
		return unix.EMFILE
	}
	from, err := s.w.OpenPath(s.key)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if err := s.cloneable(); err != nil {
		return err
	}
	size, err := copyTree(ctx, from, -1, -1)
	if err != nil {
		return s.explain(from, err)
	}
	quotas, _, u, err := s.quota()
	if err == nil && quotas != nil {
		err = roomFor(size, Limits{u.Bytes, u.Inodes}, u.Limits)
	}
	if err != nil {
		return err
	}
	temporary, err := s.clone(ctx, from)
	if err == nil {
		record := isolation.Snapshot{Name: name, Created: uint64(time.Now().UnixNano()), Bytes: size.Bytes, Files: size.Inodes}
		err = s.dir.Rename(temporary, entryName(&record))
	}
	if err != nil {
		return errors.Join(err, s.sweep())
	}
	dir, err := s.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// restore replaces the box's files on disk with a copy of a snapshot, in one step.
func (s *snapshots) restore(ctx context.Context, name string) error {
	snapshot, list, err := s.find(name)
	if err != nil {
		return cmp.Or(s.cloneable(), err) // a filesystem that cannot clone explains why there is none
	}
	if err := s.sweep(); err != nil { // only the snapshots and the box's files must count
		return err
	}
	restore, err := s.makeRoom(snapshot, list)
	if err != nil {
		return err
	}
	err = s.replace(ctx, entryName(snapshot))
	return errors.Join(err, s.sweep(), restore())
}

func (s *snapshots) replace(ctx context.Context, entry string) error {
	dir, err := s.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	from, err := linux.OpenBeneath(int(dir.Fd()), entry, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	temporary, err := s.clone(ctx, from)
	if err != nil {
		return err
	}
	work, err := s.w.root.Open(".")
	if err != nil {
		return err
	}
	defer work.Close()
	if err := unix.Renameat2(int(dir.Fd()), temporary, int(work.Fd()), s.key, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	var st unix.Stat_t // its mtime is changed on xfs, by the change of ".." in it
	err = unix.Fstat(from, &st)
	if err == nil {
		err = unix.UtimesNanoAt(int(work.Fd()), s.key, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	}
	return errors.Join(err, work.Sync(), dir.Sync())
}

// clone copies a directory, syncs the copy, and returns its name.
func (s *snapshots) clone(ctx context.Context, from int) (temporary string, err error) {
	var dirs [2]*os.File
	for i := range dirs {
		temporary = partial + rand.Text()
		if err := s.dir.Mkdir(temporary, 0o700); err != nil {
			return "", err
		}
		if dirs[i], err = s.dir.Open(temporary); err != nil {
			return "", err
		}
		defer dirs[i].Close()
	}
	links, to := dirs[0], dirs[1]
	if _, err := copyTree(ctx, from, int(to.Fd()), int(links.Fd())); err != nil {
		return "", s.explain(int(to.Fd()), err)
	}
	if err := removeAll(s.dir, filepath.Base(links.Name())); err != nil {
		return "", err
	}
	return temporary, unix.Syncfs(int(to.Fd()))
}

// remove removes a snapshot. It leaves the list before any of its content is removed.
func (s *snapshots) remove(name string) error {
	snapshot, _, err := s.find(name)
	if err != nil {
		return cmp.Or(s.cloneable(), err)
	}
	if err := s.dir.Rename(entryName(snapshot), partial+rand.Text()); err != nil {
		return err
	}
	return s.sweep()
}

// sweep removes unfinished snapshots.
func (s *snapshots) sweep() error {
	entries, err := fs.ReadDir(s.dir.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partial) {
			errs = append(errs, removeAll(s.dir, e.Name()))
		}
	}
	return errors.Join(errs...)
}

// cloneable refuses a filesystem whose files cannot share blocks, by trying with two unnamed files.
func (s *snapshots) cloneable() error {
	dir, err := s.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	var files [2]*os.File
	for i := range files {
		fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return s.explain(int(dir.Fd()), err)
		}
		files[i] = os.NewFile(uintptr(fd), "clone")
		defer files[i].Close()
	}
	return s.explain(int(dir.Fd()), unix.IoctlFileClone(int(files[0].Fd()), int(files[1].Fd())))
}

// explain turns the error of a tree that is too large, or of a filesystem that cannot clone files, into a refusal that says so.
func (s *snapshots) explain(dir int, err error) error {
	if reach, large := errors.AsType[*reachError](err); large {
		return refusedSnapshot(unix.E2BIG, "workspace", reach.Path, "in a tree of at most "+reach.What)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY) {
		allowed := "one whose files can share blocks (reflink), such as xfs or btrfs; " + s.w.root.Name() + " is on another"
		if s.w.StoreFilesystem() != "" {
			allowed += ", which workspaces.store_filesystem decides when the store is made"
		}
		return refusedSnapshot(unix.EOPNOTSUPP, "filesystem", kindOf(dir), allowed)
	}
	return err
}

// quota returns the project of the box with what it uses, if it has one.
func (s *snapshots) quota() (quotas *Quotas, id uint32, u Usage, err error) {
	id, limited := s.w.idOf(s.key)
	quotas, _ = s.w.quotasOrReason()
	if !limited || quotas == nil {
		return nil, 0, u, nil
	}
	u, err = quotas.Usage(id)
	if u.Limits == (Limits{}) {
		quotas = nil
	}
	return quotas, id, u, err
}

// roomFor refuses an operation if the limits leave no room beside the present usage.
func roomFor(size, used, maximum Limits) error {
	if used.Bytes+size.Bytes <= maximum.Bytes && used.Inodes+size.Inodes <= maximum.Inodes {
		return nil
	}
	return refusedSnapshot(unix.EDQUOT, "workspace_quota", fmt.Sprintf("%dMiB, %d files", maximum.Bytes>>20, maximum.Inodes),
		fmt.Sprintf("at least %dMiB and %d files, for %dMiB and %d files in use and those of the snapshot",
			(used.Bytes+size.Bytes+1<<20-1)>>20, used.Inodes+size.Inodes, (used.Bytes+1<<20-1)>>20, used.Inodes))
}

// makeRoom raises the limits of a box's project to what it has, its snapshots and a copy of one of them, until restore is called.
// If the keeper dies before, the next start of the box sets its limits. What the box has afterwards must fit.
func (s *snapshots) makeRoom(snapshot *isolation.Snapshot, list []isolation.Snapshot) (restore func() error, err error) {
	quotas, id, u, err := s.quota()
	if err != nil || quotas == nil {
		return func() error { return nil }, err
	}
	var all Limits
	for i := range list {
		all.Bytes, all.Inodes = all.Bytes+list[i].Bytes, all.Inodes+list[i].Files
	}
	if err := roomFor(Limits{snapshot.Bytes, snapshot.Files}, all, u.Limits); err != nil {
		return nil, err
	}
	return quotas.widen(id, u.Limits)
}

// widen more than doubles the limits of a project, and returns a function that restores them, however much is used then: xfs
// counts deleted files for a while.
func (q *Quotas) widen(id uint32, l Limits) (restore func() error, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	restore = func() error {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.limit(id, l)
	}
	return restore, q.limit(id, Limits{Bytes: 2*l.Bytes + 64<<20, Inodes: 2*l.Inodes + 1<<10})
}

// refusedSnapshot returns a refusal by a rule. errno tells what kind it is.
func refusedSnapshot(errno syscall.Errno, field, value, allowed string) error {
	return &isolation.StepError{Step: isolation.StepWorkspace, Item: "snapshot", Errno: errno, Refused: &isolation.Refusal{Field: field, Value: value, Allowed: allowed}}
}
