// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

// frames is the connection below a WebSocket. The library reads from it, and writes pings, pongs and closes. Messages
// bypass the library: a server's message is a header and the plain payload (RFC 6455, 5.2); written in one call it saves
// a copy, and a wake-up of its reader.
type frames struct {
	net.Conn
	raw syscall.RawConn // nil: it has no descriptor

	mu   sync.Mutex // one frame at a time
	torn error      // a frame was not written completely, so none can follow
}

// accept is websocket.Accept that also returns the connection below it.
func accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, *frames, error) {
	u := &upgrade{ResponseWriter: w}
	// A browser cannot reach a Unix socket of the host; on any other socket the Origin must be the host.
	ws, err := websocket.Accept(u, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, Subprotocols: []string{api.StreamForget}})
	return ws, u.conn, err
}

// upgrade inserts frames below the hijacked connection.
type upgrade struct {
	http.ResponseWriter
	conn *frames
}

// maxControl is the longest control frame of a server.
const maxControl = 2 + 125

// Hijack is called by the library.
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.conn = &frames{Conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		if u.conn.raw, err = c.SyscallConn(); err != nil {
			conn.Close()
			return nil, nil, err
		}
	}
	rw.Writer = bufio.NewWriterSize(u.conn, maxControl) // so that each frame is one Write
	return u.conn, rw, nil
}

// Write writes a control frame.
func (f *frames) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.torn != nil {
		return 0, f.torn
	}
	n, err := f.Conn.Write(p)
	f.torn = err
	return n, err
}

// Read returns a network error at the end of the connection, as peerConn does, also if TLS has reported the end.
func (f *frames) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = &net.OpError{Op: "read", Net: "tcp", Err: errHungUp}
	}
	return n, err
}

// send writes a binary message of several parts, and waits until the socket has room for it. If ctx cuts it short, no
// message can follow.
func (f *frames) send(ctx context.Context, parts ...[]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.torn != nil {
		return f.torn
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	f.torn = f.write(append([][]byte{frameHeader(size)}, parts...))
	if f.torn != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return f.torn
}

// frameHeader returns the header of an unmasked binary message of one frame.
func frameHeader(size int) []byte {
	h := []byte{0x82, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	switch {
	case size < 126:
		h[1] = byte(size)
		return h[:2]
	case size < 1<<16:
		h[1] = 126
		binary.BigEndian.PutUint16(h[2:], uint16(size))
		return h[:4]
	default:
		h[1] = 127
		binary.BigEndian.PutUint64(h[2:], uint64(size))
		return h
	}
}

// write writes all buffers, in one call if the socket takes them.
func (f *frames) write(bufs net.Buffers) error {
	if f.raw == nil {
		_, err := bufs.WriteTo(f.Conn)
		return err
	}
	var failed error
	err := f.raw.Write(func(fd uintptr) bool {
		for len(bufs) > 0 {
			n, err := unix.Writev(int(fd), bufs)
			switch err {
			case nil:
				bufs = skip(bufs, n)
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				failed = err
				return true
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return failed
}

// skip returns what is left of buffers after n bytes.
func skip(bufs net.Buffers, n int) net.Buffers {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if len(bufs) > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
