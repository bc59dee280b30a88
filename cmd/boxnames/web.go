// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of HTTP messages, in bytes, and of the time between requests of a connection.
const (
	maxRequestHead  = 64 << 10
	maxResponseHead = 256 << 10
	idle            = 2 * time.Minute
)

// webState records what an HTTP connection has received.
type webState struct {
	gotBytes, gotRequest atomic.Bool // any bytes, and a request
}

// Read implements net.Conn.
func (c *client) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.state.gotBytes.Store(true)
	}
	return n, err
}

// web parses HTTP/1 requests and writes each anew on a connection of its own: what one request
// was allowed says nothing about the next.
type web struct {
	// ServeHTTP answers a request.
	ServeHTTP http.HandlerFunc
	server    *proxyServer
	queue     queue
	pass      *httputil.ReverseProxy
	silent    *log.Logger // discards messages, with which boxes could fill the log
}

type key int

const (
	keyClient    key = iota // the connection of a request
	keyTarget               // where it is forwarded to
	keyTLSClient            // its connection within TLS
)

func emptyWeb(s *proxyServer) *web {
	return &web{server: s, queue: queue{conns: make(chan net.Conn), done: make(chan struct{})}, silent: log.New(io.Discard, "", 0)}
}

// transport returns the transport for forwarded requests, without their destination.
func (w *web) transport() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxResponseHead}
}

func newWeb(s *proxyServer) *web {
	w := emptyWeb(s)
	w.ServeHTTP = w.servePlain
	transport := w.transport()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		t, ok := ctx.Value(keyTarget).(proxyTarget)
		if !ok {
			return nil, errors.New("no target")
		}
		up, err := s.dial(ctx, t)
		if c, ok := ctx.Value(keyClient).(*client); ok && err == nil {
			c.setUpstream(up)
		}
		return up, err
	}
	w.pass = &httputil.ReverseProxy{
		Rewrite: rewrite, FlushInterval: -1, ErrorLog: w.silent, ErrorHandler: failed, Transport: transport,
	}
	return w
}

// serve serves connections until ctx ends.
func (w *web) serve(ctx context.Context) {
	var http1 http.Protocols
	http1.SetHTTP1(true)
	server := &http.Server{
		Handler: w.ServeHTTP, Protocols: &http1, ReadHeaderTimeout: w.server.proxy.cfg.Hello, IdleTimeout: idle, MaxHeaderBytes: maxRequestHead,
		ErrorLog: w.silent, DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, keyClient, c) },
		ConnState: func(c net.Conn, state http.ConnState) {
			if c, ok := c.(*client); ok && state == http.StateClosed && c.state.gotBytes.Load() && !c.state.gotRequest.Load() {
				w.server.denyNameless("", c.to)
			}
		},
	}
	stop := context.AfterFunc(ctx, func() { close(w.queue.done); _ = server.Close() })
	defer stop()
	_ = server.Serve(&w.queue)
}

// take passes a connection to the server, which closes it.
func (w *web) take(ctx context.Context, c net.Conn) {
	select {
	case w.queue.conns <- c:
	case <-ctx.Done():
		_ = c.Close()
	}
}

// servePlain answers a request that is not within TLS.
func (w *web) servePlain(out http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(keyClient).(*client)
	if !ok {
		return
	}
	c.state.gotRequest.Store(true)
	host, ok := hostOf(r, portWeb)
	t := proxyTarget{}
	if ok {
		t, ok = w.server.permit(host, c.to)
	} else {
		w.server.denyNameless(r.Host, c.to)
	}
	if !ok {
		refuse(out, http.StatusForbidden, "boxd: the rules of this box do not allow "+strconv.QuoteToASCII(r.Host)+" here\n")
		return
	}
	w.pass.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), keyTarget, t)))
}

// hostOf returns the host that a request is for, if that is for the usual port.
func hostOf(r *http.Request, def int) (string, bool) {
	if r.Method == http.MethodConnect {
		return "", false
	}
	host, port, found := strings.Cut(r.Host, ":")
	return host, host != "" && (!found || port == "" || port == strconv.Itoa(def))
}

// rewrite keeps a request as it was, except for the parts that a client sends to a proxy and not
// to a server.
func rewrite(p *httputil.ProxyRequest) {
	t, _ := p.In.Context().Value(keyTarget).(proxyTarget)
	rewriteTo(p, "http", t.To.String())
}

func rewriteTo(p *httputil.ProxyRequest, scheme, to string) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = scheme, to, p.In.Host
	p.Out.URL.RawQuery, p.Out.URL.ForceQuery = p.In.URL.RawQuery, p.In.URL.ForceQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = values
		}
	}
}

// failed answers a request that could not be forwarded.
func failed(out http.ResponseWriter, _ *http.Request, err error) {
	if errors.Is(err, errNotLed) {
		refuse(out, http.StatusForbidden, "boxd: this address is not one of the name; resolve it again\n")
		return
	}
	refuse(out, http.StatusBadGateway, "boxd: the server cannot be reached\n")
}

// refuse answers and closes the connection; what else was sent on it is not read.
func refuse(out http.ResponseWriter, status int, text string) {
	out.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out.Header().Set("Connection", "close")
	out.WriteHeader(status)
	_, _ = io.WriteString(out, text)
}

// queue is a listener that returns connections accepted elsewhere.
type queue struct {
	conns chan net.Conn
	done  chan struct{}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error { return nil }

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }
