// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// buckets connects to the NATS server as its operator.
func (h *house) buckets() jetstream.JetStream {
	h.t.Helper()
	js, err := jetstream.New(connect(h.t, h.nats.ClientURL()), jetstream.WithDefaultTimeout(natsTimeout))
	if err != nil {
		h.t.Fatal(err)
	}
	return js
}

// makes creates a session on a node, or anywhere.
func (h *house) makes(id, node string) {
	h.t.Helper()
	var p api.Problem
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": id, "wait": "1m", "placement": map[string]any{"node": node}}, &p); code != http.StatusCreated {
		h.t.Fatalf("%s: code = %d, p = %+v, want code == 201", id, code, p)
	}
}

// waitFor is how long a request waits for capacity on the node that it names: a node that the test expects to accept it may be late
// for a while, as on a busy host, and would not be chosen then.
func waitFor(code int) string {
	if code == http.StatusCreated {
		return "1m"
	}
	return "0s"
}

// runs waits until a session runs a program: earlier requests may still be running.
func (h *house) runs(id string) {
	h.t.Helper()
	c := h.client()
	boxtest.Eventually(h.t, "session "+id+" runs a program", func() bool {
		r, err := c.Exec(h.t.Context(), id, &api.ExecRequest{Argv: []string{"echo", id}})
		return err == nil && r.Stdout == id+"\n"
	})
}

// Deleted claims are created again by the nodes, and no session can be claimed before that.
func TestClaimsAreMadeAgain(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	h.makes("a", "n1")
	h.makes("b", "n2")
	before := h.where("a")
	boxtest.Eventually(t, "the nodes have seen the claims", func() bool {
		return h.where("a").State == api.FleetClaimLive && h.where("b").State == api.FleetClaimLive
	})
	js := h.buckets()
	for _, bucket := range []string{"boxd_claims", "boxd_nodes"} {
		if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
	}
	boxtest.Eventually(t, "the claims are there again", func() bool {
		a, b := h.where("a"), h.where("b")
		return a.Node == "n1" && a.State == api.FleetClaimLive && a.Generation == before.Generation && b.Node == "n2"
	})
	h.ready(2)
	h.runs("a")
	h.runs("b")
	boxtest.Eventually(t, "sessions are made again", func() bool {
		return h.get("POST", "/v1/sessions", map[string]any{"id": "c"}, nil) == http.StatusCreated
	})
	// It is returned from its node, and not created again elsewhere.
	var s api.Session
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "a"}, &s); code != http.StatusOK {
		t.Errorf("code = %d, s = %+v, want code == 200", code, s)
	}
}

// A restart of the NATS server is only an interruption: sessions, claims and generations are unchanged.
func TestNATSIsRestarted(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	_, port, err := net.SplitHostPort(h.nats.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the session is claimed", func() bool { return h.where("s").State == api.FleetClaimLive })
	before := h.where("s")
	h.nats.Shutdown()
	h.nats.WaitForShutdown()
	var p api.Problem
	if code := h.get("POST", "/v1/sessions/s/exec", map[string]any{"argv": []string{"true"}}, &p); code != http.StatusServiceUnavailable {
		t.Errorf("without NATS: code = %d, p = %+v, want code == 503", code, p)
	}
	n := h.on("n1")
	n.boxd.Owner = "ci"
	if r, err := n.boxd.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"echo", "alone"}}); err != nil || r.Stdout != "alone\n" {
		t.Errorf(`the node by itself: r = %+v, err = %v, want no error and r.Stdout == "alone\n"`, r, err)
	}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), number, "")
	boxtest.Eventually(t, "the claim is live", func() bool { return h.where("s").State == api.FleetClaimLive })
	h.runs("s")
	if after := h.where("s"); after.Node != before.Node || after.Generation != before.Generation {
		t.Errorf("before = %+v, after = %+v, want after.Node == %v and after.Generation == %v",
			before, after, before.Node, before.Generation)
	}
}

