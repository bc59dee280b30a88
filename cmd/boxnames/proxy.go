// SPDX-License-Identifier: Apache-2.0

// A transparent proxy that finds the host name of a connection before it forwards it: the server
// name of TLS (SNI), the Host of HTTP/1. The kernel redirects connections of the box to sockets
// that boxd has opened, and boxd connects onwards if the rules allow that name at that port and
// it has resolved to that address for the box.
//
// TLS is forwarded as it is, except to hosts that secrets of the box are for: there the proxy
// terminates the box's TLS and inserts the secrets into its requests. HTTP is parsed and written
// anew, request by request.

package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// proxyConfig applies to all boxes. Zero values are replaced by defaults.
type proxyConfig struct {
	Hello  time.Duration // time a connection has to name its host; default 10 s
	PerBox int           // connections of one box at a time; default 256, further ones wait
	All    int           // connections of all boxes; default 4096, further ones are closed

	// Original returns the original destination of a connection; default: ask the kernel.
	Original func(net.Conn) (netip.AddrPort, error)
}

// proxyTarget is where a connection is forwarded to.
type proxyTarget struct {
	Name egress.Name
	To   netip.AddrPort
}

// errNotLed means that, as far as is known, the name has not resolved to this address for the
// box.
var errNotLed = errors.New("the name did not resolve to this address")

// proxyBox is a box whose connections are proxied.
type proxyBox struct {
	// Rules returns the rules in force when a connection comes.
	Rules func() *egress.Rules
	// Secrets returns the box's secrets when a connection comes; nil: it never has any.
	Secrets func() *secretSet
	// Dial connects from the box's network. errNotLed: not for this name.
	Dial func(context.Context, proxyTarget) (net.Conn, error)
	// Find resolves a name for the box once more, to IPv6 addresses if ipv6 is set and otherwise
	// to IPv4 addresses. false: no resolver has answered.
	Find func(ctx context.Context, name egress.Name, ipv6 bool) bool
	// Denied is called for what was refused, for the same thing at most once a minute. It must
	// not block.
	Denied func(denial)
}

// transparentProxy holds what the proxy servers of all boxes share.
type transparentProxy struct {
	cfg proxyConfig
	all chan struct{}
}

// newProxy returns a transparentProxy.
func newProxy(cfg proxyConfig) *transparentProxy {
	if cfg.Hello <= 0 {
		cfg.Hello = 10 * time.Second
	}
	if cfg.PerBox <= 0 {
		cfg.PerBox = 256
	}
	if cfg.All <= 0 {
		cfg.All = 4096
	}
	if cfg.Original == nil {
		cfg.Original = original
	}
	return &transparentProxy{cfg: cfg, all: make(chan struct{}, cfg.All)}
}

// proxyServer proxies the connections of one box.
type proxyServer struct {
	proxy *transparentProxy
	box   *proxyBox
	slots chan struct{} // bounds its connections
	web   *web
	bound *web // server of connections to hosts that have secrets, within TLS
	wg    sync.WaitGroup

	reported tally
	findMu   sync.Mutex           // held while a name is resolved once more
	found    map[string]time.Time // when a name was resolved once more

	mu    sync.Mutex
	conns map[*client]bool
}

// Open returns a proxyServer that does nothing until Serve is called.
func (p *transparentProxy) Open(box *proxyBox) *proxyServer {
	s := &proxyServer{proxy: p, box: box, slots: make(chan struct{}, p.cfg.PerBox), conns: map[*client]bool{}, found: map[string]time.Time{}}
	s.web, s.bound = newWeb(s), newBound(s)
	return s
}

