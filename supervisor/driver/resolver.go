// SPDX-License-Identifier: Apache-2.0

// The egress proxy (boxnames) resolves names for boxes without any privilege. boxd gives it each box with sockets in the box's
// netns, and checks every address that the proxy wants to make reachable against the rules of the session.

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// ResolverConfig is what a Resolver works with.
type ResolverConfig struct {
	// Connect connects to the proxy, and starts it where that is boxd's job.
	Connect func(context.Context) (*fdpass.Conn, error)
	// Resolvers are asked for all boxes; none: the host's.
	Resolvers []netip.Addr
	// Sockets opens the UDP and TCP sockets for a box's DNS queries, and for a strict box those that its filtered connections are
	// redirected to. The caller owns them. ipv6 says that the box has IPv6 addresses.
	Sockets func(ctx context.Context, key string, strict bool) (files []int, ipv6 bool, err error)
	// Gone reports whether an error of Sockets means that the box no longer exists.
	Gone func(error) bool
	// Pin lets a box connect to addresses, at these ports, for a time.
	Pin func(ctx context.Context, key string, to []netip.Addr, at []egress.Opening, life time.Duration) error
	// Dial opens a connection out of a box. The caller owns the descriptor.
	Dial func(ctx context.Context, key string, to netip.AddrPort) (fd int, err error)
	// Denied is called for what a box was refused. It must not block.
	Denied func(*egress.Denied)
	Log    *slog.Logger
}

// ResolverBox is what the proxy knows of a box.
type ResolverBox struct {
	Rules *egress.Rules
	Reach []netip.Prefix // networks that address rules allow
	// Strict says that the proxy filters connections by name to the ports of HTTP and TLS. It does not change.
	Strict bool
}

// Resolver is boxd's end of the conversation with the proxy.
type Resolver struct {
	cfg     ResolverConfig
	baseCtx func() context.Context // ends with Close
	stop    context.CancelFunc
	start   func() // connects the first time
	wg      sync.WaitGroup
	pins    chan struct{} // limits concurrent pins

	handOverMu sync.Mutex // held while a box is handed over: its sockets can be open only once

	mu    sync.Mutex // guards the fields below
	conn  *fdpass.Conn
	ready chan struct{} // closed when there is a connection
	boxes map[string]*entry
	puts  map[string]*egress.Secrets // by keys of boxes
}

type entry struct {
	ResolverBox
	at       *fdpass.Conn               // connection it was handed over on; nil: none
	since    time.Time                  // when it was
	pause    time.Duration              // before it is handed over again after the proxy gave it back
	again    time.Time                  // until when takeBack has asked to wait
	resolved map[netip.Addr]egress.Name // which name resolved to an address
	strict   map[resolvedAddr]time.Time // of a strict box: until when a name resolves to an address
	pinMu    sync.RWMutex               // read-locked while one of its pins is checked and made
}

// Times of the Resolver, and bounds.
const (
	retryFirst      = 50 * time.Millisecond
	retryMost       = 5 * time.Second
	resolverTimeout = 20 * time.Second // waiting for the proxy
	pinMost         = 5 * time.Second
	longestPin      = time.Hour
	maxAtOnce       = 16   // concurrent pins
	maxPinned       = 32   // addresses of one pin
	maxResolved     = 1024 // addresses of a box whose names are remembered
	maxStrict       = 4096 // names and addresses of a strict box
)

// OpenResolver returns a Resolver that connects when the first box is added.
func OpenResolver(cfg ResolverConfig) *Resolver {
	baseCtx, stop := context.WithCancel(context.Background())
	first := make(chan struct{})
	d := &Resolver{
		cfg: cfg, baseCtx: func() context.Context { return baseCtx }, stop: stop, start: sync.OnceFunc(func() { close(first) }),
		pins: make(chan struct{}, maxAtOnce), ready: make(chan struct{}), boxes: map[string]*entry{}, puts: map[string]*egress.Secrets{},
	}
	d.wg.Go(func() {
		select {
		case <-first:
			d.maintain(baseCtx)
		case <-baseCtx.Done():
		}
	})
	return d
}

// Close ends the conversation. No names of any box are resolved any more.
func (d *Resolver) Close() {
	d.stop()
	d.wg.Wait()
}

