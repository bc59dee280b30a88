// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// busyNow returns the refusal of a concurrent change of a workspace.
func busyNow(name string) error {
	f := fault.Errorf(fault.Conflict, "workspace %s is being changed by another request", fault.Show(name)).WithHint("try again")
	f.Field, f.Value = "name", name
	return f
}

// Change sets the quota of a workspace, for all sessions that use it; nil leaves a value as it is. A workspace made with a quota
// keeps one, and one made without never gets one: the kernel either counts its files or does not.
func (s *Workspaces) Change(ctx context.Context, owner, name string, effective *policy.EffectivePolicy, quota *quantity.Size, inodes *int) (Workspace, error) {
	key := policy.SpaceKey(owner, name)
	s.mu.Lock()
	sp, err := s.findLocked("name", owner, name)
	switch {
	case err != nil:
	case sp.busy:
		err = busyNow(name)
	case sp.lost:
		_, err = s.lendLocked("name", owner, name)
	case sp.Quota == 0:
		f := fault.Field("quota", fmt.Sprint(cmp.Or(quota, new(quantity.Size))), "left out for a workspace without a quota").Of(fault.Conflict).WithText("workspace %s was created without a quota, and cannot get one", fault.Show(name))
		err = f.WithHint("create another workspace with a quota, and copy the files to it")
	case quota != nil && *quota == 0:
		err = fault.Field("quota", 0, "a size, because the workspace has a quota")
	}
	if err != nil {
		s.mu.Unlock()
		return Workspace{}, err
	}
	was := sp.WorkspaceRecord
	now := was
	if now.Quota, now.Inodes, err = s.Config().SpaceQuota(effective, cmp.Or(quota, &was.Quota), cmp.Or(inodes, &was.Inodes)); err != nil {
		s.mu.Unlock()
		return Workspace{}, err
	}
	sp.busy = true // so that it is not removed meanwhile, or the keeper would make it again
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	now.Changing = true
	if err = s.write(key, &now); err == nil {
		if err = s.apply(ctx, key, &now); err != nil {
			err = errors.Join(err, s.write(key, &was))
			now = was
		}
	}
	s.mu.Lock()
	sp.busy = false
	if err == nil {
		sp.WorkspaceRecord = now
	}
	info := s.infoLocked(sp)
	s.mu.Unlock()
	if err != nil {
		return Workspace{}, failed(name, err)
	}
	return s.used(info), nil
}

// failed translates an error of the keeper about a workspace.
func failed(name string, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	if full := policy.WorkspacesFull(err); full != nil {
		return full
	}
	switch {
	case errors.Is(err, client.ErrNoKeeper), errors.Is(err, client.ErrKeeperGone):
		return fault.Errorf(fault.Unavailable, "cannot change workspace %s now: %w", fault.Show(name), err).WithHint("try again: boxd is starting a new keeper")
	case ok && step.Refused != nil:
		return fault.Field(strings.TrimPrefix(step.Refused.Field, "workspace_"), step.Refused.Value, step.Refused.Allowed).Of(fault.Conflict).WithHint("remove some of its files first")
	}
	return fmt.Errorf("workspace %q: %w", name, err)
}

// apply has the kernel enforce a record's quota, and then records that.
func (s *Workspaces) apply(ctx context.Context, key string, r *WorkspaceRecord) error {
	if quotaOf(r) != (isolation.Quota{}) {
		if err := s.Boxes.ChangeSpace(ctx, &isolation.ChangeSpace{Key: key, Quota: quotaOf(r)}); err != nil {
			return err
		}
	}
	r.Changing = false
	return s.write(key, r)
}

// resume completes a change that an earlier boxd began.
func (s *Workspaces) resume(ctx context.Context, key string, sp *workspace) {
	if !sp.Changing || sp.lost {
		return
	}
	if err := s.apply(ctx, key, &sp.WorkspaceRecord); err != nil {
		s.Log.Error("cannot set the quota of a workspace; it may differ from the record", "workspace", sp.Name, "owner", sp.Owner, "error", err)
	}
}
