// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// cachingGateway is a gateway with the nodes a and b, whose boxd the test plays, and a bucket of claims. The gateway receives
// changes of the bucket when the test says so.
type cachingGateway struct {
	t      *testing.T
	g      *gateway
	claims jetstream.KeyValue
	watch  *claimWatch
	reads  atomic.Int64 // of claims

	mu       sync.Mutex
	answers  map[string]int // status, by node
	requests []string       // node and body of each request
}

// countedReads counts the reads of a bucket.
type countedReads struct {
	jetstream.KeyValue
	n *atomic.Int64
}

func (c countedReads) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	c.n.Add(1)
	return c.KeyValue.Get(ctx, key)
}

func newCachingGateway(t *testing.T) *cachingGateway {
	t.Helper()
	h := &cachingGateway{t: t, answers: map[string]int{"a": 200, "b": 200}}
	h.g = gatewayWithClaims(t, &clock{})
	h.g.wrote = &atomic.Uint64{}
	claims, id := h.g.claims, h.g.bucket
	h.claims = ownWrites{countedReads{claims, &h.reads}, h.g.wrote}
	h.g.claims = h.claims
	nodes := map[string]*httptest.Server{}
	for _, name := range []string{"a", "b"} {
		nodes[name] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.requests = append(h.requests, name+":"+string(body))
			w.WriteHeader(h.answers[name])
			_, _ = io.WriteString(w, name)
		}))
		t.Cleanup(nodes[name].Close)
		h.g.nodes[name] = &nodeState{FleetNode: api.FleetNode{Name: name, Claims: id}, at: h.g.now()}
	}
	h.g.transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		node, _, _ := strings.Cut(address, ":")
		return new(net.Dialer).DialContext(ctx, network, nodes[node].Listener.Addr().String())
	}}
	t.Cleanup(h.g.transport.CloseIdleConnections)
	var err error
	if h.watch, err = watchClaims(t.Context(), h.g.nc, claims, id); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.watch.stop)
	h.deliver(0)
	return h
}

// hear lets the gateway receive the changes up to a revision; 0: the initial content.
func (h *cachingGateway) deliver(revision uint64) {
	h.t.Helper()
	for h.g.index() == nil || revision > 0 && func() bool { h.g.index().mu.Lock(); defer h.g.index().mu.Unlock(); return h.g.index().upTo < revision }() {
		h.g.applyClaim(h.watch, <-h.watch.watch.Updates())
	}
}

// put writes the claim of ci's session s, as another gateway does unless own says that it is this one.
func (h *cachingGateway) put(own bool, node, state string) uint64 {
	h.t.Helper()
	into := h.claims
	if !own {
		into = into.(ownWrites).KeyValue
	}
	now, err := getClaim(h.t.Context(), into, claimKey("ci", "s"))
	if err != nil {
		h.t.Fatal(err)
	}
	next := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: node, Generation: 1, State: state}, key: claimKey("ci", "s")}
	if now != nil {
		next.revision, next.Generation = now.revision, now.Generation+1
	}
	revision, err := putClaim(h.t.Context(), into, next)
	if err != nil {
		h.t.Fatal(err)
	}
	return revision
}

