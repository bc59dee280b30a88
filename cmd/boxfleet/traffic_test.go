// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// manyNodes is a fleet of agents, each with a fake boxd and its own connection, and a gateway that follows them.
type manyNodes struct {
	b      *testing.B
	server *server.Server
	g      *gateway
	agents []*agent
	made   int
}

// creatingBoxd is a fakeBoxd that creates every session it is asked for.
type creatingBoxd struct{ fakeBoxd }

func (m *creatingBoxd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/sessions" || r.Method != http.MethodPost {
		m.fakeBoxd.ServeHTTP(w, r)
		return
	}
	var s api.Session
	_ = json.NewDecoder(r.Body).Decode(&s)
	s.Owner = "ci"
	m.change(func() { m.list.Sessions = append(m.list.Sessions, s) })
	w.WriteHeader(http.StatusCreated)
}

func newManyNodes(b *testing.B, nodes, sessions int) *manyNodes {
	b.Helper()
	s, js := newServer(b)
	claims, id, err := openBucket(b.Context(), js, claimsConfig(0), "now")
	if err != nil {
		b.Fatal(err)
	}
	h := &manyNodes{b: b, server: s}
	for i := range nodes {
		h.agents = append(h.agents, h.node(fmt.Sprintf("n%03d", i), sessions, claims, id))
	}
	h.g = aGateway(js, &clock{t: time.Now()})
	h.g.now, h.g.starts, h.g.turns = time.Now, map[string]start{}, make(chan struct{}, retries)
	if _, h.g.cfg.Key, err = ed25519.GenerateKey(nil); err == nil {
		h.g.ends, err = newEndpoint(b.Context(), &endpointConfig{Conn: js.Conn(), Subject: gatewaySubject + ".benchmark"})
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(h.g.ends.Close)
	h.g.transport = &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		node, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return h.g.ends.Dial(ctx, nodeSubject+node)
	}}
	b.Cleanup(h.g.transport.CloseIdleConnections)
	h.beat()
	ctx, end := context.WithCancel(b.Context())
	var followed sync.WaitGroup
	followed.Go(func() { _ = h.g.follow(ctx) }) // until the benchmark is over
	b.Cleanup(func() { end(); followed.Wait() })
	for {
		if list := h.g.known(); len(list) == nodes && list[nodes-1].State == api.FleetNodeReady {
			return h
		}
		<-time.After(time.Millisecond)
	}
}

// node returns a node with that many claimed sessions.
func (h *manyNodes) node(name string, sessions int, claims jetstream.KeyValue, bucket string) *agent {
	h.b.Helper()
	boxd := &creatingBoxd{fakeBoxd{status: api.Status{State: "ok", Version: "1", MaxSessions: 1 << 20}}}
	nc, err := nats.Connect(h.server.ClientURL())
	if err != nil {
		h.b.Fatal(err)
	}
	h.b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		h.b.Fatal(err)
	}
	a := anAgent(h.b, js, boxd)
	a.name, a.cfg.Fleet.Socket = name, a.cfg.Socket
	a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
	for i := range sessions {
		session := fmt.Sprint(name, "-", i)
		boxd.list.Sessions = append(boxd.list.Sessions, api.Session{Owner: "ci", ID: session})
		a.fences.all[claimKey("ci", session)] = fencedSession{Owner: "ci", ID: session, Generation: 1, Bucket: bucket, Since: time.Now()} // no disk is measured
		claim := &sessionClaim{FleetClaim: api.FleetClaim{Owner: "ci", ID: session, Node: name, Generation: 1, State: api.FleetClaimLive, Since: time.Now()}, key: claimKey("ci", session)}
		if _, err := putClaim(h.b.Context(), claims, claim); err != nil {
			h.b.Fatal(err)
		}
	}
	h.b.Cleanup(a.stopAnswering)
	return a
}

// beat makes each node announce itself once.
func (h *manyNodes) beat() {
	h.b.Helper()
	for _, a := range h.agents {
		a.renewed.Store(int64(a.clock().Sub(a.start))) // on a single host this takes long, and is not to be measured
		if err := a.beat(h.b.Context()); err != nil {
			h.b.Fatal(err)
		}
	}
}

// traffic returns the number of messages and bytes in and out of the NATS server so far.
func (h *manyNodes) traffic() (messages, bytes float64) {
	h.b.Helper()
	v, err := h.server.Varz(nil)
	if err != nil {
		h.b.Fatal(err)
	}
	return float64(v.InMsgs + v.OutMsgs), float64(v.InBytes + v.OutBytes)
}

// measure reports the cost of an operation in messages and bytes.
func (h *manyNodes) measure(do func()) {
	h.b.Helper()
	messages, bytes := h.traffic()
	n := 0
	for h.b.Loop() {
		do()
		n++
	}
	after, most := h.traffic()
	h.b.ReportMetric((after-messages)/float64(n), "msgs/op")
	h.b.ReportMetric((most-bytes)/float64(n), "wirebytes/op")
}

var fleetSizes = []struct{ nodes, sessions int }{{5, 0}, {5, 50}, {50, 50}, {200, 0}, {200, 50}}

// BenchmarkTrafficOfAnnouncements measures one announcement of every node, which they make every two seconds.
func BenchmarkTrafficOfAnnouncements(b *testing.B) {
	for _, size := range fleetSizes {
		b.Run(fmt.Sprintf("nodes=%d/sessions=%d", size.nodes, size.nodes*size.sessions), func(b *testing.B) {
			h := newManyNodes(b, size.nodes, size.sessions)
			h.measure(h.beat)
		})
	}
}

// BenchmarkReadingClaimsAnew measures all nodes reading the claims again, as after an outage of NATS.
func BenchmarkReadingClaimsAnew(b *testing.B) {
	for _, size := range fleetSizes {
		b.Run(fmt.Sprintf("nodes=%d/sessions=%d", size.nodes, size.nodes*size.sessions), func(b *testing.B) {
			h := newManyNodes(b, size.nodes, size.sessions)
			h.measure(func() {
				for _, a := range h.agents {
					a.agree("")
				}
				h.beat()
			})
		})
	}
}

// BenchmarkPlacement measures the placement of a session on a fleet whose nodes create it at once.
func BenchmarkPlacement(b *testing.B) {
	for _, size := range fleetSizes {
		b.Run(fmt.Sprintf("nodes=%d/sessions=%d", size.nodes, size.nodes*size.sessions), func(b *testing.B) {
			h := newManyNodes(b, size.nodes, size.sessions)
			h.measure(h.place)
		})
	}
}

func (h *manyNodes) place() {
	h.b.Helper()
	h.made++
	id := fmt.Sprint("made-", h.made)
	r := httptest.NewRequestWithContext(h.b.Context(), http.MethodPost, "/v1/sessions", nil)
	c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
	if err := h.g.claim(c, &placement{}, &wanted{ID: id, Wait: new(quantity.Duration)}, map[string]json.RawMessage{"id": json.RawMessage(`"` + id + `"`)}); err != nil {
		h.b.Fatal(err)
	}
}
