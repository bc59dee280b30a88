// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"
	"context"
	"errors"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// maxProbe is the maximum length in bytes of a file that LangBot has a box read.
const maxProbe = 1024

// reads prints a file of the workspace twice; its exit code tells why it cannot.
const reads = `cd /workspace && [ -w . ] || exit 21
[ -e "./$1" ] && [ ! -L "./$1" ] || exit 22
[ -f "./$1" ] || exit 23
head -c 1025 "./$1" && head -c 1025 "./$1" || exit 22`

// probe reads a file of a host directory as boxes see it: in a box that has the directory, writable, and nothing else of
// the host. Errors are those of the protocol.
func (b *Boxes) probe(ctx context.Context, dir, name string) ([]byte, error) {
	unready := func(text string) error { return wire.Refusef("BoxReadinessError", "%s", text) }
	const unread = "Box Runtime cannot read the Core shared Workspace probe"
	owner, err := b.Owner()
	if err != nil {
		return nil, err
	}
	mount, err := mountOf(mountSpec{HostPath: dir, MountPath: isolation.Workspace, Mode: modeReadWrite})
	if err != nil {
		return nil, unready(unread)
	}
	req := &policy.Request{
		ID: "langbot-probe-" + policy.NewID(), Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true, Mounts: []policy.Mount{mount},
	}
	b.dropQuota(req)
	s, _, err := b.Sup.Create(ctx, owner, req)
	if isMissing(err) {
		return nil, unready("Managed sandbox admission requires box.local.default_workspace")
	}
	if err != nil {
		b.Log.Warn("no box can use the workspace that LangBot asks to verify", "directory", dir, "error", err)
		return nil, unready(unread)
	}
	r, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{"/bin/sh", "-c", reads, "sh", name}})
	if err = errors.Join(err, b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot)); err != nil {
		return nil, err
	}
	code := r.ExitCode
	if r.Status != session.StatusExited {
		code = 22
	}
	once, twice := halves(r.Streams[0].Data)
	switch {
	case code == 21:
		return nil, unready("Managed sandbox workspace path is not writable")
	case code == 23:
		return nil, unready("Box shared Workspace probe is not a regular file")
	case code != 0:
		return nil, unready(unread)
	case !bytes.Equal(once, twice):
		return nil, unready("Box shared Workspace probe changed while being verified")
	case len(once) == 0 || len(once) > maxProbe:
		return nil, unready("Box shared Workspace probe has an invalid size")
	}
	return once, nil
}

// halves splits a text into halves; they differ if the text is not the same thing twice.
func halves(text []byte) (one, other []byte) {
	n := len(text) / 2
	return text[:n], text[n:]
}
