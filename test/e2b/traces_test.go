// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"fmt"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Requests of E2B clients start traces of their own.
func TestRequestsLeaveSpans(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := start(t, fmt.Sprintf("[traces]\nendpoint = %q", spans.URL))
	h.create(t, "agent", `{"templateID":"base"}`)
	s := spans.Find(t, "boxd", "e2b POST /v2/sandboxes")
	if s.Parent != "" || s.Kind != "SPAN_KIND_SERVER" || s.Failed || s.Has["http.response.status_code"] != 201 || s.Has["boxd.principal"] != "agent" || s.Has["boxd.session"] == nil {
		t.Errorf("s = %+v", s)
	}
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/none", ""); status != 404 {
		t.Fatalf("status = %d, text = %s, want status == 404", status, text)
	}
	if s := spans.Find(t, "boxd", "e2b GET /sandboxes/{id}"); s.Has["http.response.status_code"] != 404 || s.Has["error.type"] != "not_found" {
		t.Errorf(`s = %+v, want s.Has["http.response.status_code"] == 404 and s.Has["error.type"] == "not_found"`, s)
	}
	// A client that has a trace of its own says so.
	const trace, parent = "0af7651916cd43dd8448eb211c803191", "b7ad6b7169203331"
	if status, text, head := h.sends(t, "GET", "/v2/sandboxes", "", "X-Api-Key", h.keys["agent"], "Traceparent", "00-"+trace+"-"+parent+"-01", "X-Request-Id", "mine"); status != 200 || head.Get("Boxd-Route") != "" {
		t.Fatalf(`status = %d, text = %s, head = %v, want status == 200 and head.Get("Boxd-Route") == ""`,
			status, text, head)
	}
	if s := spans.Find(t, "boxd", "e2b GET /v2/sandboxes"); s.Trace != trace || s.Parent != parent || s.Has["boxd.request"] != "mine" {
		t.Errorf(`s = %+v, want s.Trace == trace and s.Parent == parent and s.Has["boxd.request"] == "mine"`, s)
	}
}
