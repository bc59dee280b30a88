// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// The state directory is root's, since the keeper has workspaces there. boxd's own directories in it belong to the user that boxd runs
// as. Where that is not root, boxd cannot make them: boxd -prepare does, which its unit runs as root before.

// identity is a user of the host.
type identity struct{ uid, gid int }

// userOf looks a user up; "" is the one of this process.
func userOf(name string) (identity, error) {
	if name == "" {
		return identity{os.Geteuid(), os.Getegid()}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return identity{}, fmt.Errorf("-user %s: %w; systemd-sysusers boxd.conf makes the user of the packages", name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	if err = errors.Join(err, gerr); err != nil {
		return identity{}, fmt.Errorf("-user %s: %w", name, err)
	}
	if uid != 0 && gid == 0 { // the keeper would take it for root's
		return identity{}, fmt.Errorf("-user %s: must have a primary group of its own, not root's", name)
	}
	return identity{uid, gid}, nil
}

// ownDirs are the directories below the state directory that boxd writes to; the rest is the keeper's. A part of boxd that needs another
// one does not start without it being listed here.
var ownDirs = []string{statedir.Daemon, "audit", statedir.DriveStore, "images", "named-workspaces", "sessions", statedir.SkillStore, "usage"}

// ownFiles are those of statedir.Daemon. An earlier boxd had them in the state directory itself.
var ownFiles = []string{"drained.json", "grants.json", "langbot-admission", "langbot-skills-taken", "previews.json", "secrets.json"}

// lockFile is locked by a boxd for as long as it uses the state directory.
const lockFile = "lock"

// prepareDirs makes the directories of the boxd of a user, who need not be root, and gives it what an earlier boxd has left there.
func prepareDirs(cfg *Daemon, boxdUser identity) error {
	if err := errors.Join(openRun(cfg.RuntimeDir, boxdUser), openState(cfg.StateDir, boxdUser)); err != nil {
		return err
	}
	lock, err := lockOwn(cfg.StateDir, linux.StartPatience)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := makeOwnDirs(cfg.StateDir); err != nil {
		return err
	}
	state, err := os.OpenRoot(cfg.StateDir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer state.Close()
	for _, name := range append(ownDirs, lockFile) {
		if err := chownTree(state, name, boxdUser); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	if boxdUser.uid != 0 {
		return nil
	}
	return closeToOthers(cfg)
}

// closeToOthers takes back what another user than root had been allowed, before a downgrade to a boxd that is root: that, and its keeper, refuse
// directories that anybody else may list.
func closeToOthers(cfg *Daemon) error {
	dirs := []string{cfg.StateDir, filepath.Join(cfg.RuntimeDir, isolation.KeeperDir)}
	for _, at := range []string{cfg.StateDir, filepath.Join(cfg.StateDir, "store")} {
		for _, name := range []string{"workspaces", isolation.SpacesDir, statedir.ImageTrees} {
			dirs = append(dirs, filepath.Join(at, name))
		}
	}
	for _, dir := range dirs {
		if err := os.Chmod(dir, 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// openRun makes the runtime directory, with what the unit of boxd has to find there, and lets the group of a user reach the keeper.
func openRun(dir string, boxdUser identity) error {
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{{"", 0o755}, {isolation.KeeperDir, 0o700}, {isolation.BoxesDir, 0o700}, {filepath.Base(bootDir), 0o755}} {
		path := filepath.Join(dir, d.name)
		err := os.MkdirAll(path, d.mode)
		if err == nil {
			err = os.Chmod(path, d.mode) // whatever the umask
		}
		if err != nil {
			return fmt.Errorf("runtime directory: %w", err)
		}
	}
	if err := allowGroup(filepath.Join(dir, isolation.KeeperDir), boxdUser); err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	return nil
}

// openState makes the state directory, if there is none, and lets a user enter it who is not root. It stays root's with its group, and with
// what it has: systemd, if told by a unit to make it, gives all below it to that unit's user when the group is another.
func openState(dir string, boxdUser identity) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err == nil && (!info.IsDir() || owner(info) != os.Geteuid()) {
		err = fmt.Errorf("want a directory of uid %d, have %v of %d", os.Geteuid(), info.Mode(), owner(info))
	}
	if err == nil && boxdUser.uid != os.Geteuid() {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		return fmt.Errorf("state directory %s: %w", dir, err)
	}
	return nil
}

// allowGroup lets the group of a user enter and list a directory of this one.
func allowGroup(dir string, boxdUser identity) error {
	if boxdUser.uid == os.Geteuid() {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return errors.Join(root.Chown(".", -1, boxdUser.gid), root.Chmod(".", 0o750))
}

// chownTree gives a user what is at a name, with all below it, which nobody may write to meanwhile but root. The name itself comes last: what
// belongs to the user has been given whole, and is not looked at again, since the user may have put anything there.
func chownTree(state *os.Root, name string, boxdUser identity) error {
	info, err := state.Lstat(name)
	if err == nil && info.Mode().Type() == fs.ModeSymlink { // somebody has it elsewhere, and sees to it
		info, err = os.Stat(filepath.Join(state.Name(), name))
		if err == nil && owner(info) != boxdUser.uid {
			err = fmt.Errorf("%s is a symbolic link to what belongs to uid %d: chown -R %d:%d what it leads to", name, owner(info), boxdUser.uid, boxdUser.gid)
		}
		return err
	}
	if err != nil || owner(info) == boxdUser.uid {
		return err
	}
	if info.Mode().IsRegular() && hasOtherNames(info) {
		return fmt.Errorf("%s has more than one hard link: must be a file of its own", name)
	}
	was := owner(info)
	if was != 0 && boxdUser.uid != 0 { // that user could change it meanwhile
		return fmt.Errorf("%s belongs to uid %d: must belong to root or to uid %d; chown -R %d:%d %s", name, was, boxdUser.uid, boxdUser.uid, boxdUser.gid, filepath.Join(state.Name(), name))
	}
	linked := name == statedir.SkillStore || name == statedir.DriveStore // whose versions share the files that stay
	err = fs.WalkDir(state.FS(), name, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == name {
			return err
		}
		if info, err = d.Info(); err != nil || owner(info) != was || !linked && info.Mode().IsRegular() && hasOtherNames(info) {
			return err // a file with other names may be the keeper's
		}
		return state.Lchown(path, boxdUser.uid, boxdUser.gid)
	})
	if err != nil {
		return err
	}
	return state.Lchown(name, boxdUser.uid, boxdUser.gid)
}

// owner returns the uid of the owner of a file.
func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) } //nolint:forcetypeassert // as os has it on Linux

// hasOtherNames reports whether a file has more than one hard link.
func hasOtherNames(info fs.FileInfo) bool { return info.Sys().(*syscall.Stat_t).Nlink > 1 } //nolint:forcetypeassert // as os has it on Linux

// lockState makes the state directory and locks out every other boxd, after waiting for one that is ending. Then it makes boxd's own
// directories there.
func lockState(dir string, timeout time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err == nil {
		err = closedTo(info, 0o711)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", dir, err)
	}
	lock, err := lockOwn(dir, timeout)
	if err == nil && owner(info) == os.Geteuid() { // otherwise boxd -prepare has made them
		if err = makeOwnDirs(dir); err != nil {
			lock.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// lockOwn locks out every other boxd of a state directory.
func lockOwn(dir string, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := linux.Lock(int(f.Fd()), timeout); err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory %s is in use by another boxd: %w", dir, err)
	}
	return f, nil
}

// closedTo refuses a directory that is not this user's and closed to all others, or, where this is not root, one of root's that boxd -prepare
// has made.
func closedTo(dir fs.FileInfo, prepared fs.FileMode) error {
	mode := dir.Mode().Perm()
	switch uid := os.Geteuid(); {
	case dir.IsDir() && owner(dir) == uid && mode == 0o700, dir.IsDir() && owner(dir) == 0 && uid != 0 && mode == prepared:
		return nil
	case uid != 0 && owner(dir) == 0:
		return fmt.Errorf("want mode %#o and owner root, as boxd -prepare makes it, have %v", prepared, dir.Mode())
	default:
		return fmt.Errorf("want mode 0700 and owner uid %d, have %v and %d", uid, dir.Mode(), owner(dir))
	}
}

// makeOwnDirs makes boxd's directories in the state directory, and moves to them what an earlier boxd has left in the state directory itself. A
// file at its earlier place is newer than one at its place: then an earlier boxd has run meanwhile.
func makeOwnDirs(state string) error {
	dir, err := os.OpenRoot(state)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer dir.Close()
	for _, name := range ownDirs {
		if err := dir.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	if info, err := dir.Lstat(statedir.Daemon); err != nil || owner(info) != os.Geteuid() {
		return err // it has been given, and nobody but its user may write there
	}
	for _, name := range ownFiles {
		if err := move(dir, name, path.Join(statedir.Daemon, name)); err != nil {
			return fmt.Errorf("move a record of an earlier boxd: %w", err)
		}
	}
	return nil
}

// move renames a file, if it exists, or a directory. The entries of a directory are added to those of one that is there.
func move(dir *os.Root, from, to string) error {
	err := dir.Rename(from, to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return err
	}
	entries, err := fs.ReadDir(dir.FS(), from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := dir.Rename(path.Join(from, e.Name()), path.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return dir.Remove(from)
}

// lockRun keeps every other boxd from the keeper of a runtime directory, whose part of that it makes.
func lockRun(dir string, timeout time.Duration) (*os.File, error) {
	own := filepath.Join(dir, isolation.KeeperDir)
	if os.Geteuid() == 0 {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("runtime directory: %w", err)
		}
		if err := os.Mkdir(own, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("runtime directory: %w", err)
		}
	}
	f, err := os.OpenFile(own, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		err = closedTo(info, 0o750)
	}
	if err != nil { // a user who can write there could pose as the keeper
		f.Close()
		return nil, fmt.Errorf("runtime directory %s: %w", own, err)
	}
	if err := linux.Lock(int(f.Fd()), timeout); err != nil {
		f.Close()
		return nil, fmt.Errorf("runtime directory %s is in use by another boxd: %w", dir, err)
	}
	return f, nil
}
