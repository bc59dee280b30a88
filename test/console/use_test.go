// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// Bars and plots of a box show what the kernel counts for it, and a limit changed in the browser applies in the kernel at once.
func TestTheUseOfABoxIsSeen(t *testing.T) {
	requireBrowser(t)
	boxtest.RequireGroups(t)
	t.Setenv("TMPDIR", "/var/lib/boxd") // the machine's disk with project quotas, for root only
	d := boxtest.StartWith(t, "[usage]\nhistory = \"1h\"\n")
	s := d.NewSession(t, api.SessionRequest{ID: "work", Patch: limits.Patch{
		Memory: new(256 * quantity.MiB), CPUs: new(0.5), Pids: new(40), WorkspaceQuota: new(64 * quantity.MiB),
	}})
	do := manage(t, d)
	do["kernel"] = func(name string) string { return boxtest.GroupFile(t, s.Group, "work/"+name) }
	do["end"] = func(id string) string {
		if _, err := d.StopProcess(t.Context(), "work", id); err != nil {
			t.Error(err)
		}
		return id
	}
	browse(t, "use.mjs", login(t, admin, d.Socket, boxtest.Programs(t)), do)
}
