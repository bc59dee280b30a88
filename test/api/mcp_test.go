// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// accepts returns the Accept header required of MCP clients.
func accepts(more ...string) http.Header {
	h := http.Header{"Accept": {"application/json, text/event-stream"}}
	for i := 0; i < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// mcp talks to the MCP server as a client without the SDK does.
func (c *contract) mcp() {
	const post, get, end = "POST /mcp", "GET /mcp", "DELETE /mcp"
	before := c.boxes()
	got := c.gets(200, request{route: post, body: hello, head: accepts()})
	id := got.Header.Get("Mcp-Session-Id")
	if !strings.Contains(string(got.Body), "These tools work in a box") || id == "" {
		c.t.Fatalf(`got.Header = %v, got.Body = %s, want got.Body containing "These tools work in a box" and id != ""`,
			got.Header, got.Body)
	}
	in := accepts("Mcp-Session-Id", id, "Mcp-Protocol-Version", "2025-11-25")
	c.gets(202, request{route: post, body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, head: in})
	for message, want := range map[string]string{
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"no_such_tool"}}`:                                      `-32602`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":7}}}`:                `"isError":true`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"true","extra":1}}}`: `"isError":true`,
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"box_read","arguments":{"path":"/etc/shadow"}}}`:       `"isError":true`,
		`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"echo $((6*7))"}}}`:  `42`,
		`{"jsonrpc":"2.0","id":7,"method":"ping"}`:                                                                                 `"result":{}`,
		`{"jsonrpc":"2.0","id":8,"method":"resources/read","params":{"uri":"boxd://output/7/stdout"}}`:                             `-32`,
		`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"true","session":"x"}}}`: `omit it`,
	} {
		if got := c.gets(200, request{route: post, body: message, head: in}); !strings.Contains(string(got.Body), want) {
			c.t.Errorf("%s: got.Body = %s, want got.Body containing %q", message, got.Body, want)
		}
	}
	for _, message := range []string{`[]`, `{"jsonrpc":"2.0","id":2,"method":"no/such"}`, `{"method":"ping","id":1}`, `[` + hello + `]`} {
		c.gets(400, request{route: post, body: message, head: in, odd: message[0] == '['})
	}
	c.refused(400, "body", request{route: post, body: `{"jsonrpc":`, head: in, odd: true})
	c.gets(400, request{route: post, body: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, head: accepts("Mcp-Session-Id", id, "Mcp-Protocol-Version", "1999-01-01")})
	c.refused(400, "Mcp-Session-Id", request{route: post, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, head: accepts()}) // before initialize
	c.refused(400, "Mcp-Session-Id", request{route: get, head: accepts()})
	c.refused(400, "Mcp-Session-Id", request{route: end})
	c.refused(400, "profile", request{route: post, query: "profile=none-such", body: hello, head: accepts()})
	c.refused(400, "variables", request{route: post, query: "variables=x", body: hello, head: accepts()})
	for _, uid := range []uint32{boxtest.OtherUID, 0} { // a foreign session is like a missing one
		head := in
		if uid == 0 {
			head = accepts("Mcp-Session-Id", "none")
		}
		c.refused(404, "Mcp-Session-Id", request{route: post, body: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, head: head, uid: uid})
		c.refused(404, "Mcp-Session-Id", request{route: get, head: head, uid: uid})
		c.refused(404, "Mcp-Session-Id", request{route: end, head: head, uid: uid})
	}
	ctx, hangUp := context.WithCancel(c.t.Context())
	defer hangUp()
	req := c.request(request{route: get, head: in}).WithContext(ctx)
	tr := &http.Transport{DisableKeepAlives: true, DialContext: boxtest.Dialer(c.Socket, 0)}
	resp, err := tr.RoundTrip(req)
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		c.t.Fatalf(`resp = %v, err = %v, want no error and resp.StatusCode == 200 and resp.Header.Get("Content-Type") == "text/event-stream"`,
			resp, err)
	}
	resp.Body.Close()
	c.seen[get+" 200"] = true
	if n := c.boxes(); n != before+1 {
		c.t.Errorf("there are %d boxes, before there were %d", n, before)
	}
	c.gets(204, request{route: end, head: in})
	if n := c.boxes(); n != before {
		c.t.Errorf("afterwards there are %d boxes, before there were %d", n, before)
	}
	c.refused(404, "Mcp-Session-Id", request{route: end, head: in})
	for range 8 {
		c.gets(200, request{route: post, body: hello, head: accepts()})
	}
	c.refused(429, "", request{route: post, body: hello, head: accepts()})
}

