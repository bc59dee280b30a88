// SPDX-License-Identifier: Apache-2.0

package boxes

import (
	"context"
	"errors"
	"io"
	"path"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/actionrpc/model"
	"github.com/boxd-dev/boxd/supervisor"
	does "github.com/boxd-dev/boxd/supervisor/files"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Pack writes an archive of a directory below one of the host. It is made in a box that has nothing else of the host:
// no link leads out of root, whatever is in the way to the directory.
func (b *Boxes) Pack(ctx context.Context, root, below string, w io.Writer) error {
	who, err := b.Who()
	if err != nil {
		return err
	}
	mount, err := mountOf(model.Mount{HostPath: root, MountPath: isolation.Workspace, Mode: model.ReadOnly})
	if err != nil {
		return err
	}
	id := "langbot-read-" + policy.NewID()
	s, _, err := b.Sup.Create(ctx, who, &policy.Request{
		ID: id, Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true, Mounts: []policy.Mount{mount},
	})
	if err != nil {
		return mountError(err, id)
	}
	_, err = does.Pack(ctx, s, &files.Pack{Path: []byte(path.Join(isolation.Workspace, below))}, w)
	return errors.Join(err, b.Sup.End(context.WithoutCancel(ctx), s, supervisor.EndOneShot))
}
