// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// between passes the requests of gateways to the boxd of a node through a handler, which may delay them. It must be called before
// the first request, as gateways keep their connections.
func (n *host) between(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, pass http.Handler)) {
	t.Helper()
	at := filepath.Join(n.boxd.Dir, "fleet")
	behind := at + ".boxd"
	if err := os.Rename(at, behind); err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", at)
	if err != nil {
		t.Fatal(err)
	}
	pass := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = "http", "boxd" },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", behind)
		}},
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, pass) })}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(ln) }) // until it is closed
	t.Cleanup(func() {
		_ = server.Close()
		served.Wait()
		_ = os.Rename(behind, at) // where boxd looks for it at its end
	})
}

// held is a request that waits.
type held struct {
	reached chan struct{} // closed when it has come
	release func()
}

// holds delays the first request to the boxd of a node with that method and end of its path.
func (n *host) holds(t *testing.T, method, path string) *held {
	t.Helper()
	reached, released := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	n.between(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method == method && strings.HasSuffix(r.URL.Path, path) && first.CompareAndSwap(false, true) {
			body, err := io.ReadAll(r.Body) // so that the request was sent completely
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			close(reached)
			<-released
		}
		pass.ServeHTTP(w, r)
	})
	h := &held{reached, sync.OnceFunc(func() { close(released) })}
	t.Cleanup(h.release)
	return h
}

// holdsAnswer passes on the first request with that method and end of its path at once, and delays its answer: the signature of a
// request expires sooner than some tests delay it.
func (n *host) holdsAnswer(t *testing.T, method, path string) *held {
	t.Helper()
	reached, released := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	n.between(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method != method || !strings.HasSuffix(r.URL.Path, path) || !first.CompareAndSwap(false, true) {
			pass.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		pass.ServeHTTP(answer, r)
		close(reached)
		<-released
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()) // the gateway may have gone
	})
	h := &held{reached, sync.OnceFunc(func() { close(released) })}
	t.Cleanup(h.release)
	return h
}

// ending is how a move has ended.
type ending struct {
	moved   api.FleetMoved
	problem api.Problem
	code    int
}

// begins starts a move of the session s, and returns when the delayed request has arrived.
func (h *house) begins(ask api.FleetMove, reached <-chan struct{}) <-chan ending {
	h.t.Helper()
	end := make(chan ending, 1)
	go func() {
		var a ending
		a.moved, a.problem, a.code = h.moves("s", ask)
		end <- a
	}()
	select {
	case <-reached:
	case a := <-end:
		h.t.Fatalf("the move has ended too early: %+v", a)
	}
	return end
}

