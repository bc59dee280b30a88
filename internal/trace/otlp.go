// SPDX-License-Identifier: Apache-2.0

// Spans are sent by OTLP over HTTP, as protobuf. OpenTelemetry's library would make boxd a quarter larger: see
// docs/design/fleet.md.

package trace

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/boxd-dev/boxd/internal/durable"
)

// Config is the table [traces] of box.toml, and of a gateway's configuration.
type Config struct {
	Endpoint    string  `toml:"endpoint"`     // of the collector; "": nothing is recorded
	HeadersFile string  `toml:"headers_file"` // a secret; "": none
	CA          string  `toml:"ca"`           // CA file for the collector's certificate; "": the host's CAs
	Ratio       float64 `toml:"ratio"`        // of requests whose callers have not decided
}

// DefaultConfig returns the built-in configuration.
func DefaultConfig() Config { return Config{Ratio: 1} }

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("traces.%s = %v: must be %s", key, value, allowed))
	}
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			bad("endpoint", quote(withoutUser(c.Endpoint)), `an address such as "http://127.0.0.1:4318" or "https://otel.example.org:4318/v1/traces", or empty`)
		case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
			bad("endpoint", quote(u.Scheme+"://"+u.Host+"…"), "an address without user, password, query and fragment; put secrets into traces.headers_file")
		case u.Scheme == "http" && c.HeadersFile != "" && !isLoopback(u.Hostname()):
			bad("endpoint", quote(c.Endpoint), "https:// for a collector on another host with traces.headers_file, whose secrets would be sent in the clear")
		}
	}
	for _, f := range []struct{ key, path string }{{"headers_file", c.HeadersFile}, {"ca", c.CA}} {
		if f.path != "" && !strings.HasPrefix(f.path, "/") {
			bad(f.key, quote(f.path), "an absolute path, or empty")
		}
	}
	if math.IsNaN(c.Ratio) || c.Ratio < 0 || c.Ratio > 1 {
		bad("ratio", c.Ratio, "0.0 to 1.0")
	}
	return errors.Join(errs...)
}

// withoutUser removes what may be a password from an address.
func withoutUser(address string) string {
	if i := strings.LastIndexByte(address, '@'); i >= 0 {
		return "…" + address[i:]
	}
	return address
}

// quote shortens and quotes a text for an error.
func quote(text string) string {
	const limit = 200
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	return fmt.Sprintf("%q", text)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Bounds of the resources of spans, and of the time for a collector.
const (
	maxQueue     = 2048 // waiting spans
	maxBatch     = 512  // spans of one request to the collector
	maxAnswer    = 64 << 10
	maxHeaders   = 16 << 10 // bytes of the file of headers
	maxCA        = 1 << 20  // bytes of the file of CA certificates
	sendEvery    = time.Second
	sendTimeout  = 10 * time.Second
	flushTimeout = 3 * time.Second // for the remaining spans and a request in progress when boxd stops
	logEvery     = 10 * time.Minute
)

// Tracer records spans and sends them to a collector. A nil Tracer records none.
type Tracer struct {
	endpoint string
	headers  http.Header
	client   *http.Client
	resource []byte // OTLP resource of all spans
	version  string
	below    uint64 // traces with a lower id are recorded
	log      *slog.Logger
	queue    chan *Span

	sent, dropped, failed atomic.Uint64

	// Only for Run:
	away   bool      // the collector took no spans the last time
	loud   bool      // that was logged
	logged time.Time // when it was last logged
	before uint64    // spans lost before it was away
}

// Source is what spans come from.
type Source struct {
	Service  string // boxd or boxfleet
	Version  string
	Instance string // the name of the node or gateway
}

// NewTracer returns a Tracer, nil if the configuration names no collector. Run sends its spans.
func NewTracer(c *Config, of Source, log *slog.Logger) (*Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil //nolint:nilnil // a nil Tracer is one that records nothing
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("traces.endpoint: %w", err)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	t := &Tracer{endpoint: u.String(), headers: http.Header{}, version: of.Version, log: log, queue: make(chan *Span, maxQueue), below: uint64(c.Ratio * (1 << 63))}
	if c.HeadersFile != "" {
		text, err := durable.ReadSecret(c.HeadersFile, false, maxHeaders)
		if err == nil {
			t.headers, err = parseHeaders(string(text))
		}
		if err != nil {
			return nil, fmt.Errorf("traces.headers_file: %w", err)
		}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		text, err := durable.ReadFile(c.CA, maxCA)
		if err != nil {
			return nil, fmt.Errorf("traces.ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("traces.ca = %q: must be a file with certificates (PEM)", c.CA)
		}
	}
	t.client = &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config, DisableCompression: true, MaxIdleConns: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxAnswer},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // headers are for this address only
	}
	host, _ := os.Hostname() // a host without a name is not named
	for _, a := range []attribute{{key: "service.name", text: of.Service}, {key: "service.version", text: of.Version}, {key: "service.instance.id", text: of.Instance}, {key: "host.name", text: host}} {
		if a.text = bounded(a.text); a.text != "" {
			t.resource = appendMessage(t.resource, 1, appendAttribute(nil, &a))
		}
	}
	return t, nil
}

