// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// Validate gives the settings of a new session the quota of the workspace it asks for, and sets what enforces it. A session that has
// more than that on disk keeps its own quota, for the rest.
func (s *Workspaces) Validate(owner string, settings *policy.Settings, by map[string]policy.Mechanism) error {
	if len(settings.Lends()) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, in := range settings.Inputs {
		if _, err := s.lendLocked(fmt.Sprintf("inputs[%d].workspace", i), owner, in.Workspace); err != nil {
			return err
		}
	}
	if settings.Workspace == "" {
		return nil
	}
	sp, err := s.lendLocked("workspace", owner, settings.Workspace)
	if err != nil {
		return err
	}
	if sp.Quota > 0 && sp.KeptBy == policy.MechanismNone && !slices.Contains(s.Config().Limits.BestEffort, policy.LimitWorkspace) {
		return fault.Errorf(fault.Unsupported, "workspace %s has no quota enforced by the kernel, which limits.best_effort no longer allows", fault.Show(sp.Name)).
			WithHint("create another workspace, and copy the files to it")
	}
	if settings.OwnDir() {
		return nil
	}
	settings.WorkspaceQuota, settings.WorkspaceInodes = sp.Quota, sp.Inodes
	delete(by, policy.LimitWorkspace)
	if sp.Quota > 0 {
		by[policy.LimitWorkspace] = sp.KeptBy
	}
	return nil
}

// lendLocked finds a workspace whose files exist.
func (s *Workspaces) lendLocked(field, owner, name string) (*workspace, error) {
	sp, err := s.findLocked(field, owner, name)
	if err == nil && sp.lost {
		err = fault.Errorf(fault.Unavailable, "the files of workspace %s are missing", fault.Show(sp.Name)).WithHint("the path is in the log of boxd: journalctl -u boxd")
	}
	return sp, err
}

// Hold reserves a session's workspaces, until Release. Call it before its box is started.
func (s *Workspaces) Hold(key, id, owner string, settings *policy.Settings) error {
	names := settings.Lends()
	if len(names) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*workspace
	for _, name := range names {
		sp, err := s.findLocked("workspace", owner, name)
		if err != nil {
			return err
		}
		all = append(all, sp)
	}
	for _, sp := range all {
		sp.users[key] = id
	}
	return nil
}

// Restore reserves the workspaces of an earlier boxd's session. Missing ones are logged, the others reserved.
func (s *Workspaces) Restore(key, id, owner string, settings *policy.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range settings.Lends() {
		sp, err := s.findLocked("workspace", owner, name)
		if err != nil {
			s.Log.Error("the workspace of a session is missing", "session", id, "workspace", name, "owner", owner)
			continue
		}
		sp.users[key] = id
	}
}

// Release releases a session's workspaces; its box has ended or was never made.
func (s *Workspaces) Release(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.all {
		delete(sp.users, key)
	}
}

// reading is what the ledger counts for a workspace.
func (s *Workspaces) reading(key string, record *WorkspaceRecord) quota.Reading {
	r := quota.Reading{Space: true}
	if d := s.disk(key, record); d != nil {
		r.Disk = quantity.Size(d.Used)
	}
	return r
}

// Readings adds the disk usage of all workspaces to the readings of sessions.
func (s *Workspaces) Readings(list map[string]quota.Reading) map[string]quota.Reading {
	all := map[string]WorkspaceRecord{}
	s.mu.Lock()
	for key, sp := range s.all {
		all[key] = sp.WorkspaceRecord // which Change replaces
	}
	s.mu.Unlock()
	for key, r := range all { // asks the disk, which may take time
		list[key] = s.reading(key, &r)
	}
	return list
}

// users names some of the sessions that use a workspace.
func users(sp *workspace) string {
	const limit = 5
	ids := slices.Sorted(maps.Values(sp.users))
	text := make([]string, 0, limit)
	for _, id := range ids[:min(len(ids), limit)] {
		text = append(text, fault.Show(id))
	}
	if len(ids) > limit {
		return fmt.Sprintf("sessions %s and %d more", strings.Join(text, ", "), len(ids)-limit)
	}
	return "session " + strings.Join(text, ", ")
}
