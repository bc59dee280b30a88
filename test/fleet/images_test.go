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

// An image that an operator imports at the gateway is sent to every node that gets a session with it, and allows that: by name in a
// session, in a program without one, and in a session that moves. A replaced or removed image affects new sessions only.
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
		t.Fatalf(`first = %+v, err = %v, want no error and first.Name == "tools:1" and first.Form == "rootfs"`,
			first, err)
	}
	runs := func(id, program string) {
		t.Helper()
		r, err := c.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"/bin/" + program, "version"}})
		if err != nil || r.Status != "exited" || *r.ExitCode != 0 {
			t.Errorf(`%s in %s: r = %+v, err = %v, want no error and r.Status == "exited" and *r.ExitCode == 0`,
				program, id, r, err)
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
		t.Fatalf("m = %+v, p = %+v, code = %d, want code == 200", m, p, code)
	}
	runs("a", "one")
	for _, node := range []string{"n1", "n2"} {
		if is, err := h.on(node).boxd.Image(t.Context(), "tools:1"); err != nil || is.Digest != first.Digest {
			t.Errorf("%s has %+v, %v, want no error and is.Digest == %v", node, is, err, first.Digest)
		}
	}
	make("c", "n3", http.StatusTooManyRequests, "the gateway \"main\" may not import images on this node")
	r, err := c.Run(t.Context(), &api.OneShotRequest{Session: api.SessionRequest{Image: new("tools:1")}, Exec: api.ExecRequest{Argv: []string{"/bin/one", "version"}}})
	if err != nil || r.Status != "exited" || *r.ExitCode != 0 {
		t.Errorf(`r = %+v, err = %v, want no error and r.Status == "exited" and *r.ExitCode == 0`, r, err)
	}

	h.prints(t, "run", "--image", "tools:1", "--", "/bin/one", "version")

	// Another image of the same name: sessions keep the one they have.
	second, err := c.ImportImage(t.Context(), archive("two"), "tools:1", "rootfs")
	if err != nil || second.Digest == first.Digest {
		t.Fatalf("second = %+v, err = %v, want no error and second.Digest != %v", second, err, first.Digest)
	}
	make("b", "n2", http.StatusCreated, "")
	runs("b", "two")
	runs("a", "one")
	if list, err := c.Images(t.Context()); err != nil || len(list) != 1 || list[0].Digest != second.Digest {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1 and list[0].Digest == second.Digest",
			list, err)
	}

	// Who may not, and what is no image.
	h.refuses(h.user, "DELETE", "/v1/images/tools:1", nil, http.StatusForbidden, "needs the operator role")
	h.refuses(h.user, "POST", "/v1/images?name=x", nil, http.StatusForbidden, "needs the operator role")
	h.refuses(h.token, "GET", "/v1/images/none", nil, http.StatusNotFound, "no image")
	h.refuses(h.token, "POST", "/v1/images/prune", nil, http.StatusNotImplemented, "Boxd-Node")
	if _, err := c.ImportImage(t.Context(), bytes.NewReader([]byte("no image")), "x", ""); err == nil {
		t.Error("no error for an import of what is no image")
	}
	if _, err := c.ImportImage(t.Context(), archive("two"), "../x", "rootfs"); err == nil {
		t.Error("no error for an invalid image name")
	}
	if err := c.DeleteImage(t.Context(), "tools:1"); err != nil {
		t.Error(err)
	}
	js := h.buckets()
	stream, err := js.Stream(t.Context(), "boxd_images_archives")
	if err != nil || stream.CachedInfo().State.Bytes != 0 {
		t.Errorf("stream.CachedInfo() = %+v, err = %v, want no error and stream.CachedInfo().State.Bytes == 0",
			stream.CachedInfo(), err)
	}
	runs("b", "two")
	h.refuses(h.token, "GET", "/v1/images/tools:1", nil, http.StatusNotFound, "no image")
}
