// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/boxtest"
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
	fences []uint64 // generations that node a was told to store
	made   int      // requests for a session that reached a node
}

// gatewayWithClaims returns a gateway that has a key and an empty bucket of claims.
func gatewayWithClaims(t *testing.T, c *clock) *gateway {
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
	g := aGateway(js, c)
	g.cfg.Key, g.claims, g.bucket = key, claims, id
	return g
}

func newClaiming(t *testing.T) *claiming {
	t.Helper()
	h := &claiming{t: t, clock: &clock{t: time.Unix(1e9, 0)}}
	h.g = gatewayWithClaims(t, h.clock)
	h.id = h.g.bucket
	h.g.starts, h.g.turns, h.g.opened = map[string]start{}, make(chan struct{}, 1), h.clock.now()
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

// announce lets the gateway receive the announcement of a ready node, with the claims of a bucket.
func (h *claiming) announce(node, bucket string) {
	h.t.Helper()
	data, err := json.Marshal(&api.FleetNode{Name: node, State: api.FleetNodeReady, Claims: bucket, Time: h.clock.now()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.g.update(named{announced{value: data}, node})
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
		h.t.Fatalf("c = %+v, err = %v, want no error and c != nil", c, err)
	}
	return c
}

// While the bucket of claims is new and a node has not written its claims into it, no caller gets "not found" for a session.
func TestASessionWithoutAClaimMayExist(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	kind := func() fault.Kind {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/sessions/s", nil)
		c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
		return fault.KindOf(h.g.session(c, "ci", "s", true))
	}
	for _, tc := range []struct {
		bucket string
		after  time.Duration
		want   fault.Kind
	}{
		{h.id, 0, fault.NotFound},
		{"that of before", 0, fault.Unavailable},
		{"that of before", lostAfter - time.Second, fault.Unavailable},
		{"that of before", time.Second, fault.NotFound}, // it will not say more
		{h.id, 0, fault.NotFound},
	} {
		h.clock.pass(tc.after)
		h.announce("a", tc.bucket)
		if got := kind(); got != tc.want {
			t.Errorf("%+v: got %v, want %v", tc, got, tc.want)
		}
	}
}

// An operator can remove a lost node, at every gateway, but no other node. A node that comes back is listed again.
func TestANodeThatIsGoneIsForgotten(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	other := aGateway(h.g.js, h.clock)
	ctx, cancel := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() { other.Run(ctx) })
	defer followed.Wait()
	defer cancel()
	nodes, _, err := openBucket(t.Context(), h.g.js, nodesConfig(0), "n")
	if err != nil {
		t.Fatal(err)
	}
	announce := func() {
		data, err := json.Marshal(&api.FleetNode{Name: "a", State: api.FleetNodeReady, Claims: h.id, Time: h.clock.now()})
		if err == nil {
			_, err = nodes.Put(t.Context(), "a", data)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.announce("a", h.id)
		boxtest.Eventually(t, "the other gateway has received the announcement of node a", func() bool { return other.lastSeen("a").Equal(h.clock.now()) })
	}
	forget := func(node string) error {
		w := httptest.NewRecorder()
		c := &call{w: w, r: httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/v1/fleet/nodes/"+node, nil), pass: access.Pass{Principal: access.Principal{Name: "op", Role: access.Operator}}}
		return h.g.manage(c, []string{"nodes", node})
	}
	refused := func(node string, want fault.Kind) {
		t.Helper()
		if err := forget(node); fault.KindOf(err) != want {
			t.Errorf("%s: err = %v, want an error of kind %v", node, err, want)
		}
	}
	refused("b", fault.NotFound)
	refused("B!", fault.Invalid)
	announce()
	refused("a", fault.Conflict) // it is not lost
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	other.mu.Lock()
	other.nodes["a"].at = h.clock.now().Add(lostAfter) // it receives the same announcement later
	other.mu.Unlock()
	h.clock.pass(lostAfter)
	cordons, err := h.g.cordons(t.Context())
	if err == nil {
		_, err = cordons.Put(t.Context(), "a", []byte("{}"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := forget("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := cordons.Get(t.Context(), "a"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("its cordon: err = %v, want err is jetstream.ErrKeyNotFound", err)
	}
	if list, err := h.g.owners(t.Context()); err != nil || len(list) != 1 || list[0].Lost != 1 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1 and list[0].Lost == 1", list, err)
	}
	if n, ok := h.g.node("a"); ok {
		t.Errorf("it is %+v, want ok == false", n)
	}
	h.clock.pass(lostAfter)
	boxtest.Eventually(t, "the other gateway has removed node a, which is lost there", func() bool { _, ok := other.node("a"); return !ok })
	if claim := h.claim(); claim.State != api.FleetClaimLost {
		t.Errorf("its session is %+v, want claim.State == api.FleetClaimLost", claim)
	}
	announce()
	if n, ok := h.g.node("a"); !ok || n.lost {
		t.Errorf("it is back: n = %+v, ok = %v, want ok == true and n.lost == false", n, ok)
	}
	h.clock.pass(lostAfter)
	data, err := json.Marshal(&api.FleetNode{Name: "a", Time: h.clock.now()}) // which this gateway has not received
	if err == nil {
		_, err = nodes.Put(t.Context(), "a", data)
	}
	if err != nil {
		t.Fatal(err)
	}
	refused("a", fault.Conflict)
}

// A session that another gateway is creating is left to its node, whatever that gateway's clock says; and one that is never
// created is waited for no longer than promised.
func TestClocksOfTwoGatewaysThatDifferByHours(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"ahead": 5 * time.Hour, "behind": -5 * time.Hour} {
		h := newClaiming(t)
		h.announce("a", h.id)
		first := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: "a", Generation: 3, State: api.FleetClaimStarting, Since: h.clock.now().Add(ahead)}, key: claimKey("ci", "s")}
		if _, err := putClaim(t.Context(), h.g.claims, first); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := h.create(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			h.clock.pass(startingFor / 2)
			h.announce("a", h.id)
		}
		if got := h.claim(); got.Generation != 3 || !slices.Equal(h.fences, []uint64{3, 3}) || h.made != 2 {
			t.Errorf("%s: %+v, the node was asked for %v, and for %d sessions", name, got, h.fences, h.made)
		}
		if err := h.create(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := h.claim(); got.Generation != 4 || got.State != api.FleetClaimLive {
			t.Errorf("%s, when it is old: got %+v, want got.Generation == 4 and got.State == api.FleetClaimLive",
				name, got)
		}
	}
}

// A node that announces itself as ready, but never has these claims, delays placement for as long as it could be lost, and no longer.
func TestANodeWithOtherClaimsDelaysPlacementForABoundedTime(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	hear := func() {
		h.announce("a", h.id)
		h.announce("b", "of another bucket")
	}
	hear()
	h.clock.pass(lostAfter - time.Millisecond)
	hear()
	if err := h.create(); err == nil || !strings.Contains(err.Error(), "node b has not yet reported its sessions") || h.made != 0 {
		t.Errorf(`err = %v, want an error containing "node b has not yet reported its sessions" and h.made == 0`, err)
	}
	h.clock.pass(time.Millisecond)
	hear()
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	if got := h.claim(); got.Node != "a" || got.State != api.FleetClaimLive {
		t.Errorf(`got %+v, want got.Node == "a" and got.State == api.FleetClaimLive`, got)
	}
	if n, _ := h.g.node("b"); n.State != api.FleetNodeFailed || n.Reason != unknownClaims {
		t.Errorf("n = %+v, want n.State == api.FleetNodeFailed and n.Reason == unknownClaims", n)
	}
	h.announce("b", h.id)
	if n, _ := h.g.node("b"); n.State != api.FleetNodeReady {
		t.Errorf("after an announcement of node b: n = %+v, want n.State == api.FleetNodeReady", n)
	}
}

// A request for a session that is too long to be signed is refused as such, and leaves no claim behind.
func TestWhatCannotBeSignedIsNotClaimed(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	h.announce("a", h.id)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/sandboxes", nil)
	c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
	err := (&reservation{
		g: h.g, c: c, claims: h.g.claims, bucket: h.id, place: &placement{}, want: &wanted{ID: "s"}, key: claimKey("ci", "s"), target: "/sandboxes?x=" + strings.Repeat("y", 13000),
	}).begin()
	if fault.KindOf(err) != fault.Invalid || h.made != 0 {
		t.Errorf("%v, and %d were made", err, h.made)
	}
	if claim, err := getClaim(t.Context(), h.g.claims, claimKey("ci", "s")); claim != nil || err != nil {
		t.Errorf("claim = %+v, err = %v, want claim == nil and no error", claim, err)
	}
}

// An id that no node takes is refused before it is claimed: a claim has room for what a node takes, and no more.
func TestAnIDThatNoNodeTakesIsNotClaimed(t *testing.T) {
	t.Parallel()
	h := newClaiming(t)
	h.announce("a", h.id)
	for _, id := range []string{strings.Repeat("x", 257), strings.Repeat("x", 1<<19)} {
		body, err := json.Marshal(map[string]any{"id": id, "wait": "0s"})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/sessions", bytes.NewReader(body))
		c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
		if err := h.g.create(c); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "id = ") {
			t.Errorf("%.10q: err = %v, want a fault.Invalid error about the id", id, err)
		}
	}
	if all, err := listClaims(t.Context(), h.g.claims); err != nil || len(all) != 0 || h.made != 0 {
		t.Errorf("%d claims, %v, %d requests to the node, want none", len(all), err, h.made)
	}
}
