// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func nodeOf(name string, change func(*api.FleetNode)) nodeState {
	n := api.FleetNode{Name: name, State: api.FleetNodeReady, CPUs: 8, Memory: 32 << 30, MemoryAvailable: 32 << 30, MaxSessions: 256}
	if change != nil {
		change(&n)
	}
	return nodeState{FleetNode: n}
}

func names(list []nodeState) (all []string) {
	for i := range list {
		all = append(all, list[i].Name)
	}
	return all
}

func TestOnlyEligibleNodesAreCandidates(t *testing.T) {
	t.Parallel()
	nodes := []nodeState{
		nodeOf("off", func(n *api.FleetNode) { n.State = api.FleetNodeOff }),
		nodeOf("full", func(n *api.FleetNode) { n.Sessions = 256 }),
		nodeOf("ids", func(n *api.FleetNode) { n.IDRanges, n.IDRangesUsed = 4, 4 }),
		nodeOf("pids", func(n *api.FleetNode) { n.Pids, n.PidsUsed = 1000, 1000 }),
		nodeOf("west", func(n *api.FleetNode) { n.Labels = map[string]string{"zone": "west"} }),
		nodeOf("net", func(n *api.FleetNode) {
			n.Labels, n.Capabilities = map[string]string{"zone": "west"}, []string{"network"}
		}),
	}
	for want, p := range map[string]*placement{
		"net west": {}, "net": {Can: []string{"network"}}, "west": {Node: "west", Requires: map[string]string{"zone": "west"}}, "": {Requires: map[string]string{"zone": "east"}},
	} {
		list, none := choose(p, nodes, "", nil)
		got := names(list)
		if len(got) != len(strings.Fields(want)) || (want == "") != (none != "") {
			t.Errorf(`%+v: got %v, none = %q, want len(got) == len(strings.Fields(want)) and (want == "") == (none != "")`,
				p, got, none)
		}
		for _, name := range got {
			if !strings.Contains(want, name) {
				t.Errorf("%+v: got %v, want want containing %q", p, got, name)
			}
		}
	}
	for node, why := range map[string]string{"ids": "all its 4 id ranges are in use", "pids": "it has 1000 processes and threads"} {
		if _, none := choose(&placement{Node: node}, nodes, "", nil); !strings.Contains(none, node+": "+why) {
			t.Errorf("%q does not say %q", none, why)
		}
	}
	_, none := choose(&placement{Node: "off"}, nodes, "", nil)
	for _, part := range []string{"off: it is off", "full, ids, pids, west, net: the request names another"} {
		if !strings.Contains(none, part) {
			t.Errorf("%q does not say %q", none, part)
		}
	}
}

func TestPlacementPrefersTheLessLoadedNode(t *testing.T) {
	t.Parallel()
	plain := nodeOf("plain", nil)
	for what, c := range map[string]struct {
		better, worse nodeState
		p             placement
		own           map[string]int
	}{
		"less memory reserved": {plain, nodeOf("b", func(n *api.FleetNode) { n.MemoryReserved = 16 << 30 }), placement{}, nil},
		"less memory in use":   {plain, nodeOf("b", func(n *api.FleetNode) { n.MemoryAvailable = 16 << 30 }), placement{}, nil},
		"fewer CPUs reserved":  {plain, nodeOf("b", func(n *api.FleetNode) { n.CPUsReserved = 4 }), placement{}, nil},
		"fewer sessions":       {plain, nodeOf("b", func(n *api.FleetNode) { n.Sessions = 10 }), placement{}, nil},
		"less pressure":        {plain, nodeOf("b", func(n *api.FleetNode) { n.Pressure.IO = 20 }), placement{}, nil},
		"a warm box":           {nodeOf("a", func(n *api.FleetNode) { n.Warm = []string{"default"} }), plain, placement{}, nil},
		"a label":              {nodeOf("a", func(n *api.FleetNode) { n.Labels = map[string]string{"disk": "ssd"} }), plain, placement{Prefers: map[string]string{"disk": "ssd"}}, nil},
		"the image":            {nodeOf("a", nil), plain, placement{near: map[string]float64{"a": 1}}, nil},
		"none of the owner's":  {plain, nodeOf("b", nil), placement{Spread: true}, map[string]int{"b": 1}},
	} {
		for range 8 {
			if list, _ := choose(&c.p, []nodeState{c.worse, c.better}, "", c.own); list[0].Name != c.better.Name {
				t.Errorf("%s: names(list) = %v, want list[0].Name == c.better.Name", what, names(list))
			}
		}
	}
}

