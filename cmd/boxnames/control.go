// SPDX-License-Identifier: Apache-2.0

// The proxy's end of the control socket over which boxd passes it boxes.

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// maxBoxes is how many boxes may be served at a time.
const maxBoxes = 4096

// timeout is how long to wait for a boxd that does not receive.
const timeout = 10 * time.Second

// control serves one boxd.
type control struct {
	conn     *fdpass.Conn
	resolver *resolver
	proxy    *transparentProxy
	log      *log.Logger

	named atomic.Pointer[[]netip.AddrPort] // resolvers that boxd has configured; nil: none

	mu    sync.Mutex
	boxes map[string]*servedBox
	sets  map[string]*secretSet // by key of the box, which may be added later
	pins  map[uint64]chan<- error
	dials map[uint64]chan<- dialed
	last  uint64 // number of the last Pin or Dial
	wg    sync.WaitGroup
}

type servedBox struct {
	rules  atomic.Pointer[egress.Rules]
	proxy  *proxyServer // nil: connections are not checked
	cancel context.CancelFunc
	done   chan struct{}
}

// serveBoxd serves boxd until the connection or ctx ends, and then closes it and everything that came
// over it. cfg.Upstreams are queried if boxd configures no resolvers.
func serveBoxd(ctx context.Context, conn *fdpass.Conn, cfg resolverConfig, l *log.Logger) {
	conn.Patience = timeout
	c := &control{conn: conn, log: l, boxes: map[string]*servedBox{}, sets: map[string]*secretSet{}, pins: map[uint64]chan<- error{}, dials: map[uint64]chan<- dialed{}, proxy: newProxy(proxyConfig{})}
	others := cfg.Upstreams
	cfg.Upstreams = func() []netip.AddrPort {
		if list := c.named.Load(); list != nil {
			return *list
		}
		return others()
	}
	c.resolver = newResolver(cfg)
	ctx, cancel := context.WithCancel(ctx)
	defer c.wg.Wait()
	defer conn.Close()
	defer cancel()
	for {
		body, files, err := conn.RecvContext(ctx, false)
		if errors.Is(err, fdpass.ErrNoRoom) {
			l.Print(err)
			err = nil
		}
		if err != nil {
			fdpass.CloseAll(files)
			return
		}
		if err := c.handle(ctx, body, files); err != nil {
			l.Printf("request refused: %v", err)
		}
	}
}

// handle carries out one message. It takes over the files.
func (c *control) handle(ctx context.Context, body []byte, files []int) error {
	m, err := egress.Decode[egress.Request](body)
	if err != nil || m.Add == nil && m.Dialed == nil {
		fdpass.CloseAll(files)
	}
	switch {
	case err != nil:
		return err
	case m.Add != nil:
		if err := c.add(ctx, m.Add, files); err != nil {
			c.report(&egress.Report{Ended: &egress.Ended{Key: m.Add.Key, Error: err.Error()}})
			return err
		}
	case len(m.Resolvers) > 0:
		var list []netip.AddrPort
		for _, a := range m.Resolvers {
			list = append(list, netip.AddrPortFrom(a, dnsPort))
		}
		c.named.Store(&list)
	case m.Change != nil:
		return c.change(m.Change)
	case m.Secrets != nil:
		return c.secrets(m.Secrets)
	case m.Remove != "":
		c.remove(m.Remove)
		c.forget(m.Remove)
	case m.Pinned != nil:
		c.pinned(m.Pinned)
	case m.Dialed != nil:
		c.dialed(m.Dialed, files)
	}
	return nil
}

func (c *control) add(ctx context.Context, b *egress.Box, files []int) error {
	packets, streams, redirected, err := sockets(files, b.Strict)
	if err != nil {
		return err
	}
	rules, err := b.Compile()
	c.remove(b.Key)
	c.mu.Lock()
	if err == nil && len(c.boxes) >= maxBoxes {
		err = fmt.Errorf("more than %d boxes", maxBoxes)
	}
	if err != nil {
		c.mu.Unlock()
		closeAll(redirected)
		return errors.Join(err, packets.Close(), streams.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	served := &servedBox{cancel: cancel, done: make(chan struct{})}
	served.rules.Store(rules)
	asks := c.newResolverBox(b, served)
	if b.Strict {
		served.proxy = c.newServer(b, served, asks)
	}
	c.boxes[b.Key] = served
	c.mu.Unlock()
	c.wg.Go(func() {
		defer close(served.done)
		defer cancel()
		var proxying sync.WaitGroup
		proxying.Go(func() {
			if served.proxy == nil {
				return
			}
			if err := served.proxy.Serve(ctx, redirected); err != nil {
				c.report(&egress.Report{Ended: &egress.Ended{Key: b.Key, Error: err.Error()}})
			}
			cancel() // end both, or boxd would open sockets that still exist
		})
		if err := c.resolver.Serve(ctx, asks, packets, streams); err != nil {
			c.report(&egress.Report{Ended: &egress.Ended{Key: b.Key, Error: err.Error()}})
		}
		cancel()
		proxying.Wait()
	})
	return nil
}

func (c *control) newResolverBox(b *egress.Box, served *servedBox) *resolverBox {
	return &resolverBox{
		Rules: served.rules.Load, V6: b.V6,
		Pin: func(ctx context.Context, p pinRequest) error { return c.pin(ctx, b.Key, p) },
		Denied: func(d denial) {
			c.report(&egress.Report{Denied: &egress.Denied{Key: b.Key, Reason: string(d.Reason), Asked: d.Asked, Addresses: d.Addresses, Port: d.Port, Setting: d.Setting}})
		},
	}
}

func (c *control) change(b *egress.Box) error {
	rules, err := b.Compile()
	if err != nil {
		rules = nil // better no rules than old ones
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if served := c.boxes[b.Key]; served != nil {
		served.rules.Store(rules)
		if served.proxy != nil {
			served.proxy.closeConns() // the kernel does too, but only once a connection sends something
		}
	}
	return err
}

// remove stops serving a box, and returns when its sockets are closed.
func (c *control) remove(key string) {
	c.mu.Lock()
	served := c.boxes[key]
	delete(c.boxes, key)
	c.mu.Unlock()
	if served != nil {
		served.cancel()
		<-served.done
	}
}

// pin asks boxd to allow addresses and waits for its answer.
func (c *control) pin(ctx context.Context, key string, p pinRequest) error {
	answer := make(chan error, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.pins[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pins, id)
		c.mu.Unlock()
	}()
	c.report(&egress.Report{Pin: &egress.Pin{ID: id, Key: key, Name: p.Name, Seconds: int64(p.TTL / time.Second), Addresses: p.Addresses}})
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *control) pinned(p *egress.Pinned) {
	c.mu.Lock()
	answer := c.pins[p.ID]
	delete(c.pins, p.ID)
	c.mu.Unlock()
	if answer == nil {
		return // the wait has timed out
	}
	var err error
	if p.Error != "" {
		err = errors.New(p.Error)
	}
	answer <- err
}

// report sends a message to boxd. If that does not receive, the connection ends soon, and this
// program with it.
func (c *control) report(r *egress.Report) {
	body, err := egress.Encode(r)
	if err == nil {
		err = c.conn.Send(body)
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		c.log.Printf("cannot report to boxd: %v", err)
	}
}
