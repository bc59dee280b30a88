// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// boxctl forward passes bytes both ways and ends on a signal; the audit log records who has connected and who has created a
// preview address; callers whose policy excludes ports may do neither.
func TestForwardingAPort(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[policy.ci]\nprincipals = [\"uid:4242\"]\ntools = [\"files\"]\n")
	serving(t, d, "s1")
	at := filepath.Join(boxtest.TempDir(t), "web")
	forward := d.Boxctl(t, "forward", "s1", at+":8000")
	out, err := forward.StdoutPipe()
	if err == nil {
		err = forward.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != at {
		t.Fatalf("boxctl prints %q, %v, want strings.TrimSpace(line) == at", line, err)
	}
	text := strings.Repeat("many words ", 100_000)
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, text); err == nil {
		err = conn.(*net.UnixConn).CloseWrite()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != strings.ToUpper(text) {
		t.Errorf("%d bytes were returned of %d: err = %v, want got == strings.ToUpper(text)", len(got), len(text), err)
	}
	if err := forward.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = forward.Wait()
	if _, err := d.PreviewPort(t.Context(), "s1", 8000, "1h"); err != nil {
		t.Fatal(err)
	}
	for _, route := range []string{"GET /v1/sessions/{id}/ports/{port}/stream", "POST /v1/sessions/{id}/ports/{port}/token"} {
		boxtest.Eventually(t, "the audit log has "+route, func() bool {
			list, err := d.Audit(t.Context(), client.AuditOptions{Session: "s1"})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Records {
				if r := &list.Records[i]; r.Route == route && r.Principal == "uid:0" && r.Outcome == "done" {
					return true
				}
			}
			return false
		})
	}
	all := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"theirs"}`),
		"GET /v1/sessions/theirs/ports/8000/stream HTTP/1.1\r\nHost: boxd\r\nConnection: Upgrade\r\nUpgrade: "+api.PortProtocol+"\r\n\r\n",
		boxtest.Request("POST", "/v1/sessions/theirs/ports/8000/token", `{}`))
	for _, a := range all[1:] {
		denied(t, a, http.StatusForbidden, "policy", "policy.ci.tools")
	}
}
