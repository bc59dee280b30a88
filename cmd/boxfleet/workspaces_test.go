// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A node on which the caller may do nothing has none of its workspaces. One that does not accept the gateway, fails, or is lost, may have one: then a name
// that no other node has is not free.
func TestOnlyNodesThatAnswerDoNotHaveAWorkspace(t *testing.T) {
	t.Parallel()
	c := &clock{t: time.Unix(1e9, 0)}
	g := gatewayWithClaims(t, c)
	answers := map[string]int{}
	servers := map[string]string{}
	for _, node := range []string{"a", "b"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/v1/workspaces/project" {
				t.Errorf("%s %s, want GET /v1/workspaces/project", r.Method, r.URL.Path)
			}
			w.WriteHeader(answers[node])
			_ = json.NewEncoder(w).Encode(api.Problem{Status: answers[node], Detail: "an answer"})
		}))
		t.Cleanup(server.Close)
		servers[node] = server.Listener.Addr().String()
	}
	g.transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		node, _, _ := strings.Cut(address, ":")
		return new(net.Dialer).DialContext(ctx, network, servers[node])
	}}
	t.Cleanup(g.transport.CloseIdleConnections)
	caller := &call{r: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/workspaces", nil), pass: access.Pass{Principal: access.Principal{Name: "ci", Role: access.User}}}
	for _, tc := range []struct {
		a, b int
		lost bool // b is
		node string
		kind fault.Kind // of the error, without a node
		text string
	}{
		{a: 200, b: 404, node: "a"},
		{a: 404, b: 200, node: "b"},
		{a: 200, b: 403, node: "a"},
		{a: 200, b: 401, node: "a"},
		{a: 200, b: 500, node: "a"},
		{a: 200, lost: true, node: "a"},
		{a: 404, b: 404, kind: fault.NotFound, text: `no workspace "project"`},
		{a: 404, b: 403, kind: fault.NotFound, text: `no workspace "project"`},
		{a: 404, b: 401, kind: fault.Unavailable, text: "may have it: b"},
		{a: 500, b: 404, kind: fault.Unavailable, text: "may have it: a"},
		{a: 404, lost: true, kind: fault.Unavailable, text: "may have it: b"},
		{a: 500, lost: true, kind: fault.Unavailable, text: "may have it: a, b"},
		{a: 200, b: 200, kind: fault.Conflict, text: "is on several nodes: a, b"},
		{a: 400, b: 404, kind: fault.Invalid, text: "an answer"},
	} {
		answers["a"], answers["b"] = tc.a, tc.b
		for _, node := range []string{"b", "a"} {
			data, err := json.Marshal(&api.FleetNode{Name: node, State: api.FleetNodeReady, Claims: g.bucket, Time: c.now()})
			if err != nil {
				t.Fatal(err)
			}
			g.update(named{announced{value: data}, node})
			if node == "b" && tc.lost {
				c.pass(lostAfter)
			}
		}
		node, err := g.workspaceNode(caller, "project")
		if node != tc.node || (err != nil) != (tc.node == "") || err != nil && (fault.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.text)) {
			t.Errorf("%+v: node = %q, err = %v", tc, node, err)
		}
	}
}
