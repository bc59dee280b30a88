// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// What operators are promised.
const (
	changeIsSeen = 5 * time.Second
	deathIsSeen  = 15 * time.Second
)

// clock is set by a test.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// aGateway returns a gateway of a NATS server that knows no node yet.
func aGateway(js jetstream.JetStream, c *clock) *gateway {
	g := &gateway{cfg: gatewayOptions{Version: "1.2"}, log: slog.New(slog.DiscardHandler), nodes: map[string]*nodeState{}, directs: newDirects(), now: c.now, lookups: make(chan struct{}, maxLookups), copies: newCopies()}
	g.metrics = newMetrics(g)
	g.baseCtx = context.Background()
	g.nc, g.js, g.bulk = js.Conn(), js, js
	return g
}

// state returns the state of the only node, as the gateway reports it.
func state(t *testing.T, g *gateway) string {
	t.Helper()
	list := g.known()
	if len(list) != 1 {
		t.Fatalf("list = %+v, want len(list) == 1", list)
	}
	return list[0].State
}

// A node is lost when it was silent for the promised time, and not a moment earlier; it stops serving before that. Its sessions
// are lost at the next check, at every gateway, and its next announcement makes the node ready again.
func TestALostNodeIsDetectedInTime(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	nodes, nodesID, err := openBucket(t.Context(), js, nodesConfig(0), "a")
	if err != nil {
		t.Fatal(err)
	}
	claims, id, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	key := claimKey("ci", "s")
	if _, err := putClaim(t.Context(), claims, &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: "s", Node: "a", Generation: 1, State: api.FleetClaimLive}, key: key}); err != nil {
		t.Fatal(err)
	}
	c := &clock{t: time.Unix(1e9, 0)}
	g := aGateway(js, c)
	announce := func() {
		t.Helper()
		data, err := json.Marshal(&api.FleetNode{Name: "a", State: api.FleetNodeReady, Time: c.now()})
		if err == nil {
			_, err = nodes.Put(t.Context(), "a", data)
		}
		if err != nil {
			t.Fatal(err)
		}
		entry, err := nodes.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		g.update(entry)
	}
	look := func(node, claim string) {
		t.Helper()
		if err := g.checkNodes(t.Context(), nodesID, id); err != nil {
			t.Fatal(err)
		}
		got, err := getClaim(t.Context(), claims, key)
		if err != nil || got.State != claim || state(t, g) != node {
			t.Errorf("the node is %s, and its session %+v, %v; want %s and %s", state(t, g), got, err, node, claim)
		}
	}
	announce()
	agent := &agent{agreed: id, start: c.now(), clock: c.now}
	c.pass(deathIsSeen - time.Millisecond)
	look(api.FleetNodeReady, api.FleetClaimLive)
	if agent.serves() {
		t.Error("the agent serves although its lease is about to expire")
	}
	c.pass(time.Millisecond)
	if got := state(t, g); got != api.FleetNodeLost {
		t.Errorf("it is %s, want api.FleetNodeLost", got)
	}
	look(api.FleetNodeLost, api.FleetClaimLost)
	g.claims = claims
	scrape(t, g, `boxfleet_lost_total{kind="node"} 1`, `boxfleet_lost_total{kind="session"} 1`, `boxfleet_nodes{state="lost"} 1`, `boxfleet_node_seen_seconds{node="a"} 15`)
	if list, err := g.owners(t.Context()); err != nil || !slices.Equal(list, []api.FleetOwner{{Owner: "ci", Lost: 1}}) {
		t.Errorf(`list = %+v, err = %v, want no error and list == []api.FleetOwner{{Owner: "ci", Lost: 1}}`, list, err)
	}
	announce()
	look(api.FleetNodeReady, api.FleetClaimLost) // the node makes its claims live once it has checked them
	// Announcements that did not reach this gateway, for example because its connection hangs, count too.
	c.pass(deathIsSeen)
	data, err := json.Marshal(&api.FleetNode{Name: "a", State: api.FleetNodeReady, Time: c.now()})
	if err == nil {
		_, err = nodes.Put(t.Context(), "a", data)
	}
	if err != nil {
		t.Fatal(err)
	}
	look(api.FleetNodeReady, api.FleetClaimLost)
}

// fakeBoxd answers an agent's requests, with a status that a test changes.
type fakeBoxd struct {
	mu      sync.Mutex
	status  api.Status
	list    api.SessionList
	ended   []string
	started []string
}

func (f *fakeBoxd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.URL.Path {
	case "/v1/status":
		_ = json.NewEncoder(w).Encode(f.status)
	case "/v1/sessions":
		_ = json.NewEncoder(w).Encode(f.list)
	case "/v1/doctor":
		_ = json.NewEncoder(w).Encode(api.Doctor{})
	default:
		if r.Method == http.MethodDelete {
			f.ended = append(f.ended, path.Base(r.URL.Path))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if path.Base(r.URL.Path) == "start" {
			f.started = append(f.started, path.Base(path.Dir(r.URL.Path)))
			_ = json.NewEncoder(w).Encode(api.Session{})
			return
		}
		http.NotFound(w, r)
	}
}

func (f *fakeBoxd) hasStarted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.started)
}

func (f *fakeBoxd) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
}

