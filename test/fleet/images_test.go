// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// An image that an operator imports at the gateway is on every node that is asked for a session of it, and lets it: by name in a
// session, in a program without one, and in a session that moves. What is replaced or removed is so for new sessions.
func TestAnImageOfTheFleetIsWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	h := &house{t: t, dir: boxtest.TempDir(t), images: `size = "128MiB"`}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	h.fill(3)
	c := h.client()
	program, err := os.ReadFile(filepath.Join(boxtest.Programs(t), "boxctl")) // it is static
	if err != nil {
		t.Fatal(err)
	}
	archive := func(name string) *bytes.Reader {
		return bytes.NewReader(boxtest.Tar(0o755, map[string]string{"bin/" + name: string(program)}))
	}
	first, err := c.ImportImage(t.Context(), archive("one"), "tools:1", "rootfs")
	if err != nil || first.Name != "tools:1" || first.Form != "rootfs" {
		t.Fatalf("%+v, %v", first, err)
	}
	runs := func(id, program string) {
		t.Helper()
		r, err := c.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"/bin/" + program, "version"}})
		if err != nil || r.Status != "exited" || *r.ExitCode != 0 {
			t.Errorf("%s in %s: %+v, %v", program, id, r, err)
		}
	}
	make := func(id, node string, want int, words string) {
		t.Helper()
		var p api.Problem
		code := h.get("POST", "/v1/sessions", map[string]any{"id": id, "image": "tools:1", "wait": waitFor(want), "placement": map[string]any{"node": node}}, &p)
		if code != want || !bytes.Contains([]byte(p.Detail), []byte(words)) {
			t.Errorf("%s on %s: %d %+v, want %d and %q", id, node, code, p, want, words)
		}
	}
	make("a", "n1", http.StatusCreated, "")
	runs("a", "one")
	if m, p, code := h.moves("a", api.FleetMove{Node: "n2"}); code != http.StatusOK {
		t.Fatalf("%+v %+v %d", m, p, code)
	}
	runs("a", "one")
	for _, node := range []string{"n1", "n2"} {
		if is, err := h.on(node).boxd.Image(t.Context(), "tools:1"); err != nil || is.Digest != first.Digest {
			t.Errorf("%s has %+v, %v", node, is, err)
		}
	}
	make("c", "n3", http.StatusTooManyRequests, "the gateway \"main\" may not import images on this node")
	r, err := c.Run(t.Context(), &api.OneShotRequest{Session: api.SessionRequest{Image: new("tools:1")}, Exec: api.ExecRequest{Argv: []string{"/bin/one", "version"}}})
	if err != nil || r.Status != "exited" || *r.ExitCode != 0 {
		t.Errorf("%+v, %v", r, err)
	}

	h.prints(t, "run", "--image", "tools:1", "--", "/bin/one", "version")

	// Another under the same name: sessions keep what they have.
	second, err := c.ImportImage(t.Context(), archive("two"), "tools:1", "rootfs")
	if err != nil || second.Digest == first.Digest {
		t.Fatalf("%+v, %v", second, err)
	}
	make("b", "n2", http.StatusCreated, "")
	runs("b", "two")
	runs("a", "one")
	if list, err := c.Images(t.Context()); err != nil || len(list) != 1 || list[0].Digest != second.Digest {
		t.Errorf("%+v, %v", list, err)
	}

	// Who may not, and what is no image.
	h.refuses(h.user, "DELETE", "/v1/images/tools:1", nil, http.StatusForbidden, "needs the operator role")
	h.refuses(h.user, "POST", "/v1/images?name=x", nil, http.StatusForbidden, "needs the operator role")
	h.refuses(h.token, "GET", "/v1/images/none", nil, http.StatusNotFound, "no image")
	h.refuses(h.token, "POST", "/v1/images/prune", nil, http.StatusNotImplemented, "Boxd-Node")
	if _, err := c.ImportImage(t.Context(), bytes.NewReader([]byte("no image")), "x", ""); err == nil {
		t.Error("what is no image is imported")
	}
	if _, err := c.ImportImage(t.Context(), archive("two"), "../x", "rootfs"); err == nil {
		t.Error("a name that no image can have is taken")
	}
	if err := c.DeleteImage(t.Context(), "tools:1"); err != nil {
		t.Error(err)
	}
	js := h.buckets()
	stream, err := js.Stream(t.Context(), "boxd_images_archives")
	if err != nil || stream.CachedInfo().State.Bytes != 0 {
		t.Errorf("%+v, %v", stream.CachedInfo(), err)
	}
	runs("b", "two")
	h.refuses(h.token, "GET", "/v1/images/tools:1", nil, http.StatusNotFound, "no image")
}