// worker creates the session s on n1, with a file and a process that always restarts and records that in another file.
func (h *house) worker() {
	h.t.Helper()
	h.makes("s", "n1")
	h.says("echo work > f", "")
	if _, _, err := h.client().StartProcess(h.t.Context(), "s", "always", &api.ProcessRequest{Command: new("echo >> started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}}); err != nil {
		h.t.Fatal(err)
	}
	h.restarted("\n")
}

// says runs a shell line in the session s, and checks its output.
func (h *house) says(line, want string) {
	h.t.Helper()
	r, err := h.client().Exec(h.t.Context(), "s", &api.ExecRequest{Command: &line})
	if err != nil || r.Stdout != want {
		h.t.Errorf("%s: %+v, %v; want %q", line, r, err, want)
	}
}

// restarted waits until the process of the session s has started that often: a line for each.
func (h *house) restarted(lines string) {
	h.t.Helper()
	c := h.client()
	boxtest.Eventually(h.t, "the process has started, and started again", func() bool {
		r, err := c.Exec(h.t.Context(), "s", &api.ExecRequest{Command: new("cat started; cat f")})
		return err == nil && r.Stdout == lines+"work\n"
	})
}

// onlyOn waits until one node alone has the session s, and the claim says so.
func (h *house) onlyOn(name string) {
	h.t.Helper()
	boxtest.Eventually(h.t, "the session is on node "+name+" alone, and claimed for it", func() bool {
		for _, n := range h.nodes {
			if n.has(h.t, "s") != (n.name == name) {
				return false
			}
		}
		claim := h.where("s")
		return claim.Node == name && claim.State == api.FleetClaimLive && claim.To == ""
	})
}

// The claim of a session is renewed for as long as the target node takes to create it. Meanwhile no other caller gets the session
// or its id, and the move succeeds.
func TestAMoveToANodeThatTakesLong(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	slow := h.on("n2").holdsAnswer(t, "POST", "/v1/sessions")
	h.worker()
	kv, err := h.buckets().KeyValue(t.Context(), "boxd_claims")
	if err != nil {
		t.Fatal(err)
	}
	w, err := kv.WatchAll(t.Context(), jetstream.UpdatesOnly())
	if err != nil {
		t.Fatal(err)
	}
	end := h.begins(api.FleetMove{}, slow.reached)
	// n1 would restore it 20 seconds after the last claim it saw, which it sees at most two seconds after it was written. The
	// gateway renews the claim every 5 seconds.
	const renewals = 5
	var first uint64
	for range 1 + renewals {
		var claim struct {
			State, Node, To string
			Generation      uint64 `json:"to_generation"`
		}
		if err := json.Unmarshal((<-w.Updates()).Value(), &claim); err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = claim.Generation
		}
		if claim.State != api.FleetClaimMoving || claim.Node != "n1" || claim.To != "n2" || claim.Generation != first {
			t.Fatalf(`the claim is %+v, want claim.State == api.FleetClaimMoving and claim.Node == "n1" and claim.To == "n2" and claim.Generation == %v`,
				claim, first)
		}
	}
	var p api.Problem
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "s"}, &p); code != http.StatusConflict || !strings.Contains(p.Detail, "is being moved from node n1 to n2") {
		t.Errorf(`its id: code = %d, p = %+v, want code == 409 and p.Detail containing "is being moved from node n1 to n2"`,
			code, p)
	}
	if _, p, code := h.moves("s", api.FleetMove{}); code != http.StatusConflict || !strings.Contains(p.Detail, "is being moved from node n1 to n2") {
		t.Errorf(`a second move: code = %d, p = %+v, want code == 409 and p.Detail containing "is being moved from node n1 to n2"`,
			code, p)
	}
	if is, err := h.client().Session(t.Context(), "s"); err != nil || is.State != "ready" {
		t.Errorf(`is = %+v, err = %v, want no error and is.State == "ready"`, is, err)
	}
	slow.release()
	if a := <-end; a.code != http.StatusOK || a.moved.Node != "n2" {
		t.Errorf(`a = %+v, want a.code == 200 and a.moved.Node == "n2"`, a)
	}
	h.onlyOn("n2")
	h.restarted("\n\n")
}

// If the node of a session is cut off while the session is moved, and stopped for that, the session is lost, and the answer of the
// move says so. When the node is back, the session runs again there.
func TestANodeIsCutOffInTheMiddleOfAMove(t *testing.T) {
	t.Parallel()
	h, l := buildLinked(t, "n1")
	copying := h.on("n2").holds(t, "PUT", "/archive")
	h.worker()
	end := h.begins(api.FleetMove{}, copying.reached)
	own := client.New(h.on("n1").boxd.Socket)
	own.Owner = "ci"
	defer own.Close()
	if is, err := own.Session(t.Context(), "s"); err != nil || is.State != "stopped" {
		t.Errorf(`is = %+v, err = %v, want no error and is.State == "stopped"`, is, err)
	}
	l.set(func() { l.cut = true })
	boxtest.Eventually(t, "the session is lost", func() bool { return h.where("s").State == api.FleetClaimLost })
	var p api.Problem
	if code := h.get("POST", "/v1/sessions/s/exec", map[string]any{"argv": []string{"true"}}, &p); code != http.StatusConflict || !strings.Contains(p.Detail, "lost since") {
		t.Errorf(`code = %d, p = %+v, want code == 409 and p.Detail containing "lost since"`, code, p)
	}
	if a := <-end; a.code != http.StatusConflict || !strings.Contains(a.problem.Detail, "node n1 has been silent since") {
		t.Errorf(`the move: a = %+v, want a.code == 409 and a.problem.Detail containing "node n1 has been silent since"`,
			a)
	}
	copying.release()
	boxtest.Eventually(t, "the other node has no copy of the session", func() bool { return !h.on("n2").has(t, "s") })
	if claim := h.where("s"); claim.Node != "n1" || claim.State != api.FleetClaimLost {
		t.Errorf(`claim = %+v, want claim.Node == "n1" and claim.State == api.FleetClaimLost`, claim)
	}
	if is, err := own.Session(t.Context(), "s"); err != nil || is.State != "stopped" {
		t.Errorf(`is = %+v, err = %v, want no error and is.State == "stopped"`, is, err)
	}
	l.set(func() { l.cut = false })
	h.onlyOn("n1")
	h.restarted("\n\n")
}

