// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// A second host with the name of a node gets an error, and does not serve under that name until the first has been silent for the
// time after which a node is lost.
func TestAHostWithTheNameOfAnother(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	second := h.start("n1", "second")
	boxtest.Eventually(t, "the log of the second host says that another host uses its name", func() bool {
		text, err := os.ReadFile(second.log)
		return err == nil && strings.Contains(string(text), "another host uses the name of this node")
	})
	for range 20 {
		h.runs("s")
		var s struct{ ID string }
		if code := h.get("POST", "/v1/sessions", map[string]any{}, &s); code != http.StatusCreated {
			t.Fatal(code)
		}
		second.boxd.Owner, h.nodes[0].boxd.Owner = "ci", "ci"
		if _, err := second.boxd.Session(t.Context(), s.ID); !errors.Is(err, client.NotFound) {
			t.Errorf("%s is at the second host: err = %v, want err is client.NotFound", s.ID, err)
		}
		if _, err := h.nodes[0].boxd.Session(t.Context(), s.ID); err != nil {
			t.Errorf("%s is not at the first host: %v", s.ID, err)
		}
		if code := h.get("DELETE", "/v1/sessions/"+s.ID, nil, nil); code != http.StatusNoContent {
			t.Fatal(code)
		}
	}
	// A restarted agent does not count as another host.
	h.nodes[0].agent.kill()
	h.nodes[0].agent.start()
	h.ready(1)
	boxtest.Eventually(t, "the first host serves again", func() bool { return h.get("GET", "/v1/sessions/s", nil, nil) == http.StatusOK })
	// The second host becomes the node once the first is gone.
	h.nodes[0].agent.kill()
	boxtest.Eventually(t, "the second host is the node", func() bool {
		var s struct{ ID string }
		if h.get("POST", "/v1/sessions", map[string]any{"wait": "0s"}, &s) != http.StatusCreated {
			return false
		}
		_, err := second.boxd.Session(t.Context(), s.ID)
		return err == nil
	})
	var seen api.FleetEventList
	if h.get("GET", "/v1/fleet/events", nil, &seen); !slices.ContainsFunc(seen.Events, func(e api.FleetEvent) bool { return e.Type == "node_moved" && e.Node == "n1" }) {
		t.Errorf("seen = %+v", seen)
	}
	h.nodes[0].agent.start()
	boxtest.Eventually(t, "the log of the first host says that another host uses its name", func() bool {
		text, err := os.ReadFile(filepath.Join(h.dir, "n1.log"))
		return err == nil && strings.Contains(string(text), "another host uses the name of this node")
	})
}

// link is a connection to an address that can be cut: data on it then stays there, and neither end is notified.
type link struct {
	address string
	mu      sync.Mutex
	open    *sync.Cond
	cut     bool
	over    bool
	cutAt   func(data []byte) bool // reports whether the link is cut before it passes that; nil: never
}

func newLink(t *testing.T, to func() string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{address: ln.Addr().String()}
	l.open = sync.NewCond(&l.mu)
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to())
			if err != nil {
				near.Close()
				continue
			}
			l.mu.Lock()
			conns = append(conns, near, far)
			l.mu.Unlock()
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				wg.Go(func() {
					_, _ = io.Copy(way[0], struct{ io.Reader }{passing{l, way[1]}})
					way[0].Close()
					way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		l.set(func() { l.over = true })
		l.mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		l.mu.Unlock()
		wg.Wait()
	})
	return l
}

// buildLinked is build for two nodes, one of which reaches NATS by a link.
func buildLinked(t *testing.T, node string) (*house, *link) {
	t.Helper()
	return buildLinkedListening(t, node, nil)
}

// buildLinkedListening is the same with addresses of nodes where gateways connect to them; "": any.
func buildLinkedListening(t *testing.T, node string, listen map[string]string) (*house, *link) {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), listen: listen}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	l := newLink(t, func() string { return h.nats.Addr().String() })
	h.via = map[string]string{node: l.address}
	return h.fill(2), l
}

func (l *link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.open.Broadcast()
}

// passing reads from one end of a link; while the link is cut, it reads nothing.
type passing struct {
	l    *link
	conn net.Conn
}

func (p passing) Read(b []byte) (int, error) {
	n, err := p.conn.Read(b)
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.l.cutAt != nil && p.l.cutAt(b[:n]) {
		p.l.cut = true
	}
	for p.l.cut && !p.l.over {
		p.l.open.Wait()
	}
	return n, err
}

