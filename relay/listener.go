// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"net"
)

// Seats is a listener whose connections have seats, as long as they are open.
func (c *ConnLimiter) Seats(ln net.Listener) net.Listener { return seatListener{ln, c} }

type seatListener struct {
	net.Listener
	callers *ConnLimiter
}

// seatConn is a connection that has a seat.
type seatConn struct {
	net.Conn
	seat *Seat
}

// Accept returns the next connection; one too many is turned away.
func (l seatListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		seat, refused := l.callers.Sit(func() { conn.Close() })
		if refused != nil {
			l.callers.TurnAway(conn, refused)
			continue
		}
		return seatConn{conn, seat}, nil
	}
}

// Close gives the seat up.
func (c seatConn) Close() error {
	c.seat.Leave()
	return c.Conn.Close()
}

// WithSeatOf puts the seat of a connection that Seats has accepted into the context of its requests.
func WithSeatOf(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(seatConn); ok {
		return WithSeat(ctx, c.seat)
	}
	return ctx
}