// With three NATS servers the leader may die: claims survive, and sessions can be created and used.
func TestTheLeaderOfNATSDies(t *testing.T) {
	t.Parallel()
	h := buildOnThree(t, 2, "")
	h.makes("s", "n1")
	info, err := h.buckets().Stream(t.Context(), "KV_boxd_claims")
	if err != nil {
		t.Fatal(err)
	}
	leader := info.CachedInfo().Cluster.Leader
	if len(info.CachedInfo().Cluster.Replicas) != 2 {
		t.Errorf("info.CachedInfo().Cluster = %+v, want len(info.CachedInfo().Cluster.Replicas) == 2",
			info.CachedInfo().Cluster)
	}
	for _, s := range h.others {
		if s.Name() == leader {
			s.Shutdown()
			s.WaitForShutdown()
		}
	}
	h.runs("s")
	boxtest.Eventually(t, "a session is made", func() bool {
		code := h.get("POST", "/v1/sessions", map[string]any{"id": "t"}, nil)
		return code == http.StatusCreated || code == http.StatusOK
	})
	h.ready(2)
	h.runs("t")
	h.runs("s")
	var claim api.FleetClaim
	boxtest.Eventually(t, "the claim is read", func() bool { // sessions are used meanwhile without that: JetStream may still choose a leader
		claim = h.where("s")
		return claim.ID != ""
	})
	if claim.Node != "n1" || claim.State != api.FleetClaimLive {
		t.Errorf(`claim = %+v, want claim.Node == "n1" and claim.State == api.FleetClaimLive`, claim)
	}
}

// A node whose boxd is gone says so, and gets no sessions.
func TestANodeWithoutBoxdTakesNothing(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	h.on("n1").boxd.Kill()
	boxtest.Eventually(t, "the node has failed", func() bool {
		var list api.FleetNodeList
		h.get("GET", "/v1/fleet/nodes", nil, &list)
		return len(list.Nodes) == 2 && list.Nodes[0].State == api.FleetNodeFailed && strings.Contains(list.Nodes[0].Reason, "cannot reach boxd")
	})
	for range 8 {
		var s api.Session
		if code := h.get("POST", "/v1/sessions", map[string]any{}, &s); code != http.StatusCreated {
			t.Fatal(code)
		}
		if claim := h.where(s.ID); claim.Node != "n2" {
			t.Errorf(`claim = %+v, want claim.Node == "n2"`, claim)
		}
	}
	h.on("n1").boxd.Restart()
	h.ready(2)
}

// On a busy host doctor takes longer than a lease is valid. The node does not lose its lease.
func TestADoctorThatTakesLongCostsNoLease(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	n := h.on("n1")
	n.agent.kill()
	socket := filepath.Join(h.dir, "slow")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Bool
	boxd := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = "http", "boxd" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.boxd.Socket)
		}},
	}
	slow := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/doctor" {
			asked.Store(true)
			<-r.Context().Done() // until the agent has ended
			return
		}
		boxd.ServeHTTP(w, r)
	})}
	go func() { _ = slow.Serve(ln) }() // until it is closed
	t.Cleanup(func() { _ = slow.Close() })
	boxtest.Eventually(t, "the node is lost", func() bool { return h.nodeState() == api.FleetNodeLost })
	n.agent.args[slices.Index(n.agent.args, "-socket")+1] = socket
	n.agent.start()
	boxtest.Eventually(t, "doctor is asked", asked.Load)
	h.ready(1)
	h.makes("s", "n1")
	h.runs("s")
	n.agent.kill()
}

// nodeState returns the state of the first node.
func (h *house) nodeState() string {
	h.t.Helper()
	var list api.FleetNodeList
	if h.get("GET", "/v1/fleet/nodes", nil, &list) != http.StatusOK || len(list.Nodes) == 0 {
		return ""
	}
	return list.Nodes[0].State
}

