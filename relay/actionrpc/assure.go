// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"path"
	"slices"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Admitted is what LangBot's own admission allows a tenant.
type Admitted struct {
	Most      int64  // sessions of the Workspace, whatever their generation
	Namespace string // of the Workspace
	Work      string // the directory of the host in which all Workspaces have theirs
	Soft      bool   // a quota that cannot be kept here is none
}

// Home is the directory of the host that a Workspace has for its own.
func (a *Admitted) Home() string { return path.Join(a.Work, tenants, a.Namespace) }

// tenants is where the Workspaces are in LangBot's own directory.
const tenants = "tenants"

// still refuses what was allowed when a call began, and is so no longer.
func (t Tenant) still() error {
	if t.Still == nil {
		return nil
	}
	return t.Still()
}

// admit refuses a session that a tenant may not have, or not have one more.
func (b *Boxes) admit(t *Tenant, another bool) error {
	if err := t.still(); err != nil || t.Admitted == nil {
		return err
	}
	var has int64
	for _, info := range b.list() {
		if namespace, _, _, ok := splitID(info.ID); ok && namespace == t.Admitted.Namespace {
			if _, err := b.find(info.ID); err == nil { // or it is ending
				has++
			}
		}
	}
	switch {
	case has > t.Admitted.Most:
		return refusalf("BoxAdmissionError", "Sandbox admission session limit exceeded")
	case another && has >= t.Admitted.Most:
		return refusalf("BoxAdmissionError", "Sandbox admission session limit reached")
	}
	return nil
}

// home makes the directory of a Workspace, where no link leads out of LangBot's own: whoever makes one there decides
// whose files a Workspace has.
const home = `cd /workspace || exit 22
for d in tenants "tenants/$1"; do
  [ ! -L "$d" ] || exit 24
  [ -d "$d" ] || mkdir -- "$d" || [ -d "$d" ] || exit 22
done`

// MakeWork makes LangBot's own directory of the host, if there is none: LangBot looks for it as soon as it has said which
// that is.
func (b *Boxes) MakeWork(ctx context.Context, work string) error {
	who, err := b.Owner()
	if err != nil {
		return err
	}
	s, err := b.withWork(ctx, who, &policy.Request{
		ID: "langbot-work-" + policy.NewID(), Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true,
	}, work)
	if err != nil {
		return mountError(err, "")
	}
	return b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot)
}

// prepare sees to the directory of an admitted tenant, in a box that has LangBot's own directory alone, as who may write
// there.
func (b *Boxes) prepare(ctx context.Context, who access.Principal, a *Admitted) error {
	s, err := b.withWork(ctx, who, &policy.Request{
		ID: "langbot-home-" + policy.NewID(), Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true,
	}, a.Work)
	if err != nil {
		return mountError(err, "")
	}
	r, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{"/bin/sh", "-c", home, "sh", a.Namespace}, Dir: s.Home()})
	if err = errors.Join(err, b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot)); err != nil {
		return explain(err, "")
	}
	switch {
	case r.Status == session.StatusExited && r.ExitCode == 0:
		return nil
	case r.ExitCode == 24:
		return refusalf("BoxAdmissionError", "Managed sandbox host_path is reached by a link, which is not followed")
	}
	return refusalf("BoxAdmissionError", "Managed sandbox host_path cannot be made")
}

// withWork makes a session that has LangBot's own directory to write to, which is made if it is missing.
func (b *Boxes) withWork(ctx context.Context, who access.Principal, req *policy.Request, work string) (*session.Session, error) {
	mount, err := mountOf(mountSpec{HostPath: work, MountPath: isolation.Workspace, Mode: modeReadWrite})
	if err != nil {
		return nil, err
	}
	req.Mounts = append(req.Mounts, mount)
	b.unbound(req)
	s, _, err := b.Sup.Create(ctx, who, req)
	if isMissing(err) {
		if err := b.makeDirectory(ctx, who, mount.Source); err != nil {
			return nil, err
		}
		s, _, err = b.Sup.Create(ctx, who, req)
	}
	return s, err
}

// unbound has boxes that see to directories of many Workspaces give those no quota: it would be one of all of them
// together, or one that the kernel cannot keep.
func (b *Boxes) unbound(req *policy.Request) {
	unbound(req, b.locked(), b.Sup.CanBound)
}

func unbound(req *policy.Request, locked bool, can func(dir string) error) {
	noQuota(req, locked && !slices.ContainsFunc(req.Mounts, func(m policy.Mount) bool { return can(m.Source) == nil }))
}

// locked reports whether nobody may ask for another quota than the profile's.
func (b *Boxes) locked() bool {
	profiles, _ := b.Sup.Profiles()
	return slices.Contains(profiles[b.Profile].Locked, "workspace_quota")
}

// noQuota asks for none, where nothing asked for is the profile's. Where that is locked it can only be left out.
func noQuota(req *policy.Request, locked bool) {
	req.WorkspaceQuota = nil
	if !locked {
		req.WorkspaceQuota = new(quantity.Size(0))
	}
}

// soften takes a quota away that cannot be kept, also that of the profile, where the operator has said that none needs
// to be.
func (b *Boxes) soften(t *Tenant, req *policy.Request) {
	err := t.Admitted.soften(req, b.locked, b.Sup.CanBound)
	if t.Admitted == nil && b.Soft && req.WorkspaceQuota != nil {
		i := slices.IndexFunc(req.Mounts, func(m policy.Mount) bool { return m.Target == isolation.Workspace && m.Mode == policy.MountReadWrite })
		if i >= 0 {
			if err = b.Sup.CanBound(req.Mounts[i].Source); err != nil {
				noQuota(req, b.locked())
			}
		}
	}
	if err != nil {
		b.Log.Warn("a workspace of LangBot has no quota: its filesystem cannot enforce one, and langbot.allow_soft_storage_limits allows that",
			"session", req.ID, "because", err)
	}
}

// soften says why there is no quota any more, nil if nothing was taken away.
func (a *Admitted) soften(req *policy.Request, locked func() bool, can func(dir string) error) error {
	if a == nil || !a.Soft {
		return nil
	}
	err := can(a.Home())
	if err != nil {
		noQuota(req, locked())
	}
	return err
}
