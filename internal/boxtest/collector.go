// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector receives spans by OTLP, using OpenTelemetry's own types.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans []Span
	all   []byte // every request
}

// Span is a span that a collector received. Ids are hexadecimal; the parent of a trace's first span is "".
type Span struct {
	Service, Instance string
	Trace, ID, Parent string
	Name              string
	Kind              string
	Failed            bool
	Begin, End        uint64 // nanoseconds
	Has               map[string]any
}

// NewCollector starts a collector.
func NewCollector(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		// An ExportTraceServiceRequest has the same single field, but its package brings in gRPC.
		var data tracepb.TracesData
		if err == nil {
			err = proto.Unmarshal(body, &data)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || len(data.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf(`the collector gets %s %q: err = %v, want no error and r.URL.Path == "/v1/traces" and r.Header.Get("Content-Type") == "application/x-protobuf" and len(data.ProtoReflect().GetUnknown()) == 0`,
				r.URL.Path, r.Header.Get("Content-Type"), err)
		}
		c.take(&data, body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

func (c *Collector) take(data *tracepb.TracesData, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, body...)
	for _, of := range data.GetResourceSpans() {
		var resource Span
		for _, a := range of.GetResource().GetAttributes() {
			switch a.GetKey() {
			case "service.name":
				resource.Service = a.GetValue().GetStringValue()
			case "service.instance.id":
				resource.Instance = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				got := resource
				got.Trace, got.ID, got.Parent = hex.EncodeToString(s.GetTraceId()), hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId())
				got.Name, got.Kind = s.GetName(), s.GetKind().String()
				got.Failed = s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR
				got.Begin, got.End, got.Has = s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano(), map[string]any{}
				for _, a := range s.GetAttributes() {
					got.Has[a.GetKey()] = a.GetValue().GetStringValue()
					if n := a.GetValue().GetIntValue(); a.GetValue().GetStringValue() == "" {
						got.Has[a.GetKey()] = int(n)
					}
				}
				c.spans = append(c.spans, got)
			}
		}
	}
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Bytes returns everything received so far.
func (c *Collector) Bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// Find waits for a span of a service by its name.
func (c *Collector) Find(t testing.TB, service, name string) (found Span) {
	t.Helper()
	Eventually(t, "a span "+name+" of "+service, func() bool {
		all := c.Spans()
		i := slices.IndexFunc(all, func(s Span) bool { return s.Service == service && s.Name == name })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}
