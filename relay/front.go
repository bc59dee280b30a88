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

// Bounds of what a peer can make boxd hold.
const (
	maxHeader      = 64 << 10
	headerPatience = 10 * time.Second
	answerPatience = time.Minute // for an answer to be taken
	idlePatience   = 2 * time.Minute
	stopPatience   = 5 * time.Second
)

// FrontConfig is what differs between the protocols that boxd speaks.
type FrontConfig struct {
	Handler http.Handler
	Log     *log.Logger    // what net/http has to say
	Callers *conns.Limiter // counts their connections
	// Name is the principal of who connects over a Unix socket. Over TCP each request says who it is: see Known.
	Name func(*access.Peer) string
	// Patience bounds reading a request, and as well taking its answer, unless it becomes a WebSocket. 0: the handler does.
	Patience time.Duration
}

// Front is where connections come in: it counts them for each caller, bounds what one may send before its request is
// known, and when boxd stops lets requests under way have their answers.
type Front struct {
	server  *http.Server
	callers *conns.Limiter
	name    func(*access.Peer) string
	stop    func() bool
	stopped chan struct{} // closed when every request has its answer
}

// NewFront returns a front whose Serve methods return when ctx ends. End must follow.
func NewFront(ctx context.Context, c FrontConfig) *Front {
	f := &Front{callers: c.Callers, name: c.Name, stopped: make(chan struct{}), server: &http.Server{
		Handler:           c.Handler,
		ConnContext:       withPeer,
		ConnState:         watchHeads,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          c.Log,
		ReadHeaderTimeout: headerPatience,
		ReadTimeout:       c.Patience,
		WriteTimeout:      c.Patience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    maxHeader,

		DisableGeneralOptionsHandler: true, // every answer is ours
	}}
	f.stop = context.AfterFunc(ctx, func() {
		defer close(f.stopped)
		f.shutdown(context.WithoutCancel(ctx))
	})
	return f
}

// shutdown waits a while for requests under way, then ends what does not end by itself.
func (f *Front) shutdown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if f.server.Shutdown(ctx) != nil {
		_ = f.server.Close()
	}
}

// Serve answers who connects, until the front ends; nil then.
func (f *Front) Serve(ln net.Listener) error {
	return f.serveUncounted(peerListener{Listener: ln, callers: f.callers, name: f.name})
}

// serveFleet answers gateways, which say with each request for whom it is.
func (f *Front) serveFleet(ln net.Listener) error {
	return f.serveUncounted(peerListener{Listener: ln, callers: f.callers, fleet: true})
}

// ServeTLS does the same by TLS, and HTTP/1.1.
func (f *Front) ServeTLS(ln net.Listener, config *tls.Config) error {
	return f.serveUncounted(tls.NewListener(peerListener{Listener: ln, callers: f.callers, name: f.name, tls: true}, config))
}

// ListensAt reports whether a listener is the one of an address with a port, which may be written in another way, as :: for
// 0.0.0.0.
func ListensAt(ln net.Listener, address string) bool {
	want, err := netip.ParseAddrPort(address)
	at, ok := ln.Addr().(*net.TCPAddr)
	if err != nil || !ok {
		return false
	}
	is := at.AddrPort()
	return is.Port() == want.Port() && (is.Addr().Unmap() == want.Addr().Unmap() || is.Addr().IsUnspecified() && want.Addr().IsUnspecified())
}

// serveUncounted answers on connections that boxd makes itself.
func (f *Front) serveUncounted(ln net.Listener) error {
	if err := f.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// End waits until every ordinary request has its answer, and has it stop if ctx has not: a listener has failed, or nobody
// needs boxd. Streams are hijacked connections, which whoever made them waits for.
func (f *Front) End(ctx context.Context) {
	if f.stop() {
		f.shutdown(context.WithoutCancel(ctx))
		return
	}
	<-f.stopped
}
