// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func readAnswer(conn net.Conn) (answer, error) {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // what follows has no end
		return answer{Code: resp.StatusCode, Header: resp.Header}, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body}, err
}

// upgrade is the header of a request for a WebSocket.
func upgrade(more ...string) []string {
	return append([]string{"Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}, more...)
}

const streamPath = "/v1/sessions/s1/processes/p/stream"

// A page in a browser that has found a way to the socket gets no stream.
func TestT61AnotherOriginIsRefused(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	begin(t, d, "p", shell("sleep 1000"))
	for origin, want := range map[string]int{
		"": http.StatusSwitchingProtocols, "http://boxd": http.StatusSwitchingProtocols, "http://evil.example": http.StatusForbidden, "http://boxd.evil.example": http.StatusForbidden,
		"http://boxd:80": http.StatusForbidden, "null": http.StatusForbidden, "file://": http.StatusForbidden, "http://user@evil.example": http.StatusForbidden,
	} {
		for _, path := range []string{streamPath, "/v1/sessions/s1/exec/stream", "/v1/exec/stream"} {
			header := upgrade()
			if origin != "" {
				header = upgrade("Origin: " + origin)
			}
			conn, err := net.Dial("unix", d.Socket)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.WriteString(conn, strings.Replace(request("GET", path, "", header...), "Connection: close\r\n", "", 1))
			a, rerr := readAnswer(conn)
			conn.Close()
			if err != nil || rerr != nil || a.Code != want {
				t.Errorf("origin %q, %s: %d, %v, %v", origin, path, a.Code, err, rerr)
			}
		}
	}
	if a := raw(t, d, "GET", streamPath, ""); a.problem(t).Field != "Upgrade" {
		t.Errorf("no WebSocket: %s", a.Body)
	}
}

// Whatever a client sends, it is cut off with a code, and the process goes on.
func TestT61BadFramesCutTheirSenderOff(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	req := shell("cat")
	req.Stdin = true
	begin(t, d, "p", req)
	witness, _ := attach(t, d, "p", api.StreamAttach{Write: true})
	before := resident(t, d.PID())
	for name, tc := range map[string]struct {
		kind websocket.MessageType
		data []byte
		code websocket.StatusCode
	}{
		"text":               {websocket.MessageText, []byte("\x03{}"), websocket.StatusPolicyViolation},
		"nothing":            {websocket.MessageBinary, nil, websocket.StatusPolicyViolation},
		"an unknown channel": {websocket.MessageBinary, []byte{200, 'x'}, websocket.StatusPolicyViolation},
		"boxd's own channel": {websocket.MessageBinary, []byte{api.ChannelStderr, 'x'}, websocket.StatusPolicyViolation},
		"half of JSON":       {websocket.MessageBinary, []byte("\x03{\"signal\":"), websocket.StatusPolicyViolation},
		"much nesting":       {websocket.MessageBinary, []byte("\x03" + strings.Repeat("[", 50_000)), websocket.StatusPolicyViolation},
		"a key twice":        {websocket.MessageBinary, []byte(`` + "\x03" + `{"signal":"SIGHUP","signal":"SIGKILL"}`), websocket.StatusPolicyViolation},
		"two things":         {websocket.MessageBinary, []byte("\x03" + `{"signal":"SIGKILL"} {"signal":"SIGKILL"}`), websocket.StatusPolicyViolation},
		"not UTF-8":          {websocket.MessageBinary, []byte("\x03{\"signal\":\"SIG\xffKILL\"}"), websocket.StatusPolicyViolation},
		"no signal":          {websocket.MessageBinary, []byte(`` + "\x03" + `{"signal":"9"}`), websocket.StatusPolicyViolation},
		"too long a frame":   {websocket.MessageBinary, make([]byte, api.MaxFrame+1), websocket.StatusMessageTooBig},
		"far too long a one": {websocket.MessageBinary, make([]byte, 32<<20), websocket.StatusMessageTooBig},
		"input of nobody's":  {websocket.MessageBinary, []byte("\x00stolen"), websocket.StatusPolicyViolation},
	} {
		c, _ := attach(t, d, "p", api.StreamAttach{})
		_ = c.ws.Write(t.Context(), tc.kind, tc.data) // cut off in the middle
		var err error
		for err == nil {
			_, _, err = c.hear()
		}
		if websocket.CloseStatus(err) != tc.code && (name != "far too long a one" || websocket.CloseStatus(err) >= 0) {
			t.Errorf("%s: %v", name, err)
		}
	}
	witness.send(api.ChannelStdin, []byte("still here\n"))
	witness.hears("still here\n")
	if now := resident(t, d.PID()); now > before+32<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
	if s, err := d.Process(t.Context(), "s1", "p", 0); err != nil || s.State != "running" {
		t.Errorf("%+v, %v", s, err)
	}
}

// held are the connections of a caller.
type held struct{ Kept, TurnedAway int }

// hold is the caller of holding: it opens as many connections as its third argument says, brings them as far as the
// second does, tells what became of them, and keeps them until its standard input ends.
func hold(socket string) error {
	begin := map[string]string{
		"silent": "", "half a header": "GET /v1/status HTTP/1.1\r\nHost: boxd\r\nX-Slow: ", "half a body": "POST /v1/sessions HTTP/1.1\r\nHost: boxd\r\nContent-Length: 1000000\r\n\r\n{",
		"half a stream": strings.Replace(request("GET", "/v1/exec/stream", "", upgrade()...), "Connection: close\r\n", "", 1),
	}[os.Args[2]]
	many, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	var got held
	answers := make(chan answer, many)
	for range many {
		conn, err := net.Dial("unix", socket)
		for errors.Is(err, unix.EAGAIN) { // the queue of those who wait to be accepted is full
			<-time.After(time.Millisecond)
			conn, err = net.Dial("unix", socket)
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, begin) // one that is turned away may be closed by now
		go func() {
			a, _ := readAnswer(conn)
			if a.Code == http.StatusTooManyRequests {
				conn.Close()
			}
			answers <- a
		}()
	}
	for late := time.After(time.Minute); late != nil; { // who says nothing is listened to for a second
		select {
		case a := <-answers:
			if a.Code == http.StatusTooManyRequests {
				got.TurnedAway++
			}
			if got.TurnedAway == many-maxConnections {
				late = time.After(200 * time.Millisecond) // and no more than these
			}
		case <-late:
			late = nil
		}
	}
	got.Kept = many - got.TurnedAway
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// maxConnections is how many a user may have.
const maxConnections = 256

// holding opens connections as a user, and keeps them until release.
func holding(t *testing.T, d *boxtest.Daemon, uid uint32, how string, many int) (got held, release func()) {
	t.Helper()
	cmd := callerOf(t, d, uid, "hold", how, strconv.Itoa(many))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(out).Decode(&got); err != nil {
		t.Error(err)
	}
	return got, func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// Sockets that are opened and never used, however far they get, keep nobody else out.
func TestT61HalfOpenSocketsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const most = 192 << 20 // which is 256 times not much, and a flood of refusals; with a race detector all takes several times as much
	many := int(shareOf(10_000, 300))
	for _, how := range []string{"silent", "half a header", "half a body", "half a stream"} {
		d := boxtest.Start(t)
		create(t, d, api.SessionRequest{ID: "s1"})
		traces, before := settled(t, d), resident(t, d.PID())
		begin(t, d, "p", shell("echo up; sleep 1000"))
		got, release := holding(t, d, otherUID, how, many)
		if got != (held{maxConnections, many - maxConnections}) {
			t.Errorf("%s: %+v", how, got)
		}
		if a := asUser(t, d, thirdUID, request("GET", "/v1/status", ""), request("POST", "/v1/exec", `{"exec":{"argv":["true"]}}`)); a[0].Code != http.StatusOK || a[1].Code != http.StatusOK {
			t.Errorf("%s: a third user: %s, %s", how, a[0].Body, a[1].Body)
		}
		c, _ := attach(t, d, "p", api.StreamAttach{Replay: true})
		c.hears("up\n")
		_ = c.ws.CloseNow()
		if now := resident(t, d.PID()); now > before+most {
			t.Errorf("%s: boxd has grown from %d to %d bytes", how, before, now)
		}
		release()
		if err := d.DeleteProcess(t.Context(), "s1", "p"); err != nil {
			t.Fatal(err)
		}
		d.NothingLeft(traces)
	}
}

// A client that never ends its header is ended after a while.
func TestT62SlowHeadersEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begun := time.Now()
	_, cut := io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: boxd\r\nX-Slow: ")
	for cut == nil && time.Since(begun) < 5*time.Minute {
		_, cut = io.WriteString(conn, "x")
		<-time.After(100 * time.Millisecond)
	}
	if took := time.Since(begun); cut == nil || took < 5*time.Second {
		t.Errorf("cut off after %v by %v", took, cut)
	}
	if _, err := d.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// Headers without bounds are refused before they cost anything; so is what is no HTTP/1.1 at all.
func TestT62HeaderBombs(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	before := resident(t, d.PID())
	many := strings.Builder{}
	for i := range 20_000 {
		fmt.Fprintf(&many, "X-%d: y\r\n", i)
	}
	get := "GET /v1/status HTTP/1.1\r\nHost: boxd\r\n"
	for name, tc := range map[string]struct{ text, want string }{
		"a long header":       {get + "X-Bomb: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "431"},
		"many headers":        {get + many.String() + "\r\n", "431"},
		"a long line":         {"GET /" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: boxd\r\n\r\n", "431"},
		"a header of HTTP/2":  {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 1000), "404 505"},
		"two hosts":           {get + "Host: other\r\n\r\n", "400"},
		"two lengths":         {"POST /v1/sessions HTTP/1.1\r\nHost: boxd\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}", "400"},
		"length and chunks":   {"POST /v1/sessions HTTP/1.1\r\nHost: boxd\r\nContent-Length: 2\r\nTransfer-Encoding: gzip, chunked\r\n\r\n{}", "501 400"},
		"a body of petabytes": {"POST /v1/sessions HTTP/1.1\r\nHost: boxd\r\nContent-Length: 9000000000000000\r\n\r\n{", "400"},
		"a chunk of exabytes": {"POST /v1/sessions HTTP/1.1\r\nHost: boxd\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{", "400"},
		"noise":               {"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n", "400"},
	} {
		a, err := ask(d.Socket, tc.text)
		if a.Code == 0 || !strings.Contains(tc.want, fmt.Sprint(a.Code)) { // it may be cut off behind its answer
			t.Errorf("%s: %d %s, %v, want %s", name, a.Code, a.Body, err, tc.want)
		}
	}
	if now := resident(t, d.PID()); now > before+32<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
}
