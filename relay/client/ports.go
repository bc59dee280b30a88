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
	// CloseWrite tells the box that nothing more will be sent.
	CloseWrite() error
}

var errNotPort = errors.New("boxd did not open a connection")

// port returns the route of a port of a session.
func (c *Client) port(session string, port uint16, rest string) target {
	return c.session(session, "/ports/"+strconv.Itoa(int(port))+rest, nil)
}

// OpenPort connects to a loopback port of a session's box. The caller must close the connection.
func (c *Client) OpenPort(ctx context.Context, session string, port uint16) (PortConn, error) {
	body, err := c.open(ctx, http.MethodGet, c.port(session, port, "/stream"), nil, "Connection", "Upgrade", "Upgrade", api.PortProtocol)
	if err != nil {
		return nil, err
	}
	conn, ok := body.(PortConn)
	if !ok { // net/http returns one only for a 101 response
		body.Close()
		return nil, errNotPort
	}
	return conn, nil
}

// PreviewPort makes a token for a preview of a port, valid for a lifetime such as "15m", or with "" for the default.
func (c *Client) PreviewPort(ctx context.Context, session string, port uint16, lifetime string) (api.PortToken, error) {
	return request[api.PortToken](ctx, c, http.MethodPost, c.port(session, port, "/token"), &api.PortTokenRequest{Lifetime: lifetime})
}
