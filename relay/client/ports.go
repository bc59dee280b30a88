// SPDX-License-Identifier: Apache-2.0

// This file is the part of boxd's client that is about ports of boxes.

package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// PortConn is a connection to a port of a box.
type PortConn interface {
	io.ReadWriteCloser
	// CloseWrite says that nothing more is said to the box.
	CloseWrite() error
}

var errNotPort = errors.New("the answer of boxd is no connection")

// portPath is that of a request about a port.
func portPath(c *Client, session string, port uint16, rest string) (string, error) {
	if session == "" {
		return "", ErrNoID
	}
	p := "/v1/sessions/" + strings.ReplaceAll(url.PathEscape(session), ".", "%2E") + "/ports/" + strconv.Itoa(int(port)) + rest
	if c.Owner != "" {
		p += "?owner=" + url.QueryEscape(c.Owner)
	}
	return p, nil
}

// OpenPort connects to a port at the loopback of a session's box. The connection is the caller's to close.
func OpenPort(ctx context.Context, c *Client, session string, port uint16) (PortConn, error) {
	p, err := portPath(c, session, port, "/stream")
	if err != nil {
		return nil, err
	}
	body, err := c.Open(ctx, http.MethodGet, p, nil, "Connection", "Upgrade", "Upgrade", api.PortProtocol)
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
func PreviewPort(ctx context.Context, c *Client, session string, port uint16, lifetime string) (t api.PortToken, err error) {
	p, err := portPath(c, session, port, "/token")
	if err == nil {
		_, err = c.Ask(ctx, http.MethodPost, p, &api.PortTokenRequest{Lifetime: lifetime}, &t)
	}
	return t, err
}