// boxes returns the caller's number of sessions.
func (c *contract) boxes() int {
	c.t.Helper()
	list, err := c.Sessions(c.t.Context(), false)
	if err != nil {
		c.t.Fatal(err)
	}
	return len(list)
}

// mcpClient is an MCP client of /mcp.
type mcpClient struct {
	*mcp.ClientSession

	t *testing.T
}

// showing sends a token with each request.
type showing struct {
	token string
	next  http.RoundTripper
}

func (s showing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+s.token)
	return s.next.RoundTrip(r)
}

func converse(t *testing.T, address string, via http.RoundTripper, o *mcp.ClientOptions) (*mcpClient, error) {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: address, HTTPClient: &http.Client{Transport: via}, MaxRetries: -1,
	}, nil)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() }) // most have closed it
	return &mcpClient{s, t}, nil
}

// mustCall calls a tool whose answer must contain want.
func (a *mcpClient) mustCall(want, tool string, args map[string]any) {
	a.t.Helper()
	r, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	data, _ := json.Marshal(r.Content)
	if r.IsError || !bytes.Contains(data, []byte(want)) {
		a.t.Errorf("%s: %v %s, want %q", tool, r.IsError, data, want)
	}
}

type in = map[string]any

// An SDK client does a task over HTTP, over TCP with a token and over the socket; the audit log has the API calls that it makes,
// in its name, and a call that it cancels ends with everything it has started.
func TestAnAgentWorksOverHTTP(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.Warm()
	before := h.Look()
	secret := h.token("agent", "tenant", "")
	progress := make(chan string, 100)
	via := &http.Transport{}
	a, err := converse(t, "http://"+h.address+"/mcp", showing{secret, via}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			select {
			case progress <- r.Params.Message:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if text := a.InitializeResult().Instructions; !strings.Contains(text, "These tools work in a box") {
		t.Error(text)
	}
	a.mustCall("created: ", "box_write", in{"path": "calc/add.sh", "content": "add() { echo $(($1 - $2)); }\n"})
	a.mustCall("-1", "box_exec", in{"command": ". ./add.sh; add 2 3", "cwd": "/workspace/calc"})
	a.mustCall("calc/add.sh:1:add()", "box_grep", in{"pattern": `\$1 - \$2`})
	a.mustCall("1 replaced", "box_edit", in{"path": "calc/add.sh", "edits": []in{{"old": "$1 - $2", "new": "$1 + $2"}}})
	a.mustCall("5", "box_exec", in{"command": ". ./add.sh; add 2 3", "cwd": "/workspace/calc"})
	a.mustCall("echo", "process_start", in{"name": "echo", "command": "while read -r l; do echo got $l; done", "stdin": true})
	a.mustCall("got it", "process_write", in{"name": "echo", "text": "it\n", "end": true, "wait_seconds": 60}) // until its end: a busy host takes more than the usual second
	a.mustCall("", "process_stop", in{"name": "echo"})
	a.mustCall("deaf", "process_start", in{"name": "deaf", "argv": []string{"sleep", "1000"}, "stdin": true})
	r, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "process_write", Arguments: in{"name": "deaf", "text": strings.Repeat("x", 600_000), "wait_seconds": 0.1}})
	if err != nil || !r.IsError || !strings.HasPrefix(r.Content[0].(*mcp.TextContent).Text, "not all of the text was written") {
		t.Errorf(`a process that does not read: r = %+v, err = %v, want no error and r.IsError == true and r.Content[0].(*mcp.TextContent).Text starting with "not all of the text was written"`,
			r, err)
	}
	a.mustCall("", "process_stop", in{"name": "deaf"})
	params := &mcp.CallToolParams{Name: "box_exec", Arguments: in{"command": "(setsid sleep 1000 &); echo step one; sleep 1000", "timeout_seconds": 500}}
	params.SetProgressToken("p")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := a.CallTool(ctx, params)
		ended <- err
	}()
	<-progress
	cancel()
	if err := <-ended; err == nil {
		t.Error("a call that was canceled has an answer")
	}
	boxtest.Eventually(t, "no program of the canceled call is left", func() bool {
		r, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "box_exec", Arguments: in{"command": "ls /proc | grep -c '^[0-9]'; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 1000' || true"}})
		if err != nil {
			t.Fatal(err)
		}
		data, _ := json.Marshal(r.Content)
		return bytes.Contains(data, []byte(`\n0\n`)) || bytes.Contains(data, []byte(`\n1\n`)) // one may be the search itself
	})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "the box of the MCP session is gone", func() bool {
		list, err := h.Sessions(t.Context(), true)
		return err == nil && len(list) == 0
	})
	for _, part := range []string{`"route":"POST /v1/sessions"`, `"via":"token:agent"`, `"route":"POST /v1/sessions/{id}/fs/write"`, `"route":"DELETE /v1/sessions/{id}"`} {
		boxtest.Eventually(t, part+" is in the audit log", func() bool { // a session is gone before its DELETE has ended
			audit := h.as(users()[access.Admin], "GET", "/v1/audit?n=1000&principal=tenant", "", nil)
			return bytes.Contains(audit.Body, []byte(part))
		})
	}
	via.CloseIdleConnections()
	h.NothingLeft(before)
}

