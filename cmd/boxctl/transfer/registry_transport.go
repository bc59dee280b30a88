// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// registryTransport is the transport to a registry. It bounds what a library does not: how long the other end may be silent, how often it
// may send us elsewhere, how long an answer may be that is not a blob, and that it is asked over TLS.
type registryTransport struct {
	registry string
	insecure bool
	timeout  time.Duration
	base     *http.Transport
}

const maxRedirects = 10

func newRegistryTransport(registry string, insecure bool, timeout time.Duration, roots *x509.CertPool) *registryTransport {
	return &registryTransport{registry, insecure, timeout, newTransport(roots)}
}

func (w *registryTransport) close() { w.base.CloseIdleConnections() }

// RoundTrip does one exchange. Errors of it, and of what it returns, name the host that is to blame.
func (w *registryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	first, redirects := req, 0
	for ; first.Response != nil && first.Response.Request != nil; first = first.Response.Request {
		redirects++
	}
	if redirects > maxRedirects {
		return nil, fmt.Errorf("%s redirects more than %d times", first.URL.Host, maxRedirects)
	}
	out := req.Clone(req.Context())
	if out.URL.Scheme != "https" && !w.insecure {
		if redirects > 0 || out.URL.Host != w.registry {
			return nil, fmt.Errorf("%s leads to %s without TLS; --insecure allows that", first.URL.Host, out.URL.Host)
		}
		out.URL.Scheme = "https" // for hosts that look local the library would do without
	}
	x := &exchange{
		Patience: w.timeout,
		Silent:   fmt.Errorf("%s %w for %v", out.URL.Host, errSilent, w.timeout),
		Content: func(resp *http.Response) bool { // the library knows how long a blob has to be
			return strings.Contains(first.URL.Path, "/blobs/") && resp.StatusCode == http.StatusOK
		},
	}
	return x.Do(w.base, out)
}