// maintain connects to one proxy after the other until ctx ends.
func (d *Resolver) maintain(ctx context.Context) {
	for pause := retryFirst; ctx.Err() == nil; {
		conn, err := d.cfg.Connect(ctx)
		if err == nil {
			pause = retryFirst
			d.converse(ctx, conn)
		}
		if ctx.Err() != nil {
			return
		}
		d.cfg.Log.Warn("boxnames is not running: names in boxes do not resolve; trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMost)
	}
}

// converse hands over all boxes, and serves the proxy's requests until it is gone.
func (d *Resolver) converse(ctx context.Context, conn *fdpass.Conn) {
	conn.Patience = pinMost
	defer conn.Close()
	if body, err := egress.Encode(&egress.Request{Resolvers: d.cfg.Resolvers}); err != nil || len(d.cfg.Resolvers) > 0 && conn.Send(body) != nil {
		return
	}
	d.mu.Lock()
	d.conn = conn
	keys := slices.Sorted(maps.Keys(d.boxes))
	close(d.ready)
	d.mu.Unlock()
	for _, key := range keys {
		d.wg.Go(func() { d.handOverAgain(ctx, key, 0) })
	}
	for {
		body, files, err := conn.RecvContext(ctx, true)
		fdpass.CloseAll(files) // none are expected
		var m *egress.Report
		if err == nil {
			m, err = egress.Decode[egress.Report](body)
		}
		if err != nil {
			break
		}
		d.receive(ctx, conn, m)
	}
	d.mu.Lock()
	d.conn, d.ready = nil, make(chan struct{})
	d.mu.Unlock()
}

func (d *Resolver) receive(ctx context.Context, conn *fdpass.Conn, m *egress.Report) {
	switch {
	case m.Pin != nil:
		d.goLimited(ctx, func() { d.pin(ctx, conn, m.Pin) })
	case m.Dial != nil:
		d.goLimited(ctx, func() { d.dial(ctx, conn, m.Dial) })
	case m.Denied != nil:
		if reportable(m.Denied) {
			d.cfg.Denied(m.Denied)
		}
	case m.Ended != nil:
		d.cfg.Log.Warn("cannot resolve names for a box", "box", m.Ended.Key, "error", m.Ended.Error)
		if pause, ok := d.takeBack(conn, m.Ended.Key); ok {
			d.wg.Go(func() { d.handOverAgain(ctx, m.Ended.Key, pause) })
		}
	}
}

// goLimited runs do in a goroutine, as soon as fewer than maxAtOnce run.
func (d *Resolver) goLimited(ctx context.Context, do func()) {
	select {
	case d.pins <- struct{}{}:
		d.wg.Go(func() {
			defer func() { <-d.pins }()
			do()
		})
	case <-ctx.Done():
	}
}

// takeBack takes a box back from a proxy, and returns how long to wait before handing it over again: twice as long each time,
// unless the proxy has had it for a while. ok is false if the proxy has no such box.
func (d *Resolver) takeBack(conn *fdpass.Conn, key string) (pause time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.boxes[key]
	if e == nil || e.at != conn {
		return 0, false
	}
	e.at = nil
	if time.Since(e.since) > retryMost {
		e.pause = 0
	}
	e.pause = min(max(2*e.pause, retryFirst), retryMost)
	e.again = time.Now().Add(e.pause)
	return e.pause, true
}

// reportable reports whether a denial can be reported: it is short and printable ASCII.
func reportable(m *egress.Denied) bool {
	bad := func(text string) bool {
		return len(text) > 1024 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	}
	return !bad(m.Asked) && !bad(m.Setting) && !bad(m.Reason) && len(m.Addresses) <= 8
}

// handOverAgain hands over, after a pause, a box whose sockets may still be open in a proxy that is ending.
func (d *Resolver) handOverAgain(ctx context.Context, key string, pause time.Duration) {
	for ; ; pause = min(max(2*pause, retryFirst), retryMost) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		err := d.hand(ctx, key)
		if err == nil || errors.Is(err, errNone) || errors.Is(err, errRemoved) || d.cfg.Gone(err) {
			return
		}
		d.cfg.Log.Warn("cannot resolve names for a box", "box", key, "error", err)
	}
}

// Why a box is not handed over.
var (
	errNone    = errors.New("boxnames is not running")
	errRemoved = errors.New("the box has ended")
)

