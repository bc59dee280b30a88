// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// detail is a sandbox as the control plane describes it.
type detail struct {
	SandboxID, TemplateID, State, Domain string
	StartedAt, EndAt                     time.Time
	Metadata                             map[string]string
	Network                              struct{ AllowPublicTraffic bool }
}

func (h *host) detail(t *testing.T, id string) detail {
	t.Helper()
	status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+id, "")
	var d detail
	if err := json.Unmarshal([]byte(text), &d); status != http.StatusOK || err != nil {
		t.Fatalf("status = %d, text = %s, want status == 200 and no error", status, text)
	}
	return d
}

// near reports whether a time is about that many seconds from now.
func near(at time.Time, seconds int) bool {
	off := time.Until(at) - time.Duration(seconds)*time.Second
	return off > -90*time.Second && off < 5*time.Second
}

// A sandbox lives as long as its client says, counted from each time it says so; connecting extends that, and never shortens it.
func TestASandboxLivesAsLongAsItsClientSays(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"templateID":"base","timeout":1000,"metadata":{"a b":"c&d"}}`)
	if d := h.detail(t, sb.ID); d.State != "running" || d.TemplateID != "base" || !near(d.EndAt, 1000) || d.Metadata["a b"] != "c&d" {
		t.Errorf(`d = %+v, want d.State == "running" and d.TemplateID == "base" and near(d.EndAt, 1000) and d.Metadata["a b"] == "c&d"`,
			d)
	}
	for _, step := range []struct {
		path, body string
		status     int
		seconds    int
	}{
		{"/timeout", `{"timeout":500}`, 204, 500},
		{"/connect", `{"timeout":100}`, 200, 500},
		{"/connect", `{"timeout":900}`, 200, 900},
		{"/refreshes", `{"duration":30}`, 204, 900},
		{"/refreshes", `{"duration":2000}`, 204, 2000},
	} {
		if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+step.path, step.body); status != step.status {
			t.Fatalf("%s %s: status = %d, text = %s, want status == %v",
				step.path, step.body, status, text, step.status)
		}
		if d := h.detail(t, sb.ID); !near(d.EndAt, step.seconds) {
			t.Errorf("%s %s: it ends in %v", step.path, step.body, time.Until(d.EndAt))
		}
	}
	if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+"/timeout", `{"timeout":0}`); status != 204 {
		t.Fatalf("status = %d, text = %s, want status == 204", status, text)
	}
	boxtest.Eventually(t, "the sandbox has ended after its timeout", func() bool {
		status, text, _ := h.sends(t, "GET", "/health", "", sb.of("49983")...)
		return status == http.StatusBadGateway && strings.Contains(text, "The sandbox was not found")
	})
	for _, method := range []string{"GET", "DELETE"} {
		if status, text, _ := h.asks(t, "agent", method, "/sandboxes/"+sb.ID, ""); status != 404 || !strings.Contains(text, `"code":404`) {
			t.Errorf("%s: status = %d, text = %s, want status == 404 and text containing `\"code\":404`",
				method, status, text)
		}
	}
}

