// SPDX-License-Identifier: Apache-2.0

package registry

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

// wire is the way to a registry. It bounds what a library does not: how long the other end may be silent, how often it
// may send us elsewhere, how long an answer may be that is not a blob, and that it is asked over TLS.
type wire struct {
	registry string
	insecure bool
	patience time.Duration
	base     *http.Transport
}

// Bounds of a conversation.
const (
	maxAnswer    = 8 << 20 // of manifests, tokens and errors
	maxRedirects = 10
)

func newWire(registry string, insecure bool, patience time.Duration, roots *x509.CertPool) *wire {
	return &wire{registry, insecure, patience, &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: 64 << 10,
	}}
}

func (w *wire) close() { w.base.CloseIdleConnections() }

var errSilent = errors.New("is silent")

// RoundTrip does one exchange. Errors of it, and of what it returns, name the host that is to blame.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	first, redirects := req, 0
	for ; first.Response != nil && first.Response.Request != nil; first = first.Response.Request {
		redirects++
	}
	if redirects > maxRedirects {
		return nil, fmt.Errorf("%s redirects more than %d times", first.URL.Host, maxRedirects)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.Clone(ctx)
	if out.URL.Scheme != "https" && !w.insecure {
		if redirects > 0 || out.URL.Host != w.registry {
			cancel(nil)
			return nil, fmt.Errorf("%s leads to %s without TLS; --insecure allows that", first.URL.Host, out.URL.Host)
		}
		out.URL.Scheme = "https" // for hosts that look local the library would do without
	}
	silent := fmt.Errorf("%s %w for %v", out.URL.Host, errSilent, w.patience)
	timer := time.AfterFunc(w.patience, func() { cancel(silent) })
	resp, err := w.base.RoundTrip(out)
	timer.Stop()
	if err != nil {
		err = because(ctx, err)
		cancel(nil)
		return nil, err
	}
	most := int64(maxAnswer)
	if strings.Contains(first.URL.Path, "/blobs/") && resp.StatusCode == http.StatusOK {
		most = -1 // the library knows how long it has to be
	}
	resp.Body = &heard{resp.Body, ctx, cancel, silent, w.patience, most, out.URL.Host}
	return resp, nil
}

// because prefers what has ended a context on purpose to what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// heard is the body of an answer that may not fall silent, nor be longer than so many bytes; less than 0: as it likes.
type heard struct {
	io.ReadCloser
	ctx      context.Context //nolint:containedctx // that of the exchange whose body it is
	cancel   context.CancelCauseFunc
	silent   error
	patience time.Duration
	left     int64
	host     string
}

func (h *heard) Read(p []byte) (int, error) {
	if h.left == 0 {
		return 0, fmt.Errorf("%s answers with more than %d bytes", h.host, maxAnswer)
	}
	if h.left > 0 && int64(len(p)) > h.left {
		p = p[:h.left]
	}
	timer := time.AfterFunc(h.patience, func() { h.cancel(h.silent) })
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
