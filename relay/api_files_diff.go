// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// diffFiles returns what the programs of a session have changed in its image.
func diffFiles(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.RootDiff, s *session.Session) (*files.Request, []byte, error) {
		if err := writable(s); err != nil {
			return nil, nil, err
		}
		limit, err := bounded("limit", in.Limit, defaultList, maxResults)
		return &files.Request{Diff: &files.Diff{Image: []byte(isolation.RootImage), Changed: []byte(isolation.RootChanged), Walk: s.Config().Files.MaxEntries, Limit: limit}}, nil, err
	})
	if err != nil {
		return nil, err
	}
	if a.Changes == nil {
		return nil, files.ErrMalformed
	}
	return changesAnswer(&sessionfiles.ChangesReport{ChangesAnswer: *a.Changes, Exact: true}), nil
}

// discardOutputs reverts what the programs of a session have changed in its image.
func discardOutputs(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.RootDiscard, s *session.Session) (*files.Request, []byte, error) {
		if err := writable(s); err != nil {
			return nil, nil, err
		}
		req := &files.Discard{Image: []byte(isolation.RootImage), Changed: []byte(isolation.RootChanged), Root: []byte("/"), Walk: s.Config().Files.MaxEntries}
		for _, p := range in.Paths {
			req.Paths = append(req.Paths, []byte(p))
		}
		return &files.Request{Discard: req}, nil, nil
	})
	if err != nil {
		return nil, err
	}
	if a.Discarded == nil {
		return nil, files.ErrMalformed
	}
	return &api.RootDiscarded{Removed: a.Discarded.Removed, Restored: a.Discarded.Restored}, nil
}

// writable refuses requests about changes of the root if that is read-only.
func writable(s *session.Session) error {
	if !s.Settings.ReadOnlyRoot {
		return nil
	}
	return fault.Errorf(fault.Conflict, "nothing to compare: the root of session %s is read-only", fault.Show(s.ID)).
		WithHint("create the session with read_only_root = false")
}
