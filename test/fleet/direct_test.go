// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// direct returns where a gateway connects to a node; nil: nowhere.
func (h *house) direct(name string) *api.FleetDirect {
	h.t.Helper()
	var list api.FleetNodeList
	h.get("GET", "/v1/fleet/nodes", nil, &list)
	i := slices.IndexFunc(list.Nodes, func(n api.FleetNodeState) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return list.Nodes[i].Direct
}

// frames counts the frames of streams to a node and back over NATS.
func (h *house) frames(name string) *atomic.Int64 {
	h.t.Helper()
	n := &atomic.Int64{}
	nc := connect(h.t, h.login("gateway"))
	if _, err := nc.Subscribe("fleet.n."+name+".s.*", func(*nats.Msg) { n.Add(1) }); err != nil {
		h.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		h.t.Fatal(err)
	}
	return n
}

// A node with an address of its own is reached there: executions, input, large files, and other requests. Without that address, all
// of it uses NATS, and a new agent is recognized by its new key.
func TestAGatewayConnectsToANodeItself(t *testing.T) {
	t.Parallel()
	h := buildListening(t, 1, map[string]string{"n1": ""})
	c, frames := h.client(), h.frames("n1")
	at := h.direct("n1")
	if at == nil || at.Address != h.listen["n1"] {
		t.Fatalf(`announced is %+v, want at != nil and at.Address == h.listen["n1"]`, at)
	}
	h.makes("s", "n1")
	works := func(what string) {
		t.Helper()
		h.runs("s")
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"cat"}, Stdin: string(data)})
		if err != nil || r.Stdout != string(data) {
			t.Errorf("%s: %d bytes, %v", what, len(r.Stdout), err)
		}
	}
	direct := func(what string) { // a gateway that is not connected within a second goes over NATS for five
		t.Helper()
		boxtest.Eventually(t, "nothing goes over NATS "+what, func() bool {
			before := frames.Load()
			works(what)
			return frames.Load() == before
		})
	}
	direct("at first")
	n := h.on("n1")
	n.agent.kill()
	n.agent.start()
	boxtest.Eventually(t, "a new agent has a new key", func() bool { now := h.direct("n1"); return now != nil && now.Key != at.Key })
	h.ready(1)
	direct("to the new agent")

	// Another process uses the address: an agent that cannot listen there says so, and the gateway uses NATS.
	n.agent.kill()
	other, err := net.Listen("tcp", h.listen["n1"])
	if err != nil {
		t.Fatal(err)
	}
	n.agent.start()
	boxtest.Eventually(t, "the agent announces no direct address", func() bool { return h.direct("n1") == nil })
	h.ready(1)
	before := frames.Load()
	works("over NATS")
	if frames.Load() == before {
		t.Error("no frame went over NATS")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the agent announces its direct address again", func() bool { return h.direct("n1") != nil })
	direct("again")
}

// Only a gateway of box.toml reaches boxd by the address of a node; and only the node itself is accepted at that address.
func TestOnlyAGatewayConnectsToANode(t *testing.T) {
	t.Parallel()
	h := buildListening(t, 1, map[string]string{"n1": ""})
	h.makes("s", "n1")
	own := func(key ed25519.PrivateKey) []tls.Certificate {
		der, err := x509.CreateCertificate(nil, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	}
	_, strange, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, certificates := range map[string][]tls.Certificate{"nothing": nil, "a key that is nobody's": own(strange)} {
		conn, err := tls.Dial("tcp", h.listen["n1"], &tls.Config{Certificates: certificates, InsecureSkipVerify: true})
		if err == nil { // the client's part of a handshake of TLS 1.3 ends before the server has verified it
			_, _ = io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: boxd\r\n\r\n")
			var some [1]byte
			_, err = conn.Read(some[:])
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: err = %v, want an error and err is not io.EOF", name, err)
		}
	}
	plain, err := net.Dial("tcp", h.listen["n1"])
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	_, _ = io.WriteString(plain, "GET /v1/status HTTP/1.1\r\nHost: boxd\r\n\r\n")
	if answer, _ := io.ReadAll(plain); strings.Contains(string(answer), "200") {
		t.Errorf(`without TLS: answer = %q, want answer without "200"`, answer)
	}

	// Unauthenticated idle connections take no place of a gateway for long, and block no caller.
	for range 200 {
		conn, err := net.Dial("tcp", h.listen["n1"])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	h.runs("s")

	// An impostor at the address of a stopped node receives nothing of a caller.
	h.on("n1").agent.kill()
	listener, err := tls.Listen("tcp", h.listen["n1"], &tls.Config{Certificates: own(strange), ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	heard := make(chan string, 16)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			text, _ := io.ReadAll(conn)
			heard <- string(text)
			_ = conn.Close()
		}
	}()
	boxtest.Eventually(t, "the gateway has connected to the impostor", func() bool { // its first request may be for a connection of before, which has just ended
		if code := h.get("POST", "/v1/sessions/s/exec", map[string]any{"argv": []string{"true"}}, nil); code != http.StatusServiceUnavailable {
			t.Errorf("with an impostor: code = %d, want 503", code)
		}
		select {
		case text := <-heard:
			if text != "" {
				t.Errorf(`an impostor receives %q, want ""`, text)
			}
			return true
		default:
			return false
		}
	})
}

// A node that is cut off from NATS but still reached by the gateway accepts no more requests from it before others consider it
// lost, and a session that was given up and created again elsewhere exists once.
func TestANodeThatNATSHasLostTakesNothingDirectly(t *testing.T) {
	t.Parallel()
	h, l := buildLinkedListening(t, "n1", map[string]string{"n1": ""})
	c := h.client()
	h.makes("s", "n1")
	n := h.on("n1")
	n.boxd.Owner = "ci"
	h.runs("s")
	l.set(func() { l.cut = true })
	var p api.Problem
	boxtest.Eventually(t, "the session is lost", func() bool { return h.where("s").State == api.FleetClaimLost })
	if code := h.get("POST", "/v1/sessions/s/exec", map[string]any{"argv": []string{"true"}}, &p); code != http.StatusConflict || !strings.Contains(p.Detail, "lost since") {
		t.Errorf(`code = %d, p = %+v, want code == 409 and p.Detail containing "lost since"`, code, p)
	}
	if err := c.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "s"}, nil); code != http.StatusCreated || h.where("s").Node != "n2" {
		t.Fatalf(`code = %d, h.where("s") = %+v, want code == 201 and h.where("s").Node == "n2"`, code, h.where("s"))
	}
	if conn, err := tls.Dial("tcp", h.listen["n1"], &tls.Config{InsecureSkipVerify: true}); err == nil {
		var some [1]byte
		if _, err := conn.Read(some[:]); err == nil {
			t.Error("the node answered a request for its lost session")
		}
		_ = conn.Close()
	}
	l.set(func() { l.cut = false })
	boxtest.Eventually(t, "the node is back and has ended the session that another node runs", func() bool {
		_, err := n.boxd.Session(t.Context(), "s")
		return errors.Is(err, client.NotFound)
	})
	h.ready(2)
	h.runs("s")
}
