// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// halfCloseTimeout is how long the server may go on sending after the box has ended its direction.
const halfCloseTimeout = time.Hour

// accessDenied is a fatal alert, access_denied.
const accessDenied = "\x15\x03\x03\x00\x02\x02\x31"

// tls forwards a connection whose ClientHello names a server that is allowed. handled means that
// the connection is to a host that has secrets, and that its server closes it.
func (s *proxyServer) tls(ctx context.Context, c *client) (handled bool) {
	if c.SetReadDeadline(time.Now().Add(s.proxy.cfg.Hello)) != nil {
		return false
	}
	r := bufio.NewReaderSize(c.Conn, recordHead+1<<12)
	records, server, err := readHello(r)
	if err != nil && (len(records) == 0 && r.Buffered() == 0) { // nothing was sent
		return false
	}
	t, ok := proxyTarget{}, false
	if err != nil {
		detail := ""
		if errors.Is(err, errEncrypted) {
			detail = err.Error()
		}
		s.denyNameless(detail, c.to)
	} else {
		t, ok = s.permit(server, c.to)
	}
	if ok && s.terminateTLS(ctx, c, r, records, t) {
		return true
	}
	var up net.Conn
	if ok {
		up, err = s.dial(ctx, t)
	}
	if !ok || errors.Is(err, errNotLed) {
		_, _ = c.Write([]byte(accessDenied))
	}
	if up == nil {
		return false
	}
	defer up.Close()
	c.setUpstream(up)
	if c.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	if _, err := up.Write(records); err == nil {
		s.forward(c, r, up, server)
	}
	return false
}

// forward copies bytes in both directions, and the end of each, until both have ended or one has
// failed.
func (s *proxyServer) forward(c *client, r *bufio.Reader, up net.Conn, server string) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if s.send(up, r, c, server) != nil || closeWrite(up) != nil {
			up.Close()
			_ = c.Close()
			return
		}
		_ = up.SetReadDeadline(time.Now().Add(halfCloseTimeout))
	})
	wg.Go(func() {
		if _, err := io.Copy(c.Conn, up); err != nil || closeWrite(c.Conn) != nil {
			up.Close()
			_ = c.Close()
		}
	})
	wg.Wait()
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// send forwards what the box sends after its hello. A server may ask for a second hello, which
// could name another host: it must name the same one. A second hello is the only later message
// that begins in this way and is not encrypted; once the box has sent any other handshake
// message, none can follow.
func (s *proxyServer) send(up io.Writer, r *bufio.Reader, c *client, server string) error {
	for {
		head, err := r.Peek(recordHead + 1)
		if err != nil {
			break // less than a record: the end, or an error that the copy below meets again
		}
		if head[0] != typeHandshake {
			n := recordHead + int64(binary.BigEndian.Uint16(head[3:]))
			if _, err := io.CopyN(up, r, n); err != nil {
				return err
			}
			continue
		}
		if head[recordHead] != typeClientHello {
			break
		}
		records, again, err := readHello(r)
		if err != nil || !strings.EqualFold(again, server) {
			s.denyNameless(again, c.to)
			return errNoHello
		}
		if _, err := up.Write(records); err != nil {
			return err
		}
	}
	_, err := io.Copy(up, r)
	return err
}
