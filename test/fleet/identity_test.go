// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// gateway sends requests to a node as one of the gateways that it knows.
type gateway struct {
	d      *boxtest.Daemon
	key    ed25519.PrivateKey
	socket string
}

// startNode starts a boxd on which the gateway main may act for ci.
func startNode(t *testing.T) *gateway {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	d := boxtest.Start(t, fmt.Sprintf(`
[principals.ci]
role = "operator"
[principals.other]
role = "user"
[fleet]
socket = "%%DIR%%/fleet"
name = "one"
[fleet.gateways.main]
key = %q
role = "user"
principals = ["ci"]
`, access.FleetKey(public)))
	return &gateway{d, key, filepath.Join(d.Dir, "fleet")}
}

// identity returns the signed header of a request on behalf of the principal who.
func (g *gateway) identity(t *testing.T, who, method, target string) string {
	t.Helper()
	value, err := access.Assertion{Gateway: "main", Node: "one", Principal: who, Role: access.Admin, Method: method, Target: target}.Sign(g.key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return "Authorization: " + value
}

// asks makes a request on behalf of the principal who over a socket.
func (g *gateway) asks(t *testing.T, socket, who, method, target, body string, header ...string) boxtest.Answer {
	t.Helper()
	a, err := boxtest.Ask(t.Context(), socket, boxtest.Request(method, target, body, append(header, g.identity(t, who, method, target))...))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A gateway's request on behalf of a principal acts as that principal, within what box.toml allows the gateway.
func TestAGatewayActsForItsCallers(t *testing.T) {
	t.Parallel()
	g := startNode(t)
	a := g.asks(t, g.socket, "ci", "POST", "/v1/sessions", `{"id":"s"}`)
	var s api.Session
	if err := json.Unmarshal(a.Body, &s); err != nil || a.Code != 201 || s.Owner != "ci" {
		t.Fatalf(`a.Code = %d, a.Body = %s, want no error and a.Code == 201 and s.Owner == "ci"`, a.Code, a.Body)
	}
	a = g.asks(t, g.socket, "ci", "POST", "/v1/sessions/s/exec", `{"argv":["echo","hello"]}`)
	var r api.ExecResult
	if err := json.Unmarshal(a.Body, &r); err != nil || a.Code != 200 || r.Stdout != "hello\n" {
		t.Fatalf(`a.Code = %d, a.Body = %s, want no error and a.Code == 200 and r.Stdout == "hello\n"`, a.Code, a.Body)
	}
	// ci is an operator on this node, but not through this gateway.
	if p := g.asks(t, g.socket, "ci", "GET", "/v1/config", "").Problem(t); p.Status != 403 || !strings.Contains(p.Detail, "fleet.gateways.main.role") {
		t.Errorf(`p = %+v, want p.Status == 403 and p.Detail containing "fleet.gateways.main.role"`, p)
	}
	if p := g.asks(t, g.socket, "other", "GET", "/v1/sessions", "").Problem(t); p.Status != 403 || !strings.Contains(p.Detail, "fleet.gateways.main.principals") {
		t.Errorf(`p = %+v, want p.Status == 403 and p.Detail containing "fleet.gateways.main.principals"`, p)
	}
	// Its tools call boxd again in the caller's name.
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	accept := []string{"Content-Type: application/json", "Accept: application/json, text/event-stream"}
	a = g.asks(t, g.socket, "ci", "POST", "/mcp?session=s", initialize, accept...)
	if a.Code != 200 || a.Header.Get("Mcp-Session-Id") == "" {
		t.Fatalf(`a.Code = %d, a.Body = %s, want a.Code == 200 and a.Header.Get("Mcp-Session-Id") != ""`,
			a.Code, a.Body)
	}
	accept = append(accept, "Mcp-Session-Id: "+a.Header.Get("Mcp-Session-Id"))
	g.asks(t, g.socket, "ci", "POST", "/mcp?session=s", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, accept...)
	a = g.asks(t, g.socket, "ci", "POST", "/mcp?session=s", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"echo $((6*7))"}}}`, accept...)
	if a.Code != 200 || !strings.Contains(string(a.Body), "42") {
		t.Errorf(`a.Code = %d, a.Body = %s, want a.Code == 200 and a.Body containing "42"`, a.Code, a.Body)
	}
}

// On the gateways' socket a client without an identity is unauthenticated, root too; an identity is valid once, and only there.
func TestTheSocketOfGatewaysKnowsNobodyElse(t *testing.T) {
	t.Parallel()
	g := startNode(t)
	ask := func(socket string, header ...string) boxtest.Answer {
		t.Helper()
		a, err := boxtest.Ask(t.Context(), socket, boxtest.Request("GET", "/v1/sessions", "", header...))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(g.socket); a.Code != 401 {
		t.Errorf("root without an identity: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	if a := ask(g.socket, "Authorization: Bearer boxd_x"); a.Code != 401 {
		t.Errorf("a token: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	once := g.identity(t, "ci", "GET", "/v1/sessions")
	if a := ask(g.d.Socket, once); a.Code != 401 {
		t.Errorf("on the other socket: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	if a := ask(g.socket, once); a.Code != 200 {
		t.Errorf("once: a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
	if a := ask(g.socket, once); a.Code != 401 {
		t.Errorf("twice: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	a, err := boxtest.Ask(t.Context(), g.socket, boxtest.Request("GET", "/healthz", ""))
	if err != nil || a.Code != 200 {
		t.Errorf("healthz: a.Code = %d, a.Body = %s, err = %v, want no error and a.Code == 200", a.Code, a.Body, err)
	}
}
