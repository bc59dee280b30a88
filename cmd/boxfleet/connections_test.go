// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// An unauthenticated idle connection is closed when others come, and an authenticated caller has a limited number; over TLS too.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	ca := boxtest.NewAuthority(t)
	certificate, key := ca.Server()
	config, err := access.TLSFiles{Certificate: certificate, PrivateKey: key}.Config(slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, byTLS := range []bool{false, true} {
		inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln := net.Listener(counted{inner, conns.New(2, allConnections)})
		if byTLS {
			ln = tls.NewListener(ln, config)
		}
		server := &http.Server{ConnContext: withSlot, ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if conns.Identify(r.Context(), r.Header.Get("Caller")) != nil {
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})}
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(ln) }) // until it is closed
		t.Cleanup(func() {
			_ = server.Close() // it ends with the test
			served.Wait()
		})
		open := func() net.Conn {
			t.Helper()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		}
		req := func(caller string) (net.Conn, int) {
			t.Helper()
			conn := open()
			if byTLS {
				conn = tls.Client(conn, &tls.Config{RootCAs: ca.Roots(), ServerName: "localhost"})
			}
			if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: boxd\r\nCaller: %s\r\n\r\n", caller); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return conn, resp.StatusCode
		}
		first := open()
		for range conns.Unknown {
			open()
		}
		if n, err := first.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("TLS %v: a silent client got %d bytes, %v", byTLS, n, err)
		}
		one, code := req("ann")
		_, again := req("ann")
		_, third := req("ann")
		_, other := req("bob")
		if code != http.StatusOK || again != http.StatusOK || third != http.StatusTooManyRequests || other != http.StatusOK {
			t.Errorf("TLS %v: %d, %d, %d; another caller %d", byTLS, code, again, third, other)
		}
		one.Close()
		boxtest.Eventually(t, "the gateway accepts another connection", func() bool {
			conn, code := req("ann")
			conn.Close()
			return code == http.StatusOK
		})
	}
}
