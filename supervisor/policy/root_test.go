// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// Changes to the root of a session count against the session's quota, whichever programs it has, and also beside a workspace that
// has a quota of its own.
func TestARootThatCanBeWrittenToHasTheQuotaOfTheSession(t *testing.T) {
	c := DefaultConfig()
	for name, tc := range map[string]struct {
		req  Request
		want isolation.Quota
	}{
		"the host's programs":        {Request{ReadOnlyRoot: new(false)}, isolation.Quota{Bytes: 1 << 30, Inodes: 200_000}},
		"beside a workspace":         {Request{ReadOnlyRoot: new(false), Workspace: "w"}, isolation.Quota{Bytes: 1 << 30, Inodes: 200_000}},
		"with a quota of its own":    {Request{ReadOnlyRoot: new(false), Workspace: "w", Patch: limits.Patch{WorkspaceQuota: new(quantity.Size(16 * quantity.MiB))}}, isolation.Quota{Bytes: 16 << 20, Inodes: 200_000}},
		"read-only":                  {Request{Workspace: "w"}, isolation.Quota{}},
		"a profile that says it":     {Request{Profile: "mcp"}, isolation.Quota{Bytes: 1 << 30, Inodes: 200_000}},
		"another that says it":       {Request{Profile: "network_extended"}, isolation.Quota{Bytes: 1 << 30, Inodes: 200_000}},
		"a directory on /workspace":  {Request{ReadOnlyRoot: new(false), Mounts: []Mount{{Source: "/a", Target: isolation.Workspace}}}, isolation.Quota{Bytes: 1 << 30, Inodes: 200_000}},
		"of an image beside a space": {Request{ReadOnlyRoot: new(false), Image: new("tools"), Workspace: "w"}, isolation.Quota{Bytes: 1 << 30, Inodes: 200_000}},
	} {
		s, _, err := c.Merge(&tc.req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		by := map[string]Mechanism{LimitWorkspace: MechanismProject, LimitMemory: MechanismGroup, LimitCPU: MechanismGroup, LimitPids: MechanismGroup}
		if got := Work(&s, by); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		if _, err := c.Recheck(&s, by); err != nil {
			t.Errorf("%s: the settings of the session are refused later: %v", name, err)
		}
	}
}
