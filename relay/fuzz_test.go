// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A request with arbitrary bytes as its head is answered once, and an unauthenticated caller gets no route that needs a role.
func FuzzHead(f *testing.F) {
	for _, text := range []string{
		"GET /v1/sessions HTTP/1.1\r\nHost: boxd\r\n\r\n", "POST /v1/sessions/a%2fb/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"GET //v1/../sessions?all&all HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1/sessions/%zz HTTP/1.0\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HEAD /healthz HTTP/1.1\r\nHost: x\r\nTraceparent: 00-0-0-0\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	s, _ := quiet()
	ok := func(*Call) (any, error) { return api.Health{}, nil }
	for i := range s.routes { // this is about finding routes, not executing them
		s.routes[i].Handle = ok
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil {
			return
		}
		rt, path := s.find(r)
		if rt.Handle == nil {
			t.Fatalf("%q has no answer", head)
		}
		for _, id := range []string{path.Session, path.Process, path.Skill, path.Workspace, path.Drive, path.Image, path.Principal} {
			if len(id) > len(r.URL.EscapedPath()) {
				t.Errorf("%q has the id %q", head, id)
			}
		}
		w := httptest.NewRecorder()
		r.Body = io.NopCloser(strings.NewReader(""))
		s.ServeHTTP(w, r) // unauthenticated: its context has no peer
		if rt.Role > access.Role(unauthenticated) && w.Code < http.StatusBadRequest {
			t.Errorf("%q without authentication: w.Code = %d, want rt.Role <= access.Role(anyone) or w.Code >= 400", head, w.Code)
		}
	})
}

// A client's control message is decoded as it was meant, and an accepted one says one thing.
func FuzzControl(f *testing.F) {
	for _, text := range []string{`{"signal":"SIGINT"}`, `{"resize":{"rows":1,"cols":2}}`, `{"attach":{}}`, `{"start":{"argv":["true"]}}`, `{"signal":"SIGINT","attach":{}}`, `{"detach":true}`, `{`, `{"Signal":"SIGINT"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var msg api.ClientControl
		if decodeStrictly(data, &msg) != nil {
			return
		}
		if msg.Start != nil && decodeBase64Into(msg.Start) != nil {
			return
		}
		if _, err := signalOf(&msg); err == nil && (msg.Start != nil || msg.Attach != nil || (msg.Signal != "") == (msg.Resize != nil)) {
			t.Errorf(`%s was decoded as a signal or a size: msg = %+v, want an error or msg.Start == nil and msg.Attach == nil and (msg.Signal != "") != (msg.Resize != nil)`,
				data, msg)
		}
	})
}
