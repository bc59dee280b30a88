// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"path"
	"slices"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Admitted is what LangBot's own admission allows a tenant.
type Admitted struct {
	Most      int64  // sessions of the Workspace, in all its generations
	Namespace string // of the Workspace
	Work      string // the host directory that contains the directories of all Workspaces
	Soft      bool   // drop a quota that cannot be enforced here
}

// home is the host directory of the Workspace.
func (a *Admitted) home() string { return path.Join(a.Work, tenants, a.Namespace) }

// tenants is the directory of the Workspaces in LangBot's own directory.
const tenants = "tenants"

// recheck refuses a call if what was allowed when it began is not allowed any more.
func (t Tenant) recheck() error {
	if t.Still == nil {
		return nil
	}
	return t.Still()
}

// admit refuses a session that a tenant may not have, or that exceeds its maximum.
func (b *Boxes) admit(t *Tenant, another bool) error {
	if err := t.recheck(); err != nil || t.Admitted == nil {
		return err
	}
	var has int64
	for _, info := range b.list() {
		if namespace, _, _, ok := wire.SplitID(info.ID); ok && namespace == t.Admitted.Namespace {
			if _, err := b.find(info.ID); err == nil { // otherwise it is ending
				has++
			}
		}
	}
	switch {
	case has > t.Admitted.Most:
		return wire.Refusef("BoxAdmissionError", "Sandbox admission session limit exceeded")
	case another && has >= t.Admitted.Most:
		return wire.Refusef("BoxAdmissionError", "Sandbox admission session limit reached")
	}
	return nil
}

// home makes the directory of a Workspace without following a link out of LangBot's own directory: a link there would
// decide whose files the Workspace gets.
const home = `cd /workspace || exit 22
for d in tenants "tenants/$1"; do
  [ ! -L "$d" ] || exit 24
  [ -d "$d" ] || mkdir -- "$d" || [ -d "$d" ] || exit 22
done`

// makeWork makes LangBot's own host directory if it is missing: LangBot looks for it as soon as it has sent its path.
func (b *Boxes) makeWork(ctx context.Context, work string) error {
	owner, err := b.Owner()
	if err != nil {
		return err
	}
	s, err := b.withWork(ctx, owner, &policy.Request{
		ID: "langbot-work-" + policy.NewID(), Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true,
	}, work)
	if err != nil {
		return mountError(err, "")
	}
	return b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot)
}

// prepare makes the directory of an admitted tenant, in a box that has only LangBot's own directory, as a user who may
// write there.
func (b *Boxes) prepare(ctx context.Context, owner access.Principal, a *Admitted) error {
	s, err := b.withWork(ctx, owner, &policy.Request{
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
		return wire.Refusef("BoxAdmissionError", "Managed sandbox host_path is reached by a link, which is not followed")
	}
	return wire.Refusef("BoxAdmissionError", "Managed sandbox host_path cannot be made")
}

// withWork makes a session with write access to LangBot's own directory, which is made if it is missing.
func (b *Boxes) withWork(ctx context.Context, owner access.Principal, req *policy.Request, work string) (*session.Session, error) {
	mount, err := mountOf(mountSpec{HostPath: work, MountPath: isolation.Workspace, Mode: modeReadWrite})
	if err != nil {
		return nil, err
	}
	req.Mounts = append(req.Mounts, mount)
	b.dropQuota(req)
	s, _, err := b.Sup.Create(ctx, owner, req)
	if isMissing(err) {
		if err := b.makeDirectory(ctx, owner, mount.Source); err != nil {
			return nil, err
		}
		s, _, err = b.Sup.Create(ctx, owner, req)
	}
	return s, err
}

// dropQuota removes the quota of boxes that maintain directories of many Workspaces: it would apply to all of those
// together, or be one that the kernel cannot enforce.
func (b *Boxes) dropQuota(req *policy.Request) {
	unbound(req, b.locked(), b.Sup.CanBound)
}

func unbound(req *policy.Request, locked bool, can func(dir string) error) {
	noQuota(req, locked && !slices.ContainsFunc(req.Mounts, func(m policy.Mount) bool { return can(m.Source) == nil }))
}

// locked reports whether the profile forbids a request for another quota.
func (b *Boxes) locked() bool {
	profiles, _ := b.Sup.Profiles()
	return slices.Contains(profiles[b.Profile].Locked, "workspace_quota")
}

// noQuota requests no quota. Leaving it out means the profile's quota; if that is locked, it can only be left out.
func noQuota(req *policy.Request, locked bool) {
	req.WorkspaceQuota = nil
	if !locked {
		req.WorkspaceQuota = new(quantity.Size(0))
	}
}

// relaxQuota removes a quota that cannot be enforced, also that of the profile, if the operator allows sessions without one.
func (b *Boxes) relaxQuota(t *Tenant, req *policy.Request) {
	err := t.Admitted.relaxQuota(req, b.locked, b.Sup.CanBound)
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

// relaxQuota returns why the quota was removed, nil if it was not.
func (a *Admitted) relaxQuota(req *policy.Request, locked func() bool, can func(dir string) error) error {
	if a == nil || !a.Soft {
		return nil
	}
	err := can(a.home())
	if err != nil {
		noQuota(req, locked())
	}
	return err
}
