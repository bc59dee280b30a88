// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// buildWithSnapshots is like build, with a gateway that stores snapshots; settings are of its table [snapshots].
func buildWithSnapshots(t *testing.T, nodes int, settings string) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), snapshots: settings}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	return h.fill(nodes)
}

// snapshot makes one of a session.
func (h *house) snapshot(ask api.FleetSnapshotRequest) api.FleetSnapshot {
	h.t.Helper()
	var k struct {
		api.FleetSnapshot
		Detail string `json:"detail"`
	}
	if code := h.get("POST", "/v1/fleet/snapshots", ask, &k); code != http.StatusCreated {
		h.t.Fatalf("code = %d, k.Detail = %s, want code == 201", code, k.Detail)
	}
	return k.FleetSnapshot
}

// refuses checks the answer to a request that is refused.
func (h *house) refuses(token, method, path string, body any, want int, words string) {
	h.t.Helper()
	var p api.Problem
	if code := h.as(token, method, path, body, &p); code != want || !strings.Contains(p.Detail+" "+p.Hint, words) {
		h.t.Errorf("%s %s %+v: %d %q (%s), want %d and %q", method, path, body, code, p.Detail, p.Hint, want, words)
	}
}

// A snapshot of the fleet does not depend on its node: files, environment and processes of a lost session are restored on another
// node, and the claim of the lost session names the snapshot.
func TestASnapshotOfTheFleetOutlivesItsNode(t *testing.T) {
	t.Parallel()
	h := buildWithSnapshots(t, 2, `size = "1GiB"`)
	c := h.client()
	if code := h.get("POST", "/v1/sessions", map[string]any{
		"id": "s/1", "env": map[string]string{"TOKEN": "a value"}, "labels": map[string]string{"for": "test"}, "home_on_disk": true, "placement": map[string]any{"node": "n1"},
	}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	run := func(id, line string) string {
		t.Helper()
		r, err := c.Exec(t.Context(), id, &api.ExecRequest{Command: &line})
		if err != nil {
			t.Fatal(err)
		}
		return r.Stdout
	}
	run("s/1", "umask 077; mkdir d; echo work > d/f; ln d/f hard; echo home > $HOME/f; head -c 40000000 /dev/urandom > big") // two parts
	sum := run("s/1", "sha256sum big")
	if _, _, err := c.StartProcess(t.Context(), "s/1", "always", &api.ProcessRequest{Command: new("echo $TOKEN >> started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}}); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the process has started", func() bool { return run("s/1", "cat started 2>/dev/null || true") != "" })
	if k := h.snapshot(api.FleetSnapshotRequest{Session: "s/1"}); !k.Running || !strings.HasPrefix(k.Name, "s-1-20") || k.Node != "n1" {
		t.Errorf(`a snapshot of a running session: k = %+v, want k.Running == true and k.Name starting with "s-1-20" and k.Node == "n1"`,
			k)
	}
	if _, err := c.StopSession(t.Context(), "s/1"); err != nil {
		t.Fatal(err)
	}
	k := h.snapshot(api.FleetSnapshotRequest{Session: "s/1", Name: "last"})
	if k.Running || k.Owner != "ci" || k.Session != "s/1" || k.Size < 40000000 || !strings.HasPrefix(k.Digest, "sha256:") || len(k.LeftOut) != 0 {
		t.Errorf(`k = %+v, want k.Running == false and k.Owner == "ci" and k.Session == "s/1" and k.Size >= 40000000 and k.Digest starting with "sha256:" and len(k.LeftOut) == 0`,
			k)
	}

	h.nodes[0].agent.kill()
	boxtest.Eventually(t, "the session is lost", func() bool { return h.where("s/1").State == api.FleetClaimLost })
	if claim := h.where("s/1"); claim.Snapshot != "last" {
		t.Errorf(`claim = %+v, want claim.Snapshot == "last"`, claim)
	}
	h.refuses(h.token, "POST", "/v1/sessions/s%2F1/exec", map[string]any{"argv": []string{"true"}}, http.StatusConflict, `its last snapshot "last"`)
	h.refuses(h.token, "POST", "/v1/fleet/snapshots/last/restore", nil, http.StatusConflict, "is lost since")
	var r api.FleetRestored
	if code := h.get("POST", "/v1/fleet/snapshots/last/restore", api.FleetRestore{ID: "again"}, &r); code != http.StatusCreated || r.Node != "n2" || r.Session.ID != "again" || r.Session.Labels["for"] != "test" {
		t.Fatalf(`code = %d, r = %+v, want code == 201 and r.Node == "n2" and r.Session.ID == "again" and r.Session.Labels["for"] == "test"`,
			code, r)
	}
	if got := run("again", "cat d/f $HOME/f; stat -c %a d; stat -c %h hard; sha256sum big"); got != "work\nhome\n700\n2\n"+sum {
		t.Errorf(`it has %q, want "work\nhome\n700\n2\n" + sum`, got)
	}
	boxtest.Eventually(t, "the process has started on the other node", func() bool { return run("again", "cat started") == "a value\na value\n" })
	h.refuses(h.token, "POST", "/v1/fleet/snapshots/last/restore", api.FleetRestore{ID: "again"}, http.StatusConflict, "exist")
	if got := run("again", "cat d/f"); got != "work\n" {
		t.Errorf(`the original session has %q, want "work\n"`, got)
	}

	// It is found again, and is what it was.
	h.nodes[0].agent.start()
	boxtest.Eventually(t, "the session is back", func() bool {
		claim := h.where("s/1")
		return claim.State == api.FleetClaimLive && claim.Snapshot == ""
	})
}

// A caller that may not use a session may not use its snapshots, and a snapshot or restore that fails leaves nothing.
func TestSnapshotsOfTheFleetThatAreRefused(t *testing.T) {
	t.Parallel()
	h := buildWithSnapshots(t, 1, "size = \"256MiB\"\nowner_size = \"48MiB\"")
	c := h.client()
	h.makes("s", "n1")
	k := h.snapshot(api.FleetSnapshotRequest{Session: "s", Name: "one"})
	list := func() (names []string) {
		var all api.FleetSnapshotList
		if code := h.get("GET", "/v1/fleet/snapshots", nil, &all); code != http.StatusOK {
			t.Error(code)
		}
		for _, k := range all.Snapshots {
			names = append(names, k.Name)
		}
		return names
	}

	// Other callers.
	var all api.FleetSnapshotList
	if code := h.as(h.user, "GET", "/v1/fleet/snapshots", nil, &all); code != http.StatusOK || len(all.Snapshots) != 0 {
		t.Errorf("another caller: code = %d, all = %+v, want code == 200 and len(all.Snapshots) == 0", code, all)
	}
	h.refuses(h.user, "GET", "/v1/fleet/snapshots?owner=ci", nil, http.StatusForbidden, "to use boxes of")
	h.refuses(h.user, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s"}, http.StatusNotFound, `no session "s"`)
	h.refuses(h.user, "POST", "/v1/fleet/snapshots/one/restore", nil, http.StatusNotFound, `no snapshot "one"`)
	h.refuses(h.user, "DELETE", "/v1/fleet/snapshots/one", nil, http.StatusNotFound, `no snapshot "one"`)
	h.refuses(h.viewer, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s"}, http.StatusForbidden, "needs the user role")
	h.refuses(h.viewer, "DELETE", "/v1/fleet/snapshots/one", nil, http.StatusForbidden, "needs the user role")

	// Bad input.
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{}, http.StatusBadRequest, "session")
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", map[string]any{"session": "s", "colour": "red"}, http.StatusBadRequest, "colour")
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "../x"}, http.StatusBadRequest, "1 to 128 letters")
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "one"}, http.StatusConflict, "already")
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "none"}, http.StatusNotFound, `no session "none"`)
	h.refuses(h.token, "POST", "/v1/fleet/snapshots/none/restore", nil, http.StatusNotFound, `no snapshot "none"`)
	h.refuses(h.token, "POST", "/v1/fleet/snapshots/one/restore", map[string]any{"id": "x", "placement": map[string]any{"node": "n9"}}, http.StatusTooManyRequests, "no node can take")
	h.refuses(h.token, "GET", "/v1/fleet/snapshots/one", nil, http.StatusNotFound, "no route")
	h.refuses(h.token, "GET", "/v1/fleet/snapshots/one/restore/x", nil, http.StatusNotFound, "no route")

	// What would lack something.
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "w", "read_only_root": false}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "w"}, http.StatusConflict, "would lack: changes to the root filesystem")
	if k := h.snapshot(api.FleetSnapshotRequest{Session: "w", Name: "less", LeaveOut: true}); !slices.Equal(k.LeftOut, []string{"changes to the root filesystem"}) {
		t.Errorf(`k = %+v, want k.LeftOut == []string{"changes to the root filesystem"}`, k)
	}
	closed := "echo x > closed; chmod 0 closed"
	if _, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: &closed}); err != nil {
		t.Fatal(err)
	}
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "two"}, http.StatusConflict, "leave_out")

	// A snapshot beyond the limit of its owner, or of all: nothing is left of it. The second size differs from that of the existing
	// bucket.
	large := "rm -f closed; head -c 70000000 /dev/urandom > large"
	if _, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: &large}); err != nil {
		t.Fatal(err)
	}
	js := h.buckets()
	stored := func() (bytes uint64) {
		t.Helper()
		stream, err := js.Stream(t.Context(), "boxd_snapshots_archives")
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Bytes
	}
	if code := h.as(h.user, "POST", "/v1/sessions", map[string]any{"id": "o"}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	if code := h.as(h.user, "POST", "/v1/sessions/o/exec", map[string]any{"command": "head -c 40000000 /dev/urandom > large"}, nil); code != http.StatusOK {
		t.Fatal(code)
	}
	if code := h.as(h.user, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "o", Name: "one"}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	before := stored()
	tooMuch := func(words string) {
		t.Helper()
		h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "two"}, http.StatusTooManyRequests, words)
		if after := stored(); after != before {
			t.Errorf("%d bytes were stored, and %d after a snapshot that was refused", before, after)
		}
	}
	tooMuch(`the snapshots of "ci" would have more than 48MiB`)
	config := filepath.Join(h.dir, "fleet.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	h.write("fleet.toml", strings.NewReplacer("256MiB", "80MiB", "48MiB", "80MiB").Replace(string(text)))
	h.gate.kill()
	h.gate.start()
	h.ready(1)
	tooMuch("the snapshots of all owners together")
	if got := list(); !slices.Equal(got, []string{"one", "less"}) {
		t.Errorf(`got %v, want []string{"one", "less"}`, got)
	}

	// A snapshot whose archive was changed is not restored.
	stream, err := js.Stream(t.Context(), "boxd_snapshots_archives")
	if err != nil {
		t.Fatal(err)
	}
	is, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	for subject := range is.State.Subjects {
		m, err := stream.GetLastMsgForSubject(t.Context(), subject)
		if err == nil {
			m.Data[len(m.Data)-300] |= 1 // in the zeros at its end
			_, err = js.Publish(t.Context(), subject, m.Data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h.refuses(h.token, "POST", "/v1/fleet/snapshots/one/restore", api.FleetRestore{ID: "damaged"}, http.StatusConflict, "is damaged")
	boxtest.Eventually(t, "no part of the snapshot is left", func() bool { return h.where("damaged").ID == "" && !h.on("n1").has(t, "damaged") })

	for _, name := range []string{"one", "less"} {
		if code := h.get("DELETE", "/v1/fleet/snapshots/"+name, nil, nil); code != http.StatusNoContent {
			t.Errorf("code = %d, want 204", code)
		}
	}
	if code := h.as(h.user, "DELETE", "/v1/fleet/snapshots/one", nil, nil); code != http.StatusNoContent {
		t.Errorf("code = %d, want 204", code)
	}
	if after := stored(); after != 0 || len(list()) != 0 {
		t.Errorf("%d bytes are left, and %v", after, list())
	}
	if k.CreatedAt.After(time.Now()) {
		t.Errorf("k = %+v", k)
	}
}

// A gateway without a table [snapshots] stores no snapshots.
func TestSnapshotsAreOffByDefault(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	for _, method := range []string{"GET", "POST"} {
		h.refuses(h.token, method, "/v1/fleet/snapshots", map[string]any{"session": "s"}, http.StatusNotImplemented, "[snapshots] of gateway.toml")
	}
}

// boxctl makes, lists, restores and removes snapshots, and says what is left out.
func TestBoxctlKeepsSnapshots(t *testing.T) {
	t.Parallel()
	h := buildWithSnapshots(t, 1, `size = "64MiB"`)
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "w", "read_only_root": false}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	h.starts(t, "fleet", "snapshot", "w").ends(1, "would lack: changes to the root filesystem")
	b := h.starts(t, "fleet", "snapshot", "--leave-out", "--name", "one", "w")
	if b.ends(0, "left out: changes to the root filesystem"); b.out.String() != "one\n" {
		t.Errorf(`b.out = %q, want "one\n"`, b.out.String())
	}
	if got := h.prints(t, "fleet", "snapshots"); !strings.Contains(got, "one") || !strings.Contains(got, "n1") || !strings.Contains(got, "changes to the root") {
		t.Errorf(`got %s, want got containing "one" and got containing "n1" and got containing "changes to the root"`,
			got)
	}
	h.starts(t, "fleet", "restore", "one").ends(1, "exist")
	h.starts(t, "fleet", "restore", "--id", "x", "--node", "n9", "one").ends(1, "the request names another")
	if got := h.prints(t, "fleet", "restore", "--id", "x", "--node", "n1", "one"); got != "x\n" {
		t.Errorf(`got %q, want "x\n"`, got)
	}
	if got := h.prints(t, "exec", "x", "--", "echo", "there"); got != "there\n" {
		t.Errorf(`got %q, want "there\n"`, got)
	}
	h.prints(t, "fleet", "rm-snapshot", "one")
	h.starts(t, "fleet", "rm-snapshot", "one").ends(1, `no snapshot "one"`)
	if got := h.prints(t, "fleet", "snapshots", "--quiet"); got != "" {
		t.Errorf(`got %q, want ""`, got)
	}
}

// If the leader of the stream that a snapshot is stored in dies meanwhile, the snapshot is complete or does not exist.
func TestASnapshotOutlivesALeaderOfNATS(t *testing.T) {
	t.Parallel()
	h := buildOnThree(t, 1, `size = "512MiB"`)
	c := h.client()
	h.makes("s", "n1")
	line := "head -c 60000000 /dev/urandom > large; sha256sum large"
	sum, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: &line})
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan int, 1)
	go func() {
		made <- h.get("POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "one"}, nil)
	}()
	js, err := jetstream.New(connect(t, h.nats.ClientURL()), jetstream.WithDefaultTimeout(2*time.Second)) // a stream without a leader does not answer
	if err != nil {
		t.Fatal(err)
	}
	var leader string
	boxtest.Eventually(t, "a part of the snapshot is stored", func() bool {
		stream, err := js.Stream(t.Context(), "boxd_snapshots_archives")
		if err != nil || stream.CachedInfo().Cluster.Leader == "" {
			return false
		}
		is := stream.CachedInfo()
		if len(is.Cluster.Replicas) != 2 {
			t.Errorf("is.Cluster = %+v, want len(is.Cluster.Replicas) == 2", is.Cluster)
		}
		leader = is.Cluster.Leader
		return is.State.Msgs > 50
	})
	for _, s := range h.others {
		if s.Name() == leader {
			s.Shutdown()
			s.WaitForShutdown()
		}
	}
	if code := <-made; code != http.StatusCreated {
		t.Logf("that one was refused: %d", code)
		boxtest.Eventually(t, "another snapshot is made", func() bool {
			code := h.get("POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "one"}, nil)
			return code == http.StatusCreated || code == http.StatusConflict // the first may be known after all
		})
	}
	boxtest.Eventually(t, "the snapshot is restored", func() bool {
		code := h.get("POST", "/v1/fleet/snapshots/one/restore", api.FleetRestore{ID: "again"}, nil)
		if code == http.StatusConflict {
			t.Fatal("the gateway says that the snapshot is incomplete")
		}
		return code == http.StatusCreated
	})
	line = "sha256sum large"
	if got, err := c.Exec(t.Context(), "again", &api.ExecRequest{Command: &line}); err != nil || got.Stdout != sum.Stdout {
		t.Errorf("%+v, %v; it was %q, want no error and got.Stdout == sum.Stdout", got, err, sum.Stdout)
	}
}