// A list is paged, in either order, and filtered as requested.
func TestAListHasWhatItWasAskedFor(t *testing.T) {
	h := start(t)
	var ids []string
	for _, body := range []string{`{"metadata":{"a b":"c&d","n":"1"}}`, `{"metadata":{"n":"2"}}`, `{"templateID":"code-interpreter-v1","metadata":{"n":"1"}}`} {
		ids = append(ids, h.create(t, "agent", body).ID)
	}
	h.create(t, "other", `{"metadata":{"n":"1"}}`)
	twice := func(k, v string) string {
		return url.QueryEscape(url.QueryEscape(url.QueryEscape(k)) + "=" + url.QueryEscape(url.QueryEscape(v)))
	}
	for query, want := range map[string][]int{
		"":                                  {2, 1, 0},
		"order=asc":                         {0, 1, 2},
		"metadata=" + twice("n", "1"):       {2, 0},
		"metadata=" + twice("a b", "c&d"):   {0},
		"template=code-interpreter":         {2},
		"template=nothing":                  nil,
		"state=running,paused":              {2, 1, 0},
		"state=paused":                      nil,
		"startedAfter=2000-01-02T15:04:05Z": {2, 1, 0},
		"startedAfter=2100-01-02T15:04:05Z": nil,
	} {
		var got []string
		for next, pages := "", 0; ; pages++ {
			status, text, header := h.asks(t, "agent", "GET", "/v2/sandboxes?limit=2&nextToken="+next+"&"+query, "")
			var list []detail
			if err := json.Unmarshal([]byte(text), &list); status != http.StatusOK || err != nil || len(list) > 2 || pages > 3 {
				t.Fatalf("%s: status = %d, text = %s, want status == 200 and no error and len(list) <= 2 and pages <= 3",
					query, status, text)
			}
			for _, d := range list {
				got = append(got, d.SandboxID)
			}
			if next = header.Get("X-Next-Token"); next == "" {
				break
			}
		}
		var expect []string
		for _, i := range want {
			expect = append(expect, ids[i])
		}
		if strings.Join(got, " ") != strings.Join(expect, " ") {
			t.Errorf("%s: %v, want %v", query, got, expect)
		}
	}
	for _, bad := range []string{"limit=0", "limit=x", "state=gone", "order=up", "startedAfter=now", "nextToken=!", "metadata=%25zz"} {
		if status, text, _ := h.asks(t, "agent", "GET", "/v2/sandboxes?"+bad, ""); status != 400 || !strings.Contains(text, strings.Split(bad, "=")[0]) {
			t.Errorf(`%s: status = %d, text = %s, want status == 400 and text containing strings.Split(bad, "=")[0]`,
				bad, status, text)
		}
	}
}

// A request for something that boxd would not provide is refused by name.
func TestWhatWouldNotBeGivenIsRefused(t *testing.T) {
	h := start(t)
	for _, tc := range []struct {
		body   string
		status int
		names  string
	}{
		{`{"templateID":"other"}`, 404, "template"},
		{`{"timeout":-1}`, 400, "timeout"},
		{`{"timeout":"x"}`, 400, "JSON"},
		{`{`, 400, "JSON"},
		{`{"volumeMounts":[{"name":"a","path":"/b"}]}`, 501, "volumeMounts"},
		{`{"mcp":{"a":{}}}`, 501, "mcp"},
		{`{"templateID":"mcp-gateway","mcp":{"a":{}}}`, 501, "mcp"},
		{`{"iam":{"a":1}}`, 501, "iam"},
		{`{"network":{"denyOut":["10.0.0.0/8"]}}`, 501, "denyOut"},
		{`{"network":{"rules":{"a":[]}}}`, 501, "rules"},
		{`{"network":{"egressProxy":{"a":"b"}}}`, 501, "egressProxy"},
		{`{"envVars":{"A=B":"x"}}`, 400, "env"},
		{`{"metadata":{"":"x"}}`, 400, "metadata"},
		{`{"x":"` + strings.Repeat("y", 2<<20) + `"}`, 413, "bytes"},
	} {
		status, text, _ := h.asks(t, "agent", "POST", "/sandboxes", tc.body)
		if status != tc.status || !strings.Contains(text, tc.names) {
			t.Errorf("%.60s: status = %d, text = %s, want status == %v and text containing %q",
				tc.body, status, text, tc.status, tc.names)
		}
	}
	if !boxtest.Grouped() {
		if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes", `{"autoPause":true}`); status != 501 || !strings.Contains(text, "keepMemory") {
			t.Errorf(`status = %d, text = %s, want status == 501 and text containing "keepMemory"`, status, text)
		}
	}
	h.create(t, "agent", `{"metadata":null,"mcp":null,"network":{},"somethingNew":{"a":1}}`)
	for route, names := range map[string]string{
		"POST /sandboxes/x/fork": "a fork is not served by boxd: boxd keeps no images of memory", "POST /sandboxes/x/snapshots": "a snapshot is not served by boxd: boxd keeps no images of memory",
		"GET /snapshots": "images of memory", "DELETE /templates/x": "removal of a template or snapshot", "POST /v3/templates": "[e2b.templates]", "GET /templates/x/builds/y/status": "[e2b.templates]",
		"POST /volumes": "a volume is not", "GET /volumecontent/x": "profiles mount", "POST /secrets": "a secret is not", "GET /nothing": "docs/guide/e2b.md", "GET /v2": "docs/guide/e2b.md",
		"POST /files/compose": "docs/guide/e2b.md", "POST /sandboxes/x/nothing": "docs/guide/e2b.md",
	} {
		method, path, _ := strings.Cut(route, " ")
		if status, text, _ := h.asks(t, "agent", method, path, "{}"); status != 501 || !strings.Contains(text, `"code":501`) || !strings.Contains(text, names) {
			t.Errorf("%s: status = %d, text = %s, want status == 501 and text containing `\"code\":501` and text containing %q",
				route, status, text, names)
		}
	}
	if list := h.Raw(t, "GET", "/v1/sessions?owner=agent", ""); strings.Count(string(list.Body), `"id":`) != 1 {
		t.Errorf("the refused requests have left a session: list.Body = %s, want strings.Count(string(list.Body), `\"id\":`) == 1",
			list.Body)
	}
}

