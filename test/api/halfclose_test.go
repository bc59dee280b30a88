// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// Over TCP too a client may shut down its sending side and wait for its answer, and a client that disconnects ends its program.
func TestAClientOverTCPMayEndWhatItSends(t *testing.T) {
	t.Parallel()
	h := open(t)
	secret := h.token("agent", "tenant", "")
	ask := func(method, path, body string) *net.TCPConn {
		t.Helper()
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", "application/json")
		tcp := conn.(*net.TCPConn)
		if err := req.Write(tcp); err != nil {
			t.Fatal(err)
		}
		return tcp
	}
	answer := func(conn *net.TCPConn, v any) {
		t.Helper()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil || resp.StatusCode/100 != 2 {
			t.Errorf("resp.Status = %s, data = %s, err = %v, want no error and resp.StatusCode / 100 == 2",
				resp.Status, data, err)
		}
	}
	var s api.Session
	answer(ask("POST", "/v1/sessions", `{"id":"s"}`), &s)
	run := func(line string) *net.TCPConn {
		return ask("POST", "/v1/sessions/s/exec", fmt.Sprintf(`{"command":%q}`, line))
	}
	conn := run("sleep 0.5; echo done")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var result api.ExecResult
	if answer(conn, &result); result.Stdout != "done\n" {
		t.Errorf(`result = %+v, want result.Stdout == "done\n"`, result)
	}
	running := func(want int) func() bool {
		return func() bool {
			var s api.Session
			answer(ask("GET", "/v1/sessions/s", ""), &s)
			return s.Running == want
		}
	}
	for _, half := range []bool{false, true} {
		conn = run("sleep 1000")
		boxtest.Eventually(t, "the program runs", running(1))
		if half {
			_ = conn.CloseWrite()
		}
		conn.Close()
		boxtest.Eventually(t, "the program has ended with the connection of its client", running(0))
	}
}
