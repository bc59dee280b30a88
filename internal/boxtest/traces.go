// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Traces is what the boxes of one daemon could leave behind on a host.
type Traces struct {
	Processes []string // those with ids of its boxes
	Mounts    int      // in the mount namespace of the test, without those in directories of other tests
	Namespace []string // mount, network, pid and user namespaces of those processes, of boxd and of its helpers
	Groups    []string // cgroups below that of the daemon
	Files     []string // below the daemon's state directory
	OpenFiles []string // of boxd and its keeper, without IDMaps
	IDMaps    int      // user namespaces that the keeper caches for mounts of the same owner
}

// keptIDMaps is how many user namespaces a keeper caches at most.
const keptIDMaps = 16

// Look records the current state of the host.
func (d *Daemon) Look() Traces {
	d.t.Helper()
	var tr Traces
	spaces := map[string]bool{}
	helpers := d.helpers()
	for _, p := range processes(d.t) {
		boxed := p.uid >= d.ids.first && p.uid < d.ids.end
		if boxed {
			tr.Processes = append(tr.Processes, strconv.Itoa(p.pid)+" "+p.name+" "+p.state)
		}
		if !boxed && !slices.Contains(helpers, p.pid) {
			continue
		}
		for _, ns := range []string{"mnt", "net", "pid", "user"} {
			if link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid, ns)); err == nil {
				spaces[link] = true
			}
		}
	}
	tr.Namespace = slices.Sorted(maps.Keys(spaces))
	tr.Mounts = d.mounts()
	if d.Group != "" {
		tr.Groups = d.groups()
	}
	for _, sub := range []string{"sessions", "workspaces", "removed"} {
		files, err := os.ReadDir(filepath.Join(d.State, sub))
		if err != nil && (sub != "removed" || !errors.Is(err, fs.ErrNotExist)) { // with a store it is there
			d.t.Fatal(err)
		}
		for _, f := range files {
			tr.Files = append(tr.Files, filepath.Join(sub, f.Name()))
		}
	}
	for _, pid := range d.helpers() {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) { // a keeper that has just ended
			continue
		}
		if err != nil {
			d.t.Fatal(err)
		}
		for _, fd := range fds {
			link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())) // one that was just closed counts until the next Look
			if strings.HasPrefix(link, "user:") {
				tr.IDMaps++
			} else {
				tr.OpenFiles = append(tr.OpenFiles, strconv.Itoa(pid)+" "+link)
			}
		}
	}
	return tr
}

// mounts counts the mounts of the test's mount namespace. Tests that run at the same time mount in temporary directories of
// their own: those are not this daemon's.
func (d *Daemon) mounts() int {
	d.t.Helper()
	list, err := os.ReadFile("/proc/thread-self/mounts") // a test may have left the main thread in the namespace of a box
	if err != nil {
		d.t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(list)) {
		at := strings.Fields(line)[1] // proc_pid_mounts(5); the names of these directories need no escapes
		if !strings.HasPrefix(at, os.TempDir()+"/") || at == d.Dir || strings.HasPrefix(at, d.Dir+"/") {
			n++
		}
	}
	return n
}

// helpers returns the PIDs of boxd and its keeper; none if boxd has ended.
func (d *Daemon) helpers() []int {
	if d.cmd == nil {
		return nil
	}
	return []int{d.PID(), d.Keeper()}
}

// process is a process of the host.
type process struct {
	pid, parent int
	uid         uint32
	name, state string
}

// processes lists all processes, as far as they live long enough to be examined.
func processes(t testing.TB) []process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var list []process
	for _, e := range entries {
		var p process
		if p.pid, err = strconv.Atoi(e.Name()); err != nil {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			switch key {
			case "Name":
				p.name = value
			case "State":
				p.state = value // "S (sleeping)"
			case "PPid":
				_, err = fmt.Sscan(value, &p.parent)
			case "Uid":
				_, err = fmt.Sscan(value, &p.uid)
			}
			if err != nil {
				t.Fatalf("status of process %d: %v", p.pid, err)
			}
		}
		if strings.HasPrefix(p.state, "X") { // it has been waited for, and only its entry is still there
			continue
		}
		list = append(list, p)
	}
	return list
}

// Children lists the processes whose parent is pid.
func Children(t testing.TB, pid int) []int {
	t.Helper()
	var list []int
	for _, p := range processes(t) {
		if p.parent == pid {
			list = append(list, p.pid)
		}
	}
	return list
}

// NothingLeft waits until the host is as it was before, and fails if that never happens.
func (d *Daemon) NothingLeft(before Traces) {
	d.t.Helper()
	deadline := time.Now().Add(timeout())
	for {
		d.Close() // idle connections are descriptors of boxd
		now := d.Look()
		if len(now.Processes) <= len(before.Processes) && now.Mounts <= before.Mounts && len(now.Namespace) <= len(before.Namespace) &&
			len(now.Files) <= len(before.Files) && len(now.Groups) <= len(before.Groups) && len(now.OpenFiles) <= len(before.OpenFiles) && now.IDMaps <= max(before.IDMaps, keptIDMaps) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("boxes have left something behind:\nbefore %+v\nnow    %+v", before, now)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// groups lists the cgroups below the daemon's. One may be removed meanwhile.
func (d *Daemon) groups() (list []string) {
	_ = filepath.WalkDir(d.GroupPath(), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && path != d.GroupPath() {
			list = append(list, path)
		}
		return nil
	})
	return list
}