// Without an address in [e2b] boxd does not listen for the protocol, and with one it has one listening socket.
func TestNothingListensWithoutAnAddress(t *testing.T) {
	listening := func(pid int) (n int) {
		t.Helper()
		mine := map[string]bool{} // socket inodes
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())) // may be closed meanwhile
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				mine[strings.TrimSuffix(inode, "]")] = true
			}
		}
		for _, table := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && mine[f[9]] { // TCP_LISTEN
					n++
				}
			}
		}
		return n
	}
	if n := listening(boxtest.Start(t).PID()); n != 0 {
		t.Errorf("without a table [e2b] boxd listens on %d TCP sockets", n)
	}
	if n := listening(start(t).PID()); n != 1 {
		t.Errorf("with one it listens on %d", n)
	}
}

// A request without a valid key is refused, and a key permits what its token permits.
func TestAKeyGivesWhatItsTokenGives(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	for name, tc := range map[string]struct {
		who, method, path string
		status            int
	}{
		"a viewer lists":                  {"viewer", "GET", "/v2/sandboxes", 200},
		"a viewer makes nothing":          {"viewer", "POST", "/sandboxes", 403},
		"a viewer ends nothing":           {"viewer", "DELETE", "/sandboxes/" + sb.ID, 403},
		"a token for a list lists":        {"listing", "GET", "/v2/sandboxes", 200},
		"a token for a list ends nothing": {"listing", "DELETE", "/sandboxes/" + sb.ID, 403},
		"another's is none":               {"other", "GET", "/sandboxes/" + sb.ID, 404},
		"nor can it be ended":             {"other", "DELETE", "/sandboxes/" + sb.ID, 404},
		"nor connected to":                {"other", "POST", "/sandboxes/" + sb.ID + "/connect", 404},
		"a key that nobody has":           {"nobody", "GET", "/v2/sandboxes", 401},
	} {
		if status, text, _ := h.asks(t, tc.who, tc.method, tc.path, "{}"); status != tc.status {
			t.Errorf("%s: status = %d, text = %s, want status == %v", name, status, text, tc.status)
		}
	}
	old := "e2b_" + hex.EncodeToString([]byte(h.keys["agent"]))
	for name, header := range map[string][]string{"as older clients want it": {"X-Api-Key", old}, "as a bearer": {"Authorization", "Bearer " + h.keys["agent"]}} {
		if status, text, _ := h.sends(t, "GET", "/v2/sandboxes", "", header...); status != 200 {
			t.Errorf("%s: status = %d, text = %s, want status == 200", name, status, text)
		}
	}
	if status, _, _ := h.sends(t, "GET", "/v2/sandboxes", ""); status != 401 {
		t.Errorf("without a key: status = %d, want 401", status)
	}
}

