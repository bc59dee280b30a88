// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"log/slog"
	"testing"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func TestACallerWithoutARoleLeavesNoSpan(t *testing.T) {
	t.Parallel()
	tracer, err := trace.NewTracer(&trace.Config{Endpoint: "http://127.0.0.1:1", Ratio: 1}, trace.Source{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		traces  *trace.Tracer
		caller  access.Principal
		pattern string
		want    bool
	}{
		{tracer, access.Principal{Name: "uid:1000", Role: access.Viewer}, "GET /v1/sessions", true},
		{tracer, access.Principal{Name: "uid:1000"}, "GET /v1/sessions", false},
		{tracer, access.Principal{}, "GET /v1/sessions", false},
		{tracer, access.Principal{Name: "uid:1000", Role: access.Viewer}, "GET /healthz", false},
		{nil, access.Principal{Name: "uid:1000", Role: access.Viewer}, "GET /v1/sessions", false},
	} {
		c := &Call{Deps: &Deps{Telemetry: Telemetry{Traces: tc.traces}}, Caller: tc.caller}
		if got := recorded(c, &Route{Pattern: tc.pattern}); got != tc.want {
			t.Errorf("%+v %s: got %v, want %v", tc.caller, tc.pattern, got, tc.want)
		}
	}
}
