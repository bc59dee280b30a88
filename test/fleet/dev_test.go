// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// startDev starts a fleet for trying out, whose directory is in dir.
func startDev(t *testing.T, dir string, nodes int) (cmd *exec.Cmd, h *house) {
	t.Helper()
	boxtest.RequireRoot(t)
	address := boxtest.FreeAddress(t, "127.0.0.1")
	var out, log text
	cmd = exec.Command(filepath.Join(boxtest.Programs(t), "boxfleet"), "dev", "-nodes", fmt.Sprint(nodes), "-listen", address)
	base, count := boxtest.IDs(t)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, fmt.Sprint("BOXD__IDS__BASE=", base), fmt.Sprint("BOXD__IDS__COUNT=", count), fmt.Sprintf("BOXD__IDS__LOCK=%q", filepath.Join(dir, "ids")))
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(unix.SIGTERM) // it ends everything it has started
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%s\n%s", out.String(), log.String())
		}
	})
	boxtest.Eventually(t, "the command prints an example with boxctl run", func() bool { return strings.Contains(out.String(), "boxctl run") })
	said := regexp.MustCompile(`BOXD_SOCKET=http://(\S+) BOXD_TOKEN=(\S+)`).FindStringSubmatch(out.String())
	if said == nil || said[1] != address {
		t.Fatalf("the output is %s, want said != nil and said[1] == address", out.String())
	}
	return cmd, &house{t: t, address: address, token: said[2]}
}

// One command starts a fleet for trying out, with the features of a real one, and leaves nothing behind.
func TestAFleetInOneCommand(t *testing.T) {
	t.Parallel()
	dir := boxtest.TempDir(t)
	cmd, h := startDev(t, dir, 2)
	h.ready(2)
	for id, node := range map[string]string{"a": "node1", "b": "node2"} {
		h.makes(id, node)
		h.runs(id)
	}
	k := h.snapshot(api.FleetSnapshotRequest{Session: "a"})
	var r api.FleetRestored
	if code := h.get("POST", "/v1/fleet/snapshots/"+k.Name+"/restore", api.FleetRestore{ID: "c"}, &r); code != http.StatusCreated {
		t.Errorf("code = %d, want 201", code)
	}
	h.runs("c")
	if code := h.get("GET", "/v1/fleet/owners", nil, nil); code != http.StatusOK {
		t.Errorf("code = %d, want 200", code)
	}
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("its end: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "boxfleet-dev*")); err != nil || len(left) > 0 {
		t.Errorf("left: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
	boxtest.Eventually(t, "no process is left", func() bool { return len(processesOf(t, dir)) == 0 })
}

// If the command is killed, no process and no box is left.
func TestAFleetInOneCommandIsKilled(t *testing.T) {
	t.Parallel()
	dir := boxtest.TempDir(t)
	cmd, h := startDev(t, dir, 1)
	h.ready(1)
	h.makes("a", "node1")
	h.runs("a")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	boxtest.Eventually(t, "no process is left", func() bool { return len(processesOf(t, dir)) == 0 })
}

// processesOf returns the command lines of processes that contain a directory's name.
func processesOf(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d processes: err = %v, want no error and len(all) != 0", len(all), err)
	}
	for _, path := range all {
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), dir) { // processes may end meanwhile
			found = append(found, string(line))
		}
	}
	return found
}
