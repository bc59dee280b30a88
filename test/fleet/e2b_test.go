// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bufio"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rpc "connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/e2b"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// buildE2B is like build, with a gateway and nodes that serve E2B clients.
func buildE2B(t *testing.T, nodes int) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), e2b: boxtest.FreeAddress(t, "127.0.0.1")}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	return h.fill(nodes)
}

// answered is an answer to a request.
type answered struct {
	code   int
	text   string
	header http.Header
}

// sends sends a request to the gateway as an E2B client does. A Host header sets the host of the request. Without an answer the
// code is 0.
func (h *house) sends(method, path, body string, header ...string) answered {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.scheme("http")+h.e2b+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := h.http().Do(req)
	if err != nil {
		return answered{text: err.Error()}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answered{text: err.Error()}
	}
	return answered{resp.StatusCode, string(text), resp.Header}
}

// asks sends a request to the control plane, with an API key.
func (h *house) asks(key, method, path, body string) answered {
	h.t.Helper()
	return h.sends(method, path, body, "X-Api-Key", key)
}

// sandbox is a sandbox that a test has created.
type sandbox struct {
	house   *house
	node    string
	ID      string `json:"sandboxID"`
	Token   string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
	Domain  string `json:"domain"`
}

// sandbox creates a sandbox on a node.
func (h *house) sandbox(key, node, body string) *sandbox {
	h.t.Helper()
	for _, n := range h.nodes {
		if n.name == node {
			continue
		}
		if code := h.get("PUT", "/v1/fleet/nodes/"+n.name+"/cordon", map[string]string{}, nil); code != http.StatusOK {
			h.t.Fatalf("cordon %s: code = %d, want 200", n.name, code)
		}
	}
	a := h.asks(key, "POST", "/v2/sandboxes", body)
	sb := &sandbox{house: h, node: node}
	if a.code != http.StatusCreated || json.Unmarshal([]byte(a.text), sb) != nil || sb.ID == "" || sb.Token == "" || sb.Traffic == "" {
		h.t.Fatalf(`create: a = %+v, want a.code == 201 and json.Unmarshal([]byte(a.text), sb) == nil and sb.ID != "" and sb.Token != "" and sb.Traffic != ""`,
			a)
	}
	if claim := h.where(sb.ID); claim.Node != node {
		h.t.Fatalf("the sandbox is claimed as %+v, not for %s", claim, node)
	}
	for _, n := range h.nodes {
		if n.name != node {
			h.get("DELETE", "/v1/fleet/nodes/"+n.name+"/cordon", nil, nil)
		}
	}
	return sb
}

// on returns the headers of a request for a port of the sandbox, with its access token.
func (sb *sandbox) on(port string) []string {
	return []string{"E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", port, "X-Access-Token", sb.Token}
}

// RoundTrip adds these headers.
func (sb *sandbox) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for list := sb.on("49983"); len(list) > 0; list = list[2:] {
		r.Header.Set(list[0], list[1])
	}
	return sb.house.transport().RoundTrip(r)
}

