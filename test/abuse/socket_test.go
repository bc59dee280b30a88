// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
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

const streamPath = "/v1/sessions/s1/processes/p/stream"

// A web page in a browser that can connect to the socket gets no stream.
func TestT61AnotherOriginIsRefused(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "p", boxtest.ShellProcess("sleep 1000"))
	for origin, want := range map[string]int{
		"": http.StatusSwitchingProtocols, "http://boxd": http.StatusSwitchingProtocols, "http://evil.example": http.StatusForbidden, "http://boxd.evil.example": http.StatusForbidden,
		"http://boxd:80": http.StatusForbidden, "null": http.StatusForbidden, "file://": http.StatusForbidden, "http://user@evil.example": http.StatusForbidden,
	} {
		for _, path := range []string{streamPath, "/v1/sessions/s1/exec/stream", "/v1/exec/stream"} {
			header := boxtest.Upgrade()
			if origin != "" {
				header = boxtest.Upgrade("Origin: " + origin)
			}
			a, err := boxtest.Ask(t.Context(), d.Socket, strings.Replace(boxtest.Request("GET", path, "", header...), "Connection: close\r\n", "", 1))
			if err != nil || a.Code != want {
				t.Errorf("origin %q, %s: a.Code = %d, err = %v, want no error and a.Code == %v",
					origin, path, a.Code, err, want)
			}
		}
	}
	if a := d.Raw(t, "GET", streamPath, ""); a.Problem(t).Field != "Upgrade" {
		t.Errorf(`no WebSocket: a.Body = %s, want a.Problem(t).Field == "Upgrade"`, a.Body)
	}
}

// Whatever a client sends, its connection is closed with a code, and the process goes on.
func TestT61BadFramesCutTheirSenderOff(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("cat")
	req.Stdin = true
	d.NewProcess(t, "s1", "p", req)
	witness, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Write: true})
	before := boxtest.Memory(t, d.PID(), "VmRSS")
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
		c, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{})
		_ = c.WS.Write(t.Context(), tc.kind, tc.data) // its connection is closed during that
		var err error
		for err == nil {
			err = c.Hear().Closed
		}
		if websocket.CloseStatus(err) != tc.code && (name != "far too long a one" || websocket.CloseStatus(err) >= 0) {
			t.Errorf(`%s: err = %v, want websocket.CloseStatus(err) == tc.code or name == "far too long a one" and websocket.CloseStatus(err) < 0`,
				name, err)
		}
	}
	witness.Send(api.ChannelStdin, []byte("still here\n"))
	witness.Hears("still here\n")
	if now := boxtest.Memory(t, d.PID(), "VmRSS"); now > before+32<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
	if s, err := d.Process(t.Context(), "s1", "p", 0); err != nil || s.State != "running" {
		t.Errorf(`s = %+v, err = %v, want no error and s.State == "running"`, s, err)
	}
}

// connCount counts the connections of a client.
type connCount struct{ Kept, TurnedAway int }

// fewConnections are opened however long that takes.
const fewConnections = 300