// exec sends a request with a body to the session, and returns the status and what each node received.
func (h *cachingGateway) exec(body io.Reader) (status int, asked string, reads int64) {
	h.t.Helper()
	before := h.reads.Load()
	w := httptest.NewRecorder()
	c := &call{w: w, r: httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/v1/sessions/s/exec", body), pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
	if err := h.g.session(c, "ci", "s", false); err != nil {
		status = statusOf(fault.KindOf(err))
	} else {
		status = w.Code
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	asked, h.requests = strings.Join(h.requests, " "), nil
	return status, asked, h.reads.Load() - before
}

// A request is sent to the node in the gateway's copy of the claims, without reading the claim. If that node does not find the
// session, the claim is read, and the request is sent to the right node, or refused.
func TestClaimsAreReadWhenANodeDoesNotFindASession(t *testing.T) {
	t.Parallel()
	h := newCachingGateway(t)
	large := func() io.Reader { return strings.NewReader(strings.Repeat("x", maxKeptBody+1)) }
	expect := func(what string, body io.Reader, status int, asked string, reads int64) {
		t.Helper()
		gotStatus, gotAsked, gotReads := h.exec(body)
		if len(gotAsked) > maxKeptBody {
			gotAsked = gotAsked[:2] + "large"
		}
		if gotStatus != status || gotAsked != asked || gotReads != reads {
			t.Errorf("%s: %d, %q, %d reads, want %d, %q, %d", what, gotStatus, gotAsked, gotReads, status, asked, reads)
		}
	}
	answer := func(node string, status int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.answers[node] = status
	}
	expect("no claim", strings.NewReader("1"), 404, "", 1)
	revision := h.put(false, "a", api.FleetClaimLive)
	expect("a claim that was not heard of", strings.NewReader("2"), 200, "a:2", 1)
	h.deliver(revision)
	expect("one that was", strings.NewReader("3"), 200, "a:3", 0)
	expect("one that was, for a large body", large(), 200, "a:large", 0)
	answer("a", 404)
	expect("the node does not find something else", strings.NewReader("4"), 404, "a:4", 1)
	answer("a", 500)
	expect("the node fails", strings.NewReader("5"), 500, "a:5", 0)

	// Another gateway has moved it, and this one has not received that change yet.
	revision = h.put(false, "b", api.FleetClaimLive)
	for _, status := range []int{409, 503} { // it may have begun
		answer("a", status)
		expect("moved, and the old node has stopped it", strings.NewReader("6"), status, "a:6", 0)
	}
	answer("a", 404)
	expect("moved, and the old node has it no more", strings.NewReader("6"), 200, "a:6 b:6", 2)
	expect("the same without a body", nil, 200, "a: b:", 2)
	expect("the same with a large body", large(), 503, "a:large", 1)
	h.deliver(revision)
	expect("heard", strings.NewReader("7"), 200, "b:7", 0)

	// It is moved, lost or removed just now.
	answer("b", 404)
	h.put(false, "b", api.FleetClaimMoving)
	expect("it is moving, unheard", strings.NewReader("8"), 409, "b:8", 2)
	h.deliver(h.put(false, "b", api.FleetClaimLost))
	expect("it is lost", strings.NewReader("9"), 409, "", 1)
	h.deliver(h.put(false, "b", api.FleetClaimLive))
	if err := h.claims.Delete(t.Context(), claimKey("ci", "s")); err != nil {
		t.Fatal(err)
	}
	expect("it is removed, unheard", strings.NewReader("10"), 404, "b:10", 2)

	// A gateway knows what it has written itself, before it receives the change.
	answer("b", 200)
	h.deliver(h.put(false, "a", api.FleetClaimLive))
	answer("a", 200)
	h.put(true, "b", api.FleetClaimLive)
	expect("its own change", strings.NewReader("11"), 200, "b:11", 1)

	// A lost node gets no request.
	h.deliver(h.put(false, "b", api.FleetClaimLive))
	expect("before", strings.NewReader("12"), 200, "b:12", 0)
	h.g.mu.Lock()
	h.g.nodes["b"].lost = true
	h.g.mu.Unlock()
	expect("a node that is lost", strings.NewReader("13"), 503, "", 1)
}

// An unreadable claim does not count as a missing one.
func TestNotFoundIsCheckedAgainstTheClaim(t *testing.T) {
	t.Parallel()
	h := newCachingGateway(t)
	h.deliver(h.put(false, "a", api.FleetClaimLive))
	h.answers["a"] = 404
	if err := h.g.js.DeleteKeyValue(t.Context(), claimBucket); err != nil {
		t.Fatal(err)
	}
	if status, requested, _ := h.exec(strings.NewReader("1")); status != 503 || requested != "a:1" {
		t.Errorf(`status = %d, requested = %q, want status == 503 and requested == "a:1"`, status, requested)
	}
	h.answers["a"] = 200
	if status, requested, reads := h.exec(strings.NewReader("2")); status != 200 || requested != "a:2" || reads != 0 {
		t.Errorf("what the node does: %d, %q, %d reads", status, requested, reads)
	}
}

// After a reconnection to NATS, JetStream may deliver changes late: claims are read until there is a new watch.
func TestClaimsAreReadAfterNATSWasAway(t *testing.T) {
	t.Parallel()
	h := newCachingGateway(t)
	h.deliver(h.put(false, "a", api.FleetClaimLive))
	expect := func(want int64) {
		t.Helper()
		if status, asked, reads := h.exec(strings.NewReader("1")); status != 200 || asked != "a:1" || reads != want {
			t.Errorf("%d, %q, %d reads, want %d", status, asked, reads, want)
		}
	}
	expect(0)
	if err := h.g.nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the gateway is connected to NATS again", func() bool { return h.g.nc.IsConnected() && h.g.nc.Stats().Reconnects == 1 })
	expect(1)

	// The gateway begins a new watch by itself.
	ctx, end := context.WithCancel(t.Context())
	defer end()
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		h.g.Run(ctx)
	}()
	again := func(times uint64) {
		t.Helper()
		boxtest.Eventually(t, "the gateway has begun a new watch of the claims", func() bool { x := h.g.index(); return x != nil && x.renewal == times })
	}
	again(1)
	if err := h.g.nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	again(2)
	end()
	<-followed
}