// starts starts a shell line.
func (sb *sandbox) starts(line string) (*rpc.ServerStreamForClient[protocol.StartResponse], error) {
	no := false
	c := protocol.NewProcessClient(&http.Client{Transport: sb}, sb.house.scheme("http")+sb.house.e2b)
	return c.Start(sb.house.t.Context(), &protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", line}}, Stdin: &no})
}

// runs runs a shell line and returns its output.
func (sb *sandbox) runs(line string) string {
	sb.house.t.Helper()
	stream, err := sb.starts(line)
	if err != nil {
		sb.house.t.Fatalf("%s: %v", line, err)
	}
	defer stream.Close()
	var out strings.Builder
	for stream.Receive() {
		out.Write(stream.Msg().GetEvent().GetData().GetStdout())
	}
	if err := stream.Err(); err != nil {
		sb.house.t.Fatalf("%s: %v after %q", line, err, out.String())
	}
	return out.String()
}

// signed returns a signed URL of a file, which does not name the sandbox.
func (sb *sandbox) signed(path, operation string, expires ...string) string {
	text, until := path+":"+operation+"::"+sb.Token, ""
	for _, at := range expires {
		text, until = text+":"+at, "&signature_expiration="+at
	}
	sum := sha256.Sum256([]byte(text))
	return "/files?path=" + path + "&signature=v1_" + strings.NewReplacer("+", "%2B", "/", "%2F").Replace(base64.RawStdEncoding.EncodeToString(sum[:])) + until
}

// echo is a program that answers a request with the request itself, and a WebSocket upgrade by echoing what it receives.
const echo = `
import socket, threading
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        head += c.recv(65536)
    if b"upgrade: websocket" in head.lower():
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := c.recv(65536):
            c.sendall(data)
    else:
        c.sendall(b"HTTP/1.1 200 OK\r\nMcp-Session-Id: mine\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))
    c.close()
s = socket.create_server(("localhost", 8000))
open("/tmp/listens", "w").close()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],)).start()
`

// To E2B clients, a fleet is one server at another address: each request goes to the node of the sandbox.
func TestE2BThroughTheGateway(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	h := buildE2B(t, 2)
	var all []*sandbox
	for i, node := range []string{"n1", "n2", "n1", "n2"} {
		sb := h.sandbox(h.token, node, fmt.Sprintf(`{"timeout":600,"metadata":{"n":"%d"},"envVars":{"NODE":%q}}`, i, node))
		if sb.Domain != "localhost:"+h.e2b[strings.LastIndex(h.e2b, ":")+1:] {
			t.Errorf("its ports have names below %s", sb.Domain)
		}
		all = append(all, sb)
	}
	lists(t, h, all)
	for _, sb := range all[:2] {
		if out := sb.runs("echo $NODE"); out != sb.node+"\n" {
			t.Errorf(`%s at %s: out = %q, want sb.node + "\n"`, sb.ID, sb.node, out)
		}
		controls(t, h, sb)
		files(t, h, sb)
		ports(t, h, sb)
		if a := h.sends("POST", "/execute", `{"code":"6*7"}`, sb.on("49999")...); a.code != http.StatusOK || !strings.Contains(a.text, `"42"`) {
			t.Errorf("code: a = %+v, want a.code == 200 and a.text containing `\"42\"`", a)
		}
		if a := h.sends("GET", "/contexts", "", "E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "49999", "E2b-Traffic-Access-Token", sb.Traffic); a.code != http.StatusOK || !strings.Contains(a.text, "python") {
			t.Errorf(`contexts: a = %+v, want a.code == 200 and a.text containing "python"`, a)
		}
		pauses(t, h, sb)
		if a := h.asks(h.token, "DELETE", "/sandboxes/"+sb.ID, ""); a.code != http.StatusNoContent {
			t.Errorf("kill: a = %+v, want a.code == 204", a)
		}
		for _, ask := range []struct {
			a    answered
			code int
		}{{h.asks(h.token, "GET", "/sandboxes/"+sb.ID, ""), 404}, {h.asks(h.token, "DELETE", "/sandboxes/"+sb.ID, ""), 404}, {h.sends("GET", "/health", "", sb.on("49983")...), 502}, {h.sends("POST", "/process.Process/List", "{}", sb.on("49983")...), 502}} {
			if ask.a.code != ask.code {
				t.Errorf("after its end: %+v, not %d", ask.a, ask.code)
			}
		}
		if claim := h.where(sb.ID); claim.ID != "" {
			t.Errorf(`its claim is %+v, want claim.ID == ""`, claim)
		}
	}
	for path, code := range map[string]int{"/health": 200, "/templates/aliases/base": 200, "/templates/aliases/nothing": 404, "/snapshots": 501, "/volumes": 501, "/v1/sandboxes": 501, "/v1/sessions": 501, "/metrics": 501} {
		if a := h.asks(h.token, "GET", path, ""); a.code != code {
			t.Errorf("%s: %+v, not %d", path, a, code)
		}
	}
	if a := h.asks(h.token, "POST", "/sandboxes", `{"templateID":"nothing"}`); a.code != http.StatusNotFound || !strings.Contains(a.text, "template") {
		t.Errorf(`a = %+v, want a.code == 404 and a.text containing "template"`, a)
	}
}

// lists checks lists of sandboxes on several nodes, page by page.
func lists(t *testing.T, h *house, all []*sandbox) {
	t.Helper()
	var want []string
	for _, sb := range all {
		want = append(want, sb.ID)
	}
	for _, order := range []string{"asc", "desc"} {
		for _, limit := range []int{1, 3, 4, 100} {
			var got []string
			next, pages := "", 0
			for {
				a := h.asks(h.token, "GET", fmt.Sprintf("/v2/sandboxes?order=%s&limit=%d&nextToken=%s", order, limit, next), "")
				var page []struct{ SandboxID string }
				if err := json.Unmarshal([]byte(a.text), &page); a.code != http.StatusOK || err != nil || len(page) > limit || a.header.Get("Boxd-Missing-Nodes") != "" {
					t.Fatalf(`%s by %d: a = %+v, want a.code == 200 and no error and len(page) <= limit and a.header.Get("Boxd-Missing-Nodes") == ""`,
						order, limit, a)
				}
				for _, one := range page {
					got = append(got, one.SandboxID)
				}
				pages++
				if next = a.header.Get("X-Next-Token"); next == "" || pages > len(all) {
					break
				}
			}
			if order == "desc" {
				slices.Reverse(got)
			}
			if diff := cmp.Diff(want, got); diff != "" || pages != (len(all)+limit-1)/limit {
				t.Errorf(`%s by %d in %d pages: diff = %s, want diff == "" and pages == (len(all) + limit - 1) / limit`,
					order, limit, pages, diff)
			}
		}
	}
	for query, n := range map[string]int{"metadata=n%3D2": 1, "state=paused": 0, "state=running": 4} {
		var page []any
		if a := h.asks(h.token, "GET", "/sandboxes?"+query, ""); a.code != http.StatusOK || json.Unmarshal([]byte(a.text), &page) != nil || len(page) != n {
			t.Errorf("%s: a = %+v, want a.code == 200 and json.Unmarshal([]byte(a.text), &page) == nil and len(page) == n",
				query, a)
		}
	}
	for _, query := range []string{"state=odd", "limit=0", "limit=1001", "nextToken=x", "order=x"} {
		if a := h.asks(h.token, "GET", "/sandboxes?"+query, ""); a.code != http.StatusBadRequest {
			t.Errorf("%s: a = %+v, want a.code == 400", query, a)
		}
	}
	if a := h.asks(h.user, "GET", "/sandboxes", ""); a.code != http.StatusOK || strings.TrimSpace(a.text) != "[]" {
		t.Errorf(`of another owner: a = %+v, want a.code == 200 and strings.TrimSpace(a.text) == "[]"`, a)
	}
}

// controls uses the control plane routes that do not change a sandbox.
func controls(t *testing.T, h *house, sb *sandbox) {
	t.Helper()
	for _, ask := range []struct {
		method, path, body string
		code               int
		message            string
	}{
		{"GET", "/sandboxes/ID", "", 200, `"state":"running"`},
		{"POST", "/sandboxes/ID/timeout", `{"timeout":500}`, 204, ""},
		{"POST", "/sandboxes/ID/refreshes", `{"duration":700}`, 204, ""},
		{"POST", "/v2/sandboxes/ID/connect", `{"timeout":800}`, 200, sb.Token},
		{"POST", "/sandboxes/ID/connect", `{}`, 200, sb.Traffic},
		{"POST", "/sandboxes/ID/resume", `{}`, 200, sb.Domain},
		{"GET", "/sandboxes/ID/metrics", "", 200, `"cpuCount"`},
		{"GET", "/sandboxes/ID/logs", "", 200, "session started"},
		{"GET", "/v2/sandboxes/ID/logs", "", 200, "session started"},
		{"PUT", "/sandboxes/ID/network", `{"allowOut":["example.org"],"denyOut":["0.0.0.0/0"]}`, 501, "keeps the network"},
		{"POST", "/sandboxes/ID/fork", `{}`, 501, "not served"},
	} {
		if a := h.asks(h.token, ask.method, strings.ReplaceAll(ask.path, "ID", sb.ID), ask.body); a.code != ask.code || !strings.Contains(a.text, ask.message) {
			t.Errorf("%s %s: a = %+v, want a.code == %v and a.text containing %q",
				ask.method, ask.path, a, ask.code, ask.message)
		}
	}
	key := "e2b_" + fmt.Sprintf("%x", h.token)
	if a := h.sends("GET", "/sandboxes/"+sb.ID, "", "X-Api-Key", key); a.code != http.StatusOK {
		t.Errorf("with a key of the old format: a = %+v, want a.code == 200", a)
	}
	if a := h.sends("GET", "/sandboxes/"+sb.ID, "", "Authorization", "Bearer "+h.token); a.code != http.StatusOK {
		t.Errorf("by a bearer token: a = %+v, want a.code == 200", a)
	}
}

// files reads and writes files, addressed by host name, by headers, and by URLs that name no sandbox.
func files(t *testing.T, h *house, sb *sandbox) {
	t.Helper()
	big := strings.Repeat("0123456789abcdef", 1<<17)
	upload := func(path, text string, header ...string) answered {
		return h.sends("POST", path, text, append(header, "Content-Type", "application/octet-stream")...)
	}
	if a := upload("/files?path=/tmp/big", big, sb.on("49983")...); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	host := "49983-" + sb.ID + "." + sb.Domain
	if a := h.sends("GET", "/files?path=/tmp/big", "", "Host", host, "X-Access-Token", sb.Token); a.code != http.StatusOK || a.text != big {
		t.Errorf("%d, %d bytes", a.code, len(a.text))
	}
	if a := upload(sb.signed("/tmp/signed", "write"), "by address"); a.code != http.StatusOK {
		t.Errorf("a = %+v, want a.code == 200", a)
	}
	if a := h.sends("GET", sb.signed("/tmp/signed", "read"), ""); a.code != http.StatusOK || a.text != "by address" {
		t.Errorf(`a = %+v, want a.code == 200 and a.text == "by address"`, a)
	}
	for range 8 { // whichever node answers first
		if a := h.sends("GET", sb.signed("/tmp/signed", "read", "1"), ""); a.code != http.StatusUnauthorized || !strings.Contains(a.text, "signature is already expired") {
			t.Errorf(`by an address that has expired: a = %+v, want a.code == 401 and a.text containing "signature is already expired"`,
				a)
		}
	}
	if a := h.sends("GET", sb.signed("/tmp/signed", "write"), ""); a.code != http.StatusUnauthorized {
		t.Errorf("by an address for something else: a = %+v, want a.code == 401", a)
	}
	if a := h.sends("GET", "/envs", "", sb.on("49983")...); a.code != http.StatusOK || !strings.Contains(a.text, sb.node) {
		t.Errorf("a = %+v, want a.code == 200 and a.text containing %q", a, sb.node)
	}
}

// ports sends requests to a program in the sandbox.
func ports(t *testing.T, h *house, sb *sandbox) {
	t.Helper()
	if a := h.sends("POST", "/files?path=/tmp/echo.py", echo, append(sb.on("49983"), "Content-Type", "application/octet-stream")...); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	sb.runs("(python3 /tmp/echo.py >/dev/null 2>&1 &); until test -e /tmp/listens; do sleep 0.05; done")
	host := "8000-" + sb.ID + "." + sb.Domain
	for name, header := range map[string][]string{
		"by name":                     {"Host", host, "E2b-Traffic-Access-Token", sb.Traffic},
		"by name as the owner":        {"Host", host, "X-Access-Token", sb.Token},
		"by headers":                  {"E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "8000", "E2b-Traffic-Access-Token", sb.Traffic},
		"with a secret, by mistake":   {"Host", host, "E2b-Traffic-Access-Token", sb.Traffic, "X-Api-Key", h.token, "Authorization", "Bearer " + h.token},
		"with headers of our gateway": {"Host", host, "E2b-Traffic-Access-Token", sb.Traffic, "Boxd-E2b-Ask", "true", "Boxd-Node", "n1", "Boxd-E2b-Domain", "x.y"},
	} {
		a := h.sends("PUT", "/path?a=b&c=%2F", "body", append(header, "X-Own", "own")...)
		head := strings.ToLower(a.text)
		if a.code != http.StatusOK || !strings.HasPrefix(a.text, "PUT /path?a=b&c=%2F HTTP") || !strings.Contains(head, "x-own: own") || a.header.Get("Mcp-Session-Id") != "mine" {
			t.Errorf(`%s: a = %+v, want a.code == 200 and a.text starting with "PUT /path?a=b&c=%%2F HTTP" and head containing "x-own: own" and a.header.Get("Mcp-Session-Id") == "mine"`,
				name, a)
		}
		for _, secret := range []string{sb.Traffic, sb.Token, h.token, "boxd-"} {
			if strings.Contains(head, strings.ToLower(secret)) {
				t.Errorf("%s: the program sees %s: a.text = %s, want head without strings.ToLower(secret)",
					name, secret, a.text)
			}
		}
		if header[0] == "Host" && !strings.Contains(head, "host: "+host) {
			t.Errorf(`%s: the program gets a request for another host: a.text = %s, want header[0] != "Host" or head containing "host: " + host`,
				name, a.text)
		}
	}
	if a := h.sends("GET", "/", "", "E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "8001", "E2b-Traffic-Access-Token", sb.Traffic); a.code != http.StatusBadGateway || !strings.Contains(a.text, "port is not open") {
		t.Errorf(`a = %+v, want a.code == 502 and a.text containing "port is not open"`, a)
	}
	conn := h.upgrades(host, "E2b-Traffic-Access-Token: "+sb.Traffic)
	defer conn.Close()
	for i := range 100 {
		line := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", 10_000))
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		if got, err := conn.in.ReadString('\n'); err != nil || got != line {
			t.Fatalf("%d: got %.20q, err = %v, want no error and got == %q", i, got, err, line)
		}
	}
}

// upgraded is a connection that the program in a sandbox has upgraded.
type upgraded struct {
	net.Conn
	in *bufio.Reader
}

// upgrades opens an upgraded connection.
func (h *house) upgrades(host, header string) *upgraded {
	h.t.Helper()
	conn, err := net.Dial("tcp", h.e2b)
	if err != nil {
		h.t.Fatal(err)
	}
	u := &upgraded{conn, bufio.NewReader(conn)}
	if _, err := fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\n%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", host, header); err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.ReadResponse(u.in, nil) //nolint:bodyclose // it has become a connection
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		h.t.Fatalf("resp = %+v, err = %v, want no error and resp.StatusCode == 101", resp, err)
	}
	return u
}

// pauses pauses a sandbox without its memory, which works the same way on all hosts.
func pauses(t *testing.T, h *house, sb *sandbox) {
	t.Helper()
	if a := h.asks(h.token, "POST", "/sandboxes/"+sb.ID+"/pause", `{"memory":false}`); a.code != http.StatusNoContent {
		t.Fatalf("a = %+v, want a.code == 204", a)
	}
	if a := h.asks(h.token, "POST", "/sandboxes/"+sb.ID+"/pause", `{"memory":false}`); a.code != http.StatusConflict || !strings.Contains(a.text, `"code":409`) {
		t.Errorf("paused again: a = %+v, want a.code == 409 and a.text containing `\"code\":409`", a)
	}
	if a := h.asks(h.token, "GET", "/v2/sandboxes?state=paused", ""); a.code != http.StatusOK || !strings.Contains(a.text, sb.ID) {
		t.Errorf("a = %+v, want a.code == 200 and a.text containing %q", a, sb.ID)
	}
	if a := h.sends("GET", "/envs", "", sb.on("49983")...); a.code != http.StatusBadGateway {
		t.Errorf("used while it is paused: a = %+v, want a.code == 502", a)
	}
	if a := h.asks(h.token, "POST", "/sandboxes/"+sb.ID+"/connect", `{"timeout":600}`); a.code != http.StatusCreated {
		t.Fatalf("a = %+v, want a.code == 201", a)
	}
	if out := sb.runs("echo here"); out != "here\n" {
		t.Errorf(`out = %q, want "here\n"`, out)
	}
}

// The published SDK works through a gateway as with a single boxd.
func TestTheSDKOfE2BThroughTheGateway(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	h := (&house{t: t, dir: boxtest.TempDir(t), e2b: boxtest.FreeAddress(t, "127.0.0.1")}).fillByTLS(2)
	at := h.scheme("http") + h.e2b
	for _, script := range []string{"sdk.mjs", "code.mjs"} {
		source, err := os.ReadFile(filepath.Join("..", "e2b", "testdata", script))
		if errors.Is(err, fs.ErrNotExist) {
			boxtest.Missing(t, "the scripts of test/e2b")
		}
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.CreateTemp(boxtest.NPM(t, boxtest.E2BPackages), "*-"+script) // beside the modules it imports
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		_, err = file.Write(source)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), boxtest.Node(t), file.Name())
		cmd.Env = append(os.Environ(), "E2B_API_KEY="+h.token, "E2B_API_URL="+at, "E2B_SANDBOX_URL="+at, "NODE_EXTRA_CA_CERTS="+h.ca.File)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "FAILED ") {
			t.Errorf("%s: err = %v, want no error and out without \"FAILED \":\n%s", script, err, out)
		}
		for _, m := range regexp.MustCompile(`(?m)^step\('([^']*)'`).FindAllStringSubmatch(string(source), -1) {
			if !strings.Contains(string(out), "ok "+m[1]+"\n") && !strings.Contains(string(out), "FAILED "+m[1]) {
				t.Errorf("%s: %s was not done", script, m[1])
			}
		}
	}
}

