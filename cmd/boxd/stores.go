// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// openSupervisor opens the store of images, and the supervisor, whose sessions use images. stop closes both.
func openSupervisor(ctx context.Context, cfg *Config, in *front, boxes *driver.Driver, seen *notes, keep bool) (store *images.Store, sup *supervisor.Supervisor, stop func(), err error) {
	store, err = images.Open(cfg.Images, images.Parts{ //nolint:contextcheck // what nobody wants is removed in the life of boxd
		StateDir: cfg.Daemon.StateDir, Boxes: boxes, Log: seen.log, Life: context.WithoutCancel(ctx), // sessions end after ctx
		Policy: func() *policy.Config { return &cfg.Config }, Changed: func() { sup.SetWarm() },
	})
	if err != nil {
		return nil, nil, nil, err
	}
	secrets := supervisor.OpenSecrets(supervisor.SecretsConfig{Dir: in.state, Credentials: access.Credentials(), Boxes: boxes, Log: seen.log})
	sup, err = supervisor.New(ctx, cfg.Config, supervisor.Parts{
		Boxes: boxes, Stores: supervisor.AttachmentStores{Skills: in.skills, Drives: in.drives, Images: store}, Secrets: secrets, Send: sender(cfg), Pack: pack, StateDir: cfg.Daemon.StateDir, Log: seen.log,
		AdoptGrace: time.Duration(cfg.Daemon.AdoptGrace), Keep: keep, Events: seen.Events, Checks: in.checks(cfg),
	})
	if err != nil {
		store.Close()
		return nil, nil, nil, err
	}
	sup.Revoke(in.gate.IsOut) // of owners that the configuration no longer admits
	return store, sup, func() { sup.Close(); store.Close() }, nil
}

// pushSocket is the name of boxd-push.socket's socket in the runtime directory.
const pushSocket = "push.sock"

// sender returns how to reach the program that sends results to buckets: by the socket of its unit, or, if boxd also
// starts its keeper, by starting one for each archive.
func sender(cfg *Config) supervisor.Sender {
	unit := driver.DialStream(filepath.Join(cfg.Daemon.RuntimeDir, pushSocket))
	dial := func(ctx context.Context) (*net.UnixConn, error) {
		conn, err := unit(ctx)
		if err != nil {
			err = fmt.Errorf("%w; on this host: systemctl enable --now boxd-push.socket", err)
		}
		return conn, err
	}
	if cfg.Daemon.Keeper != keeperExternal {
		dial = func(ctx context.Context) (*net.UnixConn, error) {
			own, err := os.Executable()
			if err != nil {
				return nil, fmt.Errorf("find boxctl: %w", err)
			}
			return driver.ChildStream(filepath.Join(filepath.Dir(own), "boxctl"), os.Stderr, "drives", "send")(ctx)
		}
	}
	return func(ctx context.Context, to *driver.BucketTarget, archive func(io.Writer) error) (string, error) {
		return driver.SendTo(ctx, dial, to, archive)
	}
}

// pack packs a directory of a session inside its box.
func pack(ctx context.Context, s *session.Session, dir string, w io.Writer) error {
	_, err := sessionfiles.Pack(ctx, s, &files.Pack{Path: []byte(dir)}, w)
	return err
}
