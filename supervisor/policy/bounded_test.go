// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// A quota on a host directory is enforced by the kernel, or refused by name, or waived by the operator.
func TestQuotasOfDirectoriesOfTheHost(t *testing.T) {
	t.Parallel()
	at := func(source, target, mode string) []Mount {
		return []Mount{{Source: source, Target: target, Mode: mode}}
	}
	asked := new(8 * quantity.MiB)
	for _, tc := range []struct {
		name    string
		lacks   string // reason of the root; "-": the keeper did not report it
		best    []string
		req     Request
		limit   string // name it is reported under
		by      Mechanism
		refused string // part of the reason
	}{
		{"a workspace", "", nil, Request{Patch: limits.Patch{WorkspaceQuota: asked}, Mounts: at("/srv/q/a", "/workspace", "rw")}, LimitWorkspace, MechanismProject, ""},
		{"the root itself, by the profile", "", nil, Request{Mounts: at("/srv/q", "/workspace", "rw")}, LimitWorkspace, MechanismProject, ""},
		{"another directory", "", nil, Request{Patch: limits.Patch{WorkspaceQuota: asked}, Mounts: at("/srv/q/a", "/data", "rw")}, LimitMounts, MechanismProject, ""},
		{"without a limit", "", nil, Request{Patch: limits.Patch{WorkspaceQuota: new(quantity.Size)}, Mounts: at("/srv/q/a", "/workspace", "rw")}, LimitWorkspace, MechanismHost, ""},
		{"to be read", "", nil, Request{Mounts: at("/srv/q/a", "/workspace", "ro")}, LimitWorkspace, MechanismHost, ""},
		{"to be read, and asked for", "", nil, Request{Patch: limits.Patch{WorkspaceQuota: asked}, Mounts: at("/srv/q/a", "/workspace", "ro")}, "", "", "host directory"},
		{"beside the root", "", nil, Request{Mounts: at("/srv/quota", "/workspace", "rw")}, LimitWorkspace, MechanismHost, ""},
		{"beside the root, and asked for", "", LimitNames(), Request{Patch: limits.Patch{WorkspaceQuota: asked}, Mounts: at("/srv/quota", "/workspace", "rw")}, "", "", "host directory"},
		{"where it cannot be kept", "it is off", nil, Request{Mounts: at("/srv/q/a", "/workspace", "rw")}, "", "", "it is off"},
		{"where the keeper does not know", "-", nil, Request{Mounts: at("/srv/q/a", "/workspace", "rw")}, "", "", "started before it was configured"},
		{"where it is let go", "it is off", []string{LimitWorkspace}, Request{Patch: limits.Patch{WorkspaceQuota: asked}, Mounts: at("/srv/q/a", "/workspace", "rw")}, LimitWorkspace, MechanismNone, ""},
		{"beside a workspace with a name", "", nil, Request{Workspace: "w", Mounts: at("/srv/q/a", "/data", "rw")}, "", "", "workspace"},
	} {
		c := DefaultConfig()
		c.Roots, c.Limits.BestEffort = []string{"/srv/q"}, tc.best
		host := Host{Layout: CgroupsUnified, Host: isolation.Host{Controllers: []string{"cpu", "memory", "pids", "io"}, Quota: isolation.QuotaProject, Bounds: []string{"/srv/q", tc.lacks}}}
		if tc.lacks == "-" {
			host.Bounds = nil
		}
		s, _, err := c.Merge(&tc.req)
		var by map[string]Mechanism
		if err == nil {
			by, err = c.Enforcement(&s, host)
		}
		if tc.refused != "" {
			if fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), tc.refused) || by != nil {
				t.Errorf("%s: by = %v, err = %v, want a fault.Unsupported error and err containing %q and by == nil",
					tc.name, by, err, tc.refused)
			}
			continue
		}
		bound := tc.by == MechanismProject
		if err != nil || by[tc.limit] != tc.by || s.Bounds(&s.Mounts[0], by) != bound {
			t.Errorf("%s: by = %v, err = %v, want no error and by[tc.limit] == tc.by and s.Bounds(&s.Mounts[0], by) == bound",
				tc.name, by, err)
		}
		if got := Work(&s, by) != (isolation.Quota{}); got != (bound || s.OwnDisk()) {
			t.Errorf("%s: a quota for the keeper: got %v, want (bound || s.OwnDisk())", tc.name, got)
		}
		if err := c.Roots.Can(host.Bounds, s.Mounts[0].Source); (err == nil) != (strings.HasPrefix(s.Mounts[0].Source+"/", "/srv/q/") && tc.lacks == "") {
			t.Errorf(`%s: it can: err = %v, want (err == nil) == (strings.HasPrefix(s.Mounts[0].Source+"/", "/srv/q/") && tc.lacks == "")`,
				tc.name, err)
		}
	}
}

// A running session cannot change its quota on host directories, which others may use too.
func TestAQuotaOfTheHostStays(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.Roots = []string{"/srv/q"}
	now, p, err := c.Merge(&Request{Mounts: []Mount{{Source: "/srv/q/a", Target: "/data", Mode: "rw"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Change(&now, &Request{Patch: limits.Patch{Memory: new(64 * quantity.MiB), WorkspaceQuota: &now.WorkspaceQuota}}); err != nil {
		t.Error(err)
	}
	// Ceilings that were added later do not lower the recorded quota, whatever else changes.
	h := EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Ceilings = limits.Ceilings{WorkspaceQuota: quantity.MiB, WorkspaceInodes: 77} }), Name: "ci"}
	for _, req := range []*Request{{Labels: map[string]string{"a": "b"}}, {Patch: limits.Patch{WorkspaceQuota: &now.WorkspaceQuota}}} {
		next, err := p.Change(&now, req)
		if err == nil {
			err = h.Limits(&next, req)
		}
		if err != nil || next.WorkspaceQuota != now.WorkspaceQuota || next.WorkspaceInodes != now.WorkspaceInodes || len(next.Clamped) > 0 {
			t.Errorf("%v, %d files, cut %v: err = %v, want no error and next.WorkspaceQuota == %v and next.WorkspaceInodes == %v and len(next.Clamped) == 0",
				next.WorkspaceQuota, next.WorkspaceInodes, next.Clamped, err, now.WorkspaceQuota, now.WorkspaceInodes)
		}
	}
	for _, req := range []*Request{{Patch: limits.Patch{WorkspaceQuota: new(quantity.MiB)}}, {Patch: limits.Patch{WorkspaceInodes: new(77)}}} {
		if _, err := p.Change(&now, req); fault.KindOf(err) != fault.Unsupported {
			t.Errorf("err = %v, want a fault.Unsupported error", err)
		}
	}
}