// A foreign sandbox and a missing one get the same answers from every operation, whatever the key and the body; so does a lost
// one.
func TestAForeignSandboxIsAMissingOneThroughTheGateway(t *testing.T) {
	t.Parallel()
	h := buildE2B(t, 2)
	live, away := h.sandbox(h.token, "n1", `{}`), h.sandbox(h.token, "n2", `{}`)
	h.on("n2").agent.kill()
	boxtest.Eventually(t, "the sandbox is lost", func() bool { return h.where(away.ID).State == api.FleetClaimLost })
	missing := strings.Map(func(r rune) rune { // of the same form
		if r >= 'a' && r < 'z' || r >= '0' && r < '9' {
			return r + 1
		}
		return r
	}, live.ID)
	tried := 0
	for _, pattern := range e2b.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{id}") || strings.HasPrefix(path, "/templates/") {
			continue
		}
		for _, key := range []string{h.user, h.few, "boxd_nobody", ""} {
			for _, body := range []string{"", `{}`, `{"timeout":60}`, `{`} {
				var got []string
				for _, id := range []string{missing, live.ID, away.ID} {
					a := h.asks(key, method, strings.ReplaceAll(path, "{id}", id)+"?owner=ci", body)
					a.header.Del("Date")
					if key == h.few && a.code != http.StatusForbidden && id != missing { // of its principal, outside the token's scope
						if a.code == http.StatusServiceUnavailable && id == away.ID || a.code == http.StatusNotImplemented {
							continue
						}
						t.Errorf("%s: a = %+v, want key != h.few or a.code == 403 or id == missing", pattern, a)
					}
					if a.code < 400 {
						t.Errorf("%s with an unknown key: a = %+v, want a.code >= 400", pattern, a)
					}
					if key != h.few {
						got = append(got, strings.ReplaceAll(fmt.Sprint(a), id, "ID"))
					}
				}
				for _, other := range got {
					if diff := cmp.Diff(got[0], other); diff != "" {
						t.Errorf("%s with %q tells a foreign sandbox from a missing one (-missing +foreign):\n%s", pattern, body, diff)
					}
				}
				tried++
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d were tried", tried)
	}
	for _, sb := range []*sandbox{live, away} {
		if claim := h.where(sb.ID); claim.ID == "" {
			t.Errorf("the sandbox %s is gone", sb.ID)
		}
	}
}

