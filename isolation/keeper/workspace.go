// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/mountfd"
	"github.com/boxd-dev/boxd/isolation"
)

// openWork opens the directory of the managed workspaces. It is root's and closed to all others:
// what boxes make in there, setuid bits included, is out of reach for users of the host.
func openWork(state string) (*os.Root, error) {
	dir := filepath.Join(state, "workspaces")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	if !info.IsDir() || info.Mode().Perm() != 0o700 {
		return nil, fmt.Errorf("%s: want a directory of mode 0700, have %v", dir, info.Mode())
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	return root, nil
}

// makeWorkspace makes an empty directory that belongs to the box user's id.
func (k *Keeper) makeWorkspace(key string) error {
	if err := k.work.Mkdir(key, 0o700); err != nil {
		return err
	}
	if err := k.work.Lchown(key, isolation.BoxUID, isolation.BoxGID); err != nil {
		_ = k.work.Remove(key)
		return err
	}
	return nil
}

// workOwner owns managed workspaces on disk: the box user's own number, which no user of the host can
// use there, as the directory above is closed to all.
func workOwner() owner {
	return owner{uid: isolation.BoxUID, gid: isolation.BoxGID, mapped: true, managed: true}
}

func (k *Keeper) openWorkspace(key string) (int, error) {
	dir, err := k.work.Open(".")
	if err != nil {
		return -1, err
	}
	defer dir.Close()
	return mountfd.OpenBeneath(int(dir.Fd()), key, unix.O_PATH|unix.O_DIRECTORY)
}

// removeWorkspace deletes a workspace. The box is dead, so nothing changes below while it does;
// links are removed, never followed.
func (k *Keeper) removeWorkspace(key string) error {
	if err := k.work.RemoveAll(key); err != nil {
		return fmt.Errorf("remove workspace: %w", err)
	}
	return nil
}
