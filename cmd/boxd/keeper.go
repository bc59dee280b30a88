// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// chooseKeeper decides what "auto" means. A boxd whose unit restricts it must not start a keeper: every box would be
// restricted too.
func chooseKeeper(c *Config, unit bool) error {
	switch {
	case unit && c.Daemon.Keeper == keeperOwn:
		return fmt.Errorf("daemon.keeper = %q: must be %q or %q, since boxd is started with -keeper-unit", keeperOwn, keeperAuto, keeperExternal)
	case unit:
		c.Daemon.Keeper = keeperExternal
	case c.Daemon.Keeper == keeperAuto:
		c.Daemon.Keeper = keeperOwn
	}
	return nil
}

// keeperConfig returns the configuration of a keeper that obeys a user, and the directory of the programs, which is boxd's own.
func keeperConfig(c *Config, boxdUser identity) (k isolation.KeeperConfig, dir string, err error) {
	own, err := os.Executable()
	if err != nil {
		return k, "", fmt.Errorf("find boxkeeper: %w", err)
	}
	dir = filepath.Dir(own)
	return isolation.KeeperConfig{
		RunDir: c.Daemon.RuntimeDir, StateDir: c.Daemon.StateDir, BoxdUID: uint32(boxdUser.uid), BoxdGID: uint32(boxdUser.gid), BoxInit: filepath.Join(dir, "boxinit"),
		IDBase: c.IDs.Base, IDCount: c.IDs.Count, IDLock: c.IDs.Lock, Ahead: c.Daemon.Ahead,
		Group: c.Groups.Path(), Store: uint64(c.Work.StoreSize), StoreFilesystem: c.Work.StoreFilesystem, Workspaces: c.Work.Max, Allow: c.allow(), Etc: c.Image.Etc, Network: c.networkWords(), Patience: time.Duration(c.Mounts.Patience), AIO: c.Limits.AIO, FileLocks: c.Limits.FileLocks,
		QuotaRoots: c.Mounts.QuotaRoots,
	}, dir, nil
}

// startKeeper connects to the keeper, and starts one if that is boxd's task.
func startKeeper(ctx context.Context, cfg *Config, log *slog.Logger) (*client.Keeper, error) {
	keeper, dir, err := keeperConfig(cfg, identity{os.Geteuid(), os.Getegid()})
	if err != nil {
		return nil, err
	}
	external := cfg.Daemon.Keeper == keeperExternal
	if !external {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, greetTimeout)
		defer cancel()
	}
	return client.StartKeeper(ctx, client.KeeperConfig{
		KeeperConfig: keeper, Program: filepath.Join(dir, "boxkeeper"), External: external, Stderr: os.Stderr, Log: log,
	})
}

// becomeKeeper turns this process into the keeper of a boxd that is this user, as a unit of its own. The keeper cannot read the
// configuration itself: no parser for it is linked in.
func becomeKeeper(cfg *Config, boxdUser identity) error {
	keeper, dir, err := keeperConfig(cfg, boxdUser)
	if err != nil {
		return err
	}
	if err := openState(cfg.Daemon.StateDir, boxdUser); err != nil { // boxd may not have made it yet
		return err
	}
	program := filepath.Join(dir, "boxkeeper")
	if err := unix.Exec(program, append(append([]string{program}, keeper.Flags()...), "-linger"), os.Environ()); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}
