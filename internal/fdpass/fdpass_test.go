// SPDX-License-Identifier: Apache-2.0

package fdpass_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// pair returns two Conns connected to each other.
func pair(t *testing.T) (a, b *fdpass.Conn) {
	t.Helper()
	a, fd, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	b, err = fdpass.FromFD(fd, fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestMessagesKeepTheirBoundariesAndDescriptors(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, size := range []int{0, 1, fdpass.MaxInline, fdpass.MaxInline + 1, fdpass.MaxBody} {
		body := bytes.Repeat([]byte{'x'}, size)
		if err := a.Send(body, int(w.Fd())); err != nil {
			t.Fatalf("send %d: %v", size, err)
		}
		got, files, err := b.Recv(false)
		if err != nil || !bytes.Equal(got, body) || len(files) != 1 {
			t.Fatalf("recv %d: %d bytes, files %v, %v", size, len(got), files, err)
		}
		flags, err := unix.FcntlInt(uintptr(files[0]), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Fatalf("descriptor not close-on-exec: flags = %v, err = %v, want no error and flags & unix.FD_CLOEXEC != 0",
				flags, err)
		}
		unix.Write(files[0], []byte{'!'})
		unix.Close(files[0])
		one := make([]byte, 1)
		if _, err := io.ReadFull(r, one); err != nil || one[0] != '!' {
			t.Fatalf("the descriptor is not the one sent: one = %q, err = %v, want no error and one[0] == '!'",
				one, err)
		}
	}
	if err := a.Send(make([]byte, fdpass.MaxBody+1)); !errors.Is(err, fdpass.ErrTooLarge) {
		t.Fatalf("oversized send: err = %v, want err is fdpass.ErrTooLarge", err)
	}
}

func TestUntrustedPeerCannotHandOverABody(t *testing.T) { // not parallel: it counts descriptors
	a, b := pair(t)
	if err := a.Send(make([]byte, fdpass.MaxInline+1)); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	if _, _, err := b.Recv(true); !errors.Is(err, fdpass.ErrMalformed) {
		t.Fatalf("recv: err = %v, want err is fdpass.ErrMalformed", err)
	}
	if after := openFiles(t); after > before {
		t.Fatalf("descriptors leaked: %d before, %d after", before, after)
	}
}

func TestUnsealedBodyIsRefused(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, fdpass.MaxInline+1); err != nil {
		t.Fatal(err)
	}
	raw, err := a.Take()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	if err := unix.Sendmsg(raw, []byte{'m'}, unix.UnixRights(fd), nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Recv(false); !errors.Is(err, fdpass.ErrMalformed) {
		t.Fatalf("recv: err = %v, want err is fdpass.ErrMalformed", err)
	}
}

func TestEndOfPeerIsEOF(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.Close()
	if _, _, err := b.Recv(false); !errors.Is(err, io.EOF) {
		t.Fatalf("recv: err = %v, want err is io.EOF", err)
	}
}

func TestRecvContextEndsAndLeavesTheConnUsable(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, _, err := b.RecvContext(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("recv: err = %v, want err is context.DeadlineExceeded", err)
	}
	if err := a.Send([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if body, _, err := b.RecvContext(t.Context(), false); err != nil || string(body) != "late" {
		t.Fatalf(`recv: body = %q, err = %v, want no error and body == "late"`, body, err)
	}
}

// FuzzPacket feeds arbitrary packets to the receiver: it accepts or refuses each, and leaves no
// descriptor open after a refusal.
func FuzzPacket(f *testing.F) {
	f.Add([]byte("ihello"), false)
	f.Add([]byte("m"), true)
	f.Add([]byte("mx"), true)
	f.Add([]byte{}, true)
	f.Add([]byte{0xff}, false)
	f.Fuzz(func(t *testing.T, packet []byte, withFile bool) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[0])
		defer unix.Close(fds[1])
		var rights []byte
		if withFile {
			rights = unix.UnixRights(fds[0])
		}
		if len(packet) > fdpass.MaxInline+2 || unix.Sendmsg(fds[0], packet, rights, nil, 0) != nil {
			return // the kernel does not send this packet
		}
		body, files, err := fdpass.Recv(fds[1], fdpass.NewBuffer(fdpass.MaxInline), false)
		if err != nil && (body != nil || files != nil) {
			t.Fatalf("a refusal returned data: err = %v, want no error or body == nil and files == nil", err)
		}
		if err == nil && (packet[0] != 'i' || !bytes.Equal(body, packet[1:])) {
			t.Fatalf("packet %q became body %q", packet, body)
		}
		fdpass.CloseAll(files)
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestASocketIsFoundByItsName(t *testing.T) {
	t.Parallel()
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 200)) // longer than a socket path may be
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(long)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	at := int(dir.Fd())
	if _, err := fdpass.Dial(at, "s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before there is a listener: err = %v, want err is fs.ErrNotExist", err)
	}
	fd, err := fdpass.Bind(at, "s")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(long, "s")); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("info = %v, err = %v, want no error and info.Mode() == fs.ModeSocket | 0o600", info, err)
	}
	if _, err := fdpass.Bind(at, "s"); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second one: err = %v, want err is unix.EADDRINUSE", err)
	}
	l, err := fdpass.NewListener(fd)
	if err != nil {
		t.Fatal(err)
	}
	client, err := fdpass.Dial(at, "s")
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := fdpass.Send(server, []byte("hello")); err != nil {
		t.Error(err)
	}
	unix.Close(server)
	c, err := fdpass.FromFD(client, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if body, _, err := c.Recv(true); string(body) != "hello" || err != nil {
		t.Errorf(`body = %q, err = %v, want body == "hello" and no error`, body, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	l.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a wait that was ended: err = %v, want err is os.ErrClosed", err)
	}
	if _, err := fdpass.Dial(at, "s"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("when the other end no longer listens: err = %v, want err is unix.ECONNREFUSED", err)
	}
}

// TestSilentConnectionsHoldNoBuffer measures the memory of connections that wait for a message, as thousands of boxes do.
func TestSilentConnectionsHoldNoBuffer(t *testing.T) {
	const conns, size, most = 200, 4 << 10, 3 << 10
	buffers := fdpass.NewBuffers(size)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var wg sync.WaitGroup
	var open []*fdpass.Conn
	var theirs []int
	before := heap()
	for range conns {
		c, far, err := fdpass.Pair(size)
		if err != nil {
			t.Fatal(err)
		}
		open, theirs = append(open, c), append(theirs, far)
		first := make(chan string, 1)
		wg.Go(func() {
			c.Receive(true, buffers, func(body []byte, _ []int, err error) bool {
				if err == nil {
					first <- string(body)
				}
				return err == nil
			})
		})
		if err := fdpass.Send(far, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if got := <-first; got != "hello" {
			t.Fatalf("received %q", got)
		}
	}
	each := (heap() - min(before, heap())) / conns
	for i, c := range open {
		unix.Close(theirs[i])
		c.Close()
	}
	wg.Wait()
	if t.Logf("%d bytes for each connection", each); each > most {
		t.Errorf("%d bytes for each connection, more than %d", each, most)
	}
}
