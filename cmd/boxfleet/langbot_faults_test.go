// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fault"
	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A placement generation whose node was already lost can be used again: it was live nowhere.
func TestAGenerationThatWasNeverLiveIsPlacedAnew(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	g.claims, g.bucket = claims, bucket
	f := &langBotFront{g: g}
	use := &workspaceUse{pass: access.Pass{Principal: access.Principal{Name: "langbot"}}, id: "workspace/ws-1", generation: 2}
	live := sessionClaim{FleetClaim: api.FleetClaim{Owner: "langbot", ID: use.id, Node: "n", Generation: 1, State: api.FleetClaimLive}, Workspace: 1, Served: 1, key: claimKey("langbot", use.id)}
	if live.revision, err = putClaim(t.Context(), claims, &live); err != nil {
		t.Fatal(err)
	}
	g.nodes["n"] = &nodeState{FleetNode: api.FleetNode{Name: "n", State: api.FleetNodeReady}, at: g.now()} // and no node answers for it
	if _, err := f.adoptClaim(t.Context(), use, &live); err == nil {
		t.Fatal("a generation was placed on a dead node")
	}
	claim, err := getClaim(t.Context(), claims, live.key)
	if err != nil || claim.State != api.FleetClaimStarting || claim.Workspace != 2 || claim.Served != 1 {
		t.Fatalf("claim = %+v, err = %v, want no error and claim.State == api.FleetClaimStarting and claim.Workspace == 2 and claim.Served == 1",
			claim, err)
	}
	g.nodes["n"].lost = true
	g.now = func() time.Time { return time.Unix(2e9, 0) }
	if err := g.markLost(t.Context(), claims, "n"); err != nil {
		t.Fatal(err)
	}
	if claim, err = getClaim(t.Context(), claims, live.key); err != nil || claim.State != api.FleetClaimLost {
		t.Fatalf("claim = %+v, err = %v, want no error and claim.State == api.FleetClaimLost", claim, err)
	}
	ctx, cancel := context.WithCancel(t.Context()) // there is no node: the request must not wait for one
	cancel()
	for generation, want := range map[int64]string{1: "Stale Box placement generation", 2: "", 3: ""} {
		use.generation = generation
		_, err := f.adoptClaim(ctx, use, claim)
		if err == nil || want != "" && !strings.Contains(err.Error(), want) || want == "" && strings.Contains(err.Error(), "is lost since") {
			t.Errorf(`generation %d: err = %v, want an error and (want == "" or err containing %q) and (want != "" or err without "is lost since")`,
				generation, err, want)
		}
	}
	claim.Served, use.generation = 2, 2
	if _, err := f.adoptClaim(ctx, use, claim); err == nil || !strings.Contains(err.Error(), "is lost since") {
		t.Errorf(`a generation that was live: err = %v, want an error containing "is lost since"`, err)
	}
}

