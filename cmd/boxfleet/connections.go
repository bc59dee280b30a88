// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/boxd-dev/boxd/relay/conns"
)

// How many connections one caller of a gateway may have, and all together.
const (
	callerConnections = 512
	allConnections    = 4096
)

// counted accepts connections, each of which is a stranger's until a request on it says whose it is, see conns.Slot.
type counted struct {
	net.Listener
	callers *conns.Limiter
}

// Accept returns the next connection that has a place.
func (l counted) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		slot, refused := l.callers.Admit(func() { conn.Close() })
		if refused == nil {
			return &countedConn{Conn: conn, slot: slot, release: sync.OnceFunc(slot.Leave)}, nil
		}
		l.callers.TurnAway(conn, refused)
	}
}

// countedConn is a connection with a place, which it leaves when it is closed.
type countedConn struct {
	net.Conn
	slot    *conns.Slot
	release func()
}

// Close makes room for another.
func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, and goes on receiving.
func (c *countedConn) CloseWrite() error {
	return c.Conn.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // the listener is of TCP
}

// withSlot puts the place of a connection, which may be by TLS, into the context of its requests.
func withSlot(ctx context.Context, conn net.Conn) context.Context {
	if byTLS, ok := conn.(*tls.Conn); ok {
		conn = byTLS.NetConn()
	}
	if c, ok := conn.(*countedConn); ok {
		return conns.WithSlot(ctx, c.slot)
	}
	return ctx
}
