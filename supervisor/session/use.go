// SPDX-License-Identifier: Apache-2.0

package session

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Own returns how full what only the session has is: changes to its root, its home, and its workspace if that has no name. It is nil if that
// has no quota; dir is the directory of all workspaces.
func (s *Session) Own(dir string) *isolation.Disk {
	now := s.Current()
	if now.Workspace != "" && !now.OwnDir() || policy.Work(&policy.Settings{Limits: limits.Limits{WorkspaceQuota: 1}}, s.enforced).Bytes == 0 {
		return nil
	}
	// For a directory with a project, statfs(2) reports the usage and limit of that project (quotas of ext4 and xfs).
	var fs unix.Statfs_t
	if unix.Statfs(filepath.Join(dir, s.BoxKey()), &fs) != nil {
		return nil // the session is ending
	}
	return new(isolation.DiskOf(&fs))
}

// maxWatches is how many directory watches a session may have at a time: each is a program with several threads in its box.
const maxWatches = 16

// ReserveWatch counts a directory watch; the caller must call release.
func (s *Session) ReserveWatch() (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches >= maxWatches {
		return nil, fault.Errorf(fault.Exhausted, "session %s has %d watches of directories, the limit", fault.Show(s.ID), maxWatches).
			WithHint("end one of them; one recursive watch sees all directories below its own")
	}
	s.watches++
	return func() {
		s.mu.Lock()
		s.watches--
		s.mu.Unlock()
	}, nil
}

// HostWork is the host directory that is the session's workspace, if that has a quota; else "".
func (s *Session) HostWork() string {
	now := s.Current()
	for _, m := range now.Mounts {
		if m.Target == isolation.Workspace && now.Bounds(&m, s.enforced) {
			return m.Source
		}
	}
	return ""
}

// Usage returns what the programs of a session use, nil if it has no cgroups or is gone.
func (s *Session) Usage() *CgroupUsage {
	info := s.Info()
	if info.Group == "" || info.State != StateReady {
		return nil
	}
	b, _ := readCgroup(filepath.Join(info.Group, "work")) // nil if the session is ending
	return b
}