// Every request for a sandbox must carry a proof of its permission.
func TestEveryRequestForASandboxProvesItself(t *testing.T) {
	h := start(t)
	sb, foreign := h.create(t, "agent", `{}`), h.create(t, "other", `{}`)
	id := []string{"E2b-Sandbox-Id", sb.ID}
	for name, tc := range map[string]struct {
		method, path string
		header       []string
		status       int
	}{
		"health needs nothing":              {"GET", "/health", append(id, "E2b-Sandbox-Port", "49983"), 204},
		"of one that never was":             {"GET", "/health", []string{"E2b-Sandbox-Id", "i0000000000000000000"}, 502},
		"an RPC without a token":            {"POST", "/process.Process/List", id, 401},
		"with that of another sandbox":      {"POST", "/process.Process/List", append(id, "X-Access-Token", foreign.Token), 401},
		"with its traffic token":            {"POST", "/process.Process/List", append(id, "X-Access-Token", sb.Traffic), 401},
		"with the API key":                  {"POST", "/process.Process/List", append(id, "X-Access-Token", h.keys["agent"]), 401},
		"with its own":                      {"POST", "/process.Process/List", append(id, "X-Access-Token", sb.Token), 200},
		"its token alone names it":          {"POST", "/process.Process/List", []string{"X-Access-Token", sb.Token}, 200},
		"files without a token":             {"GET", "/files?path=/etc/passwd", id, 401},
		"variables without a token":         {"GET", "/envs", id, 401},
		"code without a token":              {"POST", "/execute", append(id, "E2b-Sandbox-Port", "49999"), 401},
		"code with the traffic token alone": {"POST", "/execute", append(id, "E2b-Sandbox-Port", "49999", "E2b-Traffic-Access-Token", sb.Traffic), 401},
		"contexts without a token":          {"GET", "/contexts", append(id, "E2b-Sandbox-Port", "49999"), 401},
		"a port without a token":            {"GET", "/", append(id, "E2b-Sandbox-Port", "8000"), 401},
		"a port by its host name":           {"GET", "/", []string{"Host", "8000-" + sb.ID + ".localhost:5420"}, 401},
		"a port that nobody listens on":     {"GET", "/", append(id, "E2b-Sandbox-Port", "8000", "E2b-Traffic-Access-Token", sb.Traffic), 502},
		"a page of the web":                 {"POST", "/process.Process/List", append(id, "X-Access-Token", sb.Token, "Origin", "https://example.com"), 403},
		"another name of this host":         {"POST", "/process.Process/List", append(id, "X-Access-Token", sb.Token, "Host", "example.com"), 403},
		"an id that is none":                {"GET", "/health", []string{"E2b-Sandbox-Id", "../x"}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			status, text, _ := h.sends(t, tc.method, tc.path, "{}", append(tc.header, "Content-Type", "application/json")...)
			if status != tc.status {
				t.Errorf("status = %d, text = %s, want status == %v", status, text, tc.status)
			}
		})
	}
}

