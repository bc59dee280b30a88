// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// net/http lingers half a second on a connection that it closes.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const allowed = "www.allowed.example"

// proxyBench is a box, the proxy of its connections, and the servers they are forwarded to.
type proxyBench struct {
	t      *testing.T
	server *proxyServer
	at     string // address of the proxy
	up     string // address of the server
	port   uint16

	mu     sync.Mutex
	denied []denial
	dialed []proxyTarget
	finds  int
	led    bool
	heard  chan struct{}
}

func openProxy(t *testing.T, port uint16, cfg proxyConfig, up string) *proxyBench {
	t.Helper()
	return openProxyWith(t, port, cfg, up, nil)
}

func openProxyWith(t *testing.T, port uint16, cfg proxyConfig, up string, secrets func() *secretSet) *proxyBench {
	t.Helper()
	b := &proxyBench{t: t, up: up, port: port, led: true, heard: make(chan struct{}, 100)}
	cfg.Original = func(net.Conn) (netip.AddrPort, error) {
		return netip.AddrPortFrom(netip.MustParseAddr("11.22.33.44"), port), nil
	}
	rules, err := egress.ReadRules("rules", []string{allowed, "other.example tcp 8080"})
	if err != nil {
		t.Fatal(err)
	}
	b.server = newProxy(cfg).Open(&proxyBox{
		Rules: func() *egress.Rules { return rules }, Secrets: secrets,
		Dial: func(ctx context.Context, to proxyTarget) (net.Conn, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if !b.led {
				return nil, errNotLed
			}
			b.dialed = append(b.dialed, to)
			return new(net.Dialer).DialContext(ctx, "tcp", b.up)
		},
		Find: func(context.Context, egress.Name, bool) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.finds++
			return true
		},
		Denied: func(d denial) {
			b.mu.Lock()
			b.denied = append(b.denied, d)
			b.mu.Unlock()
			b.heard <- struct{}{}
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.at = l.Addr().String()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.server.Serve(ctx, []net.Listener{l}) }()
	t.Cleanup(func() {
		cancel(errors.New("terminated signal received")) // as signal.NotifyContext has it
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *proxyBench) dial() net.Conn {
	b.t.Helper()
	c, err := net.Dial("tcp", b.at)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// refused waits for one denial.
func (b *proxyBench) refused() denial {
	b.t.Helper()
	<-b.heard
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.denied[len(b.denied)-1]
}

// certified starts a TLS server that returns the name it was asked for and what it was sent.
func certified(t *testing.T, curves ...tls.CurveID) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, own, own, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.TLS.ServerName, " ", len(body))
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}, CurvePreferences: curves}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestTLSConnectionsAreProxiedUnchanged(t *testing.T) {
	// A server that needs another key share than the client offers requests a second hello.
	for _, curve := range []tls.CurveID{tls.X25519, tls.CurveP384} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			b := openProxy(t, 443, proxyConfig{}, certified(t, curve))
			client := &http.Client{Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", b.at)
				},
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MaxVersion: version, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}},
			}}
			r, err := client.Post("https://"+allowed+"/", "text/plain", bytes.NewReader(make([]byte, 1<<20)))
			if err != nil {
				t.Fatalf("%v, %x: %v", curve, version, err)
			}
			printed, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || string(printed) != allowed+" 1048576" {
				t.Errorf(`%v, %x: printed = %q, err = %v, want no error and printed == allowed + " 1048576"`,
					curve, version, printed, err)
			}
		}
	}
}

