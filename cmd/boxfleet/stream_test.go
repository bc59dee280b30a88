// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// serveNATS starts a NATS server.
func serveNATS(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	return s
}

func dialNATS(t *testing.T, address string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(address, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// streamPair returns one end, a, and the streams that the other end accepts from it.
func streamPair(t *testing.T, near, far string) (a *endpoint, accepted chan *stream) {
	t.Helper()
	accepted = make(chan *stream, 8)
	b, err := newEndpoint(context.Background(), &endpointConfig{Conn: dialNATS(t, far), Subject: "fleet.n.b", From: "fleet.g", Accept: func(c *stream) { accepted <- c }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.cfg.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if a, err = newEndpoint(context.Background(), &endpointConfig{Conn: dialNATS(t, near), Subject: "fleet.g.a"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if err := a.cfg.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return a, accepted
}

func openStream(t *testing.T, a *endpoint, accepted chan *stream) (near, far *stream) {
	t.Helper()
	conn, err := a.Dial(t.Context(), "fleet.n.b")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case far = <-accepted:
	case <-time.After(time.Minute):
		t.Fatal("the connection was not accepted within a minute")
	}
	return conn.(*stream), far
}

// noise returns that many pseudo-random bytes, always the same.
func noise(n int) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	return data
}

func TestBothDirectionsArriveAndEnd(t *testing.T) {
	t.Parallel()
	s := serveNATS(t)
	a, accepted := streamPair(t, s.ClientURL(), s.ClientURL())
	near, far := openStream(t, a, accepted)
	data := noise(3<<20 + 17)
	var wg sync.WaitGroup
	for _, c := range []*stream{near, far} {
		wg.Go(func() {
			if _, err := c.Write(data); err != nil {
				t.Error(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
			}
		})
	}
	wg.Wait()
	near.Close()
	<-far.Gone()
	far.Close()
	eventually(t, "both have forgotten the connection", func() bool { return a.Open() == 0 && far.e.Open() == 0 })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not in a minute: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// A reader that does not read blocks its writer only, and no more than a window is buffered for it.
func TestASlowReaderHoldsUpItsWriterAlone(t *testing.T) {
	t.Parallel()
	s := serveNATS(t)
	a, accepted := streamPair(t, s.ClientURL(), s.ClientURL())
	slow, reader := openStream(t, a, accepted)
	written := 0
	_ = slow.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	for {
		n, err := slow.Write(make([]byte, 10000))
		written += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if written < streamWindow || written > 2*streamWindow { // buffered there, and not acknowledged
		t.Errorf("%d bytes were accepted, of a window of %d", written, streamWindow)
	}
	reader.mu.Lock()
	held := len(reader.in)
	reader.mu.Unlock()
	if held > streamWindow {
		t.Errorf("%d bytes are held", held)
	}
	quick, other := openStream(t, a, accepted)
	if _, err := quick.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(io.LimitReader(other, 1)); err != nil || string(b) != "x" {
		t.Fatalf(`string(b) = %v, err = %v, want no error and b == "x"`, string(b), err)
	}
	go slow.CloseWrite()
	if n, err := io.Copy(io.Discard, reader); err != nil || n != int64(written) {
		t.Errorf("%d of %d bytes, %v", n, written, err)
	}
}

// proxy forwards connections, and cuts them on request.
type proxy struct {
	net.Listener
	mu   sync.Mutex
	open []net.Conn
}

func between(t *testing.T, address string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: ln}
	t.Cleanup(func() {
		ln.Close()
		p.cut()
	})
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				near.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, near, far)
			p.mu.Unlock()
			for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
				go func() {
					_, _ = io.Copy(to, from)
					from.Close()
					to.Close()
				}()
			}
		}
	}()
	return p
}

// cut closes every connection, with the data in transit.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	p.open = nil
}

// signalWriter is a writer that signals each write, unless a signal is pending.
type signalWriter chan<- struct{}

func (c signalWriter) Write(p []byte) (int, error) {
	select {
	case c <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Data that is lost with connections to the server is sent again: nothing is missing or duplicated.
func TestNothingIsLostWithConnectionsToTheServer(t *testing.T) {
	t.Parallel()
	s := serveNATS(t)
	p := between(t, s.Addr().String())
	a, accepted := streamPair(t, "nats://"+p.Addr().String(), "nats://"+p.Addr().String())
	near, far := openStream(t, a, accepted)
	data := noise(4 << 20)
	stop := make(chan struct{})
	come := make(chan struct{}, 1) // that something has arrived
	var cuts sync.WaitGroup
	cut := 0
	cuts.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
			}
			select {
			case <-come:
			default:
			}
			select {
			case <-stop:
				return
			case <-come: // otherwise a slow host might never have a connection for long enough
				p.cut()
				cut++
			}
		}
	})
	go func() {
		for rest := data; len(rest) > 0; rest = rest[min(len(rest), 64<<10):] {
			if _, err := near.Write(rest[:min(len(rest), 64<<10)]); err != nil {
				t.Error(err)
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		near.CloseWrite()
	}()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(sum, signalWriter(come)), far)
	close(stop)
	cuts.Wait()
	if want := sha256.Sum256(data); cut == 0 || err != nil || n != int64(len(data)) || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%d of %d bytes over %d cuts, %v", n, len(data), cut, err)
	}
}