// parseHeaders parses lines of "Name: value", and ignores empty lines and those that begin with #. Errors contain no values.
func parseHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = http.CanonicalHeaderKey(name), strings.TrimSpace(value)
		const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		switch {
		case !ok || name == "" || strings.Trim(name, token) != "" || value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, fmt.Errorf("line %d: must be a header, such as \"Authorization: Bearer …\"", i+1)
		case slices.Contains([]string{"Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Connection"}, name):
			return nil, fmt.Errorf("line %d: must be another header than %s, which OTLP decides", i+1, name)
		}
		headers.Add(name, value)
	}
	return headers, nil
}

// Counts counts spans since the start by their outcome.
type Counts struct {
	Sent    uint64 // accepted by the collector
	Dropped uint64 // too many were waiting
	Failed  uint64 // the collector was unreachable or slow, or refused them
}

// Counts returns the counts; nil: no spans are recorded.
func (t *Tracer) Counts() *Counts {
	if t == nil {
		return nil
	}
	return &Counts{Sent: t.sent.Load(), Dropped: t.dropped.Load(), Failed: t.failed.Load()}
}

// Run sends spans until ctx ends, and then the remaining ones if the collector accepts them soon. Recording a span never waits
// for it.
func (t *Tracer) Run(ctx context.Context) {
	if t == nil {
		return
	}
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(flushTimeout, cancel) })()
	defer t.client.CloseIdleConnections()
	batch := make([]*Span, 0, maxBatch)
	var due <-chan time.Time // nil: no spans wait
	for {
		select {
		case s := <-t.queue:
			if batch = append(batch, s); len(batch) == 1 {
				due = time.After(sendEvery)
			}
			if len(batch) < maxBatch {
				continue
			}
		case <-due:
		case <-ctx.Done():
			t.flush(sendCtx, batch)
			return
		}
		t.send(sendCtx, batch)
		batch, due = emptied(batch), nil
	}
}

// flush sends the remaining spans.
func (t *Tracer) flush(ctx context.Context, batch []*Span) {
	for {
		for more := true; more && len(batch) < maxBatch; {
			select {
			case s := <-t.queue:
				batch = append(batch, s)
			default:
				more = false
			}
		}
		if len(batch) == 0 {
			return
		}
		t.send(ctx, batch)
		batch = emptied(batch)
	}
}

// emptied releases spans that have been sent.
func emptied(batch []*Span) []*Span {
	clear(batch)
	return batch[:0]
}

// send sends a batch once: spans that the collector does not accept are lost. A failure is logged when it begins.
func (t *Tracer) send(ctx context.Context, batch []*Span) {
	rejected, err := t.post(ctx, encode(t.resource, t.version, batch))
	if err != nil {
		rejected = len(batch)
	}
	rejected = min(rejected, len(batch))
	lost := t.failed.Load()
	t.failed.Add(uint64(rejected))
	t.sent.Add(uint64(len(batch) - rejected))
	switch now := time.Now(); {
	case err == nil && rejected > 0:
		err = fmt.Errorf("it has rejected %d of %d spans", rejected, len(batch))
		fallthrough
	case err != nil:
		if t.away {
			break
		}
		t.away, t.before = true, lost
		if t.loud = t.logged.IsZero() || now.Sub(t.logged) >= logEvery; t.loud {
			t.logged = now
			t.log.Warn("the trace collector does not accept spans; they are lost until it does", "endpoint", t.endpoint, "error", err)
		}
	case t.away:
		if t.away = false; t.loud {
			t.log.Info("the trace collector accepts spans again", "endpoint", t.endpoint, "lost", lost-t.before)
		}
	}
}

