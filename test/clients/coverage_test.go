// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notAgents are the routes without client methods: they are for monitoring and MCP clients.
var notAgents = []string{"GET /healthz", "GET /metrics", "GET /v1/openapi.json", "POST /mcp", "GET /mcp", "DELETE /mcp"}

var answered = regexp.MustCompile(`(?m)^boxd_requests_total\{code="(?:1..|2..|501)",route="([^"]+)"\} ([0-9]+)$`)

// done returns how often each route was called with success, or with an error that this host cannot do it.
func (h *host) done(t *testing.T) map[string]string {
	t.Helper()
	a := h.Raw(t, "GET", "/metrics", "")
	counts := map[string]string{}
	for _, m := range answered.FindAllStringSubmatch(string(a.Body), -1) {
		counts[m[1]] += m[2] + " "
	}
	if len(counts) == 0 {
		t.Fatalf("a.Body = %s, want len(counts) != 0", a.Body)
	}
	return counts
}

// asksForAll expects that runs has called every documented route, except some.
func (h *host) asksForAll(t *testing.T, without []string, runs func()) {
	t.Helper()
	text, err := os.ReadFile("../../relay/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var description struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(text, &description); err != nil {
		t.Fatal(err)
	}
	before := h.done(t)
	runs()
	after := h.done(t)
	var missing []string
	for path, methods := range description.Paths {
		for method := range methods {
			route := strings.ToUpper(method) + " " + path
			if method != "parameters" && before[route] == after[route] && !slices.Contains(notAgents, route) && !slices.Contains(without, route) {
				missing = append(missing, route)
			}
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("its tests have not used these routes:\n%s", strings.Join(missing, "\n"))
	}
}