// The same if its boxd is killed, and then the agent too: the session belongs to its node again at once, which starts it when it is
// back.
func TestAHostDiesInTheMiddleOfAMove(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	copying := h.on("n2").holds(t, "PUT", "/archive")
	h.worker()
	end := h.begins(api.FleetMove{}, copying.reached)
	n := h.on("n1")
	n.boxd.Kill()
	copying.release()
	if a := <-end; a.code != http.StatusServiceUnavailable || !strings.Contains(a.problem.Detail, "n1") {
		t.Errorf(`the move: a = %+v, want a.code == 503 and a.problem.Detail containing "n1"`, a)
	}
	if claim := h.where("s"); claim.Node != "n1" || claim.To != "" {
		t.Errorf(`claim = %+v, want claim.Node == "n1" and claim.To == ""`, claim)
	}
	boxtest.Eventually(t, "the other node has no copy of the session", func() bool { return !h.on("n2").has(t, "s") })
	n.agent.kill()
	n.boxd.Restart()
	n.agent.start()
	h.onlyOn("n1")
	h.restarted("\n\n")
}

// A node that turns out to be full, or whose answer is lost, leaves the session unchanged on its node. If the session was stopped
// already and its capacity is used meanwhile, it is started when there is capacity again.
func TestAMoveFindsNoRoom(t *testing.T) {
	t.Parallel()
	h := &house{t: t, dir: boxtest.TempDir(t), more: map[string]string{"n1": "[sessions]\nmax = 1", "n2": "[sessions]\nmax = 1"}}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	h.fill(2)
	locals := map[string]*client.Client{"n1": client.New(h.on("n1").boxd.Socket), "n2": client.New(h.on("n2").boxd.Socket)} // of root
	takes := func(node string) {
		if _, _, err := locals[node].CreateSession(t.Context(), &api.SessionRequest{ID: "local"}); err != nil {
			t.Error(err)
		}
	}
	frees := func(node string) {
		t.Helper()
		if err := locals[node].DeleteSession(t.Context(), "local"); err != nil {
			t.Fatal(err)
		}
	}
	isFree := func() { // so that a move is planned to n2
		t.Helper()
		since := time.Now() // what it announced before may still be on its way
		boxtest.Eventually(t, "the gateway knows that n2 has room", func() bool {
			var list api.FleetNodeList
			h.get("GET", "/v1/fleet/nodes", nil, &list)
			return len(list.Nodes) == 2 && list.Nodes[1].Sessions == 0 && list.Nodes[1].Time.After(since)
		})
	}
	var fault atomic.Value // what goes wrong at n2
	fault.Store("")
	h.on("n2").between(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		switch what := fault.Load(); {
		case r.Method == http.MethodPost && r.URL.Path == "/v1/sessions" && what == "full":
			takes("n2") // since its last announcement
		case r.Method == http.MethodPost && r.URL.Path == "/v1/sessions" && what == "no answer":
			pass.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/archive") && what == "files":
			takes("n1") // the capacity of the stopped session
			panic(http.ErrAbortHandler)
		}
		pass.ServeHTTP(w, r)
	})
	h.worker()
	refused := func(what, words string, want int) {
		t.Helper()
		isFree()
		fault.Store(what)
		defer fault.Store("")
		if _, p, code := h.moves("s", api.FleetMove{}); code != want || !strings.Contains(p.Detail, words) {
			t.Errorf("%s: %d %+v, want %d and %q", what, code, p, want, words)
		}
		if claim := h.where("s"); claim.Node != "n1" || claim.State != api.FleetClaimLive || claim.To != "" {
			t.Errorf(`%s: claim = %+v, want claim.Node == "n1" and claim.State == api.FleetClaimLive and claim.To == ""`,
				what, claim)
		}
	}
	refused("full", "sessions.max", http.StatusTooManyRequests)
	h.says("cat started", "\n") // it was never stopped
	frees("n2")
	refused("no answer", "node n2 has not answered", http.StatusTooManyRequests)
	h.says("cat started", "\n")
	h.onlyOn("n1") // what n2 has made, it ends

	c := h.client()
	if _, err := c.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	refused("full", "sessions.max", http.StatusTooManyRequests)
	if is, err := c.Session(t.Context(), "s"); err != nil || is.State != "stopped" {
		t.Errorf(`a stopped one: is = %+v, err = %v, want no error and is.State == "stopped"`, is, err)
	}
	frees("n2")
	if _, err := c.StartSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	h.restarted("\n\n")

	refused("files", "node n2 has not answered", http.StatusServiceUnavailable)
	if is, err := c.Session(t.Context(), "s"); err != nil || is.State != "stopped" {
		t.Errorf(`a session for which no node has capacity: is = %+v, err = %v, want no error and is.State == "stopped"`, is, err)
	}
	frees("n1")
	h.onlyOn("n1")
	h.restarted("\n\n\n")
}

