// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// driven is a fleet of two nodes whose gateway stores drives.
type driven struct {
	*house
	c *client.Client // of ci
}

func newDriven(t *testing.T) *driven {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), drives: "size = \"64MiB\"\nowner_size = \"1MiB\"", snapshots: `size = "64MiB"`}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	h.fill(2)
	return &driven{h, h.client()}
}

// fills creates a version of drive me/data with a file f of that text.
func (h *driven) fills(text string) api.DriveVersion {
	h.t.Helper()
	return h.fillsDrive("me/data", text)
}

func (h *driven) fillsDrive(name, text string) api.DriveVersion {
	h.t.Helper()
	v, _, err := h.c.FillDrive(h.t.Context(), name, &client.DriveFilling{Archive: bytes.NewReader(boxtest.Tar(0o644, map[string]string{"f": text}))})
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

func (h *driven) makes(id, node string, want int, words string, drives ...string) {
	h.t.Helper()
	var p api.Problem
	code := h.get("POST", "/v1/sessions", map[string]any{"id": id, "drives": drives, "wait": waitFor(want), "placement": map[string]any{"node": node}}, &p)
	if code != want || !strings.Contains(p.Detail, words) {
		h.t.Errorf("%s on %s: %d %+v, want %d and %q", id, node, code, p, want, words)
	}
}

func (h *driven) reads(id, want string) {
	h.t.Helper()
	if r, err := h.c.Exec(h.t.Context(), id, &api.ExecRequest{Argv: []string{"cat", "/drives/me/data/f"}}); err != nil || r.Stdout != want {
		h.t.Errorf("%s reads %+v, %v; want %q", id, r, err, want)
	}
}

// A drive that is filled at the gateway is sent to each node that gets a session with it, in the named version or the newest: when
// the session is created, moved, or gets the drive later. Each version is sent once to each node.
func TestADriveOfTheFleetIsWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	h := newDriven(t)
	c := h.c
	one := h.fills("one")
	if one.Version != 1 || one.Bytes != 3 || one.Entries != 1 || !strings.HasPrefix(one.Digest, "sha256:") {
		t.Fatalf(`one = %+v, want one.Version == 1 and one.Bytes == 3 and one.Entries == 1 and one.Digest starting with "sha256:"`,
			one)
	}
	for _, node := range []string{"n1", "n2"} { // listing the content of an archive stores nothing
		boxd := h.on(node).boxd
		boxd.Owner = "ci"
		if list, err := boxd.Drives(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s has %+v, %v, want no error and len(list) == 0", node, list, err)
		}
	}
	h.makes("a", "n1", http.StatusCreated, "", "me/data")
	h.reads("a", "one")
	if is, err := h.on("n1").boxd.Drive(t.Context(), "me/data"); err != nil || len(is.Versions) != 1 || is.Versions[0].Digest != one.Digest {
		t.Errorf("is = %+v, err = %v, want no error and len(is.Versions) == 1 and is.Versions[0].Digest == %v",
			is, err, one.Digest)
	}
	if m, p, code := h.moves("a", api.FleetMove{Node: "n2"}); code != http.StatusOK {
		t.Fatalf("m = %+v, p = %+v, code = %d, want code == 200", m, p, code)
	}
	h.reads("a", "one")
	h.fillsDrive("me/once", "once") // which no node has
	r, err := c.Run(t.Context(), &api.OneShotRequest{Session: api.SessionRequest{Drives: []string{"me/once"}}, Exec: api.ExecRequest{Argv: []string{"cat", "/drives/me/once/f"}}})
	if err != nil || r.Stdout != "once" {
		t.Errorf(`without a session: r = %+v, err = %v, want no error and r.Stdout == "once"`, r, err)
	}
	h.fillsDrive("me/stream", "stream")
	if out := h.prints(t, "run", "--drive", "me/stream", "--", "cat", "/drives/me/stream/f"); out != "stream" {
		t.Errorf(`boxctl run prints %q, want "stream"`, out)
	}

	// The next version, and one of before.
	if v, isNew, err := c.FillDrive(t.Context(), "me/data", &client.DriveFilling{Archive: bytes.NewReader(boxtest.Tar(0o644, map[string]string{"f": "one"}))}); err != nil || isNew || v.Version != 1 {
		t.Errorf("the same again: %+v, new %v, %v", v, isNew, err)
	}
	two := h.fills("two")
	if k, isNew, err := c.SwitchDrive(t.Context(), "a", "me/data", 0); err != nil || isNew || k.Version != 2 || k.Digest != two.Digest {
		t.Errorf("%+v, new %v, %v", k, isNew, err)
	}
	h.reads("a", "two")
	h.makes("b", "n1", http.StatusCreated, "", "me/data")
	h.reads("b", "two")
	h.makes("d", "n1", http.StatusCreated, "", "me/data@1")
	h.reads("d", "one")

	// What a session has made, for others.
	line, output := "printf three > $OUTPUT_DIR/f && ln $OUTPUT_DIR/f $OUTPUT_DIR/g", "v1"
	if r, err := c.Exec(t.Context(), "b", &api.ExecRequest{Command: &line, OutputVersion: output}); err != nil || *r.ExitCode != 0 {
		t.Fatalf("r = %+v, err = %v, want no error and *r.ExitCode == 0", r, err)
	}
	last := 2
	if v, isNew, err := c.FillDrive(t.Context(), "me/data", &client.DriveFilling{Session: "b", Output: output, IfVersion: &last}); err != nil || !isNew || v.Version != 3 || !strings.Contains(v.Origin, "session b") {
		t.Errorf("%+v, new %v, %v", v, isNew, err)
	}
	h.makes("e", "n2", http.StatusCreated, "", "me/data")
	h.reads("e", "three")
	if is, err := c.DriveIndex(t.Context(), "me/data", 1, "", 0, 0); err != nil || is.Version.Digest != one.Digest || len(is.Entries) != 1 || is.Entries[0].Path != "f" {
		t.Errorf(`is = %+v, err = %v, want no error and is.Version.Digest == %v and len(is.Entries) == 1 and is.Entries[0].Path == "f"`,
			is, err, one.Digest)
	}
	h.fillsDrive("me/read", "read") // which no node has
	var index api.DriveIndex
	for range 3 {
		if code := h.as(h.viewer, "GET", "/v1/drives/me%2Fread/index", nil, &index); code != http.StatusOK || len(index.Entries) != 1 {
			t.Errorf("a viewer: code = %d, index = %+v, want code == 200 and len(index.Entries) == 1", code, index)
		}
	}
	if text, err := c.DriveText(t.Context(), "me/data", 0, 0); err != nil || text.Version != 3 || !strings.Contains(text.Text, "f (5 B)") {
		t.Errorf(`text = %+v, err = %v, want no error and text.Version == 3 and text.Text containing "f (5 B)"`,
			text, err)
	}
	if out := h.prints(t, "drives", "archive", "me/data@2"); !strings.Contains(out, "two") {
		t.Errorf(`the archive of version 2 is %q, want out containing "two"`, out)
	}
	if d, err := c.MarkDrivePushed(t.Context(), "me/data", 2); err != nil || d.Versions[1].PushedAt.IsZero() || !d.Versions[0].PushedAt.IsZero() {
		t.Errorf("d = %+v, err = %v, want no error and not d.Versions[1].PushedAt.IsZero() and d.Versions[0].PushedAt.IsZero()",
			d, err)
	}
	if list, err := c.Drives(t.Context()); err != nil || len(list) != 4 || list[0].Name != "me/data" || len(list[0].Versions) != 3 {
		t.Errorf(`list = %+v, err = %v, want no error and len(list) == 4 and list[0].Name == "me/data" and len(list[0].Versions) == 3`,
			list, err)
	}

	// A snapshot has the version that its session had.
	k := h.snapshot(api.FleetSnapshotRequest{Session: "a", Name: "s"})
	var made api.FleetRestored
	if code := h.get("POST", "/v1/fleet/snapshots/"+k.Name+"/restore", map[string]any{"id": "f", "placement": map[string]any{"node": "n1"}}, &made); code != http.StatusCreated || made.Node != "n1" {
		t.Errorf(`code = %d, made = %+v, want code == 201 and made.Node == "n1"`, code, made)
	}
	h.reads("f", "two")

	// Each version was sent once to each node that needed it.
	var events api.FleetEventList
	h.get("GET", "/v1/fleet/events", nil, &events)
	sent := map[string]int{}
	for _, e := range events.Events {
		if e.Type == "drive_sent" {
			sent[e.Node+" "+strings.Fields(e.Detail)[0]]++
		}
	}
	if n := sent["n1 me/read@1"] + sent["n2 me/read@1"]; n != 1 {
		t.Errorf("the drive that is read was sent %d times: sent = %v, want n == 1", n, sent)
	}
	for _, what := range []string{"n1 me/data@1", "n2 me/data@1", "n2 me/data@2", "n1 me/data@2", "n2 me/data@3"} {
		if sent[what] != 1 {
			t.Errorf("%s is sent %d times: sent = %v, want sent[what] == 1", what, sent[what], sent)
		}
	}
}

