// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// rows returns the lines of a table, with one space between cells.
func rows(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return out.String()
}

func TestTablesOfAFleet(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 27, 1, 2, 3, 0, time.Local)
	var out bytes.Buffer
	f := fleetCommands{&app{stdout: &out}}
	for _, tc := range []struct {
		print func() error
		want  string
	}{
		{func() error {
			return f.printNodes([]api.FleetNodeState{
				{
					FleetNode: api.FleetNode{
						Name: "a", State: "ready", Version: "1.2", CPUs: 8, CPUsReserved: 2.5, Memory: 32 << 30, MemoryAvailable: 20<<30 + 1, Disk: 8 << 40, DiskAvailable: 900 << 30,
						Sessions: 3, MaxSessions: 256, Labels: map[string]string{"zone": "west", "disk": "ssd"},
					},
					SeenSeconds: 1.5, Cordon: &api.FleetCordon{By: "ci", Since: at, Reason: "new\x1bdisks"},
				},
				{FleetNode: api.FleetNode{Name: "b", State: "lost", Reason: "silent", CPUs: 2}, SeenSeconds: 600},
				{FleetNode: api.FleetNode{Name: "c", State: "off", Reason: "drained", CPUs: 2}, Cordon: &api.FleetCordon{By: "ci"}},
			})
		}, `NAME STATE BOXES CPUS MEMORY DISK SEEN VERSION LABELS REASON
a ready,cordoned 3/256 2.5/8 20GiB/32GiB 900GiB/8TiB 1s ago 1.2 disk=ssd,zone=west cordoned by ci: new` + "\uFFFD" + `disks
b lost 0/0 0/2 - - 10m ago - - silent
c off,cordoned 0/0 0/2 - - 0s ago - - drained; cordoned by ci
`},
		{func() error {
			return f.printBoxes([]api.FleetClaim{
				{ID: "s\x1b", Owner: "ci", Node: "a", State: "live", Since: at},
				{ID: "t", Owner: "ci", Node: "b", State: "lost", Since: at, Reason: "silent"},
			})
		}, `ID OWNER NODE STATE SINCE REASON
"s\x1b" ci a live 2026-11-27 01:02:03 -
t ci b lost 2026-11-27 01:02:03 silent
`},
		{func() error {
			return f.printOwners([]api.FleetOwner{{Owner: "ci\x1b", Sessions: 3, Lost: 1, CPUs: 2.5, Memory: 3 << 30, Pids: 384}, {Owner: "lo"}})
		}, `OWNER BOXES LOST CPUS MEMORY PIDS
"ci\x1b" 3 1 2.5 3GiB 384
lo 0 0 0 0 0
`},
		{func() error {
			return f.printEvents([]api.FleetEvent{{Time: at, Type: "session_lost", Node: "b", Session: "t", Detail: "silent"}, {Time: at, Type: "node_seen", Node: "a"}})
		}, `TIME TYPE NODE BOX DETAIL
2026-11-27 01:02:03 session_lost b t silent
2026-11-27 01:02:03 node_seen a - -
`},
		{func() error {
			return f.printOutputs([]api.FleetOutput{
				{Session: "s", Process: "web\x1b", Node: "a", State: "ended", Status: "exited", ExitCode: new(int), StartedAt: at, EndedAt: &at, Size: 2048, Why: "node b has claimed it"},
				{Session: "s", Process: "job", Node: "a", State: "ended", Status: "signaled", Signal: "SIGKILL", StartedAt: at, EndedAt: &at},
				{Session: "s", Process: "late", Node: "a", State: "stopping", StartedAt: at},
			})
		}, `BOX PROCESS NODE STARTED ENDED STATE SIZE REASON
s "web\x1b" a 2026-11-27 01:02:03 2026-11-27 01:02:03 exited (0) 2KiB node b has claimed it
s job a 2026-11-27 01:02:03 2026-11-27 01:02:03 signaled (SIGKILL) 0 -
s late a 2026-11-27 01:02:03 - stopping 0 -
`},
	} {
		out.Reset()
		if err := tc.print(); err != nil || rows(out.String()) != tc.want {
			t.Errorf("%v\n%s\nwant\n%s", err, out.String(), tc.want)
		}
	}
}

// If a process has several outputs the newest is shown; if there are several processes one must be named.
func TestTheNewestOutputOfAProcessIsSelected(t *testing.T) {
	t.Parallel()
	list := []api.FleetOutput{{Name: "1", Session: "s", Process: "p"}, {Name: "2", Session: "t", Process: "p"}, {Name: "3", Session: "t", Process: "q"}, {Name: "4", Session: "s", Process: "p"}}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"s"}, "4"},
		{[]string{"s", "p"}, "4"},
		{[]string{"t", "p"}, "2"},
		{[]string{"t", "q"}, "3"},
		{[]string{"t"}, "of several processes of the box: p, q"},
		{[]string{"s", "q"}, `no output is kept of "s q"`},
		{[]string{"u"}, `no output is kept of "u"`},
	} {
		k, err := newestOutput(list, tc.args)
		if err == nil && k.Name != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %+v, %v, want %s", tc.args, k, err, tc.want)
		}
	}
}
