// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// Routes of snapshots.
const (
	allSnapshots    = "/v1/sessions/{id}/snapshots"
	restoreSnapshot = "POST " + allSnapshots + "/{snapshot}/restore"
	definition      = "GET /v1/sessions/{id}/definition"
	removeSnapshot  = "DELETE " + allSnapshots + "/{snapshot}"
)

// snapshots tests snapshots, on whatever filesystem they would be.
func (c *contract) snapshots() {
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"snapped"}`})
	c.gets(200, request{route: "POST /v1/sessions/{id}/exec", s: "snapped", body: `{"command":"echo one > f"}`})
	c.refused(409, "", request{route: "POST " + allSnapshots, s: "snapped", body: `{"name":"a"}`})
	c.refused(409, "", request{route: restoreSnapshot, s: "snapped", p: "a"})
	c.gets(200, request{route: "POST /v1/sessions/{id}/stop", s: "snapped"})
	for _, a := range []request{{route: definition}, {route: "GET /v1/sessions/{id}/archive"}} {
		c.gets(200, request{route: a.route, s: "snapped"})
		a.s = "none"
		c.refused(404, "", a)
		a.s, a.uid = "snapped", boxtest.OtherUID
		c.refused(404, "", a)
		a.query = "owner=uid%3A0"
		c.refused(403, "owner", a)
	}
	c.refused(400, "name", request{route: "POST " + allSnapshots, s: "snapped", body: `{"name":"../a"}`})
	c.refused(400, "colour", request{route: "POST " + allSnapshots, s: "snapped", body: `{"name":"a","colour":"red"}`, odd: true})
	for _, a := range []request{{route: "GET " + allSnapshots}, {route: "POST " + allSnapshots, body: `{"name":"a"}`}, {route: restoreSnapshot, p: "a"}, {route: removeSnapshot, p: "a"}} {
		a.s = "none"
		c.refused(404, "", a)
		a.s, a.uid = "snapped", boxtest.OtherUID
		c.refused(404, "", a)
		a.query = "owner=uid%3A0"
		c.refused(403, "owner", a)
	}
	var list api.SnapshotList
	c.reads(c.gets(200, request{route: "GET " + allSnapshots, s: "snapped"}), &list)
	if list.Snapshots == nil || len(list.Snapshots) > 0 {
		c.t.Errorf("list = %+v, want list.Snapshots != nil and len(list.Snapshots) == 0", list)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.State, &st); err != nil {
		c.t.Fatal(err)
	}
	if kind := uint32(st.Type); kind == unix.XFS_SUPER_MAGIC || kind == unix.BTRFS_SUPER_MAGIC {
		c.takesSnapshots()
	} else {
		c.refused(501, "", request{route: "POST " + allSnapshots, s: "snapped", body: `{"name":"a"}`})
		c.refused(501, "", request{route: restoreSnapshot, s: "snapped", p: "a"})
		c.refused(501, "", request{route: removeSnapshot, s: "snapped", p: "a"})
	}
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "snapped"})
}

// takesSnapshots tests snapshots on a filesystem with shared blocks.
func (c *contract) takesSnapshots() {
	var one api.Snapshot
	c.reads(c.gets(201, request{route: "POST " + allSnapshots, s: "snapped", body: `{"name":"a"}`}), &one)
	c.refused(409, "name", request{route: "POST " + allSnapshots, s: "snapped", body: `{"name":"a"}`})
	var list api.SnapshotList
	c.reads(c.gets(200, request{route: "GET " + allSnapshots, s: "snapped"}), &list)
	if len(list.Snapshots) != 1 || list.Snapshots[0] != one || one.Name != "a" || one.Size == 0 || one.Files != 2 {
		c.t.Errorf(`list = %+v, one = %+v, want len(list.Snapshots) == 1 and list.Snapshots[0] == one and one.Name == "a" and one.Size != 0 and one.Files == 2`,
			list, one)
	}
	var s api.Session
	c.reads(c.gets(200, request{route: restoreSnapshot, s: "snapped", p: "a"}), &s)
	if s.ID != "snapped" || s.State != "stopped" {
		c.t.Errorf(`s = %+v, want s.ID == "snapped" and s.State == "stopped"`, s)
	}
	c.refused(404, "", request{route: restoreSnapshot, s: "snapped", p: "b"})
	c.gets(204, request{route: removeSnapshot, s: "snapped", p: "a"})
	c.refused(404, "", request{route: removeSnapshot, s: "snapped", p: "a"})
}

// fewSnapshots exceeds the limit of snapshots.
func (c *contract) fewSnapshots() {
	c.gets(200, request{route: "POST /v1/sessions/{id}/stop", s: "t"})
	c.refused(429, "", request{route: "POST " + allSnapshots, s: "t", body: `{"name":"a"}`})
	c.gets(200, request{route: "POST /v1/sessions/{id}/start", s: "t"})
}

// snapshotsElsewhere tests what depends on the filesystem on one of each kind, as far as this host has both.
func snapshotsElsewhere(t *testing.T, seen map[string]bool) {
	t.Helper()
	for kind, answers := range map[string][]string{
		"xfs":  {"POST " + allSnapshots + " 201", restoreSnapshot + " 200", removeSnapshot + " 204"},
		"ext4": {"POST " + allSnapshots + " 501", restoreSnapshot + " 501", removeSnapshot + " 501"},
	} {
		if boxtest.HasFilesystem(kind) {
			state := filepath.Join(boxtest.NewFilesystem(t, kind), "state")
			contractOf(t, seen, boxtest.StartWith(t, fmt.Sprintf("state_dir = %q\n", state), boxtest.BestEffort)).snapshots()
			continue
		}
		for _, answer := range answers {
			seen[answer] = true
		}
	}
}