// hold is the client's part: it opens as many connections as its second argument says, or as it can in a few seconds, sends on
// each the part of a request that the first names, prints how many were accepted, and keeps them open until EOF on its standard
// input. boxd cuts off whoever has not finished a header after ten seconds, and accepts others in their place.
func hold(socket string, args []string) error {
	begin := map[string]string{
		"silent": "", "half a header": "GET /v1/status HTTP/1.1\r\nHost: boxd\r\nX-Slow: ", "half a body": "POST /v1/sessions HTTP/1.1\r\nHost: boxd\r\nContent-Length: 1000000\r\n\r\n{",
		"half a stream": strings.Replace(boxtest.Request("GET", "/v1/exec/stream", "", boxtest.Upgrade()...), "Connection: close\r\n", "", 1),
	}[args[0]]
	many, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var got connCount
	answers := make(chan boxtest.Answer, many)
	opened := 0
	for start := time.Now(); opened < many && (opened < fewConnections || time.Since(start) < 2*time.Second); opened++ {
		conn, err := net.Dial("unix", socket)
		for errors.Is(err, unix.EAGAIN) { // the accept queue is full
			<-time.After(time.Millisecond)
			conn, err = net.Dial("unix", socket)
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, begin) // a rejected one may be closed already
		go func() {
			a, _ := boxtest.ReadAnswer(conn)
			if a.Code == http.StatusTooManyRequests {
				conn.Close()
			}
			answers <- a
		}()
	}
	for late := time.After(5 * time.Minute); late != nil; { // boxd waits a second for data before it rejects a silent one
		select {
		case a := <-answers:
			if a.Code == http.StatusTooManyRequests {
				got.TurnedAway++
			}
			if got.TurnedAway == opened-maxConnections {
				late = time.After(200 * time.Millisecond) // only a short time for the rest
			}
		case <-late:
			late = nil
		}
	}
	got.Kept = opened - got.TurnedAway
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// maxConnections is a user's maximum number of connections.
const maxConnections = 256

// Connections that are opened and never used, at any stage of a request, do not keep other clients out.
func TestT61HalfOpenSocketsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const most = 192 << 20 // 256 times little memory, and a flood of refusals; the race detector needs several times as much
	many := int(shareOf(10_000, fewConnections))
	for _, how := range []string{"silent", "half a header", "half a body", "half a stream"} {
		d := boxtest.Start(t)
		d.NewSession(t, api.SessionRequest{ID: "s1"})
		traces, before := settled(t, d), boxtest.Memory(t, d.PID(), "VmRSS")
		d.NewProcess(t, "s1", "p", boxtest.ShellProcess("echo up; sleep 1000"))
		var got connCount
		release := d.Stay(t, boxtest.OtherUID, &got, "hold", how, strconv.Itoa(many))
		if got.Kept != maxConnections || got.TurnedAway < fewConnections-maxConnections {
			t.Errorf("%s: got %+v, want got.Kept == maxConnections and got.TurnedAway >= fewConnections - maxConnections",
				how, got)
		}
		t.Logf("%s: %+v", how, got)
		if a := d.AsUser(t, boxtest.ThirdUID, boxtest.Request("GET", "/v1/status", ""), boxtest.Request("POST", "/v1/exec", `{"exec":{"argv":["true"]}}`)); a[0].Code != http.StatusOK || a[1].Code != http.StatusOK {
			t.Errorf("%s: a third user: a[0].Body = %s, a[1].Body = %s, want a[0].Code == 200 and a[1].Code == 200",
				how, a[0].Body, a[1].Body)
		}
		c, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Replay: true})
		c.Hears("up\n")
		_ = c.WS.CloseNow()
		if now := boxtest.Memory(t, d.PID(), "VmRSS"); now > before+most {
			t.Errorf("%s: boxd has grown from %d to %d bytes", how, before, now)
		}
		release()
		if err := d.DeleteProcess(t.Context(), "s1", "p"); err != nil {
			t.Fatal(err)
		}
		d.NothingLeft(traces)
	}
}

// A client that never finishes its header is disconnected after a while.
func TestT62SlowHeadersEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	start := time.Now()
	_, cut := io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: boxd\r\nX-Slow: ")
	for cut == nil && time.Since(start) < 5*time.Minute {
		_, cut = io.WriteString(conn, "x")
		<-time.After(100 * time.Millisecond)
	}
	if elapsed := time.Since(start); cut == nil || elapsed < 5*time.Second {
		t.Errorf("cut off after %v by %v", elapsed, cut)
	}
	if _, err := d.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// Oversized headers are refused before they cost anything; so is anything but HTTP/1.1.
func TestT62HeaderBombs(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	before := boxtest.Memory(t, d.PID(), "VmRSS")
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
		a, err := boxtest.Ask(t.Context(), d.Socket, tc.text)
		if a.Code == 0 || !strings.Contains(tc.want, fmt.Sprint(a.Code)) { // the connection may be closed after the answer
			t.Errorf("%s: %d %s, %v, want %s", name, a.Code, a.Body, err, tc.want)
		}
	}
	if now := boxtest.Memory(t, d.PID(), "VmRSS"); now > before+32<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
}
