// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A request without an owner finds the claims of the sandbox, and does not get "not found" while the claims are not loaded yet.
func TestAClaimIsFoundByItsID(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	claims, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil {
		t.Fatal(err)
	}
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	g.cfg.E2B, g.claims, g.bucket = true, claims, bucket
	put := func(owner, id, node string) *sessionClaim {
		t.Helper()
		c := &sessionClaim{FleetClaim: api.FleetClaim{Owner: owner, ID: id, Node: node, Generation: 1, State: api.FleetClaimLive}, Sandbox: true, key: claimKey(owner, id)}
		if c.revision, err = putClaim(t.Context(), claims, c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	put("ci", "ione", "n1")
	theirs := put("other", "ione", "n2")
	put("ci", "no id of a sandbox", "n1")
	heard, err := watchClaims(t.Context(), js.Conn(), claims, bucket)
	if err != nil {
		t.Fatal(err)
	}
	defer heard.stop()
	hears := func(until func() bool) {
		t.Helper()
		for !until() {
			g.applyClaim(heard, <-heard.watch.Updates())
		}
	}
	found := func(id string) (list []string) {
		t.Helper()
		all, err := g.located(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			list = append(list, c.Owner+" "+c.Node)
		}
		return list
	}
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 3*recheckInterval)
		t.Cleanup(cancel)
		return ctx
	}
	if list, err := g.located(soon(), "ione"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("before all nodes had announced their sandboxes: list = %v, err = %v, want a fault.Unavailable error", list, err)
	}
	hears(func() bool { return g.index() != nil })
	for id, want := range map[string][]string{"ione": {"ci n1", "other n2"}, "itwo": nil, "no id of a sandbox": nil} {
		if diff := cmp.Diff(want, found(id)); diff != "" {
			t.Errorf("%s: %s", id, diff)
		}
	}
	if diff := cmp.Diff(map[string]bool{"n1": true}, g.index().nodesOf("ci")); diff != "" {
		t.Error(diff)
	}
	two := put("ci", "itwo", "n2")
	if list, err := g.located(soon(), "itwo"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a node that has not announced its sandboxes: list = %v, err = %v, want a fault.Unavailable error", list, err)
	}
	seen := func() bool { list, _, _ := g.index().find("itwo"); return len(list) > 0 }
	hears(seen)
	if diff := cmp.Diff([]string{"ci n2"}, found("itwo")); diff != "" {
		t.Error(diff)
	}
	if err := g.drop(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	hears(func() bool { return !seen() })
	if list := found("itwo"); list != nil {
		t.Errorf("list = %v, want nil", list)
	}
	if diff := cmp.Diff([]string{"ci n1", "other n2"}, found("ione")); diff != "" {
		t.Error(diff)
	}
	if err := g.drop(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	hears(func() bool { list, _, _ := g.index().find("ione"); return len(list) < 2 })
	if diff := cmp.Diff([]string{"ci n1"}, found("ione")); diff != "" {
		t.Error(diff)
	}
	g.bucket = "another"
	if list, err := g.located(soon(), "ione"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("of another bucket: list = %v, err = %v, want a fault.Unavailable error", list, err)
	}
}

// Keys are not sent unencrypted to other hosts, and a domain name counts as one.
func TestAddressesForE2B(t *testing.T) {
	t.Parallel()
	for table, says := range map[string]string{
		`listen = "0.0.0.0:5441"`:   `e2b.listen = "0.0.0.0:5441": must be a loopback address without gateway.certificate`,
		`listen = "127.0.0.1"`:      `e2b.listen = "127.0.0.1": must be an address with a port`,
		`domain = "a/b"`:            `e2b.domain = "a/b": must be a host name`,
		`domain = "a..b:80"`:        `e2b.domain = "a..b:80": must be a host name`,
		`fleet = true`:              `unknown key "e2b.fleet"`,
		`listen = "127.0.0.1:5441"`: "",
		"listen = \"[::1]:5441\"\ndomain = \"boxes.example.org:5441\"": "",
	} {
		file := filepath.Join(t.TempDir(), "gateway.toml")
		if err := os.WriteFile(file, []byte("[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[e2b]\n"+table+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readGateway(file)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", table, err, says)
		}
	}
}

// A request that is too long to be signed is refused, and no part of it reaches a node: least of all its caller's key.
func TestNothingIsSentThatIsNotSigned(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]*e2bCall{"API": nil, "control plane of E2B": {}, "sandbox": {data: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := aGateway(startServer(t), &clock{t: time.Unix(1e9, 0)})
			g.cfg.Key, g.cfg.Name = key, "main"
			g.update(named{announced{value: []byte(`{"name":"n1","state":"ready"}`)}, "n1"})
			dialed := false
			g.transport = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				dialed = true
				return nil, errNoResponder
			}}
			for _, length := range []int{100, 13000} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x?y="+strings.Repeat("z", length), nil)
				r.Header.Set(wire.HeaderKey, "boxd_secret")
				r.Header.Set("Authorization", "Bearer boxd_secret")
				w := httptest.NewRecorder()
				dialed = false
				if err := g.pass(&call{w: w, r: r, pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}, e2b: e}, "n1", nil); err != nil {
					t.Fatal(err)
				}
				want := http.StatusServiceUnavailable
				if length > 10000 {
					want = http.StatusBadRequest
				}
				if w.Code != want || dialed != (length < 10000) {
					t.Errorf("%d bytes: %d %s, sent: dialed = %v, want w.Code == %v and dialed == (length < 10000)",
						length, w.Code, w.Body, dialed, want)
				}
			}
		})
	}
}
