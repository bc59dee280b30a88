// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
)

// Answer is an HTTP response of boxd as it came over the wire.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Problem returns the problem in the response; a response without one fails the test.
func (a Answer) Problem(t testing.TB) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(a.Body, &p); err != nil || a.Header.Get("Content-Type") != "application/problem+json" || p.Status != a.Code {
		t.Fatalf(`no problem: a.Code = %d, a.Header = %v, a.Body = %s, want no error and a.Header.Get("Content-Type") == "application/problem+json" and p.Status == a.Code`,
			a.Code, a.Header, a.Body)
	}
	return p
}

// Request returns the bytes of a request; the path is sent as it is.
func Request(method, path, body string, header ...string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: boxd\r\nConnection: close\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n" +
		strings.Join(append(header, ""), "\r\n") + "\r\n" + body
}

// Upgrade returns the headers of a request for a WebSocket, and more.
func Upgrade(more ...string) []string {
	return append([]string{"Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}, more...)
}

// Ask sends the bytes of a request and reads the response, which may come before the whole
// request is read.
func Ask(ctx context.Context, socket, request string) (Answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return Answer{}, err
	}
	sent := make(chan error, 1)
	go func() { // until the connection is closed below
		_, err := io.WriteString(conn, request)
		sent <- err
	}()
	a, err := ReadAnswer(conn)
	conn.Close()
	if unsent := <-sent; err != nil {
		return a, errors.Join(err, unsent)
	}
	return a, nil
}

// ReadAnswer reads one response. After one that switches protocols it reads no body, which would
// have no end.
func ReadAnswer(conn net.Conn) (Answer, error) {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return Answer{Code: resp.StatusCode, Header: resp.Header}, nil
	}
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, body}, err
}

// Raw makes a request without using the client package.
func (d *Daemon) Raw(t testing.TB, method, path, body string, header ...string) Answer {
	t.Helper()
	a, err := Ask(t.Context(), d.Socket, Request(method, path, body, header...))
	if err != nil {
		t.Fatalf("%s %.200s: %v", method, path, err)
	}
	return a
}

// Get requests a URL of a server that listens on TCP.
func Get(t testing.TB, url string, header http.Header) Answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{resp.StatusCode, resp.Header, body}
}
