// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

// message is what a server writes at once, with a number of descriptors.
type message struct {
	text string
	fds  int
}

// answering returns a client of a server that answers one request with these messages.
func answering(t *testing.T, files []*os.File, messages ...message) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	var have []int
	for _, f := range files {
		have = append(have, int(f.Fd()))
	}
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 4<<10)); err != nil {
			t.Error(err)
		}
		for _, m := range messages {
			var rights []byte
			if m.fds > 0 {
				var fds []int
				for i := range m.fds {
					fds = append(fds, have[i%len(have)])
				}
				rights = unix.UnixRights(fds...)
			}
			if _, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte(m.text), rights, nil); err != nil { //nolint:forcetypeassert // it is one
				return // the client has closed the connection
			}
		}
	}()
	return New(socket)
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

const goodHead = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: boxd-stdio\r\n\r\n"

func TestThreeDescriptorsAreTaken(t *testing.T) {
	for name, messages := range map[string][]message{
		"after the head":        {{goodHead, 0}, {"\x00", 3}},
		"with the head":         {{goodHead + "\x00", 3}},
		"the head in pieces":    {{goodHead[:10], 0}, {goodHead[10:], 0}, {"\x00", 3}},
		"the last of the head":  {{goodHead[:len(goodHead)-1], 0}, {"\n\x00", 3}},
		"one after the other":   {{goodHead[:10], 1}, {goodHead[10:], 1}, {"\x00", 1}},
		"another case, and all": {{strings.ToUpper(goodHead), 0}, {"\x00", 3}},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		files, err := answering(t, []*os.File{w, r}, messages...).Stdio(t.Context(), "s", "p")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w.Close()
		if _, err := files[0].WriteString("x"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i, f := range files {
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s: descriptor %d is not close-on-exec: err = %v, want no error and flags & unix.FD_CLOEXEC != 0",
					name, i, err)
			}
			f.Close()
		}
		r.Close()
	}
}

// An answer that is not boxd's leaves no descriptor open.
func TestOtherAnswersThanDescriptors(t *testing.T) { // counts descriptors: not parallel
	problem := `{"type":"urn:boxd:problem:conflict","status":409,"detail":"taken"}`
	for name, messages := range map[string][]message{
		"nothing":             nil,
		"half a head":         {{goodHead[:20], 1}},
		"no descriptor":       {{goodHead, 0}, {"\x00", 0}},
		"two":                 {{goodHead, 0}, {"\x00", 2}},
		"four":                {{goodHead, 0}, {"\x00", 4}},
		"many":                {{goodHead, 0}, {"\x00", 100}},
		"twice three":         {{goodHead[:10], 3}, {goodHead[10:] + "\x00", 3}},
		"no byte":             {{goodHead, 3}},
		"two bytes":           {{goodHead, 0}, {"\x00\x00", 3}},
		"two single bytes":    {{goodHead, 0}, {"\x00", 3}, {"\x00", 0}},
		"another upgrade":     {{strings.Replace(goodHead, "boxd-stdio", "websocket", 1), 0}, {"\x00", 3}},
		"another status":      {{strings.Replace(goodHead, "101", "200", 1), 0}, {"\x00", 3}},
		"no HTTP":             {{"SSH-2.0-x\r\n\r\n", 3}},
		"a head without end":  {{goodHead[:len(goodHead)-2] + "X: " + strings.Repeat("x", maxHead), 3}},
		"an error":            {{"HTTP/1.1 409 Conflict\r\nContent-Length: 66\r\n\r\n" + problem, 0}},
		"an error with three": {{"HTTP/1.1 409 Conflict\r\n\r\n" + problem, 3}},
	} {
		before := openFiles(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			files, err := answering(t, []*os.File{null}, messages...).Stdio(t.Context(), "s", "p")
			e, ok := errors.AsType[*Error](err)
			if err == nil || files != [3]*os.File{} || ok != strings.HasPrefix(name, "an error") {
				t.Errorf(`files = %v, err = %v, want an error and files == [3]*os.File{} and ok == strings.HasPrefix(name, "an error")`,
					files, err)
			}
			if ok && (e.Status != http.StatusConflict || e.Detail != "taken") {
				t.Errorf(`e.Problem = %+v, want ok == false or e.Status == 409 and e.Detail == "taken"`, e.Problem)
			}
		})
		null.Close()
		if after := openFiles(t); after != before {
			t.Errorf("%s: %d descriptors, there were %d", name, after, before)
		}
	}
}

func TestWaitingForDescriptorsEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != api.StdioProtocol || r.URL.EscapedPath() != "/v1/sessions/a%2Fb/processes/%2E%2E/stdio" || r.URL.RawQuery != "owner=uid%3A7" {
			t.Errorf("r.URL = %s, r.Header = %v", r.URL, r.Header)
		}
		cancel()
		<-r.Context().Done()
	})
	c.Owner = "uid:7"
	if _, err := c.Stdio(ctx, "a/b", ".."); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want err is context.Canceled", err)
	}
	if _, err := c.Stdio(t.Context(), "s", ""); !errors.Is(err, ErrNoName) {
		t.Errorf("err = %v, want err is ErrNoName", err)
	}
	_, err := New(filepath.Join(t.TempDir(), "none")).Stdio(t.Context(), "s", "p")
	if e, ok := errors.AsType[*ConnectError](err); !ok || !errors.Is(err, unix.ENOENT) {
		t.Errorf("e = %v, err = %v, want ok == true and err is unix.ENOENT", e, err)
	}
}