// /mcp refuses the same callers as REST: without a token, with a token for other routes, or from a web page; and the loss of a
// role or the revocation of a token takes effect in running MCP sessions.
func TestMCPIsForWhomTheAPIIs(t *testing.T) {
	t.Parallel()
	h := open(t)
	narrow := h.token("narrow", "tenant", "routes = [\"POST /mcp\", \"GET /mcp\", \"POST /v1/sessions\", \"GET /v1/profiles\"]\n")
	full := h.token("full", "tenant", "")
	looks := h.token("looks", "tenant", "role = \"viewer\"\n")
	for name, tc := range map[string]struct {
		token string
		head  http.Header
		want  int
	}{
		"nobody":     {"", accepts(), 401},
		"a stranger": {"nonsense", accepts(), 401},
		"a viewer":   {looks, accepts(), 403},
		"a page":     {full, accepts("Origin", "http://evil.example"), 403},
		"rebinding":  {full, accepts("Host", "evil.example"), 403},
		"in order":   {full, accepts(), 200},
	} {
		tc.head.Set("Content-Type", "application/json")
		if a := h.overTCP(tc.token, "POST", "/mcp", hello, tc.head); a.Code != tc.want {
			t.Errorf("%s: %d %s, want %d", name, a.Code, a.Body, tc.want)
		}
	}
	first := h.overTCP(narrow, "POST", "/mcp", hello, accepts("Content-Type", "application/json"))
	head := accepts("Content-Type", "application/json", "Mcp-Session-Id", first.Header.Get("Mcp-Session-Id"))
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if a := h.overTCP(full, "POST", "/mcp", ping, head); first.Code != 200 || a.Code != 404 {
		t.Errorf("another token of its principal: %d, then %d %s", first.Code, a.Code, a.Body)
	}
	a, err := converse(t, "http://"+h.address+"/mcp", showing{narrow, &http.Transport{}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "box_exec", Arguments: in{"command": "true"}})
	data, _ := json.Marshal(r)
	if err != nil || !r.IsError || !strings.Contains(string(data), "does not allow this route") {
		t.Errorf(`a tool that the token is not for: data = %s, err = %v, want no error and r.IsError == true and data containing "does not allow this route"`,
			data, err)
	}
	h.revoke("narrow")
	if a := h.overTCP(narrow, "POST", "/mcp", ping, head); a.Code != 401 {
		t.Errorf("after it was revoked: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	// on the socket the kernel names the caller
	worker, err := converse(t, "http://boxd/mcp?session=mine", &http.Transport{DialContext: boxtest.Dialer(h.Socket, users()[access.User])}, nil)
	if err != nil {
		t.Fatal(err)
	}
	worker.mustCall("42", "box_exec", in{"command": "echo $((6*7))"})
	if err := worker.Close(); err != nil {
		t.Error(err)
	}
	if s := h.as(users()[access.User], "GET", "/v1/sessions/mine", "", nil); s.Code != 200 || !bytes.Contains(s.Body, []byte(`"owner":"worker"`)) {
		t.Errorf("a box with a name is %d %s, want s.Code == 200 and s.Body containing []byte(`\"owner\":\"worker\"`)",
			s.Code, s.Body)
	}
}
