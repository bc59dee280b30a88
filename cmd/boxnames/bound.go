// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// handshakeTimeout is how long the TLS handshake with the real host may take.
const handshakeTimeout = 20 * time.Second

// terminateTLS takes over a connection if it is to a host that has secrets: the TLS of the box then ends here. records are what
// was read of it so far.
func (s *proxyServer) terminateTLS(ctx context.Context, c *client, r *bufio.Reader, records []byte, t proxyTarget) bool {
	if s.box.Secrets == nil {
		return false
	}
	set := s.box.Secrets()
	host := set.For(t.Name)
	if host == nil || c.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	inner := &tlsClient{client: c, in: io.MultiReader(bytes.NewReader(records), r), target: t, host: host}
	cfg := set.Serve()
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.SupportedProtos) > 0 && !slices.ContainsFunc(hello.SupportedProtos, func(p string) bool { return slices.Contains(cfg.NextProtos, p) }) {
			inner.denyProtocol()
		}
		return nil, nil // the handshake continues with cfg, and ends with an alert if they have no protocol in common
	}
	s.bound.take(ctx, tls.Server(inner, cfg))
	return true
}

// denyProtocol reports a connection that does not speak HTTP/1.1.
func (n *tlsClient) denyProtocol() {
	n.server.deny(denial{Reason: egress.Unspoken, Asked: string(n.target.Name)}, n.to)
}

// tlsClient is a connection of a box to a host that has secrets.
type tlsClient struct {
	*client
	in     io.Reader
	target proxyTarget
	host   *secretHost
}

// Read reads the connection from its first byte, including what was read already.
func (n *tlsClient) Read(b []byte) (int, error) { return n.in.Read(b) }

// newBound returns the server of such connections. Each request gets a connection of its own to
// the real host.
func newBound(s *proxyServer) *web {
	w := emptyWeb(s)
	w.ServeHTTP = w.serveBound
	transport := w.transport()
	transport.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		n, ok := ctx.Value(keyTLSClient).(*tlsClient)
		if !ok {
			return nil, errors.New("no target")
		}
		conn, err := s.dial(ctx, n.target)
		if err != nil {
			return nil, err
		}
		n.setUpstream(conn)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		shown := tls.Client(conn, n.host.Dial(n.target.Name))
		if err := shown.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return shown, nil
	}
	w.pass = &httputil.ReverseProxy{
		Rewrite: rewriteBound, FlushInterval: -1, ErrorLog: w.silent, ErrorHandler: failedBound, Transport: &cleaner{transport},
	}
	return w
}

// serveBound answers a request, which must be for the host that the connection is for.
func (w *web) serveBound(out http.ResponseWriter, r *http.Request) {
	shown, ok := r.Context().Value(keyClient).(*tls.Conn)
	if !ok {
		return
	}
	n, ok := shown.NetConn().(*tlsClient)
	if !ok {
		return
	}
	if r.ProtoMajor > 1 { // the client sent the HTTP/2 preface all the same
		n.denyProtocol()
		refuse(out, http.StatusMisdirectedRequest, "boxd: HTTP/1.1 is required for "+string(n.target.Name)+", which is a host of secrets\n")
		return
	}
	if host, ok := hostOf(r, portTLS); !ok || !sameName(host, n.target.Name) {
		w.server.denyNameless(r.Host, n.to)
		refuse(out, http.StatusMisdirectedRequest, "boxd: this connection is for "+string(n.target.Name)+" and not for "+strconv.QuoteToASCII(r.Host)+"\n")
		return
	}
	if err := n.host.In(r.Header); err != nil {
		refuse(out, http.StatusRequestHeaderFieldsTooLarge, "boxd: "+err.Error()+"\n")
		return
	}
	w.pass.ServeHTTP(&final{out}, r.WithContext(context.WithValue(r.Context(), keyTLSClient, n)))
}

func sameName(host string, name egress.Name) bool {
	n, ok := egress.FromQuery(strings.TrimSuffix(host, ".") + ".")
	return ok && n == name
}

// rewriteBound is rewrite for a host within TLS.
func rewriteBound(p *httputil.ProxyRequest) {
	n, _ := p.In.Context().Value(keyTLSClient).(*tlsClient)
	rewriteTo(p, "https", n.target.To.String())
	p.Out.Host = string(n.target.Name)
}

// failedBound is failed for a host within TLS, whose certificate may be invalid.
func failedBound(out http.ResponseWriter, r *http.Request, err error) {
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		refuse(out, http.StatusBadGateway, "boxd: the certificate of the server is invalid, and nothing was sent to it: "+strconv.QuoteToASCII(bad.Err.Error())+"\n")
		return
	}
	failed(out, r, err)
}

// cleaner removes secrets from responses. It drops trailers, which come after everything else has
// been forwarded.
type cleaner struct{ transport *http.Transport }

// RoundTrip implements http.RoundTripper.
func (c *cleaner) RoundTrip(r *http.Request) (*http.Response, error) {
	got, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if n, ok := r.Context().Value(keyTLSClient).(*tlsClient); ok {
		n.host.Out(got.Header)
	}
	answer := *got // a copy: the transport adds trailers to the original later
	answer.Trailer = nil
	return &answer, nil
}

// final drops informational responses (status 1xx), which the cleaner does not see.
type final struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (f *final) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		f.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for http.ResponseController.
func (f *final) Unwrap() http.ResponseWriter { return f.ResponseWriter }