// A lost Workspace that no other node accepts stays lost: its node may come back.
func TestALostWorkspaceThatNobodyTakesStaysLost(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	g.claims, g.bucket = claims, bucket
	lost := sessionClaim{FleetClaim: api.FleetClaim{Owner: "langbot", ID: "workspace/ws-1", Node: "n", Generation: 4, State: api.FleetClaimLost, Reason: "it died"}, Workspace: 2, Served: 1, key: claimKey("langbot", "workspace/ws-1")}
	if lost.revision, err = putClaim(t.Context(), claims, &lost); err != nil {
		t.Fatal(err)
	}
	c := &call{r: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/sessions", nil), pass: access.Pass{Principal: access.Principal{Name: "langbot"}}, langBot: true}
	r := &reservation{g: g, c: c, claims: claims, bucket: bucket, want: &wanted{ID: lost.ID}, key: lost.key, claim: &lost, workspace: 3, served: 1, lost: &lost}
	for range 2 {
		if err := r.put("other", 1); err != nil {
			t.Fatal(err)
		}
		if now, err := getClaim(t.Context(), claims, lost.key); err != nil || now.Node != "other" || now.Generation != 5 || now.Workspace != 3 {
			t.Fatalf(`now = %+v, err = %v, want no error and now.Node == "other" and now.Generation == 5 and now.Workspace == 3`,
				now, err)
		}
		if err := r.giveUp(); err != nil {
			t.Fatal(err)
		}
		now, err := getClaim(t.Context(), claims, lost.key)
		if err != nil || now.Node != "n" || now.Generation != 4 || now.State != api.FleetClaimLost || now.Reason != "it died" || now.Workspace != 2 || now.Served != 1 {
			t.Fatalf("now = %+v, err = %v", now, err)
		}
	}
}

// The claim of a Workspace stays while its node has it: the node knows no session of that name.
func TestTheClaimOfALiveWorkspaceStays(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	g.claims, g.bucket = claims, bucket
	claim := sessionClaim{FleetClaim: api.FleetClaim{Owner: "langbot", ID: "workspace/ws-1", Node: "n", Generation: 1}, Workspace: 1, Served: 1, key: claimKey("langbot", "workspace/ws-1")}
	serves := &nodeState{FleetNode: api.FleetNode{Name: "n", State: api.FleetNodeReady, Capabilities: []string{canLangBot}}, at: g.now()}
	g.nodes["n"] = serves
	for _, state := range []string{api.FleetClaimStarting, api.FleetClaimLive, api.FleetClaimLost, "given up"} {
		claim.State = state
		if state == "given up" { // its node runs, and no longer serves LangBot
			claim.State, claim.revision, serves.Capabilities = api.FleetClaimLive, 0, nil
		}
		if claim.revision, err = putClaim(t.Context(), claims, &claim); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		c := &call{w: w, r: httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/v1/sessions/workspace%2Fws-1", nil), pass: access.Pass{Principal: access.Principal{Name: "langbot", Role: access.User}}}
		err := g.session(c, "langbot", claim.ID, true)
		left, _ := getClaim(t.Context(), claims, claim.key)
		if lost := state == api.FleetClaimLost || state == "given up"; lost != (err == nil) || lost != (left == nil) || !lost && fault.KindOf(err) != fault.Conflict {
			t.Errorf("%s: %v, then %+v", state, err, left)
		}
	}
}

// A bug in what one request needs is an error of that request.
func TestAPanicIsTheErrorOfOneRequest(t *testing.T) {
	t.Parallel()
	c := &langBotConn{f: &langBotFront{g: &gateway{log: slog.New(slog.DiscardHandler)}}} // without the files that it needs
	data := map[string]json.RawMessage{"file_key": json.RawMessage(`"f"`), "chunk_index": json.RawMessage("0"), "chunk_amount": json.RawMessage("1"), "chunk_base64": json.RawMessage(`""`)}
	var answers []string
	c.answer(t.Context(), &rpc.Request{Seq: 7, Action: rpc.ActionFileChunk, Data: data}, func(text []byte) { answers = append(answers, string(text)) })
	if len(answers) != 1 || !strings.Contains(answers[0], `"seq_id":7,"code":1,"message":"RuntimeError: `) {
		t.Errorf("answers = %q, want len(answers) == 1 and answers[0] containing `\"seq_id\":7,\"code\":1,\"message\":\"RuntimeError: `",
			answers)
	}
}

func TestARequestToAllNodesIsBounded(t *testing.T) {
	t.Parallel()
	c := &langBotConn{f: &langBotFront{g: &gateway{log: slog.New(slog.DiscardHandler), now: time.Now}}}
	for size, want := range map[int]string{maxHost / 2: "no node is ready", maxHost: "ValueError: the data of box_shutdown exceeds 65536 bytes"} {
		_, err := c.do(t.Context(), &rpc.Request{Action: "box_shutdown", Data: map[string]json.RawMessage{"x": json.RawMessage(`"` + strings.Repeat("x", size) + `"`)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: err = %v, want an error containing %q", size, err, want)
		}
	}
}

// linked is a link to a node that answers as the test says.
func linked(t *testing.T, node func(*websocket.Conn)) *nodeLink {
	t.Helper()
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(rpc.MaxMessage)
		node(ws)
	}))
	t.Cleanup(served.Close)
	ws, _, err := websocket.Dial(t.Context(), served.URL, nil) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{log: slog.New(slog.DiscardHandler), now: time.Now, nodes: map[string]*nodeState{"n": {FleetNode: api.FleetNode{Name: "n", Instance: "i"}, at: time.Now().Add(time.Hour)}}}
	l := newNodeLink(&langBotFront{g: g, answers: rpc.NewMessageBudget(1)}, "n", "i")
	l.ws = ws
	baseCtx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &langBotConn{f: l.f, baseCtx: baseCtx, links: map[string]*nodeLink{"n": l}}
	over := make(chan struct{})
	go func() {
		defer close(over)
		l.end(l.read(c))
	}()
	t.Cleanup(func() {
		end()
		<-over
	})
	<-l.open
	return l
}

// A request whose time is over while it is sent, or before, leaves the link to all others.
func TestARequestTimeoutDoesNotCloseTheNodeLink(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	l := linked(t, func(ws *websocket.Conn) {
		<-goOn
		for {
			_, text, err := ws.Read(context.Background())
			if err != nil {
				return
			}
			r, seq, err := rpc.ParseRequest(text)
			if err != nil || ws.Write(context.Background(), websocket.MessageText, rpc.Success(seq, r.Action)) != nil {
				return
			}
		}
	})
	long := &rpc.Request{Action: "long", Data: map[string]json.RawMessage{"x": json.RawMessage(`"` + strings.Repeat("x", rpc.MaxMessage-1000) + `"`)}}
	first, giveUp := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := l.call(first, long)
		asked <- err
	}()
	boxtest.Eventually(t, "a message is being written", func() bool { return len(l.turn) == 1 })
	second, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.call(second, &rpc.Request{Action: "short"}); err == nil || !strings.Contains(err.Error(), "takes no message in time") {
		t.Errorf(`err = %v, want an error containing "takes no message in time"`, err)
	}
	giveUp()
	if err := <-asked; err == nil || !strings.Contains(err.Error(), "has not answered in time") {
		t.Errorf(`err = %v, want an error containing "has not answered in time"`, err)
	}
	close(goOn)
	a, err := l.call(t.Context(), &rpc.Request{Action: "third", Data: map[string]json.RawMessage{}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.free()
	if data, _ := a.Data.(json.RawMessage); string(data) != `"third"` {
		t.Errorf("data = %s, want data == `\"third\"`", data)
	}
}

// A link does not outlive what the gateway knows of its node.
func TestALinkEndsWithItsNode(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*nodeState){
		"lost":          func(n *nodeState) { n.lost = true },
		"started again": func(n *nodeState) { n.Instance = "j" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := linked(t, func(ws *websocket.Conn) { _, _, _ = ws.Read(context.Background()) })
			l.f.g.mu.Lock()
			change(l.f.g.nodes["n"])
			l.f.g.mu.Unlock()
			select {
			case <-l.done:
				if !strings.Contains(l.err.Error(), "it is lost, or was started again") {
					t.Error(l.err)
				}
			case <-time.After(time.Minute):
				t.Error("the link was not closed with its node")
			}
		})
	}
}

// What a node says to its gateway alone does not reach clients.
func TestGatewayHeadersOfNodesDoNotReachClients(t *testing.T) {
	t.Parallel()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(rpc.HeaderRefused, "secret")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer node.Close()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", node.Listener.Addr().String())
	}}
	defer transport.CloseIdleConnections()
	g := &gateway{
		cfg: gatewayOptions{Name: "g", Key: key}, log: slog.New(slog.DiscardHandler), now: time.Now, transport: transport,
		nodes: map[string]*nodeState{"n": {FleetNode: api.FleetNode{Name: "n", State: api.FleetNodeReady}, at: time.Now()}},
	}
	w := httptest.NewRecorder()
	c := &call{w: w, r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/sessions/s/managed-process/ws", nil), langBot: true, pass: access.Pass{Principal: access.Principal{Name: "langbot", Role: access.User}, Token: "langbot"}}
	if err := g.pass(c, "n", nil); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusUnauthorized || w.Header().Get(rpc.HeaderRefused) != "" {
		t.Errorf(`w.Code = %d, w.Header() = %v, want w.Code == 401 and w.Header().Get(rpc.HeaderRefused) == ""`,
			w.Code, w.Header())
	}
}
