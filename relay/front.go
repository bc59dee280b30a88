// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Limits of what a peer can make boxd hold.
const (
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	answerTimeout = time.Minute // for the caller to read a response
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 5 * time.Second
)

// FrontConfig is what differs between boxd's protocols.
type FrontConfig struct {
	Handler http.Handler
	Log     *log.Logger    // for messages of net/http
	Callers *conns.Limiter // counts their connections
	// Name returns the principal of a Unix socket's peer. Over TCP each request authenticates itself: see conns.Identify.
	Name func(*access.Peer) string
	// Patience limits reading a request, and writing its response, unless it becomes a WebSocket. 0: the handler does.
	Patience time.Duration
}

// Front accepts connections: it counts them for each caller, limits what a peer may send before its request is known,
// and lets requests in progress finish when boxd stops.
type Front struct {
	server  *http.Server
	callers *conns.Limiter
	name    func(*access.Peer) string
	stop    func() bool
	stopped chan struct{} // closed when every request has been answered
}

// NewFront returns a front whose Serve methods return when ctx ends. End must follow.
func NewFront(ctx context.Context, c FrontConfig) *Front {
	f := &Front{callers: c.Callers, name: c.Name, stopped: make(chan struct{}), server: &http.Server{
		Handler:           c.Handler,
		ConnContext:       withPeer,
		ConnState:         watchHeads,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          c.Log,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       c.Patience,
		WriteTimeout:      c.Patience,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,

		DisableGeneralOptionsHandler: true, // boxd answers all requests itself
	}}
	f.stop = context.AfterFunc(ctx, func() {
		defer close(f.stopped)
		f.shutdown(context.WithoutCancel(ctx))
	})
	return f
}

// shutdown waits a while for requests in progress, then closes the connections that are left.
func (f *Front) shutdown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if f.server.Shutdown(ctx) != nil {
		_ = f.server.Close()
	}
}

// Serve serves connections until the front ends, and returns nil then.
func (f *Front) Serve(ln net.Listener) error {
	return f.serveUncounted(peerListener{Listener: ln, callers: f.callers, name: f.name})
}

// serveFleet serves gateways, which name the principal of each request.
func (f *Front) serveFleet(ln net.Listener) error {
	return f.serveUncounted(peerListener{Listener: ln, callers: f.callers, fleet: true})
}

// ServeTLS is Serve over TLS, with HTTP/1.1.
func (f *Front) ServeTLS(ln net.Listener, config *tls.Config) error {
	return f.serveUncounted(tls.NewListener(peerListener{Listener: ln, callers: f.callers, name: f.name, tls: true}, config))
}

// ListensAt reports whether a listener has this address and port, which may be written differently, such as :: for
// 0.0.0.0.
func ListensAt(ln net.Listener, address string) bool {
	want, err := netip.ParseAddrPort(address)
	at, ok := ln.Addr().(*net.TCPAddr)
	if err != nil || !ok {
		return false
	}
	remote := at.AddrPort()
	return remote.Port() == want.Port() && (remote.Addr().Unmap() == want.Addr().Unmap() || remote.Addr().IsUnspecified() && want.Addr().IsUnspecified())
}

// serveUncounted serves connections that boxd makes itself.
func (f *Front) serveUncounted(ln net.Listener) error {
	if err := f.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// End waits until every ordinary request has been answered, and stops the front if ctx has not done so: a listener has
// failed, or boxd is idle. Streams are hijacked connections, which their handlers wait for.
func (f *Front) End(ctx context.Context) {
	if f.stop() {
		f.shutdown(context.WithoutCancel(ctx))
		return
	}
	<-f.stopped
}
