// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// openSupervisor opens the store of images, and the supervisor, which holds what its sessions have of them. end ends both.
func openSupervisor(ctx context.Context, cfg *Config, in *front, boxes *driver.Driver, seen *notes, keep bool) (store *images.Store, sup *supervisor.Supervisor, end func(), err error) {
	store, err = images.Open(cfg.Images, images.Parts{ //nolint:contextcheck // what nobody wants is removed in the life of boxd
		StateDir: cfg.Daemon.StateDir, Boxes: boxes, Log: seen.log, Life: context.WithoutCancel(ctx), // sessions end after ctx
		Policy: func() *policy.Config { return &cfg.Config }, Changed: func() { sup.SetWarm() },
	})
	if err != nil {
		return nil, nil, nil, err
	}
	hush := supervisor.OpenSecrets(supervisor.SecretsConfig{Dir: in.state, Credentials: access.Credentials(), Boxes: boxes, Log: seen.log})
	sup, err = supervisor.New(ctx, cfg.Config, supervisor.Parts{
		Boxes: boxes, Stores: supervisor.AttachmentStores{Skills: in.skills, Drives: in.drives, Images: store}, Secrets: hush, StateDir: cfg.Daemon.StateDir, Log: seen.log,
		AdoptGrace: time.Duration(cfg.Daemon.AdoptGrace), Keep: keep, Events: seen.Events,
	})
	if err != nil {
		store.Close()
		return nil, nil, nil, err
	}
	sup.Revoke(in.gate.IsOut) // of those whom the configuration has shut out meanwhile
	return store, sup, func() { sup.Close(); store.Close() }, nil
}
