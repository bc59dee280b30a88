// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// announced is an announcement.
type announced struct {
	jetstream.KeyValueEntry
	value []byte
}

func (a announced) Key() string   { return "n" }
func (a announced) Value() []byte { return a.value }

// at runs a function where the clock shows a time: that much after the time at which all clocks of the test start.
func at(t *testing.T, clock time.Duration, do func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		<-time.After(clock)
		do(t)
	})
}

// A gateway and a node whose clocks differ by hours understand each other: identities have the node's time, and are valid there
// for as long as others, and no longer.
func TestClocksThatDifferByHours(t *testing.T) {
	t.Parallel()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	const target = "/v1/sessions"
	for _, tc := range []struct {
		name          string
		gateway, node time.Duration
		later         time.Duration // on the node, after the announcement
		message       string        // "": accepted
	}{
		{"the same", 12 * time.Hour, 12 * time.Hour, 0, ""},
		{"the node is ahead", 12 * time.Hour, 19 * time.Hour, time.Second, ""},
		{"the node is behind", 12 * time.Hour, 5 * time.Hour, time.Second, ""},
		{"the node is ahead, and late", 12 * time.Hour, 19 * time.Hour, access.AssertionLife, "expiry of the caller's identity"},
		{"the node is behind, and late", 12 * time.Hour, 5 * time.Hour, access.AssertionLife, "expiry of the caller's identity"},
	} {
		said := ""
		at(t, tc.gateway, func(t *testing.T) {
			g := &gateway{cfg: gatewayOptions{Name: "main", Key: key}, log: slog.Default(), nodes: map[string]*nodeState{}, transport: &http.Transport{}, now: time.Now}
			value, err := json.Marshal(api.FleetNode{Name: "n", State: api.FleetNodeReady, Time: time.Now().Add(tc.node - tc.gateway)})
			if err != nil {
				t.Fatal(err)
			}
			g.update(announced{value: value})
			n, ok := g.node("n")
			if !ok || n.lost || n.State != api.FleetNodeReady || n.offset != tc.node-tc.gateway {
				t.Errorf("%s: n = %+v, want ok == true and n.lost == false and n.State == api.FleetNodeReady and n.offset == tc.node - tc.gateway",
					tc.name, n)
			}
			out, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://n"+target, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.sign(&call{pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}, &n, out); err != nil {
				t.Fatal(err)
			}
			said = out.Header.Get("Authorization")
			// It is lost when it is silent by the local clock, whatever its own says.
			<-time.After(lostAfter + time.Second)
			if n, _ := g.node("n"); !n.lost {
				t.Errorf("%s: it is not lost", tc.name)
			}
		})
		at(t, tc.node, func(t *testing.T) {
			gate := gateOf(t, access.FleetKey(public))
			<-time.After(tc.later)
			pass, err := gate.IdentifyAsserted([]string{said}, http.MethodGet, target)
			if tc.message == "" && (err != nil || pass.Name != "ci") || tc.message != "" && (err == nil || !strings.Contains(err.Error(), tc.message)) {
				t.Errorf(`%s: pass = %+v, err = %v, want (tc.says != "" or no error and pass.Name == "ci") and (tc.says == "" or an error containing %q)`,
					tc.name, pass, err, tc.message)
			}
		})
	}
}

// gateOf returns the gate of node n, on which a gateway may act for ci.
func gateOf(t *testing.T, key string) *access.Gate {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	grants, err := access.OpenGrants(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	state, err := access.Prepare(&access.GateConfig{
		Principals: map[string]access.Rule{"ci": {Role: access.User}},
		Fleet:      access.Fleet{Name: "n", Gateways: map[string]access.Gateway{"main": {Key: key, Role: access.User, Principals: []string{"ci"}}}},
	}, access.LookupHost(), "")
	if err != nil {
		t.Fatal(err)
	}
	return access.NewGate(state, grants, slog.Default())
}
