// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"

// roundTripper is an http.RoundTripper that answers requests itself.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answers returns an answer of a collector.
func answers(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// tracing returns a Tracer whose collector is a function, and its log.
func tracing(t *testing.T, ratio float64, collector roundTripper) (*Tracer, *safeLog) {
	t.Helper()
	log := &safeLog{}
	tr, err := NewTracer(&Config{Endpoint: "http://127.0.0.1:1", Ratio: ratio}, Source{Service: "boxd", Version: "1.2.3", Instance: "n1"}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tr.client = &http.Client{Transport: collector}
	return tr, log
}

type safeLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *safeLog) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// decoded decodes a request with OpenTelemetry's own types.
func decoded(t *testing.T, r *http.Request) *tracepb.ResourceSpans {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	var data tracepb.TracesData
	if err == nil {
		err = proto.Unmarshal(body, &data)
	}
	if err != nil || len(data.GetResourceSpans()) != 1 || len(data.GetResourceSpans()[0].GetScopeSpans()) != 1 {
		t.Errorf("err = %v, data = %v, want no error and len(data.GetResourceSpans()) == 1 and len(data.GetResourceSpans()[0].GetScopeSpans()) == 1",
			err, &data)
		return &tracepb.ResourceSpans{}
	}
	return data.GetResourceSpans()[0]
}

// OpenTelemetry's own types can read what is sent, and find no unknown fields in it.
func TestSpansAreThoseOfOTLP(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got *tracepb.ResourceSpans
		tr, _ := tracing(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
				t.Errorf(`r.Method = %s, r.URL = %s, r.Header = %v, want r.Method == http.MethodPost and r.URL.Path == "/v1/traces" and r.Header.Get("Content-Type") == "application/x-protobuf"`,
					r.Method, r.URL, r.Header)
			}
			got = decoded(t, r)
			return answers(200, "")
		})
		q := New("", theirs+"01")
		s := tr.Begin(&q)
		start := time.Now()
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble, where it takes no time
		s.Set("a", "text")
		s.Set("empty", "")
		s.SetNumber("zero", 0)
		s.SetNumber("n", -3)
		s.Fail("timed_out")
		s.End("POST /x")
		below := tr.Ended(q.Parent, time.Second/2)
		below.End("exec")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		tr.Run(ctx)
		if n := len(got.ProtoReflect().GetUnknown()); n > 0 {
			t.Errorf("%d bytes that OTLP does not know", n)
		}
		resource := map[string]string{}
		for _, a := range got.GetResource().GetAttributes() {
			resource[a.GetKey()] = a.GetValue().GetStringValue()
		}
		if host, _ := os.Hostname(); resource["service.name"] != "boxd" || resource["service.version"] != "1.2.3" || resource["service.instance.id"] != "n1" || resource["host.name"] != host {
			t.Errorf("of %v", resource)
		}
		if scope := got.GetScopeSpans()[0].GetScope(); scope.GetName() != "boxd" || scope.GetVersion() != "1.2.3" {
			t.Errorf("by %v", scope)
		}
		spans := got.GetScopeSpans()[0].GetSpans()
		if len(spans) != 2 {
			t.Fatal(spans)
		}
		first, second := spans[0], spans[1]
		if hex.EncodeToString(first.GetTraceId()) != theirs[3:35] || hex.EncodeToString(first.GetParentSpanId()) != theirs[36:52] || len(first.GetSpanId()) != 8 {
			t.Errorf("%v is not the child of %s", first, theirs)
		}
		if q.Parent != "00-"+theirs[3:35]+"-"+hex.EncodeToString(first.GetSpanId())+"-01" {
			t.Errorf("the next service gets the parent %s", q.Parent)
		}
		if !bytes.Equal(second.GetParentSpanId(), first.GetSpanId()) || !bytes.Equal(second.GetTraceId(), first.GetTraceId()) || bytes.Equal(second.GetSpanId(), first.GetSpanId()) {
			t.Errorf("%v is not the child of %v", second, first)
		}
		if first.GetName() != "POST /x" || first.GetKind() != tracepb.Span_SPAN_KIND_SERVER || second.GetName() != "exec" || second.GetKind() != tracepb.Span_SPAN_KIND_INTERNAL {
			t.Errorf("first = %v, second = %v", first, second)
		}
		if first.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || first.GetStatus().GetMessage() != "timed_out" || second.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_UNSET {
			t.Errorf("first.GetStatus() = %v, second.GetStatus() = %v", first.GetStatus(), second.GetStatus())
		}
		if first.GetStartTimeUnixNano() != uint64(start.UnixNano()) || first.GetEndTimeUnixNano()-first.GetStartTimeUnixNano() != uint64(time.Second) || second.GetEndTimeUnixNano()-second.GetStartTimeUnixNano() != uint64(time.Second/2) {
			t.Errorf("from %d to %d, and %d to %d", first.GetStartTimeUnixNano(), first.GetEndTimeUnixNano(), second.GetStartTimeUnixNano(), second.GetEndTimeUnixNano())
		}
		if first.GetFlags() != 0x301 || second.GetFlags() != 0x101 {
			t.Errorf("flags %#x, %#x", first.GetFlags(), second.GetFlags())
		}
		has := first.GetAttributes()
		if len(has) != 3 || has[0].GetKey() != "a" || has[0].GetValue().GetStringValue() != "text" || has[1].GetValue().GetIntValue() != 0 || has[2].GetValue().GetIntValue() != -3 {
			t.Errorf("has = %v", has)
		}
		if c := tr.Counts(); *c != (Counts{Sent: 2}) {
			t.Errorf("c = %+v, want *c == Counts{Sent: 2}", c)
		}
	})
}

