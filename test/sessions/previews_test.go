// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client/ports"
)

// echo is an HTTP server that answers with the head of the request, as it came, and some headers that are not for everybody.
const echo = `
import socket
l = socket.socket(); l.bind(("127.0.0.1", 8000)); l.listen(128); print("ready", flush=True)
while True:
    c, _ = l.accept(); head = b""
    while b"\r\n\r\n" not in head:
        some = c.recv(65536)
        if not some: break
        head += some
    path = (head.split(b" ") + [b"", b""])[1]
    if path == b"/switch": c.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\nraw"); c.close(); continue
    if path == b"/junk": c.sendall(b"no HTTP at all\r\n\r\n"); c.close(); continue
    if path == b"/huge": c.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200000 + b"\r\n\r\n"); c.close(); continue
    if path == b"/socket":
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while True:
            said = c.recv(100)
            if not said: break
            c.sendall(said.upper())
        c.close(); continue
    c.sendall(b"HTTP/1.1 200 OK\r\nSet-Cookie: own=1\r\nSet-Cookie: wide=1; Domain=localhost\r\nSet-Cookie: boxd_preview=mine\r\nAlt-Svc: h2=\":1\"\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
    c.close()
`

// reply is the head of an answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// visits makes a request on the socket of boxd, as a browser would that has the host for an address.
func visits(t *testing.T, d *boxtest.Daemon, host, path string, header ...string) (reply, string) {
	t.Helper()
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n"
	for _, line := range header {
		text += line + "\r\n"
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header}, string(body)
}

// preview makes a session that serves, and a token for it.
func preview(t *testing.T, d *boxtest.Daemon, id string) api.PortToken {
	t.Helper()
	boxtest.RequireProgram(t, "python3")
	if _, _, err := d.Create(t.Context(), &api.SessionRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
	line := "ready"
	if _, _, err := d.StartProcess(t.Context(), id, "web", &api.ProcessRequest{Argv: []string{"python3", "-c", echo}, Ready: &api.Ready{Line: &line}}); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the server listens", func() bool {
		p, err := d.Process(t.Context(), id, "web", 0)
		return err == nil && p.Ready
	})
	token, err := ports.Preview(t.Context(), d.Client, id, 8000, "1h")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A preview is for who has its token, under its own name alone; the box gets nothing that is boxd's, and gives nothing
// that is for others; a session of the same id is another.
func TestAPreviewIsForWhoHasItsToken(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	p := preview(t, d, "s1")
	other := preview(t, d, "s2")
	resp, _ := visits(t, d, p.Host+":5410", "/a//b?x=1&boxd_token="+p.Token)
	set := resp.Header.Values("Set-Cookie")
	if resp.StatusCode != 303 || resp.Header.Get("Location") != "http://"+p.Host+":5410/a//b?x=1" || len(set) != 1 || !strings.Contains(set[0], "HttpOnly") || strings.Contains(set[0], "Domain") {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	resp, _ = visits(t, d, p.Host, "//evil.example/?boxd_token="+p.Token)
	if to := resp.Header.Get("Location"); !strings.HasPrefix(to, "http://"+p.Host+"/") {
		t.Errorf("it leads to %s", to)
	}
	cookie := "Cookie: mine=2; boxd_preview=" + p.Token
	resp, body := visits(t, d, p.Host, "/page?q=1", cookie, "Authorization: Bearer boxd_SECRET", "Boxd-Preview: x", "Connection: X-Hop", "X-Hop: 1", "X-Forwarded-For: 1.2.3.4")
	if resp.StatusCode != 401 { // the header goes before the cookie
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	resp, body = visits(t, d, p.Host, "/page?q=1", cookie, "Authorization: Bearer boxd_SECRET", "Connection: X-Hop", "X-Hop: 1", "X-Forwarded-For: 1.2.3.4")
	if resp.StatusCode != 200 || !strings.HasPrefix(body, "GET /page?q=1 HTTP/1.1\r\nHost: "+p.Host+"\r\n") || !strings.Contains(body, "\r\nCookie: mine=2\r\n") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	for _, secret := range []string{p.Token, "SECRET", "X-Hop", "1.2.3.4"} {
		if strings.Contains(body, secret) {
			t.Errorf("the box hears of %s", secret)
		}
	}
	if got := fmt.Sprint(resp.Header.Values("Set-Cookie"), resp.Header.Get("Alt-Svc")); got != "[own=1]" {
		t.Errorf("the browser gets %s", got)
	}
	for path, status := range map[string]int{"/switch": 503, "/junk": 503, "/huge": 503, "/socket": 503} {
		if resp, body := visits(t, d, p.Host, path, cookie); resp.StatusCode != status {
			t.Errorf("%s: %d %.200s", path, resp.StatusCode, body)
		}
	}
	for name, try := range map[string][]string{
		"nobody's":              {p.Host},
		"under another's name":  {other.Host, cookie},
		"in the API's header":   {p.Host, "Authorization: Bearer " + p.Token},
		"with a bit of another": {p.Host, cookie + "A"},
	} {
		if resp, body := visits(t, d, try[0], "/", try[1:]...); resp.StatusCode != 401 {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	if resp, _ := visits(t, d, p.Host, "/v1/sessions", cookie); resp.Header.Get("X-Request-Id") == "" || resp.StatusCode != 200 { // the box's page of that path
		t.Errorf("%d", resp.StatusCode)
	}
	if resp, body := visits(t, d, "boxd", "/v1/sessions/s1", "Authorization: Bearer "+p.Token); resp.StatusCode != 401 {
		t.Errorf("the token holds for the API: %d %s", resp.StatusCode, body)
	}
	d.Stop()
	d.Restart()
	if resp, body := visits(t, d, p.Host, "/", cookie); resp.StatusCode != 404 { // boxtest ends sessions with boxd
		t.Errorf("after its session: %d %s", resp.StatusCode, body)
	}
	again := preview(t, d, "s1")
	if resp, body := visits(t, d, p.Host, "/", cookie); resp.StatusCode != 404 || again.Host == p.Host {
		t.Errorf("another session of that id: %d %s", resp.StatusCode, body)
	}
	if resp, body := visits(t, d, again.Host, "/", "Boxd-Preview: "+again.Token); resp.StatusCode != 200 {
		t.Errorf("by the header: %d %s", resp.StatusCode, body)
	}
}

// A WebSocket goes on until its session ends.
func TestAPreviewHasWebSockets(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	p := preview(t, d, "s1")
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /socket HTTP/1.1\r\nHost: "+p.Host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nBoxd-Preview: "+p.Token+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if said, err := in.ReadString('\n'); said != "HELLO\n" {
		t.Fatalf("%q, %v", said, err)
	}
	if err := d.Delete(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("it outlives its session")
	}
}
