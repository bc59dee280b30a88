// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// wire is the way to a server. It bounds what a library does not: how long the other end may be silent, and how long an
// answer may be that is not an object. It is led nowhere else.
type wire struct {
	patience time.Duration
	base     *http.Transport
}

const (
	usualSilence = 30 * time.Second
	maxAnswer    = 8 << 20 // of lists and errors, in bytes
)

func newWire(patience time.Duration, roots *x509.CertPool) *wire {
	if patience == 0 {
		patience = usualSilence
	}
	return &wire{patience, &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: parallel, DisableCompression: true,
	}}
}

func (w *wire) close() { w.base.CloseIdleConnections() }

var errSilent = errors.New("is silent")

// silence says whose it is. It is a timeout, after which the library tries again.
type silence struct {
	host  string
	after time.Duration
}

func (s *silence) Error() string   { return fmt.Sprintf("%s is silent for %v", s.host, s.after) }
func (s *silence) Timeout() bool   { return true }
func (s *silence) Temporary() bool { return true }
func (s *silence) Unwrap() error   { return errSilent }

// Do does one exchange.
func (w *wire) Do(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.Clone(ctx)
	silent := &silence{out.URL.Host, w.patience}
	timer := time.AfterFunc(w.patience, func() { cancel(silent) })
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = &spoken{out.Body, timer, w.patience}
	}
	resp, err := w.base.RoundTrip(out)
	timer.Stop()
	if err != nil {
		err = because(ctx, err)
		cancel(nil)
		return nil, err
	}
	most := int64(maxAnswer)
	if resp.StatusCode/100 == 2 && req.Method == http.MethodGet && !req.URL.Query().Has("list-type") {
		most = -1 // who reads an object knows how long it is
	}
	resp.Body = &heard{resp.Body, ctx, cancel, silent, most}
	return resp, nil
}

// because prefers what has ended a context on purpose to what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// spoken is the body of a request: as long as somebody takes it, the other end is not silent.
type spoken struct {
	io.ReadCloser
	timer    *time.Timer
	patience time.Duration
}

func (s *spoken) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if n > 0 {
		s.timer.Reset(s.patience)
	}
	return n, err
}

// heard is the body of an answer that may not fall silent, nor be longer than so many bytes; less than 0: as it likes.
type heard struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // that of the exchange whose body it is
	cancel context.CancelCauseFunc
	silent *silence
	left   int64
}

func (h *heard) Read(p []byte) (int, error) {
	if h.left == 0 {
		return 0, fmt.Errorf("%s answers with more than %d bytes", h.silent.host, maxAnswer)
	}
	if h.left > 0 && int64(len(p)) > h.left {
		p = p[:h.left]
	}
	timer := time.AfterFunc(h.silent.after, func() { h.cancel(h.silent) })
	n, err := h.ReadCloser.Read(p)
	timer.Stop()
	if h.left > 0 {
		h.left -= int64(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = because(h.ctx, err)
	}
	return n, err
}

func (h *heard) Close() error {
	err := h.ReadCloser.Close()
	h.cancel(nil)
	return err
}