// post makes one request, and returns how many of its spans the collector rejected.
func (t *Tracer) post(ctx context.Context, body []byte) (rejected int, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	maps.Copy(req.Header, t.headers)
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case resp.StatusCode/100 != 2:
		return 0, fmt.Errorf("it answers %d", resp.StatusCode)
	case err != nil:
		return 0, err
	case len(answer) > maxAnswer:
		return 0, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	}
	return decodeAnswer(answer)
}

// errForeign means that the answer is not a collector's.
var errForeign = errors.New("its answer is not OTLP: is it a collector?")

// decodeAnswer decodes an ExportTraceServiceResponse: the number of rejected spans.
func decodeAnswer(answer []byte) (rejected int, err error) {
	err = eachField(answer, func(field protowire.Number, kind protowire.Type, partial []byte) error {
		if field != 1 { // from a later version
			return nil
		}
		if kind != protowire.BytesType {
			return errForeign
		}
		message, n := protowire.ConsumeBytes(partial)
		if n < 0 {
			return errForeign
		}
		return eachField(message, func(field protowire.Number, kind protowire.Type, value []byte) error {
			if field != 1 {
				return nil
			}
			count, n := protowire.ConsumeVarint(value)
			if kind != protowire.VarintType || n < 0 {
				return errForeign
			}
			rejected = int(min(count, maxBatch))
			return nil
		})
	})
	return rejected, err
}

// eachField calls read for each field of a message, with its value and the rest.
func eachField(message []byte, read func(protowire.Number, protowire.Type, []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errForeign
		}
		message = message[n:]
		if err := read(field, kind, message); err != nil {
			return err
		}
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return errForeign
		}
		message = message[n:]
	}
	return nil
}

// encode returns an ExportTraceServiceRequest: one resource, whose attributes are already encoded, with one scope. The numbers
// are those of opentelemetry-proto 1.
func encode(resource []byte, version string, spans []*Span) []byte {
	scope := appendText(appendText(nil, 1, "boxd"), 2, version)
	list := appendMessage(nil, 1, scope)
	for _, s := range spans {
		list = appendMessage(list, 2, appendSpan(nil, s))
	}
	return appendMessage(nil, 1, appendMessage(appendMessage(nil, 1, resource), 2, list))
}

func appendSpan(b []byte, s *Span) []byte {
	const (
		knowsRemote  = 1 << 8
		remoteParent = 1 << 9
		failed       = 2 // STATUS_CODE_ERROR
	)
	b = appendMessage(b, 1, s.trace[:])
	b = appendMessage(b, 2, s.id[:])
	if s.parent != [8]byte{} {
		b = appendMessage(b, 4, s.parent[:])
	}
	b = appendText(b, 5, s.name)
	b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), uint64(s.kind))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 7, protowire.Fixed64Type), uint64(s.start.UnixNano()))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 8, protowire.Fixed64Type), uint64(s.end.UnixNano()))
	for i := range s.attributes {
		b = appendMessage(b, 9, appendAttribute(nil, &s.attributes[i]))
	}
	if s.failed {
		status := appendText(nil, 2, s.why)
		b = appendMessage(b, 15, protowire.AppendVarint(protowire.AppendTag(status, 3, protowire.VarintType), failed))
	}
	flags := uint32(s.flags) | knowsRemote
	if s.remote {
		flags |= remoteParent
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, 16, protowire.Fixed32Type), flags)
}

func appendAttribute(b []byte, a *attribute) []byte {
	b = appendText(b, 1, a.key)
	if a.isNumber {
		return appendMessage(b, 2, protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), uint64(a.number)))
	}
	return appendMessage(b, 2, appendText(nil, 1, a.text))
}

func appendMessage(b []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), message)
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}
