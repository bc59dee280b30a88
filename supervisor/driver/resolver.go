// SPDX-License-Identifier: Apache-2.0

// The egress proxy (boxnames) resolves names for boxes without any privilege. boxd hands it each box with sockets
// in the box's netns, and checks every address that the proxy wants to make reachable against the rules of the
// session.

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
	// Connect connects to the program, and starts it where that is boxd's to do.
	Connect func(context.Context) (*fdpass.Conn, error)
	// Resolvers are asked for all boxes; none: those of the host.
	Resolvers []netip.Addr
	// Sockets opens the two sockets that a box asks at, for packets and for connections, and of a strict one those
	// whose connections are looked at. They are the caller's. six says that it has addresses of IPv6.
	Sockets func(ctx context.Context, key string, strict bool) (files []int, six bool, err error)
	// Gone tells an error of Sockets that says that there is no such box any more.
	Gone func(error) bool
	// Pin lets a box connect to addresses, at the ports, for a time.
	Pin func(ctx context.Context, key string, to []netip.Addr, at []egress.Opening, life time.Duration) error
	// Dial begins a connection out of a box. The descriptor is the caller's.
	Dial func(ctx context.Context, key string, to netip.AddrPort) (fd int, err error)
	// Denied is told what a box was refused. It must not block.
	Denied func(*egress.Denied)
	Log    *slog.Logger
}

// ResolverBox is what the program is told of a box.
type ResolverBox struct {
	Rules *egress.Rules
	Reach []netip.Prefix // networks that it may connect to by rules of their own
	// Strict says that connections by a name to the ports of HTTP and TLS are looked at. It does not change.
	Strict bool
}

// Resolver is boxd's end of the conversation with the program.
type Resolver struct {
	cfg   ResolverConfig
	life  func() context.Context // ends with Close
	stop  context.CancelFunc
	begin func() // connects, the first time
	all   sync.WaitGroup
	pins  chan struct{} // those that are made

	handing sync.Mutex // held while a box is handed in: its sockets can be open once

	mu    sync.Mutex // guards the fields below
	conn  *fdpass.Conn
	ready chan struct{} // closed when there is a connection
	boxes map[string]*entry
	puts  map[string]*egress.Secrets // by keys of boxes
}

type entry struct {
	ResolverBox
	at      *fdpass.Conn               // by which it was handed in; nil: by none
	since   time.Time                  // when that was
	pause   time.Duration              // before it is handed in once more, where the program gives it back
	again   time.Time                  // until when that is waited for, by whom givenBack has told the pause
	led     map[netip.Addr]egress.Name // which name has led to an address
	strict  map[ledTo]time.Time        // of a strict one: until when a name leads to an address
	pinning sync.RWMutex               // held for reading while a pin of it is checked and made
}

// Times of the Resolver, and bounds.
const (
	retryFirst       = 50 * time.Millisecond
	retryMost        = 5 * time.Second
	resolverPatience = 20 * time.Second // for the program to be there
	pinMost          = 5 * time.Second
	longestPin       = time.Hour
	maxAtOnce        = 16   // pins that are made at a time
	maxPinned        = 32   // addresses of one pin
	maxLed           = 1024 // addresses of a box of which is known what has led there
	maxStrict        = 4096 // names and addresses of a strict one
)

// OpenResolver returns a Resolver that connects when the first box is handed in.
func OpenResolver(cfg ResolverConfig) *Resolver {
	life, stop := context.WithCancel(context.Background())
	first := make(chan struct{})
	d := &Resolver{
		cfg: cfg, life: func() context.Context { return life }, stop: stop, begin: sync.OnceFunc(func() { close(first) }),
		pins: make(chan struct{}, maxAtOnce), ready: make(chan struct{}), boxes: map[string]*entry{}, puts: map[string]*egress.Secrets{},
	}
	d.all.Go(func() {
		select {
		case <-first:
			d.maintain(life)
		case <-life.Done():
		}
	})
	return d
}

// Close ends the conversation. No name of any box is resolved any more.
func (d *Resolver) Close() {
	d.stop()
	d.all.Wait()
}

// maintain talks to one program after the other until ctx ends.
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

