// SPDX-License-Identifier: Apache-2.0

// Workspaces that boxd manages, and the quota of each.

package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/overlay"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Workspaces is the directory of the managed workspaces of one keeper's boxes. It is safe for
// concurrent use.
type Workspaces struct {
	*Place
	Spaces  *Place            // the named workspaces, in a directory beside it
	kind    string            // what enforces quotas
	store   *Store            // nil: workspaces are in the state directory itself
	noStore *UnavailableError // why there is no store, though one was to be; nil: there is one, or the reason is another
	removed *removals
	count   count // of workspaces and trees
	lists   int   // the group that may list workspaces and trees, each of which is closed by its own mode; 0: none
	log     *log.Logger

	mu     sync.Mutex // guards the fields below
	quotas *Quotas    // nil: not available
	why    error      // why quotas are not available
}

// Place is a directory of workspaces.
type Place struct {
	dir  *Workspaces // the Workspaces it is part of
	root *os.Root
	ids  map[string]uint32 // guarded by dir.mu
}

// storeTimeout bounds the making of the store, which makes a filesystem.
const storeTimeout = 5 * time.Minute

// OpenWorkspaces opens the directory for workspaces. If the state directory's filesystem enforces
// project quotas it is there; otherwise it is in a filesystem of our own of that kind, if storeSize allows one
// and the host can mount it. It makes no workspace that would be one more than most, 0 being any number. The group lists may list them; 0: no group. Removals that fail after
// they were answered are logged to l.
func OpenWorkspaces(state, storeKind string, storeSize uint64, most, lists int, l *log.Logger) (*Workspaces, error) {
	w := &Workspaces{kind: isolation.QuotaProject, lists: lists, log: l}
	if err := w.open(state); err != nil {
		return nil, err
	}
	w.quotas, w.why = OpenQuotas(w.root)
	if storeSize != 0 && errors.As(w.why, new(*UnavailableError)) {
		if err := w.openStore(state, storeKind, storeSize); err != nil {
			w.noStore, _ = errors.AsType[*UnavailableError](err)
			w.why = errors.Join(w.why, err)
		}
	}
	w.count = count{dir: filepath.Dir(w.root.Name()), most: most, n: most} // it is looked at with the first
	var err error
	if w.removed, err = openRemovals(filepath.Dir(w.root.Name()), w.returnProjects, l); err != nil {
		w.Close(false)
		return nil, err
	}
	if err := w.sweepTrees(); err != nil {
		l.Printf("cannot remove what is left of images: %v", err)
	}
	return w, nil
}

// open opens the two directories.
func (w *Workspaces) open(dir string) error {
	work, err := openWork(dir, "workspaces", w.lists)
	if err != nil {
		return err
	}
	named, err := openWork(dir, isolation.SpacesDir, w.lists)
	if err != nil {
		work.Close()
		return err
	}
	w.Place, w.Spaces = &Place{w, work, map[string]uint32{}}, &Place{w, named, map[string]uint32{}}
	return nil
}

