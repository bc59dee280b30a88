// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Traces is what boxes could leave behind on a host.
type Traces struct {
	Processes []string // boxinit and whatever runs with ids of boxes
	Mounts    int      // of the namespace the test runs in
	Namespace []string // mount, network, pid and user namespaces that processes are in
	Files     []string // below the daemon's state directory
	OpenFiles int      // of boxd and its keeper
}

// firstID is the first host id of boxes, as in the built-in configuration.
const firstID = 0x70000000

// Look takes a picture of the host.
func (d *Daemon) Look() Traces {
	d.t.Helper()
	var tr Traces
	spaces := map[string]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		for _, ns := range []string{"mnt", "net", "pid", "user"} {
			if link, err := os.Readlink(filepath.Join(dir, "ns", ns)); err == nil {
				spaces[link] = true
			}
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it has just ended
		}
		if uid := hostUID(dir); uid >= firstID && uid < 1<<31 {
			tr.Processes = append(tr.Processes, e.Name()+" "+strings.TrimSpace(string(comm)))
		}
	}
	for ns := range spaces {
		tr.Namespace = append(tr.Namespace, ns)
	}
	slices.Sort(tr.Namespace)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		d.t.Fatal(err)
	}
	tr.Mounts = strings.Count(string(mounts), "\n")
	for _, sub := range []string{"sessions", "workspaces"} {
		files, err := os.ReadDir(filepath.Join(d.State, sub))
		if err != nil {
			d.t.Fatal(err)
		}
		for _, f := range files {
			tr.Files = append(tr.Files, filepath.Join(sub, f.Name()))
		}
	}
	for _, pid := range append(Children(d.t, d.PID()), d.PID()) {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			d.t.Fatal(err)
		}
		tr.OpenFiles += len(fds)
	}
	return tr
}

func hostUID(dir string) int {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(status)) {
		var uid int
		if _, err := fmt.Sscanf(line, "Uid:\t%d", &uid); err == nil {
			return uid
		}
	}
	return -1
}

// Children lists the processes whose parent is pid.
func Children(t testing.TB, pid int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var list []int
	for _, e := range entries {
		var child, parent int
		var state string
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(stat), ") ")
		if !ok {
			continue
		}
		if _, err := fmt.Sscanf(rest, "%s %d", &state, &parent); err == nil && parent == pid {
			if _, err := fmt.Sscanf(e.Name(), "%d", &child); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// NothingLeft waits until the host is again as it was, and fails if it never is.
func (d *Daemon) NothingLeft(before Traces) {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		d.Close() // idle connections are descriptors of boxd
		now := d.Look()
		if len(now.Processes) <= len(before.Processes) && now.Mounts <= before.Mounts && len(now.Namespace) <= len(before.Namespace) &&
			len(now.Files) <= len(before.Files) && now.OpenFiles <= before.OpenFiles {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("boxes have left something behind:\nbefore %+v\nnow    %+v", before, now)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
