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
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// echo is an HTTP server that answers with the head of the request as received, and with some headers that must not get through.
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
    if path == b"/flood":
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"); c.settimeout(1)
        try:
            while True: c.sendall(bytes(65536))
        except TimeoutError: open("stalled", "w").close()
        c.settimeout(None); c.recv(1); continue
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

// visits makes a request on boxd's socket as a browser would that was given this host.
func visits(t *testing.T, d *boxtest.Daemon, host, path string, header ...string) boxtest.Answer {
	t.Helper()
	a, err := boxtest.Ask(t.Context(), d.Socket, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n"+strings.Join(append(header, ""), "\r\n")+"\r\n")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// preview creates a session with a server, and a token for its port.
func preview(t *testing.T, d *boxtest.Daemon, id string) api.PortToken {
	t.Helper()
	boxtest.RequireProgram(t, "python3")
	d.NewSession(t, api.SessionRequest{ID: id})
	line := "ready"
	d.NewProcess(t, id, "web", &api.ProcessRequest{Argv: []string{"python3", "-c", echo}, Ready: &api.Ready{Line: &line}})
	boxtest.Eventually(t, "the server listens", func() bool {
		p, err := d.Process(t.Context(), id, "web", 0)
		return err == nil && p.Ready
	})
	token, err := d.PreviewPort(t.Context(), id, 8000, "1h")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A preview needs its token, and works only under its own host name; the box sees no credential of boxd, and cannot set headers
// for other hosts; a new session of the same id has another preview.
func TestAPreviewIsForWhoHasItsToken(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	p := preview(t, d, "s1")
	other := preview(t, d, "s2")
	a := visits(t, d, p.Host+":5410", "/a//b?x=1&boxd_token="+p.Token)
	set := a.Header.Values("Set-Cookie")
	if a.Code != 303 || a.Header.Get("Location") != "http://"+p.Host+":5410/a//b?x=1" || len(set) != 1 || !strings.Contains(set[0], "HttpOnly") || strings.Contains(set[0], "Domain") {
		t.Fatalf("a.Code = %d, a.Header = %v", a.Code, a.Header)
	}
	a = visits(t, d, p.Host, "//evil.example/?boxd_token="+p.Token)
	if to := a.Header.Get("Location"); !strings.HasPrefix(to, "http://"+p.Host+"/") {
		t.Errorf("it leads to %s", to)
	}
	cookie := "Cookie: mine=2; boxd_preview=" + p.Token
	a = visits(t, d, p.Host, "/page?q=1", cookie, "Authorization: Bearer boxd_SECRET", "Boxd-Preview: x", "Connection: X-Hop", "X-Hop: 1", "X-Forwarded-For: 1.2.3.4")
	if a.Code != 401 { // the header takes precedence over the cookie
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	a = visits(t, d, p.Host, "/page?q=1", cookie, "Authorization: Bearer boxd_SECRET", "Connection: X-Hop", "X-Hop: 1", "X-Forwarded-For: 1.2.3.4")
	body := string(a.Body)
	if a.Code != 200 || !strings.HasPrefix(body, "GET /page?q=1 HTTP/1.1\r\nHost: "+p.Host+"\r\n") || !strings.Contains(body, "\r\nCookie: mine=2\r\n") {
		t.Errorf(`a.Code = %d, body = %s, want a.Code == 200 and body starting with "GET /page?q=1 HTTP/1.1\r\nHost: " + p.Host + "\r\n" and body containing "\r\nCookie: mine=2\r\n"`,
			a.Code, body)
	}
	for _, secret := range []string{p.Token, "SECRET", "X-Hop", "1.2.3.4"} {
		if strings.Contains(body, secret) {
			t.Errorf("the box got %s", secret)
		}
	}
	if got := fmt.Sprint(a.Header.Values("Set-Cookie"), a.Header.Get("Alt-Svc")); got != "[own=1]" {
		t.Errorf(`the browser gets %s, want "[own=1]"`, got)
	}
	for path, status := range map[string]int{"/switch": 503, "/junk": 503, "/huge": 503, "/socket": 503} {
		if a := visits(t, d, p.Host, path, cookie); a.Code != status {
			t.Errorf("%s: a.Code = %d, a.Body = %.200s, want a.Code == %v", path, a.Code, a.Body, status)
		}
	}
	for name, try := range map[string][]string{
		"nobody's":              {p.Host},
		"under another's name":  {other.Host, cookie},
		"in the API's header":   {p.Host, "Authorization: Bearer " + p.Token},
		"with a bit of another": {p.Host, cookie + "A"},
	} {
		if a := visits(t, d, try[0], "/", try[1:]...); a.Code != 401 {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 401", name, a.Code, a.Body)
		}
	}
	if a := visits(t, d, p.Host, "/v1/sessions", cookie); a.Header.Get("X-Request-Id") == "" || a.Code != 200 { // the page of the box
		t.Errorf(`a.Code = %d, want a.Header.Get("X-Request-Id") != "" and a.Code == 200`, a.Code)
	}
	if a := visits(t, d, "boxd", "/v1/sessions/s1", "Authorization: Bearer "+p.Token); a.Code != 401 {
		t.Errorf("the token holds for the API: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	d.Stop()
	d.Restart()
	if a := visits(t, d, p.Host, "/", cookie); a.Code != 404 { // boxtest ends sessions with boxd
		t.Errorf("after its session: a.Code = %d, a.Body = %s, want a.Code == 404", a.Code, a.Body)
	}
	again := preview(t, d, "s1")
	if a := visits(t, d, p.Host, "/", cookie); a.Code != 404 || again.Host == p.Host {
		t.Errorf("another session of that id: a.Code = %d, a.Body = %s, want a.Code == 404 and again.Host != p.Host",
			a.Code, a.Body)
	}
	if a := visits(t, d, again.Host, "/", "Boxd-Preview: "+again.Token); a.Code != 200 {
		t.Errorf("by the header: a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
}

// visitsSocket opens a WebSocket as a browser would, and returns its reader.
func visitsSocket(t *testing.T, d *boxtest.Daemon, p *api.PortToken, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+p.Host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nBoxd-Preview: "+p.Token+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("resp = %v, err = %v, want no error and resp.StatusCode == 101", resp, err)
	}
	resp.Body.Close()
	return conn, in
}

// A visitor who reads nothing of what a program sends does not keep boxd from ending.
func TestAVisitorWhoReadsNothingHoldsNothingUp(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	p := preview(t, d, "s1")
	conn, _ := visitsSocket(t, d, &p, "/flood")
	boxtest.Eventually(t, "the program cannot write more", func() bool { return d.Sh(t, "s1", "ls stalled 2>&- || true") != "" })
	timer := time.AfterFunc(time.Minute, func() {
		t.Error("boxd still waits for the visitor after a minute")
		conn.Close()
	})
	d.Stop()
	timer.Stop()
}

// A WebSocket stays open until its session ends.
func TestAPreviewHasWebSockets(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	p := preview(t, d, "s1")
	conn, in := visitsSocket(t, d, &p, "/socket")
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if printed, err := in.ReadString('\n'); printed != "HELLO\n" {
		t.Fatalf(`printed = %q, err = %v, want printed == "HELLO\n"`, printed, err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("the WebSocket was not closed with its session")
	}
}
