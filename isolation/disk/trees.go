// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/overlay"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// Trees of images are what boxes have unpacked into their workspaces. They lie beside the
// workspaces, on the same filesystem and closed to everyone else in the same way, and are never
// written to again. Nothing in them is ever resolved as a path outside of a box.

// doomed is the prefix of trees that are being removed; isolation.ValidTree accepts none of them.
const doomed = ".doomed-"

// openTrees opens the directory of the trees.
func (w *Workspaces) openTrees() (*os.File, error) {
	root, err := openWork(filepath.Dir(w.root.Name()), statedir.ImageTrees, w.lists)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(".")
}

// Keep turns the workspace of a box that has ended into the tree of an image or, for isolation.SpacesDir/KEY, into a named workspace, with its
// quota. It may be called again. What of that box was a writable root or a home on disk is left for Remove, and counts in the quota until then.
func (w *Workspaces) Keep(key, tree string) error {
	space, named := strings.CutPrefix(tree, isolation.SpacesDir+"/")
	if named && (&isolation.ChangeSpace{Key: space}).Validate() != nil || !named && !isolation.ValidTree(tree) || (&isolation.ChangeSpace{Key: key}).Validate() != nil {
		return unix.EINVAL
	}
	work, err := w.root.Open(".")
	if err != nil {
		return err
	}
	defer work.Close()
	var place *os.File
	name := key
	switch {
	case !named:
		place, err = w.openTrees()
	case hasOwnDir(int(work.Fd()), key):
		name += "/" + workName
		fallthrough
	default:
		tree = space
		place, err = w.Spaces.root.Open(".")
	}
	if err != nil {
		return err
	}
	defer place.Close()
	to := int(place.Fd())
	err = unix.Renameat2(int(work.Fd()), name, to, tree, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.ENOENT) && unix.Faccessat(to, tree, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil // an earlier keeper has done it
	}
	if err != nil {
		return fmt.Errorf("keep the workspace: %w", err)
	}
	w.mu.Lock()
	delete(w.ids, key) // it is not this box's any more: its project id is found by the tree or the directory
	w.mu.Unlock()
	return errors.Join(place.Sync(), work.Sync())
}

// hasOwnDir reports whether the directory of a box holds its workspace beside the changes to its root and its home. The
// directories for those belong to root, which nothing made by a program does.
func hasOwnDir(work int, key string) bool {
	fd, err := linux.OpenBeneath(work, key+"/"+overlay.Upper, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Uid == 0
}

// TreeTop opens the uppermost directory of a tree with O_PATH, which needs no permission to read
// it.
func (w *Workspaces) TreeTop(tree string) (int, error) {
	if !isolation.ValidTree(tree) {
		return -1, unix.EINVAL
	}
	trees, err := w.openTrees()
	if err != nil {
		return -1, err
	}
	defer trees.Close()
	return linux.OpenBeneath(int(trees.Fd()), path.Join(tree, statedir.ImageRoot), unix.O_PATH|unix.O_DIRECTORY)
}

// OpenTree returns a detached mount of a tree, read-only, nodev and nosuid.
func (w *Workspaces) OpenTree(tree string) (int, error) {
	top, err := w.TreeTop(tree)
	if err != nil {
		return -1, err
	}
	defer unix.Close(top)
	fd, err := linux.CloneMount(top, "", false)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := linux.RestrictMount(fd, &attr); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Drop renames a tree so that it cannot be opened any more; the function it returns removes it, and what earlier removals have
// left. It is no error if the tree does not exist.
func (w *Workspaces) Drop(tree string) (remove func() error, err error) {
	trees, err := w.openTrees()
	if err != nil {
		return nil, err
	}
	defer trees.Close()
	err = unix.Renameat2(int(trees.Fd()), tree, int(trees.Fd()), doomed+strings.ToLower(rand.Text()), unix.RENAME_NOREPLACE)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove the tree: %w", err)
	}
	return w.sweepTrees, nil
}

// sweepTrees removes the trees that Drop has renamed.
func (w *Workspaces) sweepTrees() error {
	root, err := os.OpenRoot(filepath.Join(filepath.Dir(w.root.Name()), statedir.ImageTrees))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), doomed) {
			_, err := w.removed.take(root, e.Name(), 0)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// MakeBase makes a directory that belongs to the box user, has it filled, and returns its name and an open descriptor.
func (w *Workspaces) MakeBase(fill func(dir int) error) (name string, dir *os.File, err error) {
	root, err := openWork(filepath.Dir(w.root.Name()), statedir.HostBases, 0)
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	name = rand.Text()
	if err := root.Mkdir(name, 0o755); err != nil {
		return "", nil, err
	}
	if dir, err = root.Open(name); err == nil {
		if err = errors.Join(dir.Chown(isolation.BoxUID, isolation.BoxGID), dir.Chmod(0o755), fill(int(dir.Fd()))); err == nil {
			return name, dir, nil
		}
		dir.Close()
	}
	_, rerr := w.removed.take(root, name, 0)
	return "", nil, errors.Join(err, rerr)
}

// DropBase removes what MakeBase has made, all if name is "". No box may use it.
func (w *Workspaces) DropBase(name string) error {
	dir, name := filepath.Split(filepath.Join(statedir.HostBases, name))
	root, err := os.OpenRoot(filepath.Join(filepath.Dir(w.root.Name()), dir))
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = w.removed.take(root, name, 0)
	return err
}
