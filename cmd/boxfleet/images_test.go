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

// A gateway remembers which nodes have an image, until that is another one.
func TestWhereAnImageIs(t *testing.T) {
	t.Parallel()
	g := aGateway(startServer(t), &clock{})
	g.noteImage("x", "a")
	g.noteImage("x", "b")
	g.noteImage("y", "a")
	have := g.haveImage("x")
	if len(have) != 2 || !have["a"] || !have["b"] || len(g.haveImage("none")) != 0 {
		t.Errorf("%v", have)
	}
	g.forgetImage("x")
	if have := g.haveImage("x"); len(have) != 0 || !g.haveImage("y")["a"] {
		t.Errorf("%v", have)
	}
	for i := range maxNoted + 10 {
		g.noteImage(fmt.Sprint(i), "a")
	}
	if len(g.imageOn) != maxNoted {
		t.Errorf("it remembers %d", len(g.imageOn))
	}
}

// An image of which a node makes another than the first node has, or another name, is not used, and not sent again at once.
func TestAnImageThatIsAnotherOnANode(t *testing.T) {
	t.Parallel()
	for what, is := range map[string]api.Image{"digest": {Name: "x", Digest: "sha256:b"}, "name": {Name: "y", Digest: "sha256:a"}, "no digest": {Name: "x"}} {
		h := newClaiming(t)
		h.hears("a", h.id)
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
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if data, err := io.ReadAll(r.Body); err != nil || string(data) != "an archive" {
				t.Errorf("%q, %v", data, err)
			}
			sent++
			reply(w, http.StatusCreated, is)
		}))
		t.Cleanup(node.Close)
		h.g.transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, node.Listener.Addr().String())
		}}
		t.Cleanup(h.g.transport.CloseIdleConnections)
		c := &call{w: httptest.NewRecorder(), r: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/sessions", nil), pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
		want, err := h.g.resolve(c, "POST /v1/sessions", "x", nil)
		if err != nil || want.digest != "sha256:a" {
			t.Fatalf("%+v, %v", want, err)
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
