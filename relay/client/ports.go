// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/boxd-dev/boxd/relay/api"
)

// PortConn is a connection to a port of a box.
type PortConn interface {
	io.ReadWriteCloser
	// CloseWrite says that nothing more is said to the box.
	CloseWrite() error
}

var errNotPort = errors.New("boxd did not open a connection")

// port is the route of a port of a session.
func (c *Client) port(session string, port uint16, rest string) target {
	return c.session(session, "/ports/"+strconv.Itoa(int(port))+rest, nil)
}

// OpenPort connects to a port at the loopback of a session's box. The connection is the caller's to close.
func (c *Client) OpenPort(ctx context.Context, session string, port uint16) (PortConn, error) {
	body, err := c.open(ctx, http.MethodGet, c.port(session, port, "/stream"), nil, "Connection", "Upgrade", "Upgrade", api.PortProtocol)
	if err != nil {
		return nil, err
	}
	conn, ok := body.(PortConn)
	if !ok { // net/http has it for an answer 101 alone
		body.Close()
		return nil, errNotPort
	}
	return conn, nil
}

// PreviewPort makes a token for a preview of a port, which holds for a time, "15m", or with "" the usual one.
func (c *Client) PreviewPort(ctx context.Context, session string, port uint16, lifetime string) (api.PortToken, error) {
	return ask[api.PortToken](ctx, c, http.MethodPost, c.port(session, port, "/token"), &api.PortTokenRequest{Lifetime: lifetime})
}
