// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/limits"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func facts() *Facts {
	return &Facts{
		Box: api.PlannedSession{
			Network: "off", ReadOnlyRoot: true, Limits: limits.Limits{CPUs: 1.5, Memory: 512 * quantity.MiB, Pids: 128, Tmp: 64 * quantity.MiB, WorkspaceQuota: quantity.GiB},
		},
		Profile: api.Profile{Timeout: quantity.Duration(30 * time.Second), MaxTimeout: quantity.Duration(10 * time.Minute), Leftovers: "kill"},
	}
}

func TestItSaysWhatTheBoxIs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change   func(f *Facts)
		want     []string
		wantNone []string
	}{
		"as shipped": {func(*Facts) {}, []string{
			"removed with all that is in it when this connection ends", "/workspace is writable, up to 1GiB", "64MiB together", "all else is read-only",
			"There is no network", "512MiB of memory, 1.5 processors, 128 processes", "ends after 30s", "at most 10m", "is killed",
			"names a box that box_create has made",
		}, []string{"does not enforce", "refuse"}},
		"named": {func(f *Facts) { f.Named = "work" }, []string{`the box "work"`, "It stays"}, []string{"removed with all"}},
		"egress": {func(f *Facts) {
			f.Box.Network, f.Box.NetworkRules = "egress", []string{"0.0.0.0/0 tcp", "::/0 tcp"}
		}, []string{"connect to the internet by TCP"}, []string{"no network"}},
		"rules": {
			func(f *Facts) { f.Box.Network, f.Box.NetworkRules = "egress", []string{"pypi.org", "!10.0.0.1"} },
			[]string{"these rules allow and to nothing else: pypi.org, !10.0.0.1."},
			[]string{"the internet"},
		},
		"no rules":     {func(f *Facts) { f.Box.Network = "egress" }, []string{"let no connection through"}, []string{"the internet"}},
		"skills":       {func(f *Facts) { f.Box.Skills = []string{"pdf", "chart"} }, []string{"at /skills: pdf, chart."}, nil},
		"host network": {func(f *Facts) { f.Box.Network = "host" }, []string{"share the network of the host"}, []string{"no network"}},
		"writable":     {func(f *Facts) { f.Box.ReadOnlyRoot = false }, nil, []string{"all else is read-only"}},
		"leftovers":    {func(f *Facts) { f.Profile.Leftovers = "keep" }, []string{"is left alone"}, []string{"is killed"}},
		"not enforced": {func(f *Facts) { f.Enforcement = map[string]string{"memory": "none", "cpu": "rlimit"} }, []string{"512MiB of memory (which this host does not enforce), 1.5 processors,"}, nil},
		"refused":      {func(f *Facts) { f.Refused = &api.Problem{Detail: "no room"} }, []string{"would refuse to make it: no room"}, nil},
		"any session":  {func(f *Facts) { f.Any = true }, []string{"may name any session"}, []string{"box_create has made"}},
		"mounts": {func(f *Facts) {
			f.Box.Mounts = []api.Mount{{Target: "/data", Mode: "ro"}, {Target: "/workspace", Mode: "rw"}, {Target: "/hidden", Mode: "none"}}
		}, []string{"/data is a directory of the user's (read-only)", "/workspace is a directory of the user's (writable"}, []string{"/workspace is writable", "/hidden"}},
	} {
		f := facts()
		tc.change(f)
		got := WriteInstructions(f)
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: there is no %q in\n%s", name, want, got)
			}
		}
		for _, none := range tc.wantNone {
			if strings.Contains(got, none) {
				t.Errorf("%s: there is %q in\n%s", name, none, got)
			}
		}
		if n := strings.Count(got, "\n"); n > 10 || len(got) > 2000 {
			t.Errorf("%s: it has %d lines and %d bytes", name, n, len(got))
		}
	}
}