func TestTheCallerOrTheRatioDecidesWhatIsSampled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, parent string
		ratio        float64
		recorded     bool
	}{
		{"its caller records", theirs + "01", 0, true},
		{"its caller does not", theirs + "00", 1, false},
		{"nobody has said", "", 1, true},
		{"nobody has said, and none is", "", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tr, _ := tracing(t, tc.ratio, nil)
			q := New("", tc.parent)
			s := tr.Begin(&q)
			if (s != nil) != tc.recorded {
				t.Errorf("recorded: s != nil = %v, want (s != nil) == %v", s != nil, tc.recorded)
			}
			again, ok := ParseParent(q.Parent)
			if !ok || again != q.Parent {
				t.Errorf("the next service gets the parent %q", q.Parent)
			}
			if tc.parent != "" && q.Parent[:35] != tc.parent[:35] {
				t.Errorf(`it is another trace: q.Parent = %q, want tc.parent == "" or q.Parent[:35] == tc.parent[:35]`,
					q.Parent)
			}
			if below := tr.Ended(q.Parent, 0); (below != nil) != tc.recorded {
				t.Errorf("the child span is recorded: below != nil = %v, want (below != nil) == %v",
					below != nil, tc.recorded)
			}
		})
	}
	tr, _ := tracing(t, 0.25, nil)
	n := 0
	for range 4000 {
		if q := New("", ""); tr.Begin(&q) != nil {
			n++
		}
	}
	if n < 700 || n > 1300 { // eleven standard deviations
		t.Errorf("a quarter of 4000 is %d, want n >= 700 and n <= 1300", n)
	}
	for _, parent := range []string{"", "nonsense", strings.Repeat("-", 55), strings.Repeat("z", 55)} {
		if tr.Ended(parent, 0) != nil {
			t.Errorf("%q is a parent", parent)
		}
	}
}

