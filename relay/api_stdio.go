// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// stdioProcess passes the descriptors of a direct process to the caller: the connection serves only that, and ends
// afterwards.
func stdioProcess(c *Call) (any, error) {
	_, p, err := c.usedProcess()
	if err != nil {
		return nil, err
	}
	if err := wantsUpgrade(c.R, api.StdioProtocol); err != nil {
		return nil, err
	}
	conn := c.Socket
	if conn == nil {
		return nil, fault.Errorf(fault.Unsupported, "descriptors can only be passed over a Unix socket").
			WithHint("connect over the Unix socket of boxd, or start the process without stdio = \"direct\"")
	}
	files, err := p.TakeStdio(c.Context())
	if err != nil {
		return nil, err
	}
	defer func() { // boxd's copies: the caller has its own, or the program sees them closed
		for _, f := range files {
			f.Close()
		}
	}()
	c.Streams.Add(1)
	defer c.Streams.Done()
	hijacked, _, err := http.NewResponseController(c.W).Hijack()
	if err != nil {
		return nil, fmt.Errorf("stdio: %w", err)
	}
	defer hijacked.Close()
	defer context.AfterFunc(c.Context(), func() { _ = conn.Close() })() // also while the caller does not read
	if err := sendStdio(conn, files, time.Now().Add(c.Answers)); err != nil {
		c.Log.Warn("cannot pass descriptors", "session", c.Path.Session, "process", c.Path.Process, "error", err)
	}
	return nil, nil //nolint:nilnil // it has been sent
}

// stdioHead is the response head that precedes the descriptors.
const stdioHead = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + api.StdioProtocol + "\r\n\r\n"

// sendStdio sends the response head, and the descriptors with one byte.
func sendStdio(conn *net.UnixConn, files []*os.File, until time.Time) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := conn.SetWriteDeadline(until); err != nil {
		return err
	}
	_, err := conn.Write([]byte(stdioHead))
	if err == nil {
		_, _, err = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil)
	}
	if errors.Is(err, unix.EPIPE) {
		return errors.New("the caller has gone")
	}
	return err
}