// hand gives the proxy a box with two sockets, unless it has the box or has just given it back.
func (d *Resolver) hand(ctx context.Context, key string) error {
	d.handOverMu.Lock()
	defer d.handOverMu.Unlock()
	d.mu.Lock()
	e, conn := d.boxes[key], d.conn
	known := e != nil && conn != nil && (e.at == conn || time.Now().Before(e.again))
	d.mu.Unlock()
	switch {
	case known:
		return nil
	case e == nil:
		return errRemoved
	case conn == nil:
		return errNone
	}
	files, ipv6, err := d.cfg.Sockets(ctx, key, e.Strict)
	if err != nil {
		return err
	}
	defer fdpass.CloseAll(files)
	d.mu.Lock()
	if d.boxes[key] != e {
		d.mu.Unlock()
		return errRemoved
	}
	m, put := e.message(key), d.puts[key]
	e.at, e.since = conn, time.Now() // later changes are sent after it
	d.mu.Unlock()
	m.V6 = ipv6
	body, err := egress.Encode(&egress.Request{Add: m})
	if err != nil {
		return err
	}
	err = sendSecrets(conn, put) // first: no connection of the box goes on without them
	if err == nil {
		err = conn.Send(body, files...)
	}
	if err != nil {
		d.mu.Lock()
		e.at = nil
		d.mu.Unlock()
		return fmt.Errorf("%w: %w", errNone, err)
	}
	d.mu.Lock()
	removed := d.boxes[key] != e
	d.mu.Unlock()
	if removed { // meanwhile, and the proxy may have been told so before it had the box
		sendRemove(conn, key)
		return errRemoved
	}
	return nil
}

// Add resolves names for a box from now on, also by later proxies. It waits until the proxy has the box.
func (d *Resolver) Add(ctx context.Context, key string, box ResolverBox) error {
	d.start()
	d.mu.Lock()
	d.boxes[key] = &entry{ResolverBox: box}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resolverTimeout)
	defer cancel()
	for {
		d.mu.Lock()
		ready := d.ready
		d.mu.Unlock()
		var err error
		select {
		case <-ready:
			err = d.hand(ctx, key)
		case <-ctx.Done():
			err = errors.Join(errNone, ctx.Err())
		case <-d.baseCtx().Done():
			err = errors.Join(errNone, context.Canceled)
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errNone) || ctx.Err() != nil || d.baseCtx().Err() != nil:
			d.Remove(key)
			return fault.Errorf(fault.Unavailable, "cannot resolve names for the box: %w", err).WithHint("see the log of boxd: journalctl -u boxd")
		}
	}
}

// restore is Add for a box that already runs: it does not wait.
func (d *Resolver) restore(key string, box ResolverBox) {
	d.mu.Lock()
	d.boxes[key] = &entry{ResolverBox: box}
	connected := d.conn != nil
	d.mu.Unlock()
	d.start()
	if connected {
		d.wg.Go(func() { d.handOverAgain(d.baseCtx(), key, 0) })
	}
}

// Change gives a box other rules, and reports whether there is such a box. When it returns, no pin is made by the old rules any
// more. Pins already made are the keeper's to remove.
func (d *Resolver) Change(key string, box ResolverBox) bool {
	e := d.change(key, box)
	if e == nil {
		return false
	}
	e.pinMu.Lock() // pins in progress have ended then, and later ones see the new rules
	defer e.pinMu.Unlock()
	return true
}

func (d *Resolver) change(key string, box ResolverBox) *entry {
	d.handOverMu.Lock() // or it could be sent before the box itself
	defer d.handOverMu.Unlock()
	d.mu.Lock()
	e := d.boxes[key]
	if e == nil {
		d.mu.Unlock()
		return nil
	}
	box.Strict = box.Strict || e.Strict // its sockets do not change
	e.ResolverBox, e.strict = box, nil  // nothing is pinned any more
	body, err := egress.Encode(&egress.Request{Change: e.message(key)})
	at := e.at
	d.mu.Unlock()
	if err == nil && at != nil {
		_ = at.Send(body) // a proxy that misses it is gone, and the next one gets it at the start
	}
	return e
}

// Remove stops resolving names for a box.
func (d *Resolver) Remove(key string) {
	d.mu.Lock()
	var at *fdpass.Conn
	if e := d.boxes[key]; e != nil {
		at = e.at
	}
	delete(d.boxes, key)
	d.mu.Unlock()
	if at != nil {
		sendRemove(at, key)
	}
}