// Requests of an unauthenticated client, or of another one, achieve nothing, and the gateway vouches for them to no node.
func TestStrangersAtTheGatewayForE2B(t *testing.T) {
	t.Parallel()
	h := buildE2B(t, 2)
	mine, theirs := h.sandbox(h.token, "n1", `{}`), h.sandbox(h.user, "n2", `{}`)
	mine.runs("echo secret >/tmp/secret")
	read := "/files?path=/tmp/secret"
	host := func(port string) string { return port + "-" + mine.ID + "." + mine.Domain }
	for name, header := range map[string][]string{
		"without a token":          {"E2b-Sandbox-Id", mine.ID},
		"by name":                  {"Host", host("49983")},
		"an API key of the owner":  {"E2b-Sandbox-Id", mine.ID, "X-Api-Key", h.token},
		"a bearer of the owner":    {"E2b-Sandbox-Id", mine.ID, "Authorization", "Bearer " + h.token},
		"another's token":          {"E2b-Sandbox-Id", mine.ID, "X-Access-Token", theirs.Token},
		"the token for ports":      {"E2b-Sandbox-Id", mine.ID, "X-Access-Token", mine.Traffic},
		"the token for ports, too": {"E2b-Sandbox-Id", mine.ID, "E2b-Traffic-Access-Token", mine.Traffic},
		"no sandbox, no token":     {},
		"no sandbox, a wrong one":  {"X-Access-Token", "x"},
		"our own headers":          {"E2b-Sandbox-Id", mine.ID, "Boxd-E2b-Ask", "true", "Boxd-E2b-Holds", "x", "Boxd-E2b-Owner", "ci", "Boxd-Gateway", "x", "Boxd-Node", "n1"},
	} {
		if a := h.sends("GET", read, "", header...); a.code != http.StatusUnauthorized || strings.Contains(a.text, "secret\n") || a.header.Get("Boxd-E2b-Owner") != "" {
			t.Errorf(`%s: a = %+v, want a.code == 401 and a.text without "secret\n" and a.header.Get("Boxd-E2b-Owner") == ""`,
				name, a)
		}
	}
	for name, header := range map[string][]string{"a port": {"Host", host("8000")}, "a port with another's": {"Host", host("8000"), "E2b-Traffic-Access-Token", theirs.Traffic}, "contexts": {"Host", host("49999")}} {
		if a := h.sends("GET", "/contexts", "", header...); a.code != http.StatusUnauthorized {
			t.Errorf("%s: a = %+v, want a.code == 401", name, a)
		}
	}
	for name, ask := range map[string]answered{
		"no key":                    h.sends("POST", "/sandboxes", "{}"),
		"two keys":                  h.sends("GET", "/sandboxes", "", "X-Api-Key", h.token+", "+h.token),
		"a wrong key":               h.sends("POST", "/sandboxes", "{}", "X-Api-Key", "boxd_wrong"),
		"a token of a sandbox":      h.sends("GET", "/sandboxes", "", "X-Api-Key", mine.Token),
		"a signed identity":         h.sends("GET", "/sandboxes", "", "Authorization", "Boxd-Caller x.y"),
		"a signed identity of ours": h.sends("GET", "/sandboxes", "", "Boxd-Gateway", "Boxd-Caller x.y"),
	} {
		if ask.code != http.StatusUnauthorized {
			t.Errorf("%s: ask = %+v, want ask.code == 401", name, ask)
		}
	}
	// A viewer gets no tokens and cannot create anything.
	if a := h.asks(h.viewer, "GET", "/sandboxes/"+mine.ID, ""); a.code != http.StatusOK || strings.Contains(a.text, mine.Token) {
		t.Errorf("a = %+v, want a.code == 200 and a.text without %q", a, mine.Token)
	}
	for _, path := range []string{"/sandboxes", "/sandboxes/" + mine.ID + "/connect"} {
		if a := h.asks(h.viewer, "POST", path, "{}"); a.code != http.StatusForbidden {
			t.Errorf("%s: a = %+v, want a.code == 403", path, a)
		}
	}
	// A web page in a browser does not get in through a host name that resolves to this gateway.
	if a := h.sends("GET", "/sandboxes", "", "Host", "example.org", "X-Api-Key", h.token); a.code != http.StatusForbidden {
		t.Errorf("a = %+v, want a.code == 403", a)
	}
	// A session that another user creates with the id of a sandbox neither hides that sandbox nor gives access to it.
	if code := h.as(h.user, "POST", "/v1/sessions", map[string]any{"id": mine.ID, "labels": map[string]string{"e2b.template": "base", "e2b.key": "fleet:main:x"}, "placement": map[string]any{"node": "n2"}}, nil); code != http.StatusCreated && code != http.StatusBadRequest {
		t.Errorf("code = %d, want code == 201 or code == 400", code)
	}
	if a := h.sends("GET", read, "", mine.on("49983")...); a.code != http.StatusOK || a.text != "secret\n" {
		t.Errorf(`the owner: a = %+v, want a.code == 200 and a.text == "secret\n"`, a)
	}
	if a := h.sends("GET", read, "", "E2b-Sandbox-Id", mine.ID, "X-Access-Token", theirs.Token); a.code != http.StatusUnauthorized {
		t.Errorf("a = %+v, want a.code == 401", a)
	}
	if a := h.sends("GET", "/", "", "Host", host("8000")); a.code != http.StatusUnauthorized {
		t.Errorf("a = %+v, want a.code == 401", a)
	}
}