// hello returns the ClientHello of a TLS client.
func hello(t *testing.T, cfg *tls.Config) []byte {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	cfg.InsecureSkipVerify = true
	go func() { _ = tls.Client(there, cfg).Handshake(); there.Close() }()
	buf := make([]byte, 16<<10)
	n, err := here.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func TestHellosThatAreRefused(t *testing.T) {
	named := func(name string) []byte { return hello(t, &tls.Config{ServerName: name}) }
	good := named(allowed)
	for what, c := range map[string]struct {
		sent   []byte
		reason egress.Reason
		asked  string
		rule   string
	}{
		"another name":      {named("evil.example"), egress.NotThere, "evil.example", `"evil.example tcp 443"`},
		"at another port":   {named("other.example"), egress.NotThere, "other.example", `"other.example tcp 443"`},
		"no name":           {hello(t, &tls.Config{ServerName: "1.2.3.4"}), egress.NoName, "", `"11.22.33.44/32 tcp 443"`},
		"HTTP":              {[]byte("GET / HTTP/1.1\r\nHost: " + allowed + "\r\n\r\n"), egress.NoName, "", ""},
		"cut off":           {good[:len(good)-1], egress.NoName, "", ""},
		"bytes of no hello": {append(append([]byte{}, good[:9]...), make([]byte, len(good)-9)...), egress.NoName, "", ""},
		"too long":          {[]byte("\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("x", 1<<14-4)), egress.NoName, "", ""},
		"an empty record":   {[]byte("\x16\x03\x01\x00\x00"), egress.NoName, "", ""},
		"ECH":               {hello(t, &tls.Config{ServerName: "inner.example", MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echList(t)}), egress.NoName, `"the name is encrypted (ECH)"`, ""},
	} {
		t.Run(what, func(t *testing.T) {
			b := openProxy(t, 443, proxyConfig{}, "127.0.0.1:1")
			conn := b.dial()
			if _, err := conn.Write(c.sent); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			d := b.refused()
			if d.Reason != c.reason || d.Asked != c.asked || c.rule != "" && d.Setting != c.rule || d.Port != 443 || len(d.Addresses) != 1 {
				t.Errorf(`d = %+v, want d.Reason == %v and d.Asked == %v and (c.rule == "" or d.Setting == %v) and d.Port == 443 and len(d.Addresses) == 1`,
					d, c.reason, c.asked, c.rule)
			}
			_, _ = io.Copy(io.Discard, conn) // until the connection ends
			if len(b.dialed) > 0 {
				t.Error("a refused connection was dialed")
			}
		})
	}
}

// echList returns an ECH configuration list with one entry, as a server would publish it.
func echList(t *testing.T) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := key.PublicKey().Bytes()
	config := []byte{1, 0, 0x20, 0, byte(len(public))} // its number, and the kind of key
	config = append(config, public...)
	config = append(config, 0, 4, 0, 1, 0, 1, 32, byte(len(allowed))) // one cipher; the longest name; the public name
	config = append(append(config, allowed...), 0, 0)
	list := append([]byte{0xfe, 0x0d, 0, byte(len(config))}, config...)
	return append([]byte{0, byte(len(list))}, list...)
}

// A second hello may not name another host, not even after what looks like early data.
func TestASecondHelloIsForTheSameName(t *testing.T) {
	first, second := hello(t, &tls.Config{ServerName: allowed}), hello(t, &tls.Config{ServerName: "evil.example"})
	for _, between := range []string{"", "\x14\x03\x03\x00\x01\x01", "\x17\x03\x03\x00\x04data"} {
		up, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer up.Close()
		b := openProxy(t, 443, proxyConfig{}, up.Addr().String())
		c := b.dial()
		if _, err := c.Write(slices.Concat(first, []byte(between), second)); err != nil {
			t.Fatal(err)
		}
		server, err := up.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		got, _ := io.ReadAll(server)
		if want := string(first) + between; string(got) != want {
			t.Errorf("%d bytes were forwarded, want %d", len(got), len(want))
		}
		if d := b.refused(); d.Reason != egress.NoName {
			t.Errorf("d = %+v, want d.Reason == egress.NoName", d)
		}
	}
}

func TestRequestsGoWhereTheirNameIsAllowed(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %q %q %d", r.Host, r.RequestURI, r.Header.Get("X-Forwarded-For"), r.Header.Get("Accept-Encoding"), len(body))
	}))
	defer up.Close()
	b := openProxy(t, 80, proxyConfig{}, up.Listener.Addr().String())
	for _, c := range []struct{ sent, want string }{
		{"GET /a?b;c=%zz HTTP/1.1\r\nHost: " + allowed + "\r\nX-Forwarded-For: me\r\nConnection: close\r\n\r\n", allowed + " /a?b;c=%zz \"me\" \"\" 0"},
		{"GET http://WWW.allowed.example:80/x HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", "WWW.allowed.example:80 /x"},
		{"POST / HTTP/1.1\r\nHost: " + allowed + "\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody", " 4"},
		{"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", " 403 "},
		{"GET / HTTP/1.1\r\nHost: " + allowed + ":8080\r\n\r\n", " 403 "},
		{"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", " 403 "},
		{"GET http://evil.example/ HTTP/1.1\r\nHost: " + allowed + "\r\n\r\n", " 403 "},
		{"CONNECT " + allowed + ":80 HTTP/1.1\r\nHost: " + allowed + "\r\n\r\n", " 403 "},
		{"GET / HTTP/1.0\r\n\r\n", " 403 "},
		{"GET / HTTP/1.1\r\n\r\n", " 400 "},
		{"GET / HTTP/1.1\r\nHost: " + allowed + "\r\nHost: evil.example\r\n\r\n", " 400 "},
		{"GET / HTTP/1.1\r\nHost : evil.example\r\nHost: " + allowed + "\r\n\r\n", " 400 "},
		{"POST / HTTP/1.1\r\nHost: " + allowed + "\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", " 501 "},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", " 403 "},
		// A request smuggled in the body of another: it is parsed as the next one.
		{"POST / HTTP/1.1\r\nHost: " + allowed + "\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", " 403 "},
		{"GET / HTTP/1.1\r\nHost: " + allowed + "\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", " 403 "},
	} {
		conn := b.dial()
		if _, err := io.WriteString(conn, c.sent); err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(conn)
		if !strings.Contains(string(said), c.want) {
			t.Errorf("%q: %q, want %q", c.sent, said, c.want)
		}
	}
	for _, to := range b.dialed {
		if to.Name != allowed {
			t.Errorf("it went on to %v", to)
		}
	}
}

