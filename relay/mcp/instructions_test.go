// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
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

func TestMCPInstructionsDescribeTheBox(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change   func(f *Facts)
		want     []string
		wantNone []string
	}{
		"as shipped": {func(*Facts) {}, []string{
			"deleted with all its files when this connection ends", "/workspace is writable, up to 1GiB", "64MiB together", "everything else is read-only",
			"Network: no network", "512MiB memory, 1.5 CPUs, 128 processes", "Timeout of a command: 30s", "at most 10m", "are killed",
			"session is the id of a box from box_create",
		}, []string{"not enforced", "refuse"}},
		"named": {func(f *Facts) { f.Named = "work" }, []string{`the box "work"`, "It is kept"}, []string{"deleted with all"}},
		"egress": {func(f *Facts) {
			f.Box.Network, f.Box.NetworkRules = "egress", []string{"0.0.0.0/0 tcp", "::/0 tcp"}
		}, []string{"TCP connections to the internet"}, []string{"no network"}},
		"rules": {
			func(f *Facts) { f.Box.Network, f.Box.NetworkRules = "egress", []string{"pypi.org", "!10.0.0.1"} },
			[]string{"can connect only to: pypi.org, !10.0.0.1."},
			[]string{"the internet"},
		},
		"no rules":     {func(f *Facts) { f.Box.Network = "egress" }, []string{"the rules allow no connections"}, []string{"the internet"}},
		"skills":       {func(f *Facts) { f.Box.Skills = []string{"pdf", "chart"} }, []string{"in /skills: pdf, chart."}, nil},
		"host network": {func(f *Facts) { f.Box.Network = "host" }, []string{"use the network of the host"}, []string{"no network"}},
		"writable":     {func(f *Facts) { f.Box.ReadOnlyRoot = false }, []string{`user "root" runs one as root of the box`}, []string{"everything else is read-only", "without root"}},
		"leftovers":    {func(f *Facts) { f.Profile.Leftovers = "keep" }, []string{"are kept"}, []string{"are killed"}},
		"not enforced": {func(f *Facts) { f.Enforcement = map[string]string{"memory": "none", "cpu": "rlimit"} }, []string{"512MiB memory (not enforced on this host), 1.5 CPUs,"}, nil},
		"refused":      {func(f *Facts) { f.Refused = &api.Problem{Detail: "no room"} }, []string{"boxd refuses to create it: no room"}, nil},
		"any session":  {func(f *Facts) { f.Any = true }, []string{"any box of the user"}, []string{"a box from box_create"}},
		"mounts": {func(f *Facts) {
			f.Box.Mounts = []api.Mount{{Target: "/data", Mode: "ro"}, {Target: "/workspace", Mode: "rw"}, {Target: "/hidden", Mode: "none"}}
		}, []string{"/data is a directory of the user (read-only)", "/workspace is a directory of the user (writable"}, []string{"/workspace is writable", "/hidden"}},
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