// NATS loses a node while all connections seem to be open: its sessions are lost, but it still serves its local callers; a
// session that was given up and created again elsewhere exists once, and the others are found.
func TestANodeIsCutOff(t *testing.T) {
	t.Parallel()
	h, l := buildLinked(t, "n1")
	c := h.client()
	h.makes("kept", "n1")
	h.makes("given-up", "n1")
	n := h.on("n1")
	n.boxd.Owner = "ci"
	l.set(func() { l.cut = true })
	boxtest.Eventually(t, "the sessions are lost", func() bool {
		return h.where("kept").State == api.FleetClaimLost && h.where("given-up").State == api.FleetClaimLost
	})
	for _, id := range []string{"kept", "given-up"} {
		if r, err := n.boxd.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"echo", "alone"}}); err != nil || r.Stdout != "alone\n" {
			t.Errorf(`%s: r = %+v, err = %v, want no error and r.Stdout == "alone\n"`, id, r, err)
		}
		var p api.Problem
		if code := h.get("POST", "/v1/sessions/"+id+"/exec", map[string]any{"argv": []string{"true"}}, &p); code != http.StatusConflict || !strings.Contains(p.Detail, "lost since") {
			t.Errorf(`%s: code = %d, p = %+v, want code == 409 and p.Detail containing "lost since"`, id, code, p)
		}
	}
	if err := c.DeleteSession(t.Context(), "given-up"); err != nil {
		t.Fatal(err)
	}
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "given-up"}, nil); code != http.StatusCreated || h.where("given-up").Node != "n2" {
		t.Fatalf(`code = %d, h.where("given-up") = %+v, want code == 201 and h.where("given-up").Node == "n2"`,
			code, h.where("given-up"))
	}
	l.set(func() { l.cut = false })
	boxtest.Eventually(t, "the node is back and has ended the session that another node runs", func() bool {
		_, err := n.boxd.Session(t.Context(), "given-up")
		return errors.Is(err, client.NotFound) && h.where("kept").State == api.FleetClaimLive
	})
	h.ready(2)
	h.runs("kept")
	h.runs("given-up")
	if claim := h.where("given-up"); claim.Node != "n2" || claim.State != api.FleetClaimLive {
		t.Errorf(`claim = %+v, want claim.Node == "n2" and claim.State == api.FleetClaimLive`, claim)
	}
}

// One caller cannot take all connections of a gateway.
func TestConnectionsOfAGatewayAreBounded(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	open := func() net.Conn {
		t.Helper()
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ask := func(conn net.Conn, token string) int {
		t.Helper()
		if _, err := fmt.Fprintf(conn, "GET /v1/fleet/nodes HTTP/1.1\r\nHost: boxd\r\nAuthorization: Bearer %s\r\n\r\n", token); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	fine, code := 0, http.StatusOK
	for ; code == http.StatusOK && fine < 2048; fine++ { // on a slow host the first ones reach the idle timeout
		code = ask(open(), h.user)
	}
	if code != http.StatusTooManyRequests || fine <= 512 {
		t.Errorf("%d after %d connections", code, fine)
	}
	if code := ask(open(), h.token); code != http.StatusOK {
		t.Errorf("another caller: code = %d, want 200", code)
	}
}

// A gateway reloads its configuration on SIGHUP: a removed principal is refused, and what the gateway signs with a new key is
// refused by nodes that have the old one. An invalid configuration changes nothing.
func TestAGatewayReadsItsConfigurationAgain(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	file := filepath.Join(h.dir, "fleet.toml")
	right, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	log := func(says string, times int) {
		t.Helper()
		boxtest.Eventually(t, "the gateway has read its configuration again: "+says, func() bool {
			text, err := os.ReadFile(filepath.Join(h.dir, "gateway.log"))
			return err == nil && strings.Count(string(text), says) == times
		})
	}
	replaceFile(t, file, []byte(strings.Replace(string(right), "[principals.other]", "[principals.nobody]", 1)))
	h.gate.reload()
	log("the configuration is in force", 1)
	if code := h.as(h.user, "GET", "/v1/sessions", nil, nil); code != http.StatusUnauthorized {
		t.Errorf("a removed principal: code = %d, want 401", code)
	}
	replaceFile(t, file, append(right, "[unknown]\n"...))
	h.gate.reload()
	log("the configuration is invalid", 1)
	if code := h.get("GET", "/v1/sessions/s", nil, nil); code != http.StatusOK {
		t.Errorf("after an invalid configuration: code = %d, want 200", code)
	}
	other := filepath.Join(h.dir, "other-key")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxfleet"), "key", "-file", other).CombinedOutput(); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	replaceFile(t, file, []byte(strings.Replace(string(right), filepath.Join(h.dir, "key"), other, 1)))
	h.gate.reload()
	log("the configuration is in force", 2)
	var p api.Problem
	if code := h.get("GET", "/v1/sessions/s", nil, &p); code != http.StatusServiceUnavailable || !strings.Contains(p.Detail, "does not accept this gateway") {
		t.Errorf(`with another key: code = %d, p = %+v, want code == 503 and p.Detail containing "does not accept this gateway"`,
			code, p)
	}
	if code := h.as(h.user, "GET", "/v1/fleet/nodes", nil, nil); code != http.StatusOK {
		t.Errorf("a principal that was added again: code = %d, want 200", code)
	}
	replaceFile(t, file, right)
	h.gate.reload()
	log("the configuration is in force", 3)
	if code := h.get("GET", "/v1/sessions/s", nil, nil); code != http.StatusOK {
		t.Errorf("with the key of before: code = %d, want 200", code)
	}
}