// A sandbox reports what it was given and what it uses, and serves none of the internal requests of E2B's own cloud to its agent.
func TestASandboxDescribesItself(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"envVars":{"A":"1","B":"x=y"}}`)
	for route, want := range map[string]struct {
		status int
		text   string
	}{
		"GET /health": {204, ""}, "GET /envs": {200, `{"A":"1","B":"x=y"}`}, "POST /envs": {404, "no route"}, "POST /init": {404, "no route"}, "POST /freeze": {404, "no route"}, "GET /nothing": {404, "no route"},
	} {
		method, path, _ := strings.Cut(route, " ")
		if status, text, _ := sb.sent(t, method, path, ""); status != want.status || want.status == 200 && text != want.text || !strings.Contains(text, want.text) {
			t.Errorf("%s: status = %d, text = %s, want status == %v and (want.status != 200 or text == %v) and text containing %q",
				route, status, text, want.status, want.text, want.text)
		}
	}
	status, text, _ := sb.sent(t, "GET", "/metrics", "")
	var metrics map[string]float64
	if err := json.Unmarshal([]byte(text), &metrics); status != http.StatusOK || err != nil || metrics["cpu_count"] != 2 || metrics["mem_total"] != 1<<30 || metrics["mem_total_mib"] != 1<<10 || metrics["disk_total"] != 4<<30 || time.Since(time.Unix(int64(metrics["ts"]), 0)) > time.Minute {
		t.Errorf("status = %d, text = %s, err = %v", status, text, err)
	}
	for _, name := range []string{"cpu_used_pct", "mem_used", "mem_used_mib", "mem_cache", "disk_used"} {
		if _, exists := metrics[name]; !exists {
			t.Errorf("%s lacks %s", text, name)
		}
	}
	if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+"/resume", `{"timeout":2000}`); status != http.StatusOK || !strings.Contains(text, sb.Token) || !near(h.detail(t, sb.ID).EndAt, 2000) {
		t.Errorf("status = %d, text = %s, want status == 200 and text containing %q and near(h.detail(t, sb.ID).EndAt, 2000)",
			status, text, sb.Token)
	}
}

// A port of a sandbox is reached by its host name, with the traffic token, which is not passed on to the server there.
func TestAPortIsReachedByItsName(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	stream, err := sb.processes().Start(t.Context(), shell(`cat > s.py <<'END'
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write((self.path + str(sorted(k for k in self.headers if "oken" in k or "2b" in k))).encode())
http.server.HTTPServer(("127.0.0.1", 8000), H).serve_forever()
END
exec python3 s.py`))
	if err != nil || !stream.Receive() {
		t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
	}
	defer stream.Close()
	var text string
	boxtest.Eventually(t, "the program answers", func() bool {
		var status int
		status, text, _ = h.sends(t, "GET", "/a?b=c", "", "Host", "8000-"+sb.ID+".localhost", "E2b-Traffic-Access-Token", sb.Traffic)
		return status == http.StatusOK
	})
	if text != "/a?b=c[]" {
		t.Errorf(`text = %q, want "/a?b=c[]"`, text)
	}
}

// Ports are public if the operator says so, and nothing else is: not if the client or the template opts out, not with a wrong
// token, and not once the sandbox's key has been removed.
func TestPortsArePublicWhereTheOperatorSaysSo(t *testing.T) {
	h := start(t, "public_ports = true\n[e2b.templates.closed]\npublic_ports = false\n")
	serve := func(body string) *sandbox {
		sb := h.create(t, "agent", body)
		stream, err := sb.processes().Start(t.Context(), shell("echo served > index.html; exec python3 -m http.server 8000"))
		if err != nil || !stream.Receive() {
			t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
		}
		t.Cleanup(func() { stream.Close() })
		boxtest.Eventually(t, "the owner of the sandbox reaches the port", func() bool {
			status, _, _ := h.sends(t, "GET", "/", "", "Host", "8000-"+sb.ID+".localhost", "E2b-Traffic-Access-Token", sb.Traffic)
			return status == http.StatusOK
		})
		return sb
	}
	visit := func(sb *sandbox, port string, head ...string) int {
		path := map[string]string{"8000": "/index.html", "49983": "/files?path=/etc/hostname", "49999": "/contexts"}[port]
		status, _, _ := h.sends(t, "GET", path, "", append([]string{"Host", port + "-" + sb.ID + ".localhost"}, head...)...)
		return status
	}
	open, closed, shut := serve(`{}`), serve(`{"templateID":"closed"}`), serve(`{"network":{"allowPublicTraffic":false}}`)
	if status := visit(open, "8000"); status != http.StatusOK {
		t.Errorf("a public port answers %d", status)
	}
	for what, status := range map[string]int{
		"of a template that is not public": visit(closed, "8000"),
		"whose client wants none":          visit(shut, "8000"),
		"with a wrong token":               visit(open, "8000", "E2b-Traffic-Access-Token", closed.Traffic),
		"with a wrong token of access":     visit(open, "8000", "X-Access-Token", closed.Token),
		"of files and processes":           visit(open, "49983"),
		"of code contexts":                 visit(open, "49999"),
	} {
		if status != http.StatusUnauthorized {
			t.Errorf("a port %s answers %d", what, status)
		}
	}
	if d := h.detail(t, shut.ID); d.Network.AllowPublicTraffic {
		t.Error("the sandbox is listed as public")
	}
	if d := h.detail(t, open.ID); !d.Network.AllowPublicTraffic {
		t.Error("the sandbox is not listed as public")
	}
	if text := string(h.Raw(t, "GET", "/v1/doctor", "").Body); !strings.Contains(text, "e2b ports") {
		t.Errorf(`boxctl doctor does not report the port: text = %s, want text containing "e2b ports"`, text)
	}
	h.withoutKey(t, "agent")
	boxtest.Eventually(t, "the removed key is refused", func() bool {
		status, _, _, err := h.tries(t, "GET", "/index.html", "", "Host", "8000-"+open.ID+".localhost")
		return err == nil && status == http.StatusUnauthorized // one on its way meanwhile is cut off
	})
}

// A sandbox depends on the key that created it; after that key is removed, another key of the owner takes over by connecting.
func TestASandboxHangsOnItsKey(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	list := func() connect.Code {
		_, err := sb.processes().List(t.Context(), &protocol.ListRequest{})
		if err == nil {
			return 0
		}
		return connect.CodeOf(err)
	}
	h.withoutKey(t, "agent")
	boxtest.Eventually(t, "the removed key is refused", func() bool { return list() == connect.CodeUnauthenticated })
	if status, text, _ := h.asks(t, "second", "POST", "/sandboxes/"+sb.ID+"/connect", `{}`); status != 200 || !strings.Contains(text, sb.Token) {
		t.Fatalf("status = %d, text = %s, want status == 200 and text containing %q", status, text, sb.Token)
	}
	if code := list(); code != 0 {
		t.Errorf("after another key has connected: code = %v, want 0", code)
	}
}

// Sandboxes, and their tokens, survive boxd.
func TestSandboxesOutliveBoxd(t *testing.T) {
	h := start(t, boxtest.Kept)
	sb := h.create(t, "agent", `{"metadata":{"a":"b"},"envVars":{"X":"1"}}`)
	h.Stop()
	h.Restart()
	if got := sb.sh(t, "echo $X").stdout.String(); got != "1\n" {
		t.Errorf(`got %q, want "1\n"`, got)
	}
	if d := h.detail(t, sb.ID); d.Metadata["a"] != "b" || !near(d.EndAt, 300) {
		t.Errorf(`d = %+v, want d.Metadata["a"] == "b" and near(d.EndAt, 300)`, d)
	}
}

// Operations on a sandbox are in the audit log, and no secrets are.
func TestWhatIsDoneIsRecorded(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"envVars":{"SECRET":"hunter2"}}`)
	sb.sh(t, "echo word")
	h.asks(t, "agent", "DELETE", "/sandboxes/"+sb.ID, "")
	var text string
	for _, want := range []string{"e2b POST /v2/sandboxes", "e2b process.Process/Start", "e2b DELETE /sandboxes/{id}", `"echo word"`, `"e2b token:agent"`, sb.ID} {
		boxtest.Eventually(t, want+" is in the audit log", func() bool { // a stream may be recorded after its last message
			text = string(h.Raw(t, "GET", "/v1/audit?n=100", "").Body)
			return strings.Contains(text, want)
		})
	}
	for _, secret := range []string{"hunter2", sb.Token, sb.Traffic, h.keys["agent"]} {
		if strings.Contains(text+h.Log(), secret) {
			t.Errorf("a secret was written down: secret = %.12s, want text + h.Log() without secret", secret)
		}
	}
}