// Without a collector no span is recorded, and calls cost nothing.
func TestDisabledTracingAllocatesNothing(t *testing.T) {
	tr, err := NewTracer(&Config{}, Source{}, nil)
	if tr != nil || err != nil {
		t.Fatalf("tr = %v, err = %v, want tr == nil and no error", tr, err)
	}
	q := New("", theirs+"01")
	if n := testing.AllocsPerRun(100, func() {
		s := tr.Begin(&q)
		s.Set("a", "b")
		s.SetNumber("c", 1)
		s.Fail("d")
		s.End("e")
		tr.Ended(q.Parent, 0).End("f")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if q.Parent != theirs+"01" || tr.Counts() != nil {
		t.Errorf(`q.Parent = %q, tr.Counts() = %v, want q.Parent == theirs + "01" and tr.Counts() == nil`,
			q.Parent, tr.Counts())
	}
	tr.Run(t.Context()) // returns at once
}

func TestNoCallerMakesASpanLong(t *testing.T) {
	t.Parallel()
	tr, _ := tracing(t, 1, nil)
	q := New("", "")
	s := tr.Begin(&q)
	for range 1000 {
		s.Set("session", strings.Repeat("ä\xff\x00", 1<<16))
		s.SetNumber("n", 1)
	}
	s.Fail(strings.Repeat("x", 1<<20))
	s.End(strings.Repeat("y", 1<<20))
	body := encode(tr.resource, tr.version, []*Span{<-tr.queue})
	if len(body) > 8<<10 {
		t.Errorf("it has %d bytes", len(body))
	}
	var data tracepb.TracesData
	if err := proto.Unmarshal(body, &data); err != nil { // which refuses invalid UTF-8
		t.Error(err)
	}
	if Method("GET") != "GET" || Method(strings.Repeat("X", 100)) != "_OTHER" {
		t.Error("Method does not map known methods to themselves and unknown ones to _OTHER")
	}
}

// A collector that hangs loses spans, but delays no request: excess spans are counted as dropped, and Run ends in time.
func TestACollectorThatHangsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr, log := tracing(t, 1, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { tr.Run(ctx) })
		record := func(n int) {
			for range n {
				q := New("", "")
				tr.Begin(&q).End("x")
			}
		}
		record(1)
		time.Sleep(2 * sendEvery) //nolint:forbidigo // in a bubble, where it takes no time
		synctest.Wait()           // it is being sent now
		start := time.Now()
		record(maxQueue + 100)
		if elapsed := time.Since(start); elapsed != 0 {
			t.Errorf("recording a span took %v", elapsed)
		}
		if c := tr.Counts(); c.Dropped != 100 || c.Failed != 0 || c.Sent != 0 {
			t.Errorf("c = %+v, want c.Dropped == 100 and c.Failed == 0 and c.Sent == 0", c)
		}
		cancel()
		running.Wait()
		if elapsed := time.Since(start); elapsed != flushTimeout {
			t.Errorf("it has ended after %v", elapsed)
		}
		if c := tr.Counts(); c.Failed != maxQueue+1 || c.Sent != 0 {
			t.Errorf("c = %+v, want c.Failed == maxQueue + 1 and c.Sent == 0", c)
		}
		if n := log.count("level=WARN"); n != 1 {
			t.Errorf("%d lines of the log", n)
		}
	})
}

// A collector that cannot be reached, refuses, or answers something else is logged once, until it takes spans again.
func TestACollectorThatRefusesIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]roundTripper{
		"away":      func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") },
		"refuses":   func(*http.Request) (*http.Response, error) { return answers(401, "who are you") },
		"elsewhere": func(*http.Request) (*http.Response, error) { return answers(302, "") },
		"a page":    func(*http.Request) (*http.Response, error) { return answers(200, "<!DOCTYPE html><html>") },
		"JSON":      func(*http.Request) (*http.Response, error) { return answers(200, "{}") },
		"endless": func(*http.Request) (*http.Response, error) {
			return answers(200, "\x18\x80\x01"+strings.Repeat("\x18\x01", maxAnswer))
		},
		"takes none": func(*http.Request) (*http.Response, error) { return answers(200, "\x0a\x05\x08\xff\xff\xff\x01") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				well := false
				tr, log := tracing(t, 1, func(r *http.Request) (*http.Response, error) {
					if well {
						return answers(200, "\x10\x05\x0a\x00") // as a later version may answer
					}
					return wrong(r)
				})
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { tr.Run(ctx) })
				once := func() {
					q := New("", "")
					tr.Begin(&q).End("x")
					time.Sleep(2 * sendEvery) //nolint:forbidigo // in a bubble, where it takes no time
					synctest.Wait()
				}
				for range 4 {
					once()
				}
				time.Sleep(2 * logEvery) //nolint:forbidigo // in a bubble, where it takes no time
				once()
				if c := tr.Counts(); *c != (Counts{Failed: 5}) || log.count("level=WARN") != 1 {
					t.Errorf("%+v, %d lines", c, log.count("level=WARN"))
				}
				well = true
				once()
				if c := tr.Counts(); *c != (Counts{Failed: 5, Sent: 1}) || log.count("accepts spans again") != 1 {
					t.Errorf("%+v, %d lines", c, log.count("accepts spans again"))
				}
				time.Sleep(2 * logEvery) //nolint:forbidigo // in a bubble, where it takes no time
				for range 20 {           // a collector that keeps changing does not fill the log
					well = !well
					once()
				}
				if warned, well := log.count("level=WARN"), log.count("accepts spans again"); warned != 2 || well != 2 {
					t.Errorf("%d and %d lines of the log", warned, well)
				}
				cancel()
				running.Wait()
			})
		})
	}
}

