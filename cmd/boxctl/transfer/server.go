// SPDX-License-Identifier: Apache-2.0

// Package transfer exchanges content with servers of others: images with registries, files with buckets of S3. It runs
// as the person who asks, never as boxd: credentials stay in this process, and what a server says is judged here,
// before boxd hears it.
package transfer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// defaultTimeout is how long a server may be silent unless an option says otherwise.
const defaultTimeout = 30 * time.Second

// maxAnswer bounds an answer that is not content: manifests, lists, tokens and errors, in bytes.
const maxAnswer = 8 << 20

// errSilent means that a server has said nothing for too long.
var errSilent = errors.New("is silent")

// newTransport is a transport over TLS with the roots of the host, or with those that are given.
func newTransport(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// exchange is one request and its answer.
type exchange struct {
	Patience time.Duration // for a silent server
	Silent   error         // why it ends then: an ErrSilent
	Content  func(*http.Response) bool
}

// Do makes the request. The answer has no bound if Content says that it is content, whose length its reader knows.
func (x *exchange) Do(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.WithContext(ctx)
	timer := time.AfterFunc(x.Patience, func() { cancel(x.Silent) })
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = &request{out.Body, timer, x.Patience}
	}
	resp, err := base.RoundTrip(out)
	timer.Stop()
	if err != nil {
		err = because(ctx, err)
		cancel(nil)
		return nil, err
	}
	limit := int64(maxAnswer)
	if x.Content(resp) {
		limit = -1
	}
	resp.Body = &answer{ReadCloser: resp.Body, x: x, ctx: ctx, cancel: cancel, left: limit, host: out.URL.Host}
	return resp, nil
}

// because prefers what has ended a context on purpose to what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// request is the body of a request: as long as it is taken, the other end is not silent.
type request struct {
	io.ReadCloser
	timer   *time.Timer
	timeout time.Duration
}

// Read has the time begin anew with every piece.
func (r *request) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.timer.Reset(r.timeout)
	}
	return n, err
}

// answer is the body of an answer that may not fall silent, nor be longer than so many bytes; less than 0: as it likes.
type answer struct {
	io.ReadCloser
	x      *exchange
	ctx    context.Context //nolint:containedctx // that of the exchange whose body it is
	cancel context.CancelCauseFunc
	left   int64
	host   string
}

// Read reads what the server sends, within the bounds.
func (a *answer) Read(p []byte) (int, error) {
	if a.left == 0 {
		return 0, fmt.Errorf("%s answers with more than %d bytes", a.host, maxAnswer)
	}
	if a.left > 0 && int64(len(p)) > a.left {
		p = p[:a.left]
	}
	timer := time.AfterFunc(a.x.Patience, func() { a.cancel(a.x.Silent) })
	n, err := a.ReadCloser.Read(p)
	timer.Stop()
	if a.left > 0 {
		a.left -= int64(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = because(a.ctx, err)
	}
	return n, err
}

// Close ends the exchange.
func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.cancel(nil)
	return err
}

// refusal is an error in words that a server may have chosen.
type refusal struct {
	Text string
	Err  error
}

// Error is the text.
func (r *refusal) Error() string { return r.Text }

// Unwrap leads to what has failed.
func (r *refusal) Unwrap() error { return r.Err }

// plain is a text in one line, without what a terminal would obey, and of at most so many bytes.
func plain(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