// converse hands in all boxes, and does what the program asks for until it is gone.
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
		d.all.Go(func() { d.handOverAgain(ctx, key, 0) })
	}
	for {
		body, files, err := conn.RecvContext(ctx, true)
		fdpass.CloseAll(files) // there are none to be had
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
		d.apart(ctx, func() { d.pin(ctx, conn, m.Pin) })
	case m.Dial != nil:
		d.apart(ctx, func() { d.dial(ctx, conn, m.Dial) })
	case m.Denied != nil:
		if sane(m.Denied) {
			d.cfg.Denied(m.Denied)
		}
	case m.Ended != nil:
		d.cfg.Log.Warn("cannot resolve names for a box", "box", m.Ended.Key, "error", m.Ended.Error)
		if pause, ok := d.givenBack(conn, m.Ended.Key); ok {
			d.all.Go(func() { d.handOverAgain(ctx, m.Ended.Key, pause) })
		}
	}
}

// apart does something beside, and not too much of it.
func (d *Resolver) apart(ctx context.Context, do func()) {
	select {
	case d.pins <- struct{}{}:
		d.all.Go(func() {
			defer func() { <-d.pins }()
			do()
		})
	case <-ctx.Done():
	}
}

// givenBack takes a box back from a program, and returns how long to wait before it gets it again: twice as long each
// time, unless it has had it for a while. It is not ok if the program has no such box.
func (d *Resolver) givenBack(conn *fdpass.Conn, key string) (pause time.Duration, ok bool) {
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

// sane says that what was denied can be told: it is as short as names are, and in letters.
func sane(m *egress.Denied) bool {
	odd := func(text string) bool {
		return len(text) > 1024 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	}
	return !odd(m.Asked) && !odd(m.Setting) && !odd(m.Reason) && len(m.Addresses) <= 8
}

// handOverAgain hands in a box whose sockets may be open in a program that is just ending, after a pause.
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

// Why a box is not handed in.
var (
	errNone    = errors.New("boxnames is not running")
	errRemoved = errors.New("the box has ended")
)

// hand gives the program a box with two sockets, if it neither has it nor has just given it back.
func (d *Resolver) hand(ctx context.Context, key string) error {
	d.handing.Lock()
	defer d.handing.Unlock()
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
	files, six, err := d.cfg.Sockets(ctx, key, e.Strict)
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
	e.at, e.since = conn, time.Now() // what changes from here on is sent behind it
	d.mu.Unlock()
	m.V6 = six
	body, err := egress.Encode(&egress.Request{Add: m})
	if err != nil {
		return err
	}
	err = sendSecrets(conn, put) // first: no connection of the box goes on without
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
	if removed { // meanwhile, and the program may have been told so before it had the box
		sendRemove(conn, key)
		return errRemoved
	}
	return nil
}

// Add has the names of a box resolved from now on, also by the next programs. It waits until the program has it.
func (d *Resolver) Add(ctx context.Context, key string, box ResolverBox) error {
	d.begin()
	d.mu.Lock()
	d.boxes[key] = &entry{ResolverBox: box}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resolverPatience)
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
		case <-d.life().Done():
			err = errors.Join(errNone, context.Canceled)
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errNone) || ctx.Err() != nil || d.life().Err() != nil:
			d.Remove(key)
			return fault.Errorf(fault.Unavailable, "cannot resolve names for the box: %w", err).WithHint("see the log of boxd: journalctl -u boxd")
		}
	}
}

// Restore is Add for a box that lives already: it does not wait.
func (d *Resolver) Restore(key string, box ResolverBox) {
	d.mu.Lock()
	d.boxes[key] = &entry{ResolverBox: box}
	connected := d.conn != nil
	d.mu.Unlock()
	d.begin()
	if connected {
		d.all.Go(func() { d.handOverAgain(d.life(), key, 0) })
	}
}

// Change gives a box other rules, and reports whether there is such a box. When it returns no pin is made any more by
// the rules of before. What was pinned by them is the keeper's to forget.
func (d *Resolver) Change(key string, box ResolverBox) bool {
	e := d.change(key, box)
	if e == nil {
		return false
	}
	e.pinning.Lock() // those that are made have ended then, and the next see the new rules
	defer e.pinning.Unlock()
	return true
}

func (d *Resolver) change(key string, box ResolverBox) *entry {
	d.handing.Lock() // or it could come before what it changes
	defer d.handing.Unlock()
	d.mu.Lock()
	e := d.boxes[key]
	if e == nil {
		d.mu.Unlock()
		return nil
	}
	box.Strict = box.Strict || e.Strict // it has the sockets that it has
	e.ResolverBox, e.strict = box, nil  // nothing is pinned any more
	body, err := egress.Encode(&egress.Request{Change: e.message(key)})
	at := e.at
	d.mu.Unlock()
	if err == nil && at != nil {
		_ = at.Send(body) // a program that does not get it is gone, and the next one begins with it
	}
	return e
}

// Remove has the names of a box resolved no more.
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
