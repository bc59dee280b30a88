// SPDX-License-Identifier: Apache-2.0

// A transparent proxy that finds the name a connection is for before it lets it go on: the server name of TLS
// (SNI), the Host of HTTP/1. The kernel redirects connections of the box to sockets that boxd has opened, and boxd
// connects onwards, for a name that the rules allow at that port and that has resolved to that address for the box.
//
// What is inside TLS is passed on as it is, except for hosts that secrets of the box are for: there the proxy ends
// the box's TLS and puts the secrets into its requests. HTTP is parsed and written anew, request by request.

package proxy

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

// Config is what holds for all boxes. Zero values are replaced by defaults.
type Config struct {
	Hello  time.Duration // for a box to say which name it is for; default 10 s
	PerBox int           // connections of one box at a time; default 256, further ones wait
	All    int           // of all boxes; default 4096, further ones are closed

	// Original is where a box has connected to; default: what the kernel says.
	Original func(net.Conn) (netip.AddrPort, error)
}

// Target is where a connection goes on to.
type Target struct {
	Name egress.Name
	To   netip.AddrPort
}

// ErrNotLed says that the name has not led the box to the address, as far as is known.
var ErrNotLed = errors.New("the name has not led to this address")

// Box is whom connections come from.
type Box struct {
	// Rules are those that hold when a connection comes.
	Rules func() *egress.Rules
	// Secrets are those that the box has when a connection comes; nil: it never has any.
	Secrets func() *Secrets
	// Dial connects from the box's network. ErrNotLed: not for this name.
	Dial func(context.Context, Target) (net.Conn, error)
	// Find has a name resolved for the box once more, to addresses of IPv6 or to those of IPv4. false: nobody has
	// answered.
	Find func(ctx context.Context, name egress.Name, six bool) bool
	// Denied is told what was refused, the same at most once a minute. It must not block.
	Denied func(Denial)
}

// Proxy looks at connections of all boxes.
type Proxy struct {
	cfg Config
	all chan struct{}
}

// NewProxy returns a Proxy.
func NewProxy(cfg Config) *Proxy {
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
	return &Proxy{cfg: cfg, all: make(chan struct{}, cfg.All)}
}

// Server looks at the connections of one box.
type Server struct {
	proxy *Proxy
	box   *Box
	own   chan struct{} // its connections
	web   *web
	bound *web // for hosts that have secrets, within TLS
	wg    sync.WaitGroup

	told    Tally
	finding sync.Mutex           // held while a name is resolved once more
	found   map[string]time.Time // which were, and when

	mu    sync.Mutex
	conns map[*client]bool
}

// Open returns a Server that does nothing until Serve is called.
func (p *Proxy) Open(box *Box) *Server {
	s := &Server{proxy: p, box: box, own: make(chan struct{}, p.cfg.PerBox), conns: map[*client]bool{}, found: map[string]time.Time{}}
	s.web, s.bound = newWeb(s), newBound(s)
	return s
}

// Serve looks at what comes to the listeners until ctx ends, or one of them fails, with that error. It closes all of
// them, and returns when nothing of it is left.
func (s *Server) Serve(ctx context.Context, listeners []net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
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
	s.Cut()
	s.wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// Cut ends all connections that there are.
func (s *Server) Cut() {
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

func (s *Server) accept(ctx context.Context, l net.Listener) error {
	for {
		select {
		case s.own <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		conn, err := l.Accept()
		if err != nil {
			<-s.own
			return err
		}
		c := &client{Conn: conn, server: s}
		select {
		case s.proxy.all <- struct{}{}:
		default:
			conn.Close()
			<-s.own
			continue
		}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Add(1)           // until it is closed
		if ctx.Err() != nil { // and Cut may not have seen it
			_ = c.Close()
		}
		s.wg.Go(func() { s.handle(ctx, c) })
	}
}

// handle has a connection looked at, by the port that it was made to.
func (s *Server) handle(ctx context.Context, c *client) {
	to, err := s.proxy.cfg.Original(c.Conn)
	switch {
	case err != nil:
	case to.Port() == portTLS:
		c.to = to
		if s.tls(ctx, c) {
			return // as below
		}
	case to.Port() == portWeb:
		c.to = to
		s.web.take(ctx, c)
		return // who serves it closes it
	}
	_ = c.Close()
}

// Ports that are looked at.
const (
	portWeb = 80
	portTLS = 443
)

// client is a connection of a box.
type client struct {
	net.Conn
	server *Server
	to     netip.AddrPort // what it has connected to
	once   sync.Once
	state  webState
}

// Close ends it, and makes room for another.
func (c *client) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		s := c.server
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		<-s.own
		<-s.proxy.all
		s.wg.Done()
	})
	return err
}