// health returns the status of a sandbox's health check.
func (sb *sandbox) health(t *testing.T) int {
	t.Helper()
	status, _, _ := sb.host.sends(t, "GET", "/health", "", sb.of("49983")...)
	return status
}

// A sandbox paused without its memory has its files when it is resumed, and cannot be used meanwhile.
func TestAPausedSandboxKeepsItsFiles(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"timeout":1000}`)
	sb.sh(t, "echo kept > kept; echo root > /root-file")
	if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+"/pause", `{"memory":false}`); status != 204 {
		t.Fatalf("status = %d, text = %s, want status == 204", status, text)
	}
	if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+"/pause", `{"memory":false}`); status != 409 || !strings.Contains(text, `"code":409`) {
		t.Errorf("twice: status = %d, text = %s, want status == 409 and text containing `\"code\":409`", status, text)
	}
	if got := sb.health(t); got != 502 {
		t.Errorf("health of a paused one: got %d, want 502", got)
	}
	if d := h.detail(t, sb.ID); d.State != "paused" {
		t.Errorf(`d = %+v, want d.State == "paused"`, d)
	}
	if status, text, _ := h.asks(t, "agent", "POST", "/v2/sandboxes/"+sb.ID+"/connect", `{"timeout":-1}`); status != 400 || h.detail(t, sb.ID).State != "paused" {
		t.Errorf(`for a time that cannot be: status = %d, text = %s, h.detail(t, sb.ID) = %+v, want status == 400 and h.detail(t, sb.ID).State == "paused"`,
			status, text, h.detail(t, sb.ID))
	}
	if status, text, _ := h.asks(t, "agent", "POST", "/v2/sandboxes/"+sb.ID+"/connect", `{"timeout":500}`); status != 201 || !strings.Contains(text, sb.Token) {
		t.Fatalf("status = %d, text = %s, want status == 201 and text containing %q", status, text, sb.Token)
	}
	if d := h.detail(t, sb.ID); d.State != "running" || !near(d.EndAt, 500) {
		t.Errorf("%+v, in %v", d, time.Until(d.EndAt))
	}
	if got := sb.sh(t, "cat kept /root-file").stdout.String(); got != "kept\nroot\n" {
		t.Errorf(`got %q, want "kept\nroot\n"`, got)
	}
}