// Spans are sent in batches, and the remaining ones at the end.
func TestSpansAreSentInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batches := make(chan int, 8)
		tr, _ := tracing(t, 1, func(r *http.Request) (*http.Response, error) {
			batches <- len(decoded(t, r).GetScopeSpans()[0].GetSpans())
			return answers(200, "")
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { tr.Run(ctx) })
		record := func(n int) {
			for range n {
				q := New("", "")
				tr.Begin(&q).End("x")
			}
			synctest.Wait()
		}
		record(maxBatch + 3)
		if n := <-batches; n != maxBatch || len(batches) > 0 {
			t.Errorf("%d at once, and %d more times", n, len(batches))
		}
		time.Sleep(sendEvery) //nolint:forbidigo // in a bubble, where it takes no time
		synctest.Wait()
		record(7)
		cancel()
		running.Wait()
		if a, b := <-batches, <-batches; a != 3 || b != 7 || len(batches) > 0 {
			t.Errorf("%d, %d, and %d more times", a, b, len(batches))
		}
	})
}

// Headers are sent to the collector only, not to the target of a redirect, and are in no log.
func TestCollectorHeadersAreSentAndNeverLogged(t *testing.T) {
	t.Parallel()
	heard := make(chan http.Header, 2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard <- r.Header
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(file, []byte("# mine\n\nAuthorization: Bearer hush\nx-scope-orgid: a b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &safeLog{}
	tr, err := NewTracer(&Config{Endpoint: s.URL + "/x", HeadersFile: file, Ratio: 1}, Source{}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	q := New("", "")
	tr.Begin(&q).End("x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tr.Run(ctx)
	if h := <-heard; h.Get("Authorization") != "Bearer hush" || h.Get("X-Scope-Orgid") != "a b" || h.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf(`h = %v, want h.Get("Authorization") == "Bearer hush" and h.Get("X-Scope-Orgid") == "a b" and h.Get("Content-Type") == "application/x-protobuf"`,
			h)
	}
	if len(heard) > 0 || log.count("it answers 307") != 1 || log.count("hush") > 0 {
		t.Errorf("%d more, %s", len(heard), log.text.String())
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewTracer(&Config{Endpoint: s.URL, HeadersFile: file}, Source{}, nil); err == nil || !strings.Contains(err.Error(), "traces.headers_file") || !strings.Contains(err.Error(), "0600") {
		t.Errorf(`a file that others can read: err = %v, want an error containing "traces.headers_file" and err containing "0600"`,
			err)
	}
	if _, err := NewTracer(&Config{Endpoint: s.URL, CA: file}, Source{}, nil); err == nil || !strings.Contains(err.Error(), "traces.ca") || strings.Contains(err.Error(), "hush") {
		t.Errorf(`an invalid CA file: err = %v, want an error containing "traces.ca" and err without "hush"`, err)
	}
	for _, text := range []string{"hush", "hush hush: x", "A: \x01hush", "A:", ": hush", "Content-Type: hush", "host: hush"} {
		if _, err := parseHeaders(text); err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "line 1") {
			t.Errorf(`%q: err = %v, want an error and err without "hush" and err containing "line 1"`, text, err)
		}
	}
}

func TestInvalidTracingSettingsAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		c    Config
		want []string
	}{
		{Config{Endpoint: "127.0.0.1:4318"}, []string{`traces.endpoint = "127.0.0.1:4318"`, "http://127.0.0.1:4318"}},
		{Config{Endpoint: "grpc://127.0.0.1:4317"}, []string{"traces.endpoint", "grpc"}},
		{Config{Endpoint: "grpc://me:hush@otel.example.org"}, []string{"traces.endpoint", "…@otel.example.org"}},
		{Config{Endpoint: "https://me:hush%ss@otel.example.org"}, []string{"traces.endpoint", "…@otel.example.org"}},
		{Config{Endpoint: "http://"}, []string{"traces.endpoint"}},
		{Config{Endpoint: "https://me:hush@otel.example.org"}, []string{"traces.endpoint", "traces.headers_file"}},
		{Config{Endpoint: "https://otel.example.org/?key=hush"}, []string{"traces.endpoint", "query"}},
		{Config{Endpoint: "http://otel.example.org", HeadersFile: "/x"}, []string{"traces.endpoint", "https://", "in the clear"}},
		{Config{HeadersFile: "x"}, []string{`traces.headers_file = "x"`, "absolute path"}},
		{Config{CA: "x"}, []string{`traces.ca = "x"`, "absolute path"}},
		{Config{Ratio: 1.1}, []string{"traces.ratio = 1.1", "0.0 to 1.0"}},
		{Config{Ratio: -1}, []string{"traces.ratio"}},
		{Config{Ratio: math.NaN()}, []string{"traces.ratio"}},
	} {
		err := tc.c.Validate()
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf(`%+v: err = %v, want an error and err without "hush"`, tc.c, err)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
	}
	for _, c := range []Config{{}, DefaultConfig(), {Endpoint: "http://otel.example.org:4318"}, {Endpoint: "http://[::1]:4318/v1/traces", HeadersFile: "/x"}, {Endpoint: "https://otel.example.org", HeadersFile: "/x", CA: "/y", Ratio: 0.5}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// FuzzAnswer decodes arbitrary answers of a collector.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{"", "\x0a\x00", "\x0a\x05\x08\xff\xff\xff\x01", "\x0a\x06\x08\x02\x12\x02no", "<html>", "{}", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		if n, err := decodeAnswer(answer); n < 0 || n > maxBatch || err != nil && !errors.Is(err, errForeign) {
			t.Fatalf("n = %d, err = %v, want n >= 0 and n <= maxBatch and (no error or err is errForeign)", n, err)
		}
	})
}

// FuzzHeaders parses arbitrary header files: each is refused, or its headers can be sent.
func FuzzHeaders(f *testing.F) {
	f.Add("Authorization: Bearer x\n# y\n\nA:b")
	f.Fuzz(func(t *testing.T, text string) {
		headers, err := parseHeaders(text)
		if err != nil {
			return
		}
		req := httptest.NewRequest(http.MethodPost, "http://x/", nil)
		req.Header = headers
		if err := req.Write(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkSpan measures what a span costs a request; another goroutine sends it.
func BenchmarkSpan(b *testing.B) {
	tr, err := NewTracer(&Config{Endpoint: "http://127.0.0.1:1", Ratio: 1}, Source{Service: "boxd"}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		q := Request{ID: "mine-17", Parent: theirs + "01"}
		s := tr.Begin(&q)
		s.Set("http.request.method", "POST")
		s.Set("http.route", "/v1/sessions/{id}/exec")
		s.SetNumber("http.response.status_code", 200)
		s.Set("boxd.request", q.ID)
		s.Set("boxd.principal", "ci")
		s.Set("boxd.session", "s")
		s.End("POST /v1/sessions/{id}/exec")
		<-tr.queue
	}
}
