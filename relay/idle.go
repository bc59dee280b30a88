// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"os"
	"time"
)

// errIdle is the end of a listener that nobody needs.
var errIdle = errors.New("nobody needs it")

// IdleListener gives up when its server has been idle for long enough. It decides when it accepts nothing, so a
// connection that comes in that moment is not taken: it waits in the socket for the next boxd.
type IdleListener struct {
	*net.UnixListener
	Idle  func() bool   // with all connections counted that Accept has returned
	After time.Duration // of being idle
	since time.Time     // of Accept alone: when it was first seen that the server is idle; zero: it is not
}

// looks is how often in that time it looks.
const looks = 4

// Accept returns the next connection, or ErrIdle.
func (l *IdleListener) Accept() (net.Conn, error) {
	for {
		if err := l.SetDeadline(time.Now().Add(l.After / looks)); err != nil {
			return nil, err
		}
		conn, err := l.UnixListener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			l.since = time.Time{}
			return conn, err
		}
		switch now := time.Now(); {
		case !l.Idle():
			l.since = time.Time{}
		case l.since.IsZero():
			l.since = now
		case now.Sub(l.since) >= l.After:
			return nil, errIdle
		}
	}
}