// A sandbox is paused at its timeout if its client says so, and one with auto-resume is resumed by the next request.
func TestASandboxIsPausedWhenItsTimeIsOver(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"timeout":1,"autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`)
	boxtest.Eventually(t, "the sandbox is paused", func() bool { return h.detail(t, sb.ID).State == "paused" })
	if got := sb.sh(t, "echo again").stdout.String(); got != "again\n" {
		t.Errorf(`got %q, want "again\n"`, got)
	}
	if d := h.detail(t, sb.ID); d.State != "running" || !near(d.EndAt, 300) {
		t.Errorf("%+v, in %v", d, time.Until(d.EndAt))
	}
}

// A sandbox whose program takes long to end when it is paused keeps no other from being paused.
func TestASandboxThatEndsSlowlyHoldsUpNoOther(t *testing.T) {
	h := start(t)
	slow := h.create(t, "agent", `{"timeout":600,"autoPause":true,"autoPauseMemory":false}`)
	h.Owner = "agent"
	line, grace := "ready", quantity.Duration(10*time.Minute)
	h.NewProcess(t, slow.ID, "p", &api.ProcessRequest{
		Argv: []string{"sh", "-c", "trap '' TERM; echo ready; exec sleep 3600"}, Ready: &api.Ready{Line: &line}, Stop: &api.Stop{Grace: &grace},
	})
	boxtest.Eventually(t, "the program has set its signal handler", func() bool {
		p, err := h.Process(t.Context(), slow.ID, "p", 0)
		return err == nil && p.Ready
	})
	if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+slow.ID+"/timeout", `{"timeout":1}`); status != 204 {
		t.Fatalf("status = %d, text = %s, want status == 204", status, text)
	}
	state := func(of *sandbox) string {
		t.Helper()
		s, err := h.Session(t.Context(), of.ID)
		if err != nil {
			t.Fatal(err)
		}
		return s.State
	}
	boxtest.Eventually(t, "the slow sandbox is being stopped", func() bool { return state(slow) == "stopping" })
	other := h.create(t, "agent", `{"timeout":1,"autoPause":true,"autoPauseMemory":false}`)
	boxtest.Eventually(t, "the other sandbox is paused", func() bool { return state(other) == "stopped" })
	if got := state(slow); got != "stopping" {
		t.Errorf(`the first is %s, want "stopping"`, got)
	}
	if err := h.DeleteSession(t.Context(), slow.ID); err != nil { // boxd waits for what it stops
		t.Error(err)
	}
}