// permit says whether a connection may go on to where it was made, for the host it says it is for.
func (s *Server) permit(host string, to netip.AddrPort) (Target, bool) {
	name, ok := egress.FromQuery(strings.TrimSuffix(host, ".") + ".")
	if !ok {
		s.nameless(host, to)
		return Target{}, false
	}
	opening := egress.Opening{Protocol: egress.TCP, Port: to.Port()}
	if !slices.Contains(egress.Openings(s.box.Rules().Match(name)), opening) {
		s.deny(Denial{Reason: egress.NotThere, Asked: string(name), Setting: strconv.Quote(string(name) + " " + opening.String())}, to)
		return Target{}, false
	}
	return Target{name, to}, true
}

// nameless tells of a connection that is for no name. Only a rule about its address would let it through.
func (s *Server) nameless(host string, to netip.AddrPort) {
	asked := ""
	if host != "" {
		asked = strconv.QuoteToASCII(host[:min(len(host), maxShownHost)])
	}
	rule := netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String() + " tcp " + strconv.Itoa(int(to.Port()))
	s.deny(Denial{Reason: egress.NoName, Asked: asked, Setting: strconv.Quote(rule)}, to)
}

// maxShownHost is how much of what is no name is told, in bytes.
const maxShownHost = 200

func (s *Server) deny(d Denial, to netip.AddrPort) {
	d.Addresses, d.Port = []netip.Addr{to.Addr()}, to.Port()
	if s.told.IsNew(string(d.Reason)+" "+d.Asked+" "+to.String(), time.Now()) {
		s.box.Denied(d)
	}
}

// dial connects for a name. One that is not known to have led to the address is resolved once more: a boxd that has
// just begun does not know what was before it.
func (s *Server) dial(ctx context.Context, t Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectMost)
	defer cancel()
	conn, err := s.box.Dial(ctx, t)
	if !errors.Is(err, ErrNotLed) {
		return conn, err
	}
	if conn, err = s.dialAgain(ctx, t); errors.Is(err, ErrNotLed) {
		s.deny(Denial{Reason: egress.Astray, Asked: string(t.Name)}, t.To)
	}
	return conn, err
}

func (s *Server) dialAgain(ctx context.Context, t Target) (net.Conn, error) {
	s.finding.Lock()
	defer s.finding.Unlock()
	conn, err := s.box.Dial(ctx, t) // another may have had it resolved
	if !errors.Is(err, ErrNotLed) {
		return conn, err
	}
	six, now := t.To.Addr().Is6(), time.Now()
	key := string(t.Name) + " " + strconv.FormatBool(six)
	if now.Sub(s.found[key]) < findOnce {
		return nil, err
	}
	if len(s.found) >= maxFound {
		clear(s.found)
	}
	if s.box.Find(ctx, t.Name, six) {
		s.found[key] = now
	}
	return s.box.Dial(ctx, t)
}

// Bounds of names that are resolved once more.
const (
	findOnce = time.Minute
	maxFound = 1024
)

// connectMost is how long a connection may take to be there.
const connectMost = 30 * time.Second