// Serve handles connections to the listeners until a context ends or one of them fails, with that
// error. It closes all listeners, and returns when all connections have ended.
func (s *proxyServer) Serve(until context.Context, listeners []net.Listener) error {
	ctx, cancel := context.WithCancelCause(until)
	defer cancel(nil)
	s.wg.Go(func() { s.web.serve(ctx) })
	s.wg.Go(func() { s.bound.serve(ctx) })
	for _, l := range listeners {
		s.wg.Go(func() { cancel(s.accept(ctx, l)) })
	}
	<-ctx.Done()
	for _, l := range listeners {
		l.Close()
	}
	s.closeConns()
	s.wg.Wait()
	if until.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// closeConns closes all current connections.
func (s *proxyServer) closeConns() {
	s.mu.Lock()
	list := make([]*client, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	s.mu.Unlock()
	for _, c := range list {
		_ = c.Close()
	}
}

func (s *proxyServer) accept(ctx context.Context, l net.Listener) error {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		conn, err := l.Accept()
		if err != nil {
			<-s.slots
			return err
		}
		c := &client{Conn: conn, server: s}
		select {
		case s.proxy.all <- struct{}{}:
		default:
			conn.Close()
			<-s.slots
			continue
		}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Add(1)           // until the connection is closed
		if ctx.Err() != nil { // closeConns may have run before it was in conns
			_ = c.Close()
		}
		s.wg.Go(func() { s.handle(ctx, c) })
	}
}

// handle handles a connection by the port it was made to.
func (s *proxyServer) handle(ctx context.Context, c *client) {
	to, err := s.proxy.cfg.Original(c.Conn)
	switch {
	case err != nil:
	case to.Port() == portTLS:
		c.to = to
		if s.tls(ctx, c) {
			return // as for HTTP
		}
	case to.Port() == portWeb:
		c.to = to
		s.web.take(ctx, c)
		return // its server closes it
	}
	_ = c.Close()
}

// Ports whose connections are checked.
const (
	portWeb = 80
	portTLS = 443
)

// client is a connection of a box.
type client struct {
	net.Conn
	server *proxyServer
	to     netip.AddrPort // original destination
	once   sync.Once
	state  webState
	up     net.Conn // to the server, once there is one; guarded by server.mu
}

// setUpstream makes Close close the connection to the server too: what waits for a server that does nothing ends with its client.
func (c *client) setUpstream(up net.Conn) {
	c.server.mu.Lock()
	c.up = up
	open := c.server.conns[c]
	c.server.mu.Unlock()
	if !open {
		up.Close()
	}
}

// Close closes the connection, and makes room for another.
func (c *client) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		s := c.server
		s.mu.Lock()
		delete(s.conns, c)
		up := c.up
		s.mu.Unlock()
		if up != nil {
			up.Close()
		}
		<-s.slots
		<-s.proxy.all
		s.wg.Done()
	})
	return err
}

// permit reports whether the rules allow a connection to its destination for the host that it
// names.
func (s *proxyServer) permit(host string, to netip.AddrPort) (proxyTarget, bool) {
	name, ok := egress.FromQuery(strings.TrimSuffix(host, ".") + ".")
	if !ok {
		s.denyNameless(host, to)
		return proxyTarget{}, false
	}
	opening := egress.Opening{Protocol: egress.TCP, Port: to.Port()}
	if !slices.Contains(egress.Openings(s.box.Rules().Match(name)), opening) {
		s.deny(denial{Reason: egress.NotThere, Asked: string(name), Setting: strconv.Quote(string(name) + " " + opening.String())}, to)
		return proxyTarget{}, false
	}
	return proxyTarget{name, to}, true
}

// denyNameless reports a connection that names no valid host. Only a rule for its address would let
// it through.
func (s *proxyServer) denyNameless(host string, to netip.AddrPort) {
	requested := ""
	if host != "" {
		requested = strconv.QuoteToASCII(host[:min(len(host), maxShownHost)])
	}
	rule := netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String() + " tcp " + strconv.Itoa(int(to.Port()))
	s.deny(denial{Reason: egress.NoName, Asked: requested, Setting: strconv.Quote(rule)}, to)
}

// maxShownHost is how much of an invalid host name is reported, in bytes.
const maxShownHost = 200

func (s *proxyServer) deny(d denial, to netip.AddrPort) {
	d.Addresses, d.Port = []netip.Addr{to.Addr()}, to.Port()
	if s.reported.isNew(string(d.Reason)+" "+d.Asked+" "+to.String(), time.Now()) {
		s.box.Denied(d)
	}
}

// dial connects for a name. If the name is not known to have resolved to the address it is
// resolved once more: a boxd that has just started does not know what earlier queries returned.
func (s *proxyServer) dial(ctx context.Context, t proxyTarget) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := s.box.Dial(ctx, t)
	if !errors.Is(err, errNotLed) {
		return conn, err
	}
	if conn, err = s.dialAgain(ctx, t); errors.Is(err, errNotLed) {
		s.deny(denial{Reason: egress.Astray, Asked: string(t.Name)}, t.To)
	}
	return conn, err
}

func (s *proxyServer) dialAgain(ctx context.Context, t proxyTarget) (net.Conn, error) {
	s.findMu.Lock()
	defer s.findMu.Unlock()
	conn, err := s.box.Dial(ctx, t) // another connection may have had the name resolved
	if !errors.Is(err, errNotLed) {
		return conn, err
	}
	ipv6, now := t.To.Addr().Is6(), time.Now()
	key := string(t.Name) + " " + strconv.FormatBool(ipv6)
	if now.Sub(s.found[key]) < findOnce {
		return nil, err
	}
	if len(s.found) >= maxFound {
		clear(s.found)
	}
	if s.box.Find(ctx, t.Name, ipv6) {
		s.found[key] = now
	}
	return s.box.Dial(ctx, t)
}

// Bounds on names that are resolved once more.
const (
	findOnce = time.Minute
	maxFound = 1024
)

// connectTimeout is how long it may take to establish a connection.
const connectTimeout = 30 * time.Second