// The owner's policy limits the lifetime whatever a client requests, and the client is told.
func TestAPolicyBoundsTheTimeOfSandboxes(t *testing.T) {
	h := start(t, "[policy.agents]\nprincipals = [\"agent\"]\n[policy.agents.ceilings]\nmax_lifetime = \"1h\"")
	for body, want := range map[string]int{
		`{"timeout":600}`:  600,
		`{"timeout":7200}`: 3600,
		`{"timeout":600,"autoPause":true,"autoPauseMemory":false}`:  600,
		`{"timeout":7200,"autoPause":true,"autoPauseMemory":false}`: 3600,
	} {
		if d := h.detail(t, h.create(t, "agent", body).ID); !near(d.EndAt, want) {
			t.Errorf("%s: %+v, in %v", body, d, time.Until(d.EndAt))
		}
	}
}

// With cgroups a paused sandbox keeps its programs; without them pausing is refused.
func TestAPausedSandboxKeepsItsPrograms(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{"timeout":1000}`)
	stream, err := sb.processes().Start(t.Context(), &protocol.StartRequest{Process: &protocol.ProcessConfig{Cmd: "cat"}})
	if err != nil || !stream.Receive() {
		t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
	}
	defer stream.Close()
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+"/pause", `{}`)
	if !boxtest.Grouped() {
		if status != 501 || !strings.Contains(text, "cgroup") || sb.health(t) != 204 {
			t.Errorf(`status = %d, text = %s, want status == 501 and text containing "cgroup" and sb.health(t) == 204`,
				status, text)
		}
		return
	}
	if status != 204 || sb.health(t) != 502 {
		t.Fatalf("status = %d, text = %s, want status == 204 and sb.health(t) == 502", status, text)
	}
	if status, text, _ := h.asks(t, "agent", "POST", "/sandboxes/"+sb.ID+"/connect", `{"timeout":600}`); status != 201 {
		t.Fatalf("status = %d, text = %s, want status == 201", status, text)
	}
	list, err := sb.processes().List(t.Context(), &protocol.ListRequest{})
	if err != nil || len(list.Processes) != 1 || list.Processes[0].Pid != pid {
		t.Errorf("err = %v, list = %v, want no error and len(list.Processes) == 1 and list.Processes[0].Pid == %v",
			err, list, pid)
	}
}

// The resource usage of a sandbox is kept for a while, if boxes have cgroups.
func TestMetricsHaveAHistory(t *testing.T) {
	boxtest.RequireGroups(t)
	h := start(t)
	sb := h.create(t, "agent", `{"timeout":1000}`)
	stream, err := sb.processes().Start(t.Context(), shell("while :; do :; done"))
	if err != nil || !stream.Receive() {
		t.Fatalf("err = %v, stream.Err() = %v, want no error and stream.Receive()", err, stream.Err())
	}
	defer stream.Close()
	var list []struct {
		CPUUsedPct        float64
		MemUsed, MemTotal int64
	}
	boxtest.Eventually(t, "there are samples of a busy processor", func() bool {
		status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID+"/metrics?start=1", "")
		if err := json.Unmarshal([]byte(text), &list); status != http.StatusOK || err != nil {
			t.Fatalf("status = %d, text = %s, want status == 200 and no error", status, text)
		}
		n := len(list)
		return n >= 3 && list[n-1].CPUUsedPct > 5 && list[n-1].MemUsed > 0 && list[n-1].MemUsed < list[n-1].MemTotal
	})
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID+"/metrics?end=1", ""); status != http.StatusOK || text != "[]" {
		t.Errorf(`before there was anything: status = %d, text = %s, want status == 200 and text == "[]"`, status, text)
	}
}