// guarded are the accounts and permissions of the guide, plus a user of another account and another node.
func guarded() string {
	gateway := `["fleet.>", "$JS.>", "$KV.>", "_INBOX_gateway_main.>"]`
	node := func(name string) string {
		return strings.ReplaceAll(`      {user: NODE, password: NODE, permissions: {subscribe: ["fleet.n.NODE.>", "_INBOX_node_NODE.>"], publish: ["fleet.g.>", "_INBOX_gateway_main.>", "$KV.boxd_nodes.NODE", "$KV.boxd_claims.>",
        "$JS.API.INFO", "$JS.API.STREAM.INFO.KV_boxd_nodes", "$JS.API.STREAM.INFO.KV_boxd_claims",
        "$JS.API.STREAM.CREATE.KV_boxd_nodes", "$JS.API.STREAM.CREATE.KV_boxd_claims",
        "$JS.API.DIRECT.GET.KV_boxd_nodes.>", "$JS.API.DIRECT.GET.KV_boxd_claims.>",
        "$JS.API.CONSUMER.CREATE.KV_boxd_claims.>", "$JS.API.CONSUMER.DELETE.KV_boxd_claims.>", "$JS.FC.KV_boxd_claims.>", "$JS.FC.*.*.KV_boxd_claims.>"]}}
`, "NODE", name)
	}
	return `accounts {
  fleet {
    jetstream: enabled
    users: [
      {user: gateway, password: gateway, permissions: {publish: ` + gateway + `, subscribe: ` + gateway + `}}
` + node("n1") + node("n2") + `    ]
  }
  other { users: [{user: other, password: other}] }
}`
}

