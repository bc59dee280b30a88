// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// claiming is a gateway that creates a session of ci on nodes played by the test.
type claiming struct {
	t      *testing.T
	g      *gateway
	clock  *clock
	id     string   // of the claims bucket
	fences []uint64 // generations that node a was asked to remember
	made   int      // requests for a session that reached a node
}

func newClaiming(t *testing.T) *claiming {
	t.Helper()
	js := startServer(t)
	claims, id, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	h := &claiming{t: t, clock: &clock{t: time.Unix(1e9, 0)}, id: id}
	h.g = aGateway(js, h.clock)
	h.g.cfg.Key, h.g.starts, h.g.turns = key, map[string]start{}, make(chan struct{}, 1)
	h.g.claims, h.g.bucket, h.g.opened = claims, id, h.clock.now()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.made++; w.WriteHeader(http.StatusCreated) }))
	t.Cleanup(node.Close)
	h.g.transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, node.Listener.Addr().String())
	}}
	t.Cleanup(h.g.transport.CloseIdleConnections)
	if _, err := h.g.nc.Subscribe(nodeSubject+"a.fence", func(m *nats.Msg) {
		var f fence
		if err := json.Unmarshal(m.Data, &f); err != nil {
			t.Error(err)
		}
		h.fences = append(h.fences, f.Generation)
		if err := m.Respond([]byte(`{"ok":true}`)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return h
}

// hears lets the gateway receive the announcement of a ready node, with the claims of a bucket.
func (h *claiming) hears(node, bucket string) {
	h.t.Helper()
	data, err := json.Marshal(&api.FleetNode{Name: node, State: api.FleetNodeReady, Claims: bucket, Time: h.clock.now()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.g.heard(named{announced{value: data}, node})
}

// named is an announcement of a node other than n.
type named struct {
	announced
	name string
}

func (n named) Key() string { return n.name }

// create requests a session, without waiting.
func (h *claiming) create() error {
	h.t.Helper()
	r := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/v1/sessions", nil)
	c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
	return h.g.claim(c, &placement{}, &wanted{ID: "s", Wait: new(quantity.Duration)}, map[string]json.RawMessage{"id": json.RawMessage(`"s"`)})
}

func (h *claiming) claim() *sessionClaim {
	h.t.Helper()
	c, err := getClaim(h.t.Context(), h.g.claims, claimKey("ci", "s"))
	if err != nil || c == nil {
		h.t.Fatalf("%+v, %v", c, err)
	}
	return c
}

// A session that another gateway is creating is left to its node, whatever that gateway's clock says; and one that is never
// created is waited for no longer than promised.
func TestClocksOfTwoGatewaysThatDifferByHours(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"ahead": 5 * time.Hour, "behind": -5 * time.Hour} {
		h := newClaiming(t)
		h.hears("a", h.id)
		first := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: "a", Generation: 3, State: api.FleetClaimStarting, Since: h.clock.now().Add(ahead)}, key: claimKey("ci", "s")}
		if _, err := putClaim(t.Context(), h.g.claims, first); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := h.create(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			h.clock.pass(startingFor / 2)
			h.hears("a", h.id)
		}
		if got := h.claim(); got.Generation != 3 || !slices.Equal(h.fences, []uint64{3, 3}) || h.made != 2 {
			t.Errorf("%s: %+v, the node was asked for %v, and for %d sessions", name, got, h.fences, h.made)
		}
		if err := h.create(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := h.claim(); got.Generation != 4 || got.State != api.FleetClaimLive {
			t.Errorf("%s, when it is old: %+v", name, got)
		}
	}
}

// A node that announces itself as ready, but never has these claims, delays placement for as long as it could be lost, and no longer.
func TestANodeWithOtherClaimsHoldsNobodyUpForLong(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	hear := func() {
		h.hears("a", h.id)
		h.hears("b", "of another bucket")
	}
	hear()
	h.clock.pass(lostAfter - time.Millisecond)
	hear()
	if err := h.create(); err == nil || !strings.Contains(err.Error(), "node b has not yet reported its sessions") || h.made != 0 {
		t.Errorf("%v", err)
	}
	h.clock.pass(time.Millisecond)
	hear()
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	if got := h.claim(); got.Node != "a" || got.State != api.FleetClaimLive {
		t.Errorf("%+v", got)
	}
	if n, _ := h.g.node("b"); n.State != api.FleetNodeFailed || n.Reason != unknownClaims {
		t.Errorf("%+v", n)
	}
	h.hears("b", h.id)
	if n, _ := h.g.node("b"); n.State != api.FleetNodeReady {
		t.Errorf("it knows them now: %+v", n)
	}
}

// A request for a session that is too long to be signed is refused as such, and leaves no claim behind.
func TestWhatCannotBeSignedIsNotClaimed(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	h.hears("a", h.id)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/sandboxes", nil)
	c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
	err := (&reservation{
		g: h.g, c: c, claims: h.g.claims, bucket: h.id, place: &placement{}, want: &wanted{ID: "s"}, key: claimKey("ci", "s"), target: "/sandboxes?x=" + strings.Repeat("y", 13000),
	}).begin()
	if fault.KindOf(err) != fault.Invalid || h.made != 0 {
		t.Errorf("%v, and %d were made", err, h.made)
	}
	if claim, err := getClaim(t.Context(), h.g.claims, claimKey("ci", "s")); claim != nil || err != nil {
		t.Errorf("%+v, %v", claim, err)
	}
}