func TestDialingASubjectWithoutAListenerFails(t *testing.T) {
	t.Parallel()
	s := serveNATS(t)
	a, err := newEndpoint(context.Background(), &endpointConfig{Conn: dialNATS(t, s.ClientURL()), Subject: "fleet.g.a"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	conn, err := a.Dial(t.Context(), "fleet.n.nobody")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, errNoResponder) {
		t.Errorf("err = %v, want err is errNobody", err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, errNoResponder) {
		t.Errorf("err = %v, want err is errNobody", err)
	}
}

// A peer that can send to an endpoint, but is not where connections come from, cannot open one; a closed connection is not
// reopened by a late frame.
func TestStrayFramesOpenNoConnection(t *testing.T) {
	t.Parallel()
	s := serveNATS(t)
	a, accepted := streamPair(t, s.ClientURL(), s.ClientURL())
	near, far := openStream(t, a, accepted)
	other := dialNATS(t, s.ClientURL())
	send := func(id, reply string, data []byte) {
		t.Helper()
		if err := other.PublishMsg(&nats.Msg{Subject: "fleet.n.b.s." + id, Reply: reply, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	hello := (&frame{flags: flagOpen, bytes: []byte("x")}).encode()
	send("one", "elsewhere.s.one", hello)
	send("one", "fleet.g.a.s.two", hello)
	send("one", "", hello)
	send("one", "fleet.g.a.s.one", []byte("short"))
	near.Close()
	<-far.Gone()
	far.Close()
	eventually(t, "it is over", func() bool { return far.e.Open() == 0 })
	answers, err := other.SubscribeSync("fleet.g.x.s.*")
	if err != nil {
		t.Fatal(err)
	}
	send(far.id, "fleet.g.x.s."+far.id, hello)
	m, err := answers.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := decodeFrame(m.Data); err != nil || f.flags&flagReset == 0 {
		t.Errorf("f = %+v, err = %v, want no error and f.flags & flagReset != 0", f, err)
	}
	select {
	case c := <-accepted:
		t.Errorf("a connection from %s", c.RemoteAddr())
	default:
	}
	// A frame beyond the window ends its connection.
	near, far = openStream(t, a, accepted)
	for i := range uint64(streamWindow/maxFrame + 1) {
		send(near.id, near.reply, (&frame{offset: i * maxFrame, bytes: make([]byte, maxFrame)}).encode())
	}
	eventually(t, "it is over", func() bool { return far.e.Open() == 0 })
	// near gets that error, or before it one about bytes that it has not sent, which far acknowledges if the frames take longer
	// than ackDelay.
	_, err = io.Copy(io.Discard, near)
	if _, ok := errors.AsType[*resetError](err); !ok && !errors.Is(err, errWindow) {
		t.Errorf("err = %v, want ok == true or err is errWindow", err)
	}
}

func TestAnEndpointThatClosesEndsItsConnections(t *testing.T) {
	t.Parallel()
	s := serveNATS(t)
	a, accepted := streamPair(t, s.ClientURL(), s.ClientURL())
	near, far := openStream(t, a, accepted)
	a.Close()
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, errEndpointClosed) {
		t.Errorf("err = %v, want err is errEndpointClosed", err)
	}
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("the other end of the connection was not closed")
	}
	if _, err := a.Dial(t.Context(), "fleet.n.b"); !errors.Is(err, errEndpointClosed) {
		t.Errorf("err = %v, want err is errEndpointClosed", err)
	}
}

// Any input is decoded as the frame that it is, or rejected.
func FuzzFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add((&frame{flags: flagOpen | flagEnd, offset: 1, acked: 2, limit: 3, bytes: []byte("x")}).encode())
	f.Add(bytes.Repeat([]byte{0xff}, frameHeader+maxFrame))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decodeFrame(data)
		if err != nil {
			if len(data) >= frameHeader && len(data) <= frameHeader+maxFrame {
				t.Errorf("%d bytes: err = %v, want len(data) < frameHeader or len(data) > frameHeader + maxFrame",
					len(data), err)
			}
			return
		}
		if !bytes.Equal(a.encode(), data) {
			t.Errorf("%+v of %x", a, data)
		}
		// A connection accepts any frame, and buffers no more than its window.
		e := &endpoint{conns: map[string]*stream{}, past: map[string]time.Time{}}
		c := newStream(e, "x", "y")
		c.mu.Lock()
		c.err = errEndpointClosed // nothing is sent
		ok := c.acknowledgedLocked(&a) && c.arrivedLocked(&a)
		held := len(c.in)
		c.mu.Unlock()
		if held > streamWindow || ok && a.acked > 0 {
			t.Errorf("%d bytes are held, %v of %+v", held, ok, a)
		}
	})
}
