// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"time"
)

// bucketTransport is the transport to a server. It bounds what a library does not: how long the other end may be silent, and how long an
// answer may be that is not an object. It is led nowhere else.
type bucketTransport struct {
	timeout time.Duration
	base    *http.Transport
}

func newBucketTransport(timeout time.Duration, roots *x509.CertPool) *bucketTransport {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	base := newTransport(roots)
	base.MaxIdleConnsPerHost, base.DisableCompression = parallel, true
	return &bucketTransport{timeout, base}
}

func (w *bucketTransport) close() { w.base.CloseIdleConnections() }

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
func (w *bucketTransport) Do(req *http.Request) (*http.Response, error) {
	x := &exchange{
		Patience: w.timeout,
		Silent:   &silence{req.URL.Host, w.timeout},
		Content: func(resp *http.Response) bool { // who reads an object knows how long it is
			return resp.StatusCode/100 == 2 && req.Method == http.MethodGet && !req.URL.Query().Has("list-type")
		},
	}
	return x.Do(w.base, req.Clone(req.Context()))
}
