// SPDX-License-Identifier: Apache-2.0

// Package fdpass carries messages together with file descriptors over a Unix SEQPACKET socket.
//
// The socket preserves message boundaries, so there is no framing to get wrong. Two layers share
// the code: Send and Recv work on a bare descriptor (PID 1 of a box drives them from its own
// epoll loop), Conn works through the Go poller and has deadlines (boxd and the keeper).
package fdpass

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// MaxInline is the largest message body sent in the socket itself, in bytes. It is well under
	// the default socket buffer (net.core.wmem_default, 208 KiB on Linux): a larger SEQPACKET
	// message would be EMSGSIZE on a host with small buffers.
	MaxInline = 64 << 10
	// MaxBody is the largest body of all, in bytes; beyond MaxInline it is sent in a sealed
	// memfd.
	MaxBody = 8 << 20
	// maxFiles is the largest number of descriptors that the kernel allows in one message
	// (SCM_MAX_FD in unix(7)); one of them is for the body.
	maxFiles = 253
)

// The first byte of a packet says where the body is.
const (
	bodyInline byte = 'i'
	bodyMemfd  byte = 'm' // the first descriptor is a memfd with the body
)

// Errors of a malformed or oversized message. After one of them the connection is unusable.
var (
	ErrTooLarge  = errors.New("message too large")
	ErrMalformed = errors.New("malformed message")
)

// ErrNoRoom means that a message has lost its descriptors, because this process has too many open
// (EMFILE). Its body is there, and the connection can still be used.
var ErrNoRoom = errors.New("no room for descriptors")

const memfdSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// Send sends one message on socket fd. Descriptors stay the caller's. With a non-blocking socket it returns EAGAIN when the
// peer's queue is full; nothing was sent then. If the kernel lacks memory for the message it retries for a second, since the peer
// would wait for a lost message.
func Send(fd int, body []byte, files ...int) error {
	return persist(func() error { return send(fd, 0, body, files) })
}

// How often a message is retried for lack of memory: after 1, 2, 4… ms, a second in all.
const tries = 10

// persist calls f again while it fails for lack of kernel memory. There is no event to wait for.
func persist(f func() error) error {
	for wait, left := 1, tries; ; wait, left = 2*wait, left-1 {
		err := f()
		if left == 0 || !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) {
			return err
		}
		_, _ = unix.Poll(nil, wait)
	}
}

// SendNow is Send, but returns EAGAIN instead of waiting for the peer to receive.
func SendNow(fd int, body []byte, files ...int) error {
	return send(fd, unix.MSG_DONTWAIT, body, files)
}

func send(fd, flags int, body []byte, files []int) error {
	if len(body) > MaxBody || len(files) >= maxFiles {
		return ErrTooLarge
	}
	kind := bodyInline
	if len(body) > MaxInline {
		m, err := BytesFile("message", body)
		if err != nil {
			return err
		}
		defer unix.Close(m)
		kind, body, files = bodyMemfd, nil, append([]int{m}, files...)
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	head := [1]byte{kind}
	for {
		_, err := unix.SendmsgBuffers(fd, [][]byte{head[:], body}, rights, nil, unix.MSG_NOSIGNAL|flags)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Buffer is the memory that one receiver reads into; it is reused for each message.
type Buffer struct {
	data []byte
	oob  []byte
}

// NewBuffer returns a buffer for bodies of up to size bytes, at most MaxInline. A longer message
// is ErrMalformed, so a peer with short messages needs only a small buffer.
func NewBuffer(size int) *Buffer {
	return &Buffer{
		data: make([]byte, 1+min(size, MaxInline)),
		oob:  make([]byte, unix.CmsgSpace(maxFiles*4)),
	}
}

// Buffers is a pool for many connections, of which few receive at a time.
type Buffers struct{ pool sync.Pool }

// NewBuffers returns buffers for bodies of up to size bytes.
func NewBuffers(size int) *Buffers {
	return &Buffers{sync.Pool{New: func() any { return NewBuffer(size) }}}
}

func (b *Buffers) take() *Buffer {
	return b.pool.Get().(*Buffer) //nolint:forcetypeassert // nothing else is in there
}

// Recv receives one message. The body is valid until the next Recv with the same buffer; the
// descriptors are close-on-exec and become the caller's. It returns io.EOF when the peer is gone.
// On ErrNoRoom there is a body and no descriptor. With inlineOnly a body outside the packet is
// refused: that is for peers that are not trusted to pass a file that we would read.
func Recv(fd int, b *Buffer, inlineOnly bool) (body []byte, files []int, err error) {
	n, oobn, flags, err := recvmsg(fd, b)
	if err != nil {
		return nil, nil, err
	}
	files, err = parseRights(b.oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		CloseAll(files)
		return nil, nil, io.EOF
	}
	return open(b.data[:n], flags, files, inlineOnly)
}

func recvmsg(fd int, b *Buffer) (n, oobn, flags int, err error) {
	for {
		n, oobn, flags, _, err = unix.Recvmsg(fd, b.data, b.oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ECONNRESET) {
			return 0, 0, 0, nil // the peer closed without reading our bytes: it is gone
		}
		return n, oobn, flags, err
	}
}

// open returns the body of a packet. After an error it has closed every descriptor.
func open(packet []byte, flags int, files []int, inlineOnly bool) ([]byte, []int, error) {
	switch {
	case flags&unix.MSG_TRUNC != 0:
	case flags&unix.MSG_CTRUNC != 0 && packet[0] == bodyInline:
		CloseAll(files)
		return packet[1:], nil, ErrNoRoom
	case flags&unix.MSG_CTRUNC != 0:
	case packet[0] == bodyInline:
		return packet[1:], files, nil
	case packet[0] == bodyMemfd && !inlineOnly && len(packet) == 1 && len(files) > 0:
		body, err := readSealed(files[0])
		if err == nil {
			unix.Close(files[0])
			return body, files[1:], nil
		}
	}
	CloseAll(files)
	return nil, nil, ErrMalformed
}

func parseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, ErrMalformed
	}
	var files []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // other control messages contain nothing to close
		}
		files = append(files, fds...)
	}
	return files, nil
}

// readSealed reads a memfd whose size can no longer change, so that the length check holds.
func readSealed(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&memfdSeals != memfdSeals {
		return nil, ErrMalformed
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size <= MaxInline || st.Size > MaxBody {
		return nil, ErrMalformed
	}
	body := make([]byte, st.Size)
	for off := 0; off < len(body); {
		n, err := unix.Pread(fd, body[off:], int64(off))
		if err != nil || n == 0 {
			return nil, ErrMalformed
		}
		off += n
	}
	return body, nil
}

// BytesFile returns a close-on-exec memfd that contains data, sealed against any further change
// and positioned at its start. The descriptor is the caller's.
func BytesFile(name string, data []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	for off := 0; off < len(data); {
		n, err := unix.Pwrite(fd, data[off:], int64(off))
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		off += n
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memfdSeals); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// CloseAll closes descriptors that came with an unwanted message.
func CloseAll(files []int) {
	for _, fd := range files {
		unix.Close(fd)
	}
}
