// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// newServer returns the proxy server of a box.
func (c *control) newServer(b *egress.Box, served *servedBox, asks *resolverBox) *proxyServer {
	return c.proxy.Open(&proxyBox{
		Rules: served.rules.Load, Secrets: func() *secretSet { return c.set(b.Key) },
		Dial: func(ctx context.Context, t proxyTarget) (net.Conn, error) { return c.dial(ctx, b.Key, t) },
		Find: func(ctx context.Context, name egress.Name, ipv6 bool) bool {
			return c.resolver.find(ctx, asks, name, ipv6)
		},
		Denied: asks.Denied,
	})
}

// dialed is an answer of boxd.
type dialed struct {
	conn net.Conn
	err  error
}

// dial asks boxd for a connection and waits until it is established.
func (c *control) dial(ctx context.Context, key string, t proxyTarget) (net.Conn, error) {
	answer := make(chan dialed, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.dials[id] = answer
	c.mu.Unlock()
	c.report(&egress.Report{Dial: &egress.Dial{ID: id, Key: key, Name: t.Name, To: t.To}})
	select {
	case d := <-answer:
		if d.err != nil {
			return nil, d.err
		}
		return connected(ctx, d.conn)
	case <-ctx.Done():
	}
	c.mu.Lock()
	_, waits := c.dials[id]
	delete(c.dials, id)
	c.mu.Unlock()
	if !waits { // the answer came meanwhile, and must be closed here
		if d := <-answer; d.conn != nil {
			d.conn.Close()
		}
	}
	return nil, ctx.Err()
}

// dialed delivers a connection that is being established. It takes over the files.
func (c *control) dialed(m *egress.Dialed, files []int) {
	c.mu.Lock()
	answer := c.dials[m.ID]
	delete(c.dials, m.ID)
	c.mu.Unlock()
	if answer == nil { // the wait has timed out
		fdpass.CloseAll(files)
		return
	}
	answer <- connecting(m, files)
}

func connecting(m *egress.Dialed, files []int) dialed {
	switch {
	case m.NotLed:
		fdpass.CloseAll(files)
		return dialed{err: errNotLed}
	case m.Error != "" || len(files) != 1:
		fdpass.CloseAll(files)
		return dialed{err: fmt.Errorf("no connection: %s", m.Error)}
	}
	f := os.NewFile(uintptr(files[0]), "tcp")
	defer f.Close()
	conn, err := net.FileConn(f)
	return dialed{conn, err}
}

// aliveEvery is the keep-alive interval for connections to servers.
const aliveEvery = time.Minute

// connected waits until a connection is established, and closes it if that fails.
func connected(ctx context.Context, conn net.Conn) (net.Conn, error) {
	err := awaited(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func awaited(ctx context.Context, conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetWriteDeadline(time.Unix(1, 0)) })
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		if n, serr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); serr != nil || n != 0 {
			failed = errors.Join(serr, unix.Errno(n))
			return true
		}
		_, perr := unix.Getpeername(int(fd))
		return perr == nil // an error here means that it is still connecting
	})
	if !stop() { // ctx ended meanwhile
		return errors.Join(failed, context.Cause(ctx))
	}
	return errors.Join(err, failed, tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: aliveEvery, Interval: aliveEvery / 4, Count: 4}))
}
