// SPDX-License-Identifier: Apache-2.0

// The server checks its own health through a listener in memory, for systemd's watchdog.

package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// SelfListener is a listener that only the program itself connects to. Its connections are served like any others, and
// take no descriptor: a full descriptor table is no reason to restart boxd, since the next one would fill it in the same
// way.
type SelfListener struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

// newSelfListener returns a SelfListener. Close ends all its callers' waits.
func newSelfListener() *SelfListener {
	m := &SelfListener{conns: make(chan net.Conn), done: make(chan struct{})}
	m.close = sync.OnceFunc(func() { close(m.done) })
	return m
}

// Accept waits for hand.
func (m *SelfListener) Accept() (net.Conn, error) {
	select {
	case conn := <-m.conns:
		return conn, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and hand.
func (m *SelfListener) Close() error {
	m.close()
	return nil
}

// Addr returns a placeholder address.
func (m *SelfListener) Addr() net.Addr { return &net.UnixAddr{Name: "mirror", Net: "unix"} }

// hand makes Accept return the far end of a connection.
func (m *SelfListener) hand(ctx context.Context, far net.Conn) error {
	select {
	case m.conns <- far:
		return nil
	case <-m.done:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxAnswer is how much of a response is read.
const maxAnswer = 64 << 10

// Check requests a path from the server that accepts from m, as any client does.
func (m *SelfListener) Check(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://boxd"+path, nil)
	if err != nil {
		return fmt.Errorf("self-check: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		far, near := net.Pipe()
		return near, m.hand(ctx, far)
	}}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("self-check: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err != nil {
		return fmt.Errorf("self-check: %w", err)
	}
	return nil
}