// Drives of other owners, bad input, limits, and a node's own drive under the name of a drive of the fleet. The stored archives are
// removed, and a drive that is created again has other numbers.
func TestDrivesOfTheFleetThatAreRefused(t *testing.T) {
	t.Parallel()
	h := newDriven(t)
	c := h.c
	h.fills("one")
	tar := func(text string) *bytes.Reader {
		return bytes.NewReader(boxtest.Tar(0o644, map[string]string{"f": text}))
	}
	fails := func(words, name string, f *client.DriveFilling) {
		t.Helper()
		if _, _, err := c.FillDrive(t.Context(), name, f); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, want %q", f, err, words)
		}
	}
	fails("OWNER/PROJECT", "data", &client.DriveFilling{Archive: tar("x")})
	fails("archive", "me/data", &client.DriveFilling{Archive: strings.NewReader("no archive")})
	fails("more than 1MiB", "me/data", &client.DriveFilling{Archive: tar(strings.Repeat("x", 1<<20))})
	fails("add", "me/data", &client.DriveFilling{Archive: tar("x"), Add: true})
	fails("the newest version", "me/data", &client.DriveFilling{Archive: tar("x"), IfVersion: new(int)})
	fails("path", "me/data", &client.DriveFilling{Archive: tar("x"), Into: "../x"})
	fails("at most 1024 bytes", "me/data", &client.DriveFilling{Archive: tar("x"), Into: strings.Repeat("x/", 1024)})
	fails("none", "me/data", &client.DriveFilling{Session: "none", Path: "x"})
	fails("output_version", "me/data", &client.DriveFilling{Session: "none", Output: "../x"})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.base()+"/v1/drives/me%2Fdata/versions?digest=sha256:x", tar("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.token)
	resp, err := h.http().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusConflict || !strings.Contains(string(text), "that of the content") {
		t.Errorf(`another digest: resp.StatusCode = %d, text = %s, err = %v, want no error and resp.StatusCode == 409 and text containing "that of the content"`,
			resp.StatusCode, text, err)
	}
	var others api.DriveList
	if code := h.as(h.user, "GET", "/v1/drives", nil, &others); code != http.StatusOK || len(others.Drives) != 0 {
		t.Errorf("code = %d, others = %+v, want code == 200 and len(others.Drives) == 0", code, others)
	}
	h.refuses(h.user, "GET", "/v1/drives/me%2Fdata", nil, http.StatusNotFound, "no drive")
	h.refuses(h.user, "GET", "/v1/drives/me%2Fdata/index", nil, http.StatusNotFound, "no drive")
	h.refuses(h.user, "POST", "/v1/sessions", map[string]any{"id": "x", "drives": []string{"me/data"}}, http.StatusNotFound, "no drive")
	h.refuses(h.user, "DELETE", "/v1/drives/me%2Fdata?owner=ci", nil, http.StatusForbidden, "to use boxes of")
	h.refuses(h.viewer, "DELETE", "/v1/drives/me%2Fdata", nil, http.StatusForbidden, "needs the user role")
	h.refuses(h.token, "PATCH", "/v1/drives/me%2Fdata", map[string]any{}, http.StatusNotImplemented, "Boxd-Node")
	h.refuses(h.token, "DELETE", "/v1/drives/me%2Fdata?version=7", nil, http.StatusNotFound, "no version 7")
	h.refuses(h.token, "DELETE", "/v1/drives/me%2Fdata?version=1", nil, http.StatusConflict, "is its newest")
	h.makes("x", "n1", http.StatusNotFound, "no drive", "me/none")
	h.makes("x", "n1", http.StatusNotFound, "no version 7", "me/data@7")

	// A node with a drive of that name of its own.
	boxd := h.on("n1").boxd
	boxd.Owner = "ci"
	if err := boxd.DeleteDrive(t.Context(), "me/data", 0); err != nil && !errors.Is(err, client.NotFound) {
		t.Fatal(err)
	}
	if _, _, err := boxd.FillDrive(t.Context(), "me/data", &client.DriveFilling{Archive: tar("mine")}); err != nil {
		t.Fatal(err)
	}
	h.makes("a", "n1", http.StatusTooManyRequests, `its version 1 of drive "me/data" is not one of the fleet`, "me/data")
	h.makes("a", "n2", http.StatusCreated, "", "me/data")
	if _, p, code := h.moves("a", api.FleetMove{Node: "n1"}); code != http.StatusConflict || !strings.Contains(p.Detail, "is not one of the fleet") {
		t.Errorf(`code = %d, p = %+v, want code == 409 and p.Detail containing "is not one of the fleet"`, code, p)
	}
	h.reads("a", "one")
	if err := boxd.DeleteDrive(t.Context(), "me/data", 0); err != nil {
		t.Fatal(err)
	}
	h.makes("b", "n1", http.StatusCreated, "", "me/data")
	h.reads("b", "one")

	js := h.buckets()
	stored := func() uint64 {
		t.Helper()
		stream, err := js.Stream(t.Context(), "boxd_drives_archives")
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Msgs
	}
	h.fills("two")
	if n := stored(); n != 2 {
		t.Errorf("%d archives", n)
	}
	if err := c.DeleteDrive(t.Context(), "me/data", 1); err != nil || stored() != 1 {
		t.Errorf("%v, %d archives", err, stored())
	}
	if err := c.DeleteDrive(t.Context(), "me/data", 0); err != nil || stored() != 0 {
		t.Errorf("%v, %d archives", err, stored())
	}
	if err := c.DeleteDrive(t.Context(), "me/data", 0); !errors.Is(err, client.NotFound) {
		t.Errorf("err = %v, want err is client.NotFound", err)
	}
	h.makes("c", "n1", http.StatusNotFound, "has no drive", "me/data") // which n1 still has
	if v := h.fills("three"); v.Version != 3 {
		t.Errorf("v = %+v, want v.Version == 3", v)
	}
	h.makes("c", "n1", http.StatusCreated, "", "me/data")
	h.reads("c", "three")
	h.reads("b", "one") // what is mounted stays
}
