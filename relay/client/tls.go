// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// TLS configures how server and client are authenticated over TLS. Its files (PEM) are read for each connection.
type TLS struct {
	CA          string // of authorities for server certificates; "": those of the host
	Certificate string // of the client; "": none
	Key         string // of the certificate; "": it is in the same file
}

// withPort adds the port of https to an address without a port.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return net.JoinHostPort(address, "443")
	}
	return address
}

// handshake starts TLS on a connection.
func (t *TLS) handshake(ctx context.Context, conn net.Conn, socket, address string) (net.Conn, error) {
	config, err := t.config(address)
	if err != nil {
		conn.Close()
		return nil, &ConnectError{Socket: socket, Err: err}
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &ConnectError{Socket: socket, Err: t.explain(err)}
	}
	return tlsConn{secure, t, socket}, nil
}

func (t *TLS) config(address string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("CA certificates: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("CA certificates: %s has no certificate (PEM)", t.CA)
		}
	}
	key := t.Key
	if key == "" {
		key = t.Certificate
	}
	if key == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(t.Certificate, key)
	if err != nil {
		return nil, fmt.Errorf("the client certificate %s with the key %s: %w", t.Certificate, key, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// explain says what is wrong with a certificate of either end.
func (t *TLS) explain(err error) error {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return errors.New("the server does not speak TLS: the address must begin with http://")
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		trusted := "that this host trusts"
		if t.CA != "" {
			trusted = "in " + t.CA
		}
		return fmt.Errorf("the certificate of the server is not signed by an authority %s: %w", trusted, err)
	}
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		if t.Certificate == "" {
			return fmt.Errorf("the server ends the connection: %w", alert.Err)
		}
		return fmt.Errorf("the server does not accept the client certificate %s: %w", t.Certificate, alert.Err)
	}
	return err
}

// tlsConn is a TLS connection. A client learns that its certificate is refused only after it has sent its request.
type tlsConn struct {
	*tls.Conn
	files  *TLS
	socket string
}

// Read reads, and explains why the server has refused the client.
func (c tlsConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		err = &ConnectError{Socket: c.socket, Err: c.files.explain(err)}
	}
	return n, err
}