// A name that has not resolved to an address is resolved once more, but not again and again.
func TestAProxiedNameThatDoesNotMatchIsResolvedOnceMore(t *testing.T) {
	b := openProxy(t, 443, proxyConfig{}, "127.0.0.1:1")
	b.led = false
	for range 3 {
		c := b.dial()
		if _, err := c.Write(hello(t, &tls.Config{ServerName: allowed})); err != nil {
			t.Fatal(err)
		}
		if printed, _ := io.ReadAll(c); string(printed) != "\x15\x03\x03\x00\x02\x02\x31" {
			t.Errorf(`printed = %q, want printed == "\x15\x03\x03\x00\x02\x02\x31"`, printed)
		}
	}
	if d := b.refused(); d.Reason != egress.Astray || d.Asked != allowed || b.finds != 1 || len(b.heard) > 0 {
		t.Errorf("%+v, %d times, %d more", d, b.finds, len(b.heard))
	}
}

// A silent connection times out, the number of connections of a box is limited, and a change of
// rules closes those that exist.
func TestConnectionsAreBounded(t *testing.T) {
	for _, port := range []uint16{80, 443} {
		b := openProxy(t, port, proxyConfig{Hello: 50 * time.Millisecond, PerBox: 1}, "127.0.0.1:1")
		for range 3 { // each waits until the one before has ended
			c := b.dial()
			if _, err := c.Write([]byte("G")); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, c)
		}
		b.refused()
	}
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	b := openProxy(t, 443, proxyConfig{}, up.Addr().String())
	c := b.dial()
	if _, err := c.Write(hello(t, &tls.Config{ServerName: allowed})); err != nil {
		t.Fatal(err)
	}
	server, err := up.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	b.server.closeConns()
	for _, end := range []net.Conn{c, server} {
		_, _ = io.Copy(io.Discard, end)
	}
}

// A connection to a server that reads nothing ends when it is cut, and with its box: nothing waits for that server.
func TestAServerThatReadsNothingHoldsNothingUp(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := up.Accept()
		accepted <- c
	}()
	var server net.Conn
	var timer *time.Timer
	t.Cleanup(func() { // after the proxy's end
		server.Close()
		timer.Stop()
	})
	b := openProxy(t, 443, proxyConfig{}, up.Addr().String())
	c := b.dial()
	if _, err := c.Write(hello(t, &tls.Config{ServerName: allowed})); err != nil {
		t.Fatal(err)
	}
	if server = <-accepted; server == nil {
		t.Fatal("the proxy did not dial the server")
	}
	timer = time.AfterFunc(2*time.Minute, func() {
		t.Error("the proxy waits for the server")
		server.Close()
	})
	record := append([]byte{23, 3, 3, 0x40, 0}, make([]byte, 0x4000)...) // application data
	for {                                                                // until the server accepts no more
		if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(record); err != nil {
			return
		}
	}
}

// A WebSocket of a box that has sent everything ends with the box too, though its server does nothing more.
func TestAWebSocketEndsWithItsBox(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := up.Accept()
		accepted <- c
	}()
	var server net.Conn
	t.Cleanup(func() { // after the proxy's end
		ticker, late := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
		defer ticker.Stop()
		for stacks := make([]byte, 1<<20); bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("handleUpgradeResponse")); {
			select {
			case <-ticker.C:
				continue
			case <-late:
				t.Error("the connection to the server was not closed with its box")
			}
			break
		}
		if server != nil {
			server.Close()
		}
	})
	b := openProxy(t, 80, proxyConfig{}, up.Addr().String())
	c := b.dial()
	const switching = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+allowed+"\r\n"+switching); err != nil {
		t.Fatal(err)
	}
	if server = <-accepted; server == nil {
		t.Fatal("the proxy did not dial the server")
	}
	in := bufio.NewReader(server)
	if _, err := http.ReadRequest(in); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(server, "HTTP/1.1 101 Switching Protocols\r\n"+switching); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("resp = %v, err = %v, want no error and resp.StatusCode == 101", resp, err)
	}
	resp.Body.Close()
	if err := closeWrite(c); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}
