// SPDX-License-Identifier: Apache-2.0

// Connections over NATS: two streams of bytes each, in order, as fast as their readers are. They survive lost messages and
// a server of NATS that dies, and fail when the other end has not been heard of for a while.

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// How much is on its way at most, and the times of a connection.
const (
	streamWindow = 256 << 10 // bytes of each direction that nobody has read
	maxFrame     = 32 << 10  // of a frame

	ackDelay      = 50 * time.Millisecond // how late an acknowledgement may be that nothing carries
	streamResend  = time.Second           // without one
	streamPing    = 5 * time.Second       // without anything to send
	streamTimeout = 15 * time.Second      // without anything heard
	streamMemory  = 2 * streamTimeout     // that a connection was there

	maxStreams = 1 << 16 // that are open or remembered
)

// Errors of connections.
var (
	// errNoResponder means that nobody listens where a connection was to go.
	errNoResponder = errors.New("it is not connected to NATS")
	// errSilent means that the other end has not been heard of for too long.
	errSilent = errors.New("the other end has been silent for " + streamTimeout.String())
	// errWindow means that the other end sends more than it may, or acknowledges what was not sent.
	errWindow = errors.New("the other end violates its flow control")
	// errEndpointClosed means that the endpoint has been closed.
	errEndpointClosed = errors.New("the endpoint of streams is closed")
)

// resetError is the reason why the other end has given a connection up.
type resetError struct{ Reason string }

func (e *resetError) Error() string { return "the other end reset the connection: " + e.Reason }

// endpointConfig says where an endpoint is.
type endpointConfig struct {
	Conn *nats.Conn
	// Subject is what the subjects begin with where it is reached; nobody else may listen there.
	Subject string
	// From is what the subjects begin with of those it accepts connections from; "": it accepts none.
	From string
	// Accept is called with every connection that comes in, which it owns.
	Accept func(*stream)
}

// endpoint is one end of any number of connections.
type endpoint struct {
	cfg    endpointConfig
	sub    *nats.Subscription
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[string]*stream
	past   map[string]time.Time // connections that are over, so that a late frame does not open one again
	closed bool
}

// newEndpoint listens. Close must follow; what has to be sent again is no more when ctx has ended.
func newEndpoint(ctx context.Context, cfg *endpointConfig) (*endpoint, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := &endpoint{cfg: *cfg, cancel: cancel, conns: map[string]*stream{}, past: map[string]time.Time{}}
	var err error
	if e.sub, err = cfg.Conn.Subscribe(cfg.Subject+".s.*", e.receive); err != nil {
		cancel()
		return nil, fmt.Errorf("listen for streams on %s: %w", cfg.Subject, err)
	}
	e.wg.Go(func() { e.watch(ctx) })
	return e, nil
}

// Close ends all connections.
func (e *endpoint) Close() {
	_ = e.sub.Unsubscribe() // of a connection that is closed too
	e.mu.Lock()
	e.closed = true
	open := make([]*stream, 0, len(e.conns))
	for _, c := range e.conns {
		open = append(open, c)
	}
	e.mu.Unlock()
	for _, c := range open {
		c.fail(errEndpointClosed, true)
	}
	e.cancel()
	e.wg.Wait()
}

// Dial opens a connection to the endpoint at a subject. It returns at once: that nobody is there is the error of the first
// read.
func (e *endpoint) Dial(_ context.Context, subject string) (net.Conn, error) {
	id := rand.Text()
	c := newStream(e, id, subject+".s."+id)
	if err := e.add(c, nil); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening = true
	c.sendLocked(&frame{})
	return c, nil
}

// add counts a connection, and begins what serves it.
func (e *endpoint) add(c *stream, serve func(*stream)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return errEndpointClosed
	case len(e.conns)+len(e.past) >= maxStreams:
		return fmt.Errorf("there are %d streams, the limit", maxStreams)
	}
	e.conns[c.id] = c
	if serve != nil {
		e.wg.Go(func() { serve(c) })
	}
	return nil
}

// forget keeps in mind that a connection was there.
func (e *endpoint) forget(c *stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns[c.id] == c {
		delete(e.conns, c.id)
		e.past[c.id] = time.Now()
	}
}

// Open is how many connections there are.
func (e *endpoint) Open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.conns)
}

// receive is called with one message after the other.
func (e *endpoint) receive(m *nats.Msg) {
	id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	e.mu.Lock()
	c, past := e.conns[id], e.past[id]
	e.mu.Unlock()
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" { // nobody has subscribed to where a frame went
		if c != nil {
			c.noResponder()
		}
		return
	}
	f, err := decodeFrame(m.Data)
	if err != nil {
		return
	}
	switch {
	case c != nil:
	case f.flags&flagReset != 0:
		return
	case f.flags&flagOpen == 0 || !past.IsZero():
		e.reset(m.Reply, id, "there is no such connection")
		return
	default:
		if c = e.accept(id, m.Reply); c == nil {
			return
		}
	}
	c.take(&f)
}

// accept makes a connection that somebody else has opened.
func (e *endpoint) accept(id, reply string) *stream {
	if e.cfg.From == "" || !strings.HasPrefix(reply, e.cfg.From+".") || !strings.HasSuffix(reply, ".s."+id) {
		return nil
	}
	c := newStream(e, id, reply)
	if err := e.add(c, e.cfg.Accept); err != nil {
		e.reset(reply, id, err.Error())
		return nil
	}
	return c
}

// reset tells somebody that there is no connection. It goes nowhere but to where connections come from.
func (e *endpoint) reset(to, id, why string) {
	if to == "" || !strings.HasSuffix(to, ".s."+id) || e.cfg.From != "" && !strings.HasPrefix(to, e.cfg.From+".") {
		return
	}
	_ = e.cfg.Conn.Publish(to, (&frame{flags: flagReset, bytes: []byte(why)}).encode()) // it asks again
}

// watch looks after what no message does: late acknowledgements, frames that were lost, ends that are gone.
func (e *endpoint) watch(ctx context.Context) {
	ticker := time.NewTicker(ackDelay)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		e.mu.Lock()
		open := make([]*stream, 0, len(e.conns))
		for _, c := range e.conns {
			open = append(open, c)
		}
		for id, since := range e.past {
			if now.Sub(since) > streamMemory {
				delete(e.past, id)
			}
		}
		e.mu.Unlock()
		for _, c := range open {
			c.tick(now)
		}
	}
}