// anAgent returns the agent of a boxd, connected to a NATS server.
func anAgent(t testing.TB, js jetstream.JetStream, boxd http.Handler) *agent {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: boxd, ReadHeaderTimeout: time.Minute}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(ln) }) // until it is closed
	t.Cleanup(func() {
		_ = server.Close() // it ends with the test
		served.Wait()
	})
	a, err := newAgent(&agentOptions{
		Fleet: access.Fleet{Name: "a", Servers: []string{js.Conn().ConnectedUrl()}}, Socket: socket, State: filepath.Join(t.TempDir(), "state"), Disk: "/", IDRanges: 7,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.nc, a.js = js.Conn(), js
	t.Cleanup(func() {
		if a.view != nil {
			a.view.close()
		}
		a.fences.close()
		a.boxd.Close()
	})
	return a
}

// A change on a host is in its next announcement, which gateways receive as soon as it is published. Announcements are frequent
// enough that one may even be missed.
func TestAHostChangeReachesGatewaysInTime(t *testing.T) {
	t.Parallel()
	if 2*renewEvery > changeIsSeen {
		t.Errorf("an announcement each %v is too rare", renewEvery)
	}
	js := startServer(t)
	boxd := &fakeBoxd{status: api.Status{State: "ok", Version: "1", MaxSessions: 10}}
	a := anAgent(t, js, boxd)
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	ctx, cancel := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() { g.Run(ctx) }) // until the test is over
	defer followed.Wait()
	defer cancel()
	beat := func(has func(*api.FleetNode) bool) {
		t.Helper()
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		ticker, over := time.NewTicker(time.Millisecond), time.After(time.Minute) // the gateway is notified, not polled
		defer ticker.Stop()
		for {
			if list := g.known(); len(list) == 1 && has(&list[0].FleetNode) {
				return
			}
			select {
			case <-ticker.C:
			case <-over:
				t.Fatalf("it is not seen: %+v", g.known())
			}
		}
	}
	beat(func(n *api.FleetNode) bool {
		return n.State == api.FleetNodeReady && n.MaxSessions == 10 && n.Sessions == 0
	})
	boxd.change(func() {
		boxd.status.MaxSessions, boxd.status.Sessions = 11, 2
		boxd.status.Warm = []api.Warm{{Profile: "default", Ready: 3}}
		boxd.list.Sessions = []api.Session{
			{Owner: "ci", ID: "s", Limits: limits.Limits{Pids: 100, Memory: 1 << 20, CPUs: 2}}, {Owner: "ci", ID: "t", Limits: limits.Limits{Pids: 28, CPUs: 0.5}},
		}
	})
	beat(func(n *api.FleetNode) bool { return n.MaxSessions == 11 })
	n := g.known()[0]
	if n.Sessions != 2 || n.PidsReserved != 128 || n.CPUsReserved != 2.5 || n.MemoryReserved != 1<<20 || n.IDRanges != 7 || n.IDRangesUsed != 5 || !slices.Equal(n.Warm, []string{"default"}) {
		t.Errorf("n.FleetNode = %+v", n.FleetNode)
	}
	if n.Pids < 100 || n.PidsUsed < 1 || n.PidsUsed > n.Pids || n.Memory == 0 || n.MemoryAvailable > n.Memory || n.Disk == 0 || n.CPUs < 1 {
		t.Errorf("the capacity of the host: n.FleetNode = %+v, want n.Pids >= 100 and n.PidsUsed >= 1 and n.PidsUsed <= n.Pids and n.Memory != 0 and n.MemoryAvailable <= n.Memory and n.Disk != 0 and n.CPUs >= 1",
			n.FleetNode)
	}
	if want := []api.FleetOwner{{Owner: "ci", Sessions: 2, CPUs: 2.5, Memory: 1 << 20, Pids: 128}}; !slices.Equal(n.Owners, want) {
		t.Errorf("%+v, want %+v", n.Owners, want)
	}
	boxd.change(func() { boxd.status.State, boxd.status.Off = "off", "drained" })
	beat(func(n *api.FleetNode) bool { return n.State == api.FleetNodeOff && n.Reason == "drained" })
}

// A session whose claim was given up is ended, however new it is; one whose claim was lost with its bucket gets a new claim.
func TestASessionWhoseClaimWasGivenUpEnds(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	boxd := &fakeBoxd{status: api.Status{State: "ok", MaxSessions: 10}}
	boxd.list.Sessions = []api.Session{{Owner: "ci", ID: "given-up"}, {Owner: "ci", ID: "of-before"}}
	a := anAgent(t, js, boxd)
	a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
	for id, in := range map[string]string{"given-up": bucket, "of-before": "before"} {
		if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: id, Generation: 1, Bucket: in, Sandbox: true}); err != nil || !ok {
			t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
		}
	}
	if err := a.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.background.Wait()
	if !slices.Equal(boxd.ended, []string{"given-up"}) {
		t.Errorf(`ended: boxd.ended = %q, want []string{"given-up"}`, boxd.ended)
	}
	c, err := getClaim(t.Context(), claims, claimKey("ci", "of-before"))
	if err != nil || c == nil || c.State != api.FleetClaimLive || !c.Sandbox {
		t.Fatalf("c = %+v, err = %v, want no error and c != nil and c.State == api.FleetClaimLive and c.Sandbox == true",
			c, err)
	}
	c.Sandbox = false // as written by a gateway that does not know sandboxes
	if _, err := putClaim(t.Context(), claims, c); err != nil {
		t.Fatal(err)
	}
	for range readAnyway {
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := getClaim(t.Context(), claims, claimKey("ci", "of-before")); err != nil || c == nil || !c.Sandbox {
		t.Errorf("c = %+v, err = %v, want no error and c != nil and c.Sandbox == true", c, err)
	}
}