// allow gives a group a right to a directory that is otherwise its owner's alone; 0: there is none.
func allow(group int, path string, right uint32) error {
	if group == 0 {
		return nil
	}
	if err := unix.Fchownat(unix.AT_FDCWD, path, -1, group, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(unix.AT_FDCWD, path, 0o700|right, 0)
}

func (w *Workspaces) openStore(state, kind string, size uint64) error {
	dir, err := os.OpenRoot(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	store, err := OpenStore(ctx, dir, kind, size)
	if err != nil {
		return err
	}
	own, shared := w.Place, w.Spaces
	if err = allow(w.lists, store.Root().Name(), 0o010); err == nil {
		err = w.open(store.Root().Name())
	}
	if err == nil {
		if w.quotas, err = OpenQuotas(w.root); err != nil {
			w.closePlaces()
			w.Place, w.Spaces = own, shared
		}
	}
	if err != nil {
		return errors.Join(err, store.Close())
	}
	own.root.Close()
	shared.root.Close()
	w.store, w.kind, w.why = store, isolation.QuotaStore, nil
	for _, name := range []string{statedir.Removed, statedir.HostBases} { // of a keeper that had no store
		if err := removeAll(dir, name); err != nil {
			w.log.Printf("cannot remove what an earlier start has left: %v", err)
		}
	}
	return nil
}

// StoreFilesystem is the type of the filesystem of the store, "" if there is none.
func (w *Workspaces) StoreFilesystem() string {
	if w.store == nil {
		return ""
	}
	return w.store.Kind()
}

func (w *Workspaces) closePlaces() {
	w.root.Close()
	w.Spaces.root.Close()
}

// Close closes the workspaces; what they contain stays. While living boxes use them, the store
// stays mounted, and the next OpenWorkspaces finds it.
func (w *Workspaces) Close(inUse bool) {
	if w.removed != nil {
		w.removed.close()
	}
	if w.quotas != nil {
		w.quotas.Close()
	}
	w.closePlaces()
	switch {
	case w.store == nil:
		return
	case inUse:
		w.store.leave()
		return
	}
	if err := w.store.Close(); err != nil {
		w.log.Printf("cannot close the store: %v", err)
	}
}

// Probe sets in h what enforces quotas. If the disk was full before, it tests again: then there
// was no room for the test.
func (w *Workspaces) Probe(h *isolation.Host) {
	h.Workspaces = w.root.Name()
	w.mu.Lock()
	defer w.mu.Unlock()
	unavailable, missing := errors.AsType[*UnavailableError](w.why)
	full := !missing && errors.Is(w.why, unix.ENOSPC)
	if full {
		w.quotas, w.why = OpenQuotas(w.root)
	}
	switch {
	case w.quotas != nil:
		h.Quota = w.kind
		return
	case missing:
		h.QuotaHint = cmp.Or(w.noStore, unavailable).Hint() // a store is what takes least
	case full:
		h.QuotaHint = "free disk space in " + w.root.Name()
	}
	h.NoQuota = w.why.Error()
}

// quotasOrReason returns what enforces quotas, or why nothing does.
func (w *Workspaces) quotasOrReason() (*Quotas, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quotas, w.why
}

// openWork opens a directory of managed workspaces. It belongs to root and is closed to all others, but for a group that may see what is in it; 0:
// none. Users of the host cannot reach what boxes create in it, such as setuid files.
func openWork(state, name string, lists int) (*os.Root, error) {
	dir := filepath.Join(state, name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	if mode := info.Mode().Perm(); !info.IsDir() || mode != 0o700 && (lists == 0 || mode != 0o750) {
		return nil, fmt.Errorf("%s: want a directory of mode 0700, have %v", dir, info.Mode())
	}
	if err := allow(lists, dir, 0o050); err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	return root, nil
}

// make makes an empty directory with a quota that belongs to the box user.
func (p *Place) make(key string, quota isolation.Quota) error {
	err := p.dir.count.add(func() error { return p.root.Mkdir(key, 0o700) })
	if _, statErr := p.root.Lstat(key); statErr == nil && errors.As(err, new(*isolation.StepError)) {
		err = fs.ErrExist // no more would have been made
	}
	if err != nil {
		return err
	}
	err = p.root.Lchown(key, isolation.BoxUID, isolation.BoxGID)
	if err == nil && quota != (isolation.Quota{}) {
		err = p.limit(key, quota)
	}
	if err != nil {
		_ = p.root.Remove(key)
	}
	return err
}

func (p *Place) limit(key string, quota isolation.Quota) error {
	quotas, why := p.dir.quotasOrReason()
	if quotas == nil {
		return why
	}
	dir, err := p.root.Open(key)
	if err != nil {
		return err
	}
	defer dir.Close()
	id, err := quotas.Make(int(dir.Fd()), Limits(quota))
	if err != nil {
		return err
	}
	p.dir.mu.Lock()
	defer p.dir.mu.Unlock()
	p.ids[key] = id
	return nil
}

// SetQuota changes the quota of a workspace in use, and returns a function that undoes it. ESRCH:
// it has no quota.
func (p *Place) SetQuota(key string, quota isolation.Quota) (undo func() error, err error) {
	id, ok := p.idOf(key)
	if !ok {
		return nil, unix.ESRCH
	}
	quotas, _ := p.dir.quotasOrReason()
	before, err := quotas.Usage(id)
	if err != nil {
		return nil, err
	}
	undo = func() error { return quotas.Set(id, before.Limits) }
	return undo, quotas.Set(id, Limits(quota))
}

// OpenPath opens a workspace with O_PATH, which needs no permission to read it.
func (p *Place) OpenPath(key string) (int, error) {
	dir, err := p.root.Open(".")
	if err != nil {
		return -1, err
	}
	defer dir.Close()
	return linux.OpenBeneath(int(dir.Fd()), key, unix.O_PATH|unix.O_DIRECTORY)
}

// Remove deletes a workspace and its quota. The box is dead, so nothing below changes meanwhile;
// symbolic links are removed, never followed. What is in it is removed later, unless the disk is short of room: see removals.
func (p *Place) Remove(key string) error {
	id, _ := p.idOf(key)
	removed, err := p.dir.removed.take(p.root, key, id)
	if err != nil {
		return fmt.Errorf("remove workspace: %w", err)
	}
	p.dir.mu.Lock()
	delete(p.ids, key)
	p.dir.mu.Unlock()
	p.dir.removed.makeRoom(removed)
	return nil
}

// returnProjects takes back the project ids of what was removed; 0 stands for one that has to be found.
func (w *Workspaces) returnProjects(ids []uint32) error {
	quotas, _ := w.quotasOrReason()
	if quotas == nil {
		return nil
	}
	var errs []error
	sweep := false
	for _, id := range ids {
		if id == 0 {
			sweep = true
			continue
		}
		err := quotas.Remove(id)
		used := errors.As(err, new(*UsedError)) // xfs counts deleted files for a while; the quota is swept later
		if err != nil && !used {
			errs = append(errs, fmt.Errorf("project %d: %w", id, err))
		}
		sweep = sweep || used
	}
	if sweep {
		errs = append(errs, quotas.Sweep())
	}
	return errors.Join(errs...)
}

// Remove deletes what a box has on disk, its snapshots first, and its quota.
func (w *Workspaces) Remove(key string) error {
	return errors.Join(w.DropSnapshots(key), w.Place.Remove(key))
}

// idOf returns the project id of a workspace, also of one that an earlier keeper has made.
func (p *Place) idOf(key string) (uint32, bool) {
	p.dir.mu.Lock()
	id, ok := p.ids[key]
	quotas := p.dir.quotas
	p.dir.mu.Unlock()
	if ok || quotas == nil {
		return id, ok
	}
	dir, err := p.root.Open(key)
	if err != nil {
		return 0, false
	}
	defer dir.Close()
	id, err = quotas.ID(int(dir.Fd()))
	return id, err == nil
}

// OpenFor opens the workspace of a box: its own, or the named one that it mounts.
func (w *Workspaces) OpenFor(spec *isolation.Spec) (int, error) {
	switch {
	case spec.Space != "":
		if err := giveToBoxUser(w.Spaces.root, spec.Space); err != nil {
			return -1, err
		}
		return w.Spaces.OpenPath(spec.Space)
	case spec.OwnDir():
		return w.OpenPath(spec.Key + "/" + workName)
	}
	return w.OpenPath(spec.Key)
}

// OpenHome opens the home directory of a box that has one on disk.
func (w *Workspaces) OpenHome(key string) (int, error) { return w.OpenPath(key + "/" + homeName) }

// Names in the directory of a box with a writable root or a home on disk: they are beside the changes
// to the root, in one directory whose quota is for all of it.
const (
	workName = "workspace"
	homeName = "home"
)

// MakeFor makes what a box has on disk of its own. The directories for the changes to a writable
// root belong to root on disk, which is PID 1 of the box; PID 1 makes what is in them. They are
// there for a home on disk as well, by which hasOwnDir knows the directory.
func (w *Workspaces) MakeFor(spec *isolation.Spec) error {
	err := w.make(spec.Key, spec.Work)
	if err != nil || !spec.OwnDir() {
		return err
	}
	for _, d := range []struct {
		name  string
		owner int
	}{{overlay.Upper, 0}, {overlay.Work, 0}, {workName, isolation.BoxUID}, {homeName, isolation.BoxUID}} {
		if d.name == homeName && !spec.DiskHome {
			continue
		}
		if err = w.makePart(spec.Key, d.name, d.owner); err != nil {
			return errors.Join(err, w.Remove(spec.Key))
		}
	}
	return nil
}

// makePart makes a directory in that of a box.
func (w *Workspaces) makePart(key, part string, owner int) error {
	name := filepath.Join(key, part)
	if err := w.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	return w.root.Lchown(name, owner, owner)
}

// Resume makes what a box has left on disk ready for the next one of the same key, and gives it the
// quota of that. overlayfs does not mount the work directory of an overlay that was volatile a
// second time, so there is a new one: nothing in it belongs to the box.
func (w *Workspaces) Resume(spec *isolation.Spec) error {
	if info, err := w.root.Lstat(spec.Key); err != nil || !info.IsDir() {
		return errors.Join(err, unix.ENOENT)
	}
	if spec.Work != (isolation.Quota{}) {
		if _, err := w.SetQuota(spec.Key, spec.Work); err != nil { // ESRCH: made without a quota, so that its usage cannot be counted any more
			return err
		}
	}
	if err := w.giveBack(spec); err != nil || !spec.Writable {
		return err
	}
	dir, err := w.root.OpenRoot(spec.Key)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeAll(dir, overlay.Work); err != nil { // at once, as the quota may have no room for both
		return err
	}
	return w.makePart(spec.Key, overlay.Work, 0)
}

// giveBack gives the workspace of a box and its home to the box user: root of the box may have given them to another one, as whom
// no program starts.
func (w *Workspaces) giveBack(spec *isolation.Spec) error {
	if !spec.OwnDir() {
		return nil // there has been no root
	}
	for _, part := range []string{workName, homeName} {
		err := giveToBoxUser(w.root, filepath.Join(spec.Key, part))
		if err != nil && (part == workName || spec.DiskHome) {
			return err
		}
	}
	return nil
}

// giveToBoxUser changes the owner of a directory, if that is another: whoever watches it hears of a change.
func giveToBoxUser(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == isolation.BoxUID && st.Gid == isolation.BoxGID {
		return nil
	}
	return root.Lchown(name, isolation.BoxUID, isolation.BoxGID)
}

// Sync writes the directory of a box that has ended to the disk, with everything in it. It is no error
// if the box has none.
func (w *Workspaces) Sync(key string) error {
	dir, err := w.root.Open(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}

// ChangeSpace makes a named workspace, or removes it. If it exists already only its quota is set,
// as the caller may have missed an earlier reply; if it does not exist, it counts as removed. The
// caller has to make sure that no box uses it.
func (w *Workspaces) ChangeSpace(s *isolation.ChangeSpace) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Remove {
		return w.Spaces.Remove(s.Key)
	}
	err := w.Spaces.make(s.Key, s.Quota)
	if errors.Is(err, fs.ErrExist) && s.Quota != (isolation.Quota{}) {
		_, err = w.Spaces.SetQuota(s.Key, s.Quota)
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return err
}