// freeze stops a program by SIGSTOP, until thaw.
func (p *program) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *program) thaw() error   { return p.cmd.Process.Signal(syscall.SIGCONT) }

// The claims are removed when a session has arrived, before its node has announced itself again: that node has the session, and
// claims it again.
func TestClaimsAreRemovedWhenASessionHasArrived(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	js, n2 := h.buckets(), h.on("n2").agent
	h.on("n1").between(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method != http.MethodDelete { // of what has moved
			pass.ServeHTTP(w, r)
			return
		}
		if err := n2.freeze(); err != nil {
			t.Error(err)
		}
		pass.ServeHTTP(w, r)
		if err := js.DeleteKeyValue(r.Context(), "boxd_claims"); err != nil {
			t.Error(err)
		}
	})
	h.worker()
	before := h.where("s")
	if m, p, code := h.moves("s", api.FleetMove{}); code != http.StatusOK || m.Node != "n2" {
		t.Errorf(`m = %+v, p = %+v, code = %d, want code == 200 and m.Node == "n2"`, m, p, code)
	}
	if err := n2.thaw(); err != nil {
		t.Fatal(err)
	}
	h.onlyOn("n2")
	if claim := h.where("s"); claim.Generation != before.Generation+1 {
		t.Errorf("it was %+v and is %+v, want claim.Generation == before.Generation + 1", before, claim)
	}
	h.restarted("\n\n")
}

// A session is not given to a node that does not confirm its arrival: if the claims were removed then, that node would not claim
// it, as it may be incomplete, and the other node would have ended its own.
func TestANodeDoesNotHearThatASessionHasArrived(t *testing.T) {
	t.Parallel()
	h, l := buildLinked(t, "n2")
	h.worker()
	fences, last := 0, make(chan struct{})
	l.set(func() {
		l.cutAt = func(data []byte) bool { // the first message of the gateway says that the session is being moved, the second that it has arrived
			if !bytes.Contains(data, []byte("MSG fleet.n.n2.fence ")) {
				return false
			}
			if fences++; fences == 2 {
				close(last)
			}
			return fences == 2
		}
	})
	end := h.begins(api.FleetMove{}, last)
	boxtest.Eventually(t, "the claim is no longer in the state moving", func() bool { return h.where("s").State == api.FleetClaimLive })
	boxtest.Eventually(t, "the first node has the claim, or no copy of the session", func() bool { return h.where("s").Node == "n1" || !h.on("n1").has(t, "s") })
	if err := h.buckets().DeleteKeyValue(t.Context(), "boxd_claims"); err != nil {
		t.Fatal(err)
	}
	l.set(func() { l.cut = false })
	h.onlyOn("n1")
	h.restarted("\n\n")
	if a := <-end; a.code != http.StatusServiceUnavailable || !strings.Contains(a.problem.Detail, "n2") {
		t.Errorf(`a = %+v, want a.code == 503 and a.problem.Detail containing "n2"`, a)
	}
	h.onlyOn("n1")
}

