// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A gateway remembers which nodes have the images, skills and drives of sessions, in which version, and for how many of them.
func TestAGatewayRemembersWhichNodesHaveTheNeededContent(t *testing.T) {
	t.Parallel()
	g := aGateway(startServer(t), &clock{})
	want := &needs{image: "x", digest: "1", skills: map[string]string{"s": "1"}, drives: []neededDrive{{name: "me/a", version: 1, digest: "1"}, {name: "me/b", version: 1, digest: "1"}}}
	for _, one := range g.each(want, "ci") {
		g.note(one.key, "all")
	}
	g.note(g.each(want, "ci")[0].key, "half")
	g.note(g.each(want, "ci")[2].key, "half")
	for _, other := range []*needs{{image: "x", digest: "2"}, {drives: []neededDrive{{name: "me/a", version: 2, digest: "1"}}}} {
		g.note(g.each(other, "ci")[0].key, "other")
	}
	g.note(g.each(want, "other")[1].key, "other") // of another owner
	if near := g.near(want, "ci"); len(near) != 2 || near["all"] != 1 || near["half"] != 0.5 {
		t.Errorf(`near = %v, want len(near) == 2 and near["all"] == 1 and near["half"] == 0.5`, near)
	}
	for i := range maxNoted + 10 {
		g.note(fmt.Sprint(i), "a")
	}
	if len(g.noted) != maxNoted || !g.noted[fmt.Sprint(maxNoted+9)]["a"] {
		t.Errorf("it remembers %d, and not the last", len(g.noted))
	}
}

// If a node computes another digest for an image than the first node, or another name, the image is not used there, and not sent
// again at once.
func TestAnImageThatDiffersOnANodeIsNotUsed(t *testing.T) {
	t.Parallel()
	for what, is := range map[string]api.Image{"digest": {Name: "x", Digest: "sha256:b"}, "name": {Name: "y", Digest: "sha256:a"}, "no digest": {Name: "x"}} {
		h := newClaiming(t)
		h.announce("a", h.id)
		h.g.bulk, h.g.cfg.Images = h.g.js, 1<<20
		s, err := h.g.openArchives(t.Context(), imageBucket, "images", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		u, err := s.newUpload(t.Context(), "ci")
		if err == nil {
			err = u.write(t.Context(), strings.NewReader("an archive"), 1<<20)
		}
		if err == nil {
			err = s.putImage(t.Context(), &storedImage{Image: api.Image{Name: "x", Digest: "sha256:a"}, Archive: u.archived})
		}
		if err != nil {
			t.Fatal(err)
		}
		sent := 0
		h.answers(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if data, err := io.ReadAll(r.Body); err != nil || string(data) != "an archive" {
				t.Errorf(`data = %q, err = %v, want no error and data == "an archive"`, data, err)
			}
			sent++
			reply(w, http.StatusCreated, is)
		})
		c := h.call("ci")
		want, err := h.g.resolve(c, "POST /v1/sessions", &sessionSpec{Image: "x"})
		if err != nil || want.digest != "sha256:a" {
			t.Fatalf(`want = %+v, err = %v, want no error and want.digest == "sha256:a"`, want, err)
		}
		n, _ := h.g.node("a")
		for range 2 {
			if err := h.g.provide(t.Context(), c, &n, want); err == nil {
				t.Errorf("another %s is used", what)
			}
		}
		if sent != 1 {
			t.Errorf("another %s: it is sent %d times", what, sent)
		}
	}
}

// answers has a handler answer for all nodes.
func (h *claiming) answers(do http.HandlerFunc) {
	node := httptest.NewServer(do)
	h.t.Cleanup(node.Close)
	h.g.transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, node.Listener.Addr().String())
	}}
	h.t.Cleanup(h.g.transport.CloseIdleConnections)
}

// call is a request for a session, of a user.
func (h *claiming) call(who string) *call {
	r := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/v1/sessions", nil)
	return &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: who, Role: access.User}}}
}
