// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// streamPort turns the connection of a request into a connection to a port of a box.
func streamPort(c *Call) (any, error) {
	port, err := session.ParsePort(c.Path.Port)
	if err != nil {
		return nil, err
	}
	s, err := c.session()
	if err == nil {
		err = wantsUpgrade(c.R, api.PortProtocol)
	}
	if err != nil {
		return nil, err
	}
	release, err := c.Limits.Stream()
	if err != nil {
		return nil, err
	}
	defer release()
	c.Streams.Add(1)
	defer c.Streams.Done()
	box, err := c.Sup.Ports.Open(c.Context(), s, port)
	if err != nil {
		return nil, err
	}
	defer func() { _ = box.Close() }()
	caller, sent, err := http.NewResponseController(c.W).Hijack()
	if err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	defer caller.Close()
	defer context.AfterFunc(c.Context(), func() { caller.Close() })() // also while it does not read the head
	if caller.SetDeadline(time.Time{}) != nil {
		return nil, nil //nolint:nilnil // it is closed, as below
	}
	if _, err := caller.Write([]byte(portHead)); err != nil {
		return nil, nil //nolint:nilnil // the caller has gone
	}
	// Not with the reader of net/http, which ends with the request.
	first, _ := sent.Peek(sent.Reader.Buffered()) // they are buffered
	carry(c.Context(), caller, io.MultiReader(bytes.NewReader(first), caller), box)
	return nil, nil //nolint:nilnil // it has been sent
}

// portHead is the response head that precedes the bytes of the box.
const portHead = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + api.PortProtocol + "\r\n\r\n"

// linger is how long the box may be silent once the caller has sent everything.
const linger = time.Minute

// carry copies in both directions until both have ended, or ctx has. A caller that has closed its sending side may still receive.
func carry(ctx context.Context, caller net.Conn, sent io.Reader, box *session.PortConn) {
	defer context.AfterFunc(ctx, func() {
		caller.Close()
		_ = box.Close()
	})()
	sentAll := make(chan struct{})
	go func() { // ends with either connection
		defer close(sentAll)
		_, err := io.Copy(box, sent)
		if up := (*net.OpError)(nil); err != nil && !errors.As(err, &up) {
			caller.Close() // the box cannot be woken: nothing must wait for it
		}
		if hungUp(caller) {
			_ = box.Close()
			return
		}
		_ = box.CloseWrite()
		_ = box.SetReadDeadline(time.Now().Add(linger))
	}()
	_, _ = io.Copy(caller, struct{ io.Reader }{lingering{box, sentAll}}) // errors do not matter here
	if half, ok := caller.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		caller.Close()
	}
	// The box has sent everything. What the caller still sends is delivered as long as the box reads.
	select {
	case <-sentAll:
	case <-time.After(linger):
	}
	caller.Close()
	_ = box.Close()
	<-sentAll
}

// hungUp reports whether a caller that has closed its sending side does not receive either. For a Unix socket the kernel
// knows at once, for others only when something is sent.
func hungUp(caller net.Conn) bool {
	conn, ok := caller.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	_ = raw.Control(func(fd uintptr) { // if it is closed, closed stays true
		poll := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(poll, 0)
		closed = err == nil && poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return closed
}

// lingering renews the read deadline with everything that the box sends, once the caller has sent everything.
type lingering struct {
	*session.PortConn
	sentAll <-chan struct{}
}

// Read reads from the box.
func (l lingering) Read(p []byte) (int, error) {
	n, err := l.PortConn.Read(p)
	select {
	case <-l.sentAll:
		_ = l.SetReadDeadline(time.Now().Add(linger))
	default:
	}
	return n, err
}
