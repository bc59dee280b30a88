// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"os"
	"time"
)

// errIdle is the error of a listener that stops because its server is idle.
var errIdle = errors.New("it is idle")

// idleListener stops when its server has been idle for long enough. It decides that between calls of accept, so a
// connection that comes at that moment is not lost: it waits in the socket for the next boxd.
type idleListener struct {
	*net.UnixListener
	Idle  func() bool   // counts all connections that Accept has returned
	After time.Duration // idle time
	since time.Time     // for Accept only: when the server was first seen idle; zero: it is not
}

// checks is how often it checks within After.
const checks = 4

// Accept returns the next connection, or errIdle.
func (l *idleListener) Accept() (net.Conn, error) {
	for {
		if err := l.SetDeadline(time.Now().Add(l.After / checks)); err != nil {
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