// The claims are removed in the middle of a move: the node that had the session claims it again, and it runs again there.
func TestClaimsAreRemovedInTheMiddleOfAMove(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	copying := h.on("n2").holds(t, "PUT", "/archive")
	h.worker()
	end := h.begins(api.FleetMove{}, copying.reached)
	if err := h.buckets().DeleteKeyValue(t.Context(), "boxd_claims"); err != nil {
		t.Fatal(err)
	}
	if a := <-end; a.code != http.StatusConflict && a.code != http.StatusServiceUnavailable {
		t.Errorf("a = %+v, want a.code == 409 or a.code == 503", a)
	}
	copying.release()
	h.onlyOn("n1")
	h.restarted("\n\n")
}

// A caller that gives a lost session up in the middle of its move, and creates it again on the target node, gets a new session. The
// canceled move does not change it, and does not start the old one.
func TestASessionIsMadeAgainInTheMiddleOfAMove(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	copying := h.on("n2").holds(t, "PUT", "/archive")
	var started atomic.Bool
	h.on("n1").between(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/start") {
			started.Store(true)
		}
		pass.ServeHTTP(w, r)
	})
	h.worker()
	end := h.begins(api.FleetMove{}, copying.reached)
	h.renewed() // so that the move detects it only at its end
	n1 := h.on("n1").agent
	if err := n1.freeze(); err != nil { // it would find what is lost
		t.Fatal(err)
	}
	h.losesClaim()
	if code := h.get("DELETE", "/v1/sessions/s", nil, nil); code != http.StatusNoContent {
		t.Fatal(code)
	}
	var s api.Session
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "s", "placement": map[string]any{"node": "n2"}, "wait": "1m"}, &s); code != http.StatusCreated {
		t.Errorf("code = %d, s = %+v, want code == 201", code, s)
	}
	if err := n1.thaw(); err != nil {
		t.Fatal(err)
	}
	h.says("echo new > f; ls", "f\n")
	if a := <-end; a.code != http.StatusConflict {
		t.Errorf("a = %+v, want a.code == 409", a)
	}
	h.onlyOn("n2")
	h.says("cat f", "new\n")
	if started.Load() {
		t.Error("the session on the old node was started again")
	}
}

// renewed waits until a gateway has renewed the claim of the only session.
func (h *house) renewed() {
	h.t.Helper()
	kv, err := h.buckets().KeyValue(h.t.Context(), "boxd_claims")
	if err != nil {
		h.t.Fatal(err)
	}
	w, err := kv.WatchAll(h.t.Context(), jetstream.UpdatesOnly())
	if err != nil {
		h.t.Fatal(err)
	}
	select {
	case <-w.Updates():
	case <-time.After(time.Minute):
		h.t.Fatal("nobody renews the claim")
	}
}

// losesClaim marks the claim of the only session as lost, like a gateway that has got no announcement of its node.
func (h *house) losesClaim() {
	h.t.Helper()
	kv, err := h.buckets().KeyValue(h.t.Context(), "boxd_claims")
	if err != nil {
		h.t.Fatal(err)
	}
	keys, err := kv.Keys(h.t.Context())
	if err != nil || len(keys) != 1 {
		h.t.Fatalf("keys = %q, err = %v, want no error and len(keys) == 1", keys, err)
	}
	boxtest.Eventually(h.t, "the claim is written", func() bool { // the move renews it
		entry, err := kv.Get(h.t.Context(), keys[0])
		if err != nil {
			return false
		}
		claim := map[string]any{}
		if err := json.Unmarshal(entry.Value(), &claim); err != nil {
			h.t.Fatal(err)
		}
		claim["state"], claim["since"] = api.FleetClaimLost, time.Now()
		delete(claim, "to")
		delete(claim, "to_generation")
		text, err := json.Marshal(claim)
		if err == nil {
			_, err = kv.Update(h.t.Context(), keys[0], text, entry.Revision())
		}
		return err == nil
	})
}