// With the permissions of the guide a node cannot read messages of another and can only announce itself, and users of another
// account can see and reach nothing.
func TestAccountsKeepNodesApart(t *testing.T) {
	t.Parallel()
	h := buildOn(t, 1, guarded())
	h.makes("s", "n1")
	refused := make(chan error, 32)
	sees := func(user string) (nc *nats.Conn, seen *nats.Subscription) {
		t.Helper()
		nc = connect(t, h.login(user), nats.CustomInboxPrefix("_INBOX_node_"+user), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		seen, err := nc.SubscribeSync(">")
		if err == nil {
			err = nc.FlushTimeout(natsTimeout)
		}
		if err != nil {
			t.Fatal(err)
		}
		return nc, seen
	}
	_, stranger := sees("other")
	node, foreign := sees("n2")
	denied := []string{
		"fleet.n.n1.fence", "$KV.boxd_nodes.n1", "fleet.archives.boxd_snapshots.X.0", "$KV.boxd_snapshots.X", "$JS.API.STREAM.DELETE.KV_boxd_claims", "$JS.API.STREAM.PURGE.KV_boxd_claims",
		"$JS.API.DIRECT.GET.boxd_snapshots_archives.fleet.archives.boxd_snapshots.X.0", "$JS.API.STREAM.MSG.GET.boxd_snapshots_archives", "$JS.API.CONSUMER.CREATE.boxd_snapshots_archives.x", "$JS.API.CONSUMER.CREATE.KV_boxd_snapshots.x",
		"$KV.boxd_outputs.X", "$JS.API.DIRECT.GET.KV_boxd_outputs.$KV.boxd_outputs.X", "$JS.API.CONSUMER.CREATE.KV_boxd_outputs.x", "$JS.API.STREAM.CREATE.x", "$JS.API.STREAM.UPDATE.KV_boxd_claims",
	}
	for _, subject := range denied {
		if err := node.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.FlushTimeout(natsTimeout); err != nil {
		t.Fatal(err)
	}
	for range 1 + len(denied) { // one subscribe to all subjects, and the publishes
		select {
		case err := <-refused:
			if !strings.Contains(err.Error(), "ermissions") {
				t.Error(err)
			}
		case <-time.After(natsTimeout):
			t.Fatal("the NATS server has not refused the node")
		}
	}
	h.runs("s")
	for who, sub := range map[string]*nats.Subscription{"another account": stranger, "another node": foreign} {
		if n, _, err := sub.Pending(); err == nil && n > 0 {
			m, _ := sub.NextMsg(time.Second)
			t.Errorf("%s sees %d messages, such as %s", who, n, m.Subject)
		}
	}
	if _, err := nats.Connect(h.login("nobody")); err == nil {
		t.Error("the NATS server accepts a client without credentials")
	}

	// The permissions of an agent suffice, also with more claims to read than JetStream sends without flow control.
	claims := connect(t, h.login("gateway"), nats.CustomInboxPrefix("_INBOX_gateway_main"))
	for i := range 5000 {
		claim := fmt.Sprintf(`{"owner":"other","id":"s%d","node":"n9","generation":1,"state":"live","reason":%q}`, i, strings.Repeat("x", 400))
		if err := claims.Publish(fmt.Sprint("$KV.boxd_claims.c", i), []byte(claim)); err != nil {
			t.Fatal(err)
		}
	}
	if err := claims.FlushTimeout(natsTimeout); err != nil {
		t.Fatal(err)
	}
	h.nodes[0].agent.kill()
	boxtest.Eventually(t, "the node is lost", func() bool { return h.nodeState() == api.FleetNodeLost })
	h.nodes[0].agent.start()
	boxtest.Eventually(t, "the node is back", func() bool { return h.nodeState() == api.FleetNodeReady })
	text, err := os.ReadFile(h.nodes[0].log)
	if err != nil || strings.Contains(string(text), "ermissions") {
		t.Errorf(`err = %v, text = %s, want no error and text without "ermissions"`, err, text)
	}
}

// A NATS client without a gateway's key gets nothing but a refusal from a node.
func TestAStrangerOnNATS(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	nc := connect(t, h.nats.ClientURL())
	answers, err := nc.SubscribeSync("fleet.g.stranger.s.*")
	if err != nil {
		t.Fatal(err)
	}
	// A frame that opens a connection: flag, offset, taken, limit, and a request that claims to be root's.
	request := "GET /v1/sessions?all=true HTTP/1.1\r\nHost: boxd\r\nConnection: close\r\n\r\n"
	open := append(make([]byte, 25), request...)
	open[0] = 1
	open[23] = 0xff // receive window
	if err := nc.PublishMsg(&nats.Msg{Subject: "fleet.n.n1.s.x", Reply: "fleet.g.stranger.s.x", Data: open}); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for end := time.Now().Add(natsTimeout); !strings.Contains(printed.String(), "\r\n\r\n") && time.Now().Before(end); {
		if m, err := answers.NextMsg(time.Second); err == nil && len(m.Data) > 25 {
			printed.Write(m.Data[25:])
		}
	}
	if !strings.HasPrefix(printed.String(), "HTTP/1.1 401 ") {
		t.Errorf(`printed = %q, want printed.String() starting with "HTTP/1.1 401 "`, printed.String())
	}
}

// A NATS client with all permissions can end sessions of the fleet, which are claimed there, but not those of owners that the
// node's box.toml assigns to no gateway, although the agent calls its boxd as root.
func TestNoNATSClientEndsASessionOutsideTheFleet(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	boxd := h.nodes[0].boxd
	if _, _, err := boxd.CreateSession(t.Context(), &api.SessionRequest{ID: "own"}); err != nil { // of root
		t.Fatal(err)
	}
	nc := connect(t, h.nats.ClientURL())
	claims, err := h.buckets().KeyValue(t.Context(), "boxd_claims")
	if err != nil {
		t.Fatal(err)
	}
	// attack makes the node believe that it has a session of the fleet, and that another node has it now.
	attack := func(owner, id string) (refused bool) {
		t.Helper()
		m, err := nc.Request("fleet.n.n1.fence", fmt.Appendf(nil, `{"owner":%q,"id":%q,"generation":7}`, owner, id), natsTimeout)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(owner + "\x00" + id))
		claim := fmt.Appendf(nil, `{"owner":%q,"id":%q,"node":"n9","generation":8,"state":"live"}`, owner, id)
		if _, err := claims.Put(t.Context(), base64.RawURLEncoding.EncodeToString(sum[:24]), claim); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(m.Data), "lets no gateway speak for")
	}
	root, err := boxd.Session(t.Context(), "own")
	if err != nil {
		t.Fatal(err)
	}
	if !attack(root.Owner, "own") {
		t.Error("the node counts a session of root as one of the fleet")
	}
	for _, id := range []string{"first", "second"} { // once both have ended the node has checked everything since
		h.makes(id, "n1")
		if attack("ci", id) {
			t.Errorf("%s is not of the fleet", id)
		}
		boxtest.Eventually(t, id+" has ended", func() bool {
			list, err := boxd.Sessions(t.Context(), true)
			return err == nil && !slices.ContainsFunc(list, func(s api.Session) bool { return s.ID == id })
		})
	}
	if now, err := boxd.Session(t.Context(), "own"); err != nil || now.PID != root.PID {
		t.Errorf("the session of root is %+v, %v, want no error and now.PID == %v", now, err, root.PID)
	}
}
