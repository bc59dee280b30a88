// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"io"
	"path"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// reading makes a box whose workspace is a host directory, read-only, and that has nothing else of the host: no link
// leads out of it. stop ends it.
func (b *Boxes) reading(ctx context.Context, id, root string) (s *session.Session, stop func() error, err error) {
	owner, err := b.Owner()
	if err != nil {
		return nil, nil, err
	}
	mount, err := mountOf(mountSpec{HostPath: root, MountPath: isolation.Workspace, Mode: modeReadOnly})
	if err != nil {
		return nil, nil, err
	}
	s, _, err = b.Sup.Create(ctx, owner, &policy.Request{
		ID: id, Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true, Mounts: []policy.Mount{mount},
	})
	if err != nil {
		return nil, nil, err
	}
	return s, func() error { return b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot) }, nil
}

func readingID() string { return "langbot-read-" + policy.NewID() }

// pack writes an archive of a directory below root. No link leads out of root, wherever in the path it is.
func (b *Boxes) pack(ctx context.Context, root, below string, w io.Writer) error {
	id := readingID()
	s, stop, err := b.reading(ctx, id, root)
	if err != nil {
		return mountError(err, id)
	}
	_, err = sessionfiles.Pack(ctx, s, &files.Pack{Path: []byte(path.Join(isolation.Workspace, below))}, w)
	return errors.Join(err, stop())
}
