// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// A stopped session has no cgroup and no memory, and its files stay within its quota: workspace, home and changes to its root
// together, before and after, also after restarts of keeper and boxd.
func TestAStoppedSessionKeepsItsQuota(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	const most = 32 * quantity.MiB
	s := d.NewSession(t, api.SessionRequest{
		ID: "s", ReadOnlyRoot: new(false), HomeOnDisk: new(true), Patch: limits.Patch{Memory: new(128 * quantity.MiB), WorkspaceQuota: new(most)},
	})
	fill := func(path string) string { // until it gets no more, and prints how many MiB that is
		return "i=0; while [ $i -lt 64 ] && head -c 1M /dev/zero >> " + path + " 2>/dev/null; do i=$((i+1)); done; echo $i"
	}
	d.Sh(t, "s", "head -c 8M /dev/zero > /workspace/f; head -c 8M /dev/zero > ~/f; head -c 8M /dev/zero > /opt/f")
	used := func() quantity.Size {
		t.Helper()
		now, err := d.Session(t.Context(), "s")
		if err != nil || now.Workspace == nil || now.Workspace.Limit != most {
			t.Fatalf("now = %+v, err = %v, want no error and now.Workspace != nil and now.Workspace.Limit == most",
				now, err)
		}
		return now.Workspace.Used
	}
	if u := used(); u < 24*quantity.MiB || u > 26*quantity.MiB {
		t.Errorf("%v are used", u)
	}
	memory := boxtest.GroupFile(t, s.Group, "memory.max")
	if _, err := d.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if boxtest.Lives(int(s.PID)) {
		t.Error("PID 1 of the stopped session still runs")
	}
	boxtest.Eventually(t, "no process and no cgroup of the session is left", func() bool { // except for a preforked box that is being created
		now := d.Look()
		return len(now.Groups) <= len(before.Groups) && len(now.Processes) <= len(before.Processes)
	})
	if u := used(); u < 24*quantity.MiB || u > 26*quantity.MiB {
		t.Errorf("stopped, it uses %v", u)
	}
	d.Stop()
	d.Restart()
	again, err := d.StartSession(t.Context(), "s")
	if err != nil || again.Enforcement["workspace"] != s.Enforcement["workspace"] || again.Memory != s.Memory {
		t.Fatalf(`again = %+v, err = %v, want no error and again.Enforcement["workspace"] == s.Enforcement["workspace"] and again.Memory == %v`,
			again, err, s.Memory)
	}
	boxtest.GroupHas(t, "after its start", again.Group, map[string]string{"memory.max": memory})
	for _, path := range []string{"/workspace/g", "~/g", "/opt/g"} {
		if n := d.Sh(t, "s", fill(path)+"; rm -f "+path); n < "6" || len(n) != 2 {
			t.Errorf("%s takes %s MiB more", path, n)
		}
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	d.NothingLeft(before)
}

// A session whose programs have removed links of boxd in /etc and used up their quota starts again, without the links. They are
// restored when there is free space.
func TestAStoppedSessionThatIsFullStartsAgain(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false), HomeOnDisk: new(true), Patch: limits.Patch{WorkspaceQuota: new(32 * quantity.MiB), WorkspaceInodes: new(300)}})
	again := func() {
		t.Helper()
		if _, err := d.StopSession(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.StartSession(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
	d.Sh(t, "s", "cd /workspace; rm /etc/hosts /etc/mtab /etc/hostname; i=0; while [ $i -lt 400 ] && true > $i; do i=$((i+1)); done 2>/dev/null; [ $i -gt 100 ]; [ $i -lt 400 ]; ! true > more")
	again()
	if got := d.Sh(t, "s", "cd /workspace; ! true > more; ls 1; rm -f ?? ???"); got != "1\n" {
		t.Errorf(`got %q, want "1\n"`, got)
	}
	again()
	if got := d.Sh(t, "s", "readlink /etc/hosts /etc/mtab /etc/hostname"); got != "../run/box/hosts\n../proc/self/mounts\n../run/box/hostname\n" {
		t.Errorf(`with free space, the links are %q, want "../run/box/hosts\n../proc/self/mounts\n../run/box/hostname\n"`,
			got)
	}
}
