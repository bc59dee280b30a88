// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// Local users without a token can open connections to the port, but keep out no client with a token: neither a later one nor one
// that is connected.
func TestStrangersKeepNobodyFromThePort(t *testing.T) {
	t.Parallel()
	h := open(t)
	secret := h.token("strangers", "tenant", "")
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	staying := dial()
	in := bufio.NewReader(staying)
	ask := func() {
		t.Helper()
		if _, err := fmt.Fprintf(staying, "GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", secret); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("resp.StatusCode = %d, err = %v, want no error and resp.StatusCode == 200", resp.StatusCode, err)
		}
	}
	ask()
	for i := range 300 {
		conn := dial()
		if i%2 == 0 { // some make a request that needs no token, and stay
			if _, err := fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("unauthenticated client %d: %v", i, err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("unauthenticated client %d: resp.StatusCode = %d, want 200", i, resp.StatusCode)
			}
		}
	}
	if a := h.overTCP(secret, http.MethodGet, "/v1/sessions", "", nil); a.Code != http.StatusOK {
		t.Errorf("an authenticated client afterwards: a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
	ask()
}