// spreadOf places sessions on nodes, and returns how much more memory the fullest has reserved than the average.
func spreadOf(pick func([]nodeState) *nodeState) float64 {
	const nodes, sessions = 200, 10000
	list := make([]nodeState, nodes)
	for i := range list {
		list[i] = nodeOf(fmt.Sprint("n", i), nil)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var all, most uint64
	for range sessions {
		size := uint64(64+r.IntN(448)) << 20
		n := pick(list)
		n.MemoryReserved += size
		n.Sessions++
		all, most = all+size, max(most, n.MemoryReserved)
	}
	return float64(most) / (float64(all) / nodes)
}

// The best of four random nodes is nearly as good as the best of all, which all gateways with the same information would choose.
func TestTheBestOfFourRandomNodesIsNearlyOptimal(t *testing.T) {
	t.Parallel()
	by := func(list, req []nodeState) *nodeState {
		for i := range list {
			if list[i].Name == req[0].Name {
				return &list[i]
			}
		}
		return nil
	}
	drawn := spreadOf(func(list []nodeState) *nodeState {
		req, _ := choose(&placement{}, list, "", nil)
		return by(list, req)
	})
	random := spreadOf(func(list []nodeState) *nodeState { return &list[rand.IntN(len(list))] })
	best := spreadOf(func(list []nodeState) *nodeState {
		at := 0
		for i := range list {
			if (&placement{}).score(&list[i], "", 0) < (&placement{}).score(&list[at], "", 0) {
				at = i
			}
		}
		return &list[at]
	})
	t.Logf("the fullest of 200 nodes has %.2f times the average; at random %.2f, by the best of all %.2f", drawn, random, best)
	if drawn > 1.15 || drawn > random {
		t.Errorf("the fullest node has %.2f times the average, at random %.2f", drawn, random)
	}
}

// A generation is on disk before it counts, and a lower one is refused forever.
func TestANodeRemembersTheHighestGeneration(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fences")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	open := func() *fences {
		t.Helper()
		dir, err := os.OpenRoot(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := openFences(dir)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	raise := func(f *fences, generation uint64, want bool, highest uint64) {
		t.Helper()
		if ok, high, err := f.raise(&fence{Owner: "ci", ID: "s", Generation: generation, Bucket: "b"}); err != nil || ok != want || high != highest {
			t.Errorf("generation %d: ok = %v, high = %d, err = %v, want no error and ok == %v and high == %v",
				generation, ok, high, err, want, highest)
		}
	}
	f := open()
	raise(f, 3, true, 3)
	raise(f, 3, false, 3)
	f.close()
	f = open()
	raise(f, 2, false, 3)
	raise(f, 4, true, 4)
	if ok, _, err := f.raise(&fence{Owner: "other", ID: "s", Generation: 1, Bucket: "b"}); !ok || err != nil {
		t.Errorf("of another owner: ok = %v, err = %v, want ok == true and no error", ok, err)
	}
	key := claimKey("ci", "s")
	if err := f.change(key, 3, func(h *fencedSession) { h.Ended = true }); err != nil || f.all[key].Ended {
		t.Errorf("a message about an earlier generation was accepted: f.all[key] = %+v, err = %v, want no error and f.all[key].Ended == false",
			f.all[key], err)
	}
	if err := f.change(key, 4, func(h *fencedSession) { h.Ended = true }); err != nil {
		t.Error(err)
	}
	f.close()
	f = open()
	defer f.close()
	if live, err := f.list(); err != nil || len(live) != 1 || !f.all[key].Ended {
		t.Errorf("live = %+v, err = %v, want no error and len(live) == 1 and f.all[key].Ended == true", live, err)
	}
	raise(f, 4, false, 5) // it has ended, and no node would have a session of that generation
	// Without its record a node could have a session that another has: it does not start.
	if err := os.WriteFile(filepath.Join(path, key+fenceSuffix), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := openFences(dir); err == nil {
		t.Error("a damaged record of the generation was ignored")
	}
}

// However many sessions come and go between two announcements, only a fixed number is remembered.
func TestANodeForgetsTheOldestGenerations(t *testing.T) {
	t.Parallel()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFences(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	start := time.Now()
	for i := range maxEnded + 20 {
		f.all[claimKey("ci", strconv.Itoa(i))] = fencedSession{Owner: "ci", Generation: 1, Ended: true, Since: start.Add(time.Duration(i))}
	}
	if _, _, err := f.raise(&fence{Owner: "ci", ID: "live", Generation: 1, Bucket: "b"}); err != nil {
		t.Fatal(err)
	}
	live, err := f.list()
	if _, exists := live[claimKey("ci", "live")]; err != nil || len(live) != 1 || !exists {
		t.Fatalf("live = %v, err = %v, want no error and len(live) == 1 and there == true", live, err)
	}
	if len(f.all) != maxEnded+1 {
		t.Fatalf("%d are remembered", len(f.all))
	}
	for i := range 20 {
		if _, exists := f.all[claimKey("ci", strconv.Itoa(i))]; exists {
			t.Errorf("%d is remembered", i)
		}
	}
}

// The first waiters of each caller try again, whatever others wait for, and no caller takes all places.
func TestPlacementWaitersOfOneCallerBlockNoOther(t *testing.T) {
	t.Parallel()
	q := &queue{}
	var greedy []*ticket
	for range maxOwn {
		greedy = append(greedy, q.enter("greedy"))
	}
	if q.enter("greedy") != nil {
		t.Error("a caller got more places in the queue than it may have")
	}
	other := q.enter("other")
	if other == nil || !q.tries(other) {
		t.Fatal("another caller got no place, or no attempt")
	}
	if q.place(other) != maxOwn+1 || q.len() != maxOwn+1 {
		t.Errorf("place %d of %d", q.place(other), q.len())
	}
	for i, g := range greedy {
		if q.tries(g) != (i < trying) {
			t.Errorf("number %d of one caller tries: q.tries(g) = %v, want (i < trying)", i, q.tries(g))
		}
	}
	q.leave(greedy[1])
	if !q.tries(greedy[trying]) || q.tries(greedy[trying+1]) {
		t.Error("the next request in the queue does not get the attempt of the one that left")
	}
	for i := maxOwn; i < maxWaiting; i++ {
		q.enter(strconv.Itoa(i))
	}
	if q.enter("last") != nil || q.len() != maxWaiting {
		t.Errorf("%d wait", q.len())
	}
}

// A node lists its sessions in pages. A gateway gets them all, and gives up on a node whose list does not end.
func TestAllPagesOfANodesSessionListAreRead(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	endless, asked := false, 0
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		after := r.URL.Query().Get("after")
		switch {
		case r.URL.Query().Get("label") != "a=b c":
			http.Error(w, "what was asked for is lost", http.StatusInternalServerError)
		case endless:
			fmt.Fprintf(w, `{"sessions":[],"next":"%d.x"}`, asked)
		case after == "":
			fmt.Fprint(w, `{"sessions":[{"id":"one"},{"id":"two"}],"next":"2.two & more"}`)
		case after == "2.two & more":
			fmt.Fprint(w, `{"sessions":[{"id":"three"}]}`)
		default:
			http.Error(w, after, http.StatusInternalServerError)
		}
	}))
	t.Cleanup(node.Close)
	g := &gateway{cfg: gatewayOptions{Name: "main", Key: key}, transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, node.Listener.Addr().String())
	}}}
	t.Cleanup(g.transport.CloseIdleConnections)
	c := &call{r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/sessions?label=a%3Db+c", nil)}
	n := nodeOf("n1", nil)
	all, err := g.sessionsOf(c, &n)
	if err != nil || len(all) != 3 || all[2]["id"] != "three" || all[2]["node"] != "n1" {
		t.Errorf(`all = %v, err = %v, want no error and len(all) == 3 and all[2]["id"] == "three" and all[2]["node"] == "n1"`,
			all, err)
	}
	endless, asked = true, 0
	if all, err := g.sessionsOf(c, &n); err == nil || asked != maxPages {
		t.Errorf("%d sessions, %v, after %d pages", len(all), err, asked)
	}
}

// Only a limited number of waiters query nodes at once, since each may query all of them.
func TestConcurrentPlacementRetriesAreLimited(t *testing.T) {
	t.Parallel()
	r := &reservation{g: &gateway{nodes: map[string]*nodeState{}, turns: make(chan struct{}, 1)}}
	r.g.turns <- struct{}{}
	over, end := context.WithCancel(t.Context())
	end()
	if done, err := r.again(over); done || err != nil {
		t.Errorf("without a turn: done = %v, err = %v, want done == false and no error", done, err)
	}
	<-r.g.turns
	if _, err := r.again(t.Context()); err == nil { // there is no fleet to ask
		t.Error("no error: the request has a turn and did not ask the fleet")
	}
	if len(r.g.turns) != 0 {
		t.Error("the turn is not given back")
	}
}

// /v1/fleet itself is no route.
func TestTheFleetPathItselfIsNoRoute(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/fleet", nil)
	c := &call{w: httptest.NewRecorder(), r: r, pass: access.Pass{Principal: access.Principal{Name: "op", Role: access.Operator}}}
	if err := (&gateway{}).route(c); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
}