// The gateways' socket serves only gateways, for E2B too: a gateway's statement about a key does not authenticate a caller by
// itself, and does not name one.
func TestTheSocketOfGatewaysAndE2B(t *testing.T) {
	t.Parallel()
	h := buildE2B(t, 1)
	sb := h.sandbox(h.token, "n1", `{}`)
	key := h.key()
	socket := filepath.Join(h.nodes[0].boxd.Dir, "fleet")
	says := func(holder bool, principal, token, method, target string) string {
		a := access.Assertion{Gateway: "main", Node: "n1", Principal: principal, Role: access.User, Token: token, Method: method, Target: target}
		sign := a.Sign
		if holder {
			sign = a.SignHolder
		}
		value, err := sign(key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	send := func(method, target string, header ...string) answered {
		t.Helper()
		var lines []string
		for i := 0; i < len(header); i += 2 {
			lines = append(lines, header[i]+": "+header[i+1])
		}
		a, err := boxtest.Ask(t.Context(), socket, boxtest.Request(method, target, "", lines...))
		if err != nil {
			t.Fatal(err)
		}
		return answered{a.Code, string(a.Body), a.Header}
	}
	mine := strings.TrimPrefix(h.holds(sb), "fleet:main:")
	const envs = "/envs"
	good := append(sb.on("49983"), "Boxd-Gateway", says(true, "ci", mine, "GET", envs))
	if a := send("GET", envs, good...); a.code != http.StatusOK {
		t.Errorf("as the gateway does it: a = %+v, want a.code == 200", a)
	}
	for name, a := range map[string]answered{
		"nothing signed":                  send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", "x")...),
		"the same again":                  send("GET", envs, good...),
		"who calls, not which key holds":  send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", says(false, "ci", mine, "GET", envs))...),
		"no key":                          send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", says(true, "", "", "GET", envs))...),
		"another key of the owner":        send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", says(true, "ci", "other", "GET", envs))...),
		"a key of somebody else":          send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", says(true, "other", mine, "GET", envs))...),
		"another request":                 send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", says(true, "ci", mine, "GET", "/files"))...),
		"a key, and no token":             send("GET", envs, "E2b-Sandbox-Id", sb.ID, "Boxd-Gateway", says(true, "ci", mine, "GET", envs)),
		"the control plane, by a key":     send("GET", "/sandboxes", "Boxd-Gateway", says(true, "ci", mine, "GET", "/sandboxes")),
		"the API, by a key":               send("GET", "/v1/sessions", "Authorization", says(true, "ci", mine, "GET", "/v1/sessions")),
		"the API, by the header of E2B's": send("GET", "/v1/sessions", "Authorization", "Boxd-Caller x.y"),
	} {
		if a.code != http.StatusUnauthorized {
			t.Errorf("%s: a = %+v, want a.code == 401", name, a)
		}
	}
	if a := send("GET", "/v1/sessions", "Authorization", says(false, "ci", mine, "GET", "/v1/sessions")); a.code != http.StatusOK {
		t.Errorf("the API as before: a = %+v, want a.code == 200", a)
	}
	// A gateway that requests the owner of a sandbox gets it, if it presents a token of the sandbox.
	if a := send("GET", envs, append(sb.on("49983"), "Boxd-Gateway", says(true, "", "", "GET", envs), "Boxd-E2b-Ask", "true")...); a.code != http.StatusNoContent || a.header.Get("Boxd-E2b-Owner") != "ci" {
		t.Errorf(`a = %+v, want a.code == 204 and a.header.Get("Boxd-E2b-Owner") == "ci"`, a)
	}
	if a := send("GET", envs, "E2b-Sandbox-Id", sb.ID, "Boxd-Gateway", says(true, "", "", "GET", envs), "Boxd-E2b-Ask", "true"); a.code != http.StatusUnauthorized || a.header.Get("Boxd-E2b-Owner") != "" {
		t.Errorf(`without a token: a = %+v, want a.code == 401 and a.header.Get("Boxd-E2b-Owner") == ""`, a)
	}
}

// key returns the gateway's private key.
func (h *house) key() ed25519.PrivateKey {
	h.t.Helper()
	block, _ := pem.Decode([]byte(h.text("key")))
	if block == nil {
		h.t.Fatal("the key of the gateway is no PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		h.t.Fatal(err)
	}
	return parsed.(ed25519.PrivateKey) //nolint:forcetypeassert // boxfleet makes no other
}

// holds returns the key that a sandbox depends on, as its node names it.
func (h *house) holds(sb *sandbox) string {
	h.t.Helper()
	boxd := client.New(h.on(sb.node).boxd.Socket)
	defer boxd.Close()
	boxd.Owner = "ci"
	s, err := boxd.Session(h.t.Context(), sb.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Labels["e2b.key"]
}

// A sandbox depends on its gateway key: without it running streams end and tokens and signed URLs are refused, until another key
// of the owner connects to the sandbox.
func TestASandboxDependsOnItsGatewayKey(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	h := buildE2B(t, 1)
	second, hash := access.NewToken()
	h.tokens += fmt.Sprintf("[[token]]\nname = \"second\"\nsha256 = %q\nprincipal = \"ci\"\n", hash)
	h.write("tokens", h.tokens)
	h.gate.reload()
	boxtest.Eventually(t, "the second key is accepted", func() bool { return h.asks(second, "GET", "/sandboxes", "").code == http.StatusOK })
	sb := h.sandbox(second, "n1", `{}`)
	ports(t, h, sb)
	conn := h.upgrades("8000-"+sb.ID+"."+sb.Domain, "E2b-Traffic-Access-Token: "+sb.Traffic)
	defer conn.Close()
	stream, err := sb.starts("echo begun; sleep 3600")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() && len(stream.Msg().GetEvent().GetData().GetStdout()) == 0 {
	}
	h.write("tokens", strings.ReplaceAll(h.tokens, "second", "third")) // the same token under another name is another one
	h.gate.reload()
	for stream.Receive() {
	}
	if err := stream.Err(); err == nil {
		t.Error("the stream of a revoked key ended without an error")
	}
	if n, err := io.Copy(io.Discard, conn.in); n > 0 {
		t.Errorf("%d bytes more, %v", n, err)
	}
	for name, a := range map[string]answered{
		"its token":        h.sends("GET", "/envs", "", sb.on("49983")...),
		"a signed address": h.sends("GET", sb.signed("/tmp/echo.py", "read"), ""),
		"a port":           h.sends("GET", "/", "", "E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "8000", "E2b-Traffic-Access-Token", sb.Traffic),
	} {
		if a.code != http.StatusUnauthorized || !strings.Contains(a.text, "is no longer valid") {
			t.Errorf(`%s: a = %+v, want a.code == 401 and a.text containing "is no longer valid"`, name, a)
		}
	}
	if a := h.asks(h.token, "POST", "/sandboxes/"+sb.ID+"/connect", `{}`); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	boxtest.Eventually(t, "the program of the sandbox still runs", func() bool { // on a busy host the program may not run yet when its shell has printed that
		out := sb.runs("pgrep -x sleep >/dev/null && echo goes on || echo not there")
		if out != "goes on\n" && out != "not there\n" {
			t.Fatalf(`out = %q, want out == "goes on\n" or out == "not there\n"`, out)
		}
		return out == "goes on\n"
	})
}

// Sandboxes of a dead node are lost, but not reported as ended; they are found when it is back. The death of a gateway loses
// nothing.
func TestSandboxesOfANodeThatIsLost(t *testing.T) {
	t.Parallel()
	h := buildE2B(t, 2)
	away, here := h.sandbox(h.token, "n1", `{}`), h.sandbox(h.token, "n2", `{}`)
	n := h.on("n1")
	n.agent.kill()
	boxtest.Eventually(t, "the sandbox is lost", func() bool { return h.where(away.ID).State == api.FleetClaimLost })
	looks := func() {
		t.Helper()
		for name, a := range map[string]answered{
			"get": h.asks(h.token, "GET", "/sandboxes/"+away.ID, ""), "connect": h.asks(h.token, "POST", "/sandboxes/"+away.ID+"/connect", "{}"), "pause": h.asks(h.token, "POST", "/sandboxes/"+away.ID+"/pause", "{}"),
		} {
			if a.code != http.StatusServiceUnavailable || !strings.Contains(a.text, "lost since") || !strings.Contains(a.text, `"code":503`) {
				t.Errorf("%s: a = %+v, want a.code == 503 and a.text containing \"lost since\" and a.text containing `\"code\":503`",
					name, a)
			}
		}
		for name, a := range map[string]answered{"its token": h.sends("GET", "/envs", "", away.on("49983")...), "health": h.sends("GET", "/health", "", away.on("49983")...), "nothing": h.sends("GET", "/envs", "", "E2b-Sandbox-Id", away.ID)} {
			if a.code != http.StatusServiceUnavailable || strings.Contains(a.text, "n1") {
				t.Errorf(`%s: a = %+v, want a.code == 503 and a.text without "n1"`, name, a)
			}
		}
		if a := h.asks(h.token, "GET", "/sandboxes", ""); a.code != http.StatusOK || strings.Contains(a.text, away.ID) || !strings.Contains(a.text, here.ID) || a.header.Get("Boxd-Missing-Nodes") != "n1" {
			t.Errorf(`a = %+v, want a.code == 200 and a.text without %q and a.text containing %q and a.header.Get("Boxd-Missing-Nodes") == "n1"`,
				a, away.ID, here.ID)
		}
		if out := here.runs("echo here"); out != "here\n" {
			t.Errorf(`out = %q, want "here\n"`, out)
		}
	}
	looks()
	h.gate.kill()
	h.gate.start()
	boxtest.Eventually(t, "the gateway knows that the node is lost", func() bool {
		return h.asks(h.token, "GET", "/sandboxes", "").header.Get("Boxd-Missing-Nodes") == "n1"
	})
	boxtest.Eventually(t, "the other node is ready", func() bool { return h.sends("GET", "/envs", "", here.on("49983")...).code == http.StatusOK })
	looks()
	n.agent.start()
	boxtest.Eventually(t, "the sandbox is found", func() bool { return h.where(away.ID).State == api.FleetClaimLive })
	h.ready(2)
	if out := away.runs("echo back"); out != "back\n" {
		t.Errorf(`out = %q, want "back\n"`, out)
	}
	n.agent.kill()
	boxtest.Eventually(t, "the sandbox is lost again", func() bool { return h.where(away.ID).State == api.FleetClaimLost })
	if a := h.asks(h.token, "DELETE", "/sandboxes/"+away.ID, ""); a.code != http.StatusNoContent {
		t.Errorf("given up: a = %+v, want a.code == 204", a)
	}
	if a := h.sends("GET", "/envs", "", away.on("49983")...); a.code != http.StatusBadGateway {
		t.Errorf("a = %+v, want a.code == 502", a)
	}
	n.agent.start()
	boxtest.Eventually(t, "the box of the sandbox ends", func() bool {
		n.boxd.Owner = "ci"
		_, err := n.boxd.Session(t.Context(), away.ID)
		return errors.Is(err, client.NotFound)
	})
}

// A session that was not created by an E2B client is no sandbox: E2B clients neither see nor end it, not even while its node is lost.
func TestASessionOfTheFleetIsNoSandbox(t *testing.T) {
	t.Parallel()
	h := buildE2B(t, 1)
	h.makes("plain", "n1")
	none := func() {
		t.Helper()
		for _, ask := range [][2]string{{"GET", ""}, {"POST", "/pause"}, {"DELETE", ""}} {
			a, missing := h.asks(h.token, ask[0], "/sandboxes/plain"+ask[1], ""), h.asks(h.token, ask[0], "/sandboxes/plainer"+ask[1], "")
			if a.code != http.StatusNotFound || a.code != missing.code || a.text != strings.ReplaceAll(missing.text, "plainer", "plain") {
				t.Errorf("%s%s: the answer is %+v, about a missing sandbox %+v", ask[0], ask[1], a, missing)
			}
		}
		if a := h.sends("GET", "/health", "", "E2b-Sandbox-Id", "plain", "E2b-Sandbox-Port", "49983"); a.code != http.StatusBadGateway {
			t.Errorf("a = %+v, want a.code == 502", a)
		}
	}
	none()
	if claim := h.where("plain"); claim.State != api.FleetClaimLive {
		t.Errorf("claim = %+v, want claim.State == api.FleetClaimLive", claim)
	}
	h.runs("plain")
	h.on("n1").agent.kill()
	boxtest.Eventually(t, "the session is lost", func() bool { return h.where("plain").State == api.FleetClaimLost })
	none()
	if claim := h.where("plain"); claim.State != api.FleetClaimLost {
		t.Errorf("it was given up: claim = %+v, want claim.State == api.FleetClaimLost", claim)
	}
	h.on("n1").agent.start()
	boxtest.Eventually(t, "the session is found", func() bool { return h.where("plain").State == api.FleetClaimLive })
	h.runs("plain")
}

// A node whose box.toml does not allow gateways to serve E2B gets no sandboxes and answers no such requests.
func TestANodeServesE2BIfItsOperatorSaysSo(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.write("other.toml", strings.ReplaceAll(h.text("fleet.toml"), h.address, boxtest.FreeAddress(t, "127.0.0.1"))+fmt.Sprintf("\n[e2b]\nlisten = %q\n", h.anotherE2B()))
	startProgram(t, filepath.Join(h.dir, "other.log"), "serve", "-config", filepath.Join(h.dir, "other.toml"))
	boxtest.Eventually(t, "the other gateway knows the node", func() bool {
		a := h.asks(h.token, "GET", "/templates/aliases/base", "")
		return a.code == http.StatusTooManyRequests && strings.Contains(a.text, "n1: it cannot e2b")
	})
	boxtest.Eventually(t, "no sandbox is created", func() bool { // otherwise the fleet is not known yet
		a := h.asks(h.token, "POST", "/sandboxes", "{}")
		return a.code == http.StatusTooManyRequests && strings.Contains(a.text, "n1: it cannot e2b")
	})
	if a := h.asks(h.token, "GET", "/sandboxes", ""); a.code != http.StatusServiceUnavailable || !strings.Contains(a.text, "no node speaks E2B") {
		t.Errorf(`a = %+v, want a.code == 503 and a.text containing "no node speaks E2B"`, a)
	}
	h.makes("s", "n1")
	if a := h.sends("GET", "/health", "", "E2b-Sandbox-Id", "s", "E2b-Sandbox-Port", "49983"); a.code != http.StatusBadGateway { // as for a missing one
		t.Errorf("a = %+v, want a.code == 502", a)
	}
}

func (h *house) anotherE2B() string {
	h.e2b = boxtest.FreeAddress(h.t, "127.0.0.1")
	return h.e2b
}

func (h *house) text(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}
