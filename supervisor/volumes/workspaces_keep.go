// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Keep begins to turn the workspace of a box into a named one, with its quota: EndBox does it when the box ends. From here on no
// boxd removes it.
func (s *Workspaces) Keep(owner, name, box string, settings *policy.Settings, by policy.Mechanism) error {
	if err := policy.ValidSpaceName("workspace", name); err != nil {
		return err
	}
	if !settings.ManagedWork() || settings.Workspace != "" {
		f := fault.Errorf(fault.Conflict, "the session has no temporary workspace to keep").WithHint("host directories and named workspaces are kept anyway")
		f.Field, f.Value = "workspace", name
		return f
	}
	key := policy.SpaceKey(owner, name)
	if _, err := os.Lstat(filepath.Join(s.place, key)); !errors.Is(err, fs.ErrNotExist) {
		s.mu.Lock()
		known := s.all[key] != nil
		s.mu.Unlock()
		if !known { // load has logged it; enter refuses a known one
			return fault.Errorf(fault.Conflict, "files of a workspace %s without a record exist", fault.Show(name)).WithHint("choose another name")
		}
	}
	if s.keptAs(box) != "" {
		return fault.Errorf(fault.Conflict, "the workspace of the session is already being kept by another request").WithHint("try again when that is done")
	}
	r := WorkspaceRecord{Name: name, Owner: owner, Created: time.Now(), Quota: settings.WorkspaceQuota, Inodes: settings.WorkspaceInodes, State: keeping, From: box}
	if r.Quota > 0 {
		r.KeptBy = by
	}
	if err := s.enter(key, &workspace{WorkspaceRecord: r, users: map[string]string{}, busy: true}, s.Config().Sessions.MaxWorkspaces); err != nil {
		return err
	}
	if err := s.write(key, &r); err != nil {
		return errors.Join(err, s.forget(key))
	}
	return nil
}

// forget removes a record without files, and frees its name.
func (s *Workspaces) forget(key string) error {
	err := s.dir.Remove(key + suffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, key)
	return err
}

// keptAs returns the key of the workspace that a box's will become; "": none.
func (s *Workspaces) keptAs(box string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sp := range s.all {
		if sp.State == keeping && sp.From == box {
			return key
		}
	}
	return ""
}

// EndBox ends a box, and removes its workspace or gives it the name from Keep. It may be called again.
func (s *Workspaces) EndBox(ctx context.Context, box string) error {
	key := s.keptAs(box)
	if key == "" {
		return s.Boxes.End(ctx, box, true)
	}
	if err := s.Boxes.Keep(ctx, box, isolation.SpacesDir+"/"+key); err != nil {
		return fmt.Errorf("keep its workspace: %v", err) //nolint:errorlint // a keeper that is gone is no end of this: the next one does it
	}
	s.mu.Lock()
	sp := s.all[key]
	r := sp.WorkspaceRecord
	s.mu.Unlock()
	r.State, r.From = "", ""
	if err := s.write(key, &r); err != nil {
		return err
	}
	s.Ledger.Resume(r.Owner, key, s.reading(key, &r))
	s.mu.Lock()
	sp.WorkspaceRecord, sp.busy, sp.lost = r, false, false
	s.mu.Unlock()
	return s.Boxes.End(ctx, box, true)
}

// Snapshot describes a workspace from Keep, once its box has ended. A box that had ended before has left nothing.
func (s *Workspaces) Snapshot(owner, name string) (Workspace, error) {
	key := policy.SpaceKey(owner, name)
	s.mu.Lock()
	late, box := false, ""
	if sp := s.all[key]; sp != nil && sp.State == keeping {
		late, box = true, sp.From
	}
	s.mu.Unlock()
	if late && !s.isMissing(box) {
		return Workspace{}, fault.Errorf(fault.Unavailable, "the workspace is not kept yet").WithHint("boxd does it after its restart")
	}
	if late {
		f := fault.Errorf(fault.Conflict, "the session was already ending, and its workspace is removed")
		f.Field, f.Value = "workspace", name
		return Workspace{}, errors.Join(f, s.forget(key))
	}
	return s.Get(owner, name)
}

// isMissing reports whether the workspace of a box is gone.
func (s *Workspaces) isMissing(box string) bool {
	_, err := os.Lstat(filepath.Join(s.own, box))
	return errors.Is(err, fs.ErrNotExist)
}

// resumeKeeping completes what an earlier boxd began: the box may still run, or its workspace may already have its new name.
func (s *Workspaces) resumeKeeping(ctx context.Context, key string, sp *workspace) {
	s.mu.Lock()
	sp.busy = true
	s.mu.Unlock()
	err := s.EndBox(ctx, sp.From)
	if err == nil {
		return
	}
	if s.isMissing(sp.From) {
		s.Log.Error("a workspace that should be kept is missing", "workspace", sp.Name, "owner", sp.Owner, "error", errors.Join(err, s.forget(key)))
		return
	}
	s.Log.Error("cannot keep a workspace yet; trying again later", "workspace", sp.Name, "owner", sp.Owner, "error", err)
}
