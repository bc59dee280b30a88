// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// principals are one of each role among the host's users, and two token holders.
const principals = `
[access]
tokens = "%DIR%/tokens"
[principals.looker]
uid = 4301
role = "viewer"
[principals.worker]
uid = 4302
role = "user"
[principals.warden]
uid = 4303
role = "operator"
[principals.chief]
uid = 4304
role = "admin"
[principals.outcast]
uid = 4305
role = "none"
[principals.tenant]
role = "user"
[principals.rival]
role = "user"
`

// users returns the host's users, by role.
func users() map[access.Role]uint32 {
	return map[access.Role]uint32{0: 4305, access.Viewer: 4301, access.User: 4302, access.Operator: 4303, access.Admin: 4304}
}

// tcpServer is a boxd that also serves HTTP over TCP.
type tcpServer struct {
	*boxtest.Daemon
	t       *testing.T
	address string // of the HTTP listener
	entries map[string]string
}

func open(t *testing.T, more ...string) *tcpServer {
	t.Helper()
	h := &tcpServer{Daemon: boxtest.StartWith(t, append([]string{"http = \"127.0.0.1:0\"\n" + boxtest.BestEffort + principals}, more...)...), t: t, entries: map[string]string{}}
	h.find()
	return h
}

// find finds the current address of the HTTP listener.
func (h *tcpServer) find() {
	h.t.Helper()
	found := regexp.MustCompile(`serves HTTP on the loopback" address=(127\.0\.0\.1:\d+)`).FindAllStringSubmatch(h.Log(), -1)
	if found == nil {
		h.t.Fatalf("it does not serve HTTP:\n%s", h.Log())
	}
	h.address = found[len(found)-1][1]
}

// token adds a token of a principal to boxd, and returns it.
func (h *tcpServer) token(name, principal, more string) string {
	h.t.Helper()
	secret, hash := access.NewToken()
	h.entries[name] = fmt.Sprintf("[[token]]\nname = %q\nsha256 = %q\nprincipal = %q\n%s\n", name, hash, principal, more)
	h.reload()
	return secret
}

// revoke removes a token from boxd.
func (h *tcpServer) revoke(name string) {
	h.t.Helper()
	delete(h.entries, name)
	h.reload()
}

// reload writes the token file, makes boxd reload it, and waits until it has.
func (h *tcpServer) reload() {
	h.t.Helper()
	text := ""
	for _, e := range h.entries {
		text += e
	}
	if err := os.WriteFile(filepath.Join(h.Dir, "tokens"), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.hup()
}

// again is the log message after a reload, successful or not.
var again = regexp.MustCompile(`configuration read again|the previous one stays in force|config\.reloaded|config\.refused|configuration (was )?(reloaded|refused)`)

func (h *tcpServer) hup() {
	h.t.Helper()
	before := len(again.FindAllString(h.Log(), -1))
	if err := syscall.Kill(h.PID(), syscall.SIGHUP); err != nil {
		h.t.Fatal(err)
	}
	boxtest.Eventually(h.t, "the configuration is read again", func() bool { return len(again.FindAllString(h.Log(), -1)) > before })
}

// overTCP makes a request over TCP with a token; "": without one.
func (h *tcpServer) overTCP(token, method, path, body string, head http.Header) boxtest.Answer {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, "http://"+h.address+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for name, values := range head {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	return h.send(tr, req)
}

// as makes a request over the socket as a user of the host.
func (h *tcpServer) as(uid uint32, method, path, body string, head http.Header) boxtest.Answer {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, "http://boxd"+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	maps.Copy(req.Header, head)
	tr := &http.Transport{DisableKeepAlives: true, DialContext: boxtest.Dialer(h.Socket, uid)}
	defer tr.CloseIdleConnections()
	return h.send(tr, req)
}

func (h *tcpServer) send(tr *http.Transport, req *http.Request) boxtest.Answer {
	h.t.Helper()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols || !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return boxtest.Answer{Code: resp.StatusCode, Header: resp.Header} // the rest of the stream may be endless
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return boxtest.Answer{Code: resp.StatusCode, Header: resp.Header, Body: body}
}

// upgrades returns the header of a WebSocket request, if the route is one.
func upgrades(path string) http.Header {
	if !strings.HasSuffix(path, "/stream") {
		return nil
	}
	return http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}}
}

// fill puts ids into a path pattern.
func fill(path, id string) string {
	path = strings.NewReplacer("{id}", id, "{p}", "p", "{principal}", "uid:77").Replace(path)
	for from := strings.Index(path, "{"); from >= 0; from = strings.Index(path, "{") { // other parameters, for routes to come
		path = path[:from] + "x" + path[from+strings.Index(path[from:], "}")+1:]
	}
	return path
}

// Every route is open to the role in its description and to those above it, and to none below.
func TestEveryRouteIsForItsRole(t *testing.T) {
	t.Parallel()
	h := open(t)
	described := map[string]string{}
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(h.as(0, "GET", "/v1/openapi.json", "", nil).Body, &doc); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths {
		for method, raw := range item {
			var op struct {
				Role string `json:"x-boxd-role"`
			}
			if json.Unmarshal(raw, &op) == nil && op.Role != "" {
				described[strings.ToUpper(method)+" "+path] = op.Role
			}
		}
	}
	for _, pattern := range relay.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		var needed access.Role
		if described[pattern] != "anyone" {
			if err := needed.UnmarshalText([]byte(described[pattern])); err != nil || needed == 0 {
				t.Fatalf("%s is described for %q", pattern, described[pattern])
			}
		}
		for role, uid := range users() {
			if role >= needed && method != http.MethodGet && !strings.Contains(path, "{id}") {
				continue // it would take effect
			}
			a := h.as(uid, method, fill(path, "none"), "", upgrades(path))
			switch {
			case role >= needed && (a.Code == http.StatusForbidden || a.Code == http.StatusUnauthorized):
				t.Errorf("%s refuses the role %v: a.Body = %s, want role < %v or a.Code != 403 and a.Code != 401",
					pattern, role, a.Body, needed)
			case role < needed:
				p := a.Problem(h.t)
				if p.Status != http.StatusForbidden || p.Field != "role" || p.Value != role.String() || p.By == "" || p.Denial == nil || !strings.HasPrefix(p.Denial.Rule, "principals.") || p.Denial.Setting == "" || p.Hint == "" {
					t.Errorf("%s and the role %v: a.Code = %d, a.Body = %s", pattern, role, a.Code, a.Body)
				}
			}
		}
		if a := h.overTCP("", method, fill(path, "none"), "", upgrades(path)); needed > 0 && a.Code != http.StatusUnauthorized {
			t.Errorf("%s is answered without a token: a.Code = %d, a.Body = %s, want needed <= 0 or a.Code == 401",
				pattern, a.Code, a.Body)
		}
	}
}

// A foreign id and a missing one look the same to every caller that may not name the owner, over every transport: the answers
// differ only in what the caller has sent. How long they take is logged and not checked.
func TestAForeignIDIsAMissingOne(t *testing.T) {
	t.Parallel()
	h := open(t)
	rival, tenant, viewer := h.token("rival", "rival", ""), h.token("tenant", "tenant", ""), h.token("viewer", "tenant", "role = \"viewer\"")
	const foreign, missing = "session-there", "session-gone!"
	if a := h.overTCP(rival, "POST", "/v1/sessions", `{"id":"`+foreign+`"}`, nil); a.Code != http.StatusCreated {
		t.Fatalf("a.Body = %s, want a.Code == 201", a.Body)
	}
	if a := h.overTCP(rival, "PUT", "/v1/sessions/"+foreign+"/processes/p", `{"argv":["sleep","1000"]}`, nil); a.Code != http.StatusCreated {
		t.Fatalf("a.Body = %s, want a.Code == 201", a.Body)
	}
	callers := map[string]func(method, path, body string, head http.Header) boxtest.Answer{
		"a tenant":           func(m, p, b string, h2 http.Header) boxtest.Answer { return h.overTCP(tenant, m, p, b, h2) },
		"a tenant who looks": func(m, p, b string, h2 http.Header) boxtest.Answer { return h.overTCP(viewer, m, p, b, h2) },
		"nobody":             func(m, p, b string, h2 http.Header) boxtest.Answer { return h.overTCP("", m, p, b, h2) },
	}
	for role, uid := range users() {
		callers["a user who is "+role.String()] = func(m, p, b string, h2 http.Header) boxtest.Answer { return h.as(uid, m, p, b, h2) }
	}
	tried := 0
	var elapsed [2][]time.Duration
	for _, pattern := range relay.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{id}") {
			continue
		}
		for who, ask := range callers {
			for _, body := range []string{"", `{"argv":["true"]}`, `{`} {
				var got [2]boxtest.Answer
				for i, id := range []string{foreign, missing} {
					start := time.Now()
					got[i] = ask(method, fill(path, url.PathEscape(id)), body, upgrades(path))
					elapsed[i] = append(elapsed[i], time.Since(start))
					for _, own := range []string{"Date", "X-Request-Id", "Traceparent"} { // specific to one request
						got[i].Header.Del(own)
					}
					if got[i].Code < http.StatusBadRequest {
						t.Errorf("%s of %s: got[i].Code = %d, got[i].Body = %s, want got[i].Code >= 400",
							pattern, who, got[i].Code, got[i].Body)
					}
				}
				got[0].Body = bytes.ReplaceAll(got[0].Body, []byte(foreign), []byte(missing))
				if diff := cmp.Diff(got[1], got[0]); diff != "" {
					t.Errorf("%s with %q tells %s a foreign session from a missing one (-missing +foreign):\n%s", pattern, body, who, diff)
				}
				tried++
			}
		}
	}
	if tried < 200 {
		t.Errorf("only %d requests were tried", tried)
	}
	for i := range elapsed {
		slices.Sort(elapsed[i])
	}
	t.Logf("%d requests: the median answer about a foreign session takes %v, about a missing one %v", tried, elapsed[0][tried/2], elapsed[1][tried/2])
	if a := h.overTCP(rival, "GET", "/v1/sessions/"+foreign+"/processes/p", "", nil); a.Code != http.StatusOK {
		t.Errorf("after all of it: a.Body = %s, want a.Code == 200", a.Body)
	}
}

// Operators can see and end what belongs to others, and can do nothing else in their name; viewers see their own.
func TestWhatARoleMayDo(t *testing.T) {
	t.Parallel()
	h := open(t)
	worker, warden, looker, chief := users()[access.User], users()[access.Operator], users()[access.Viewer], users()[access.Admin]
	for _, id := range []string{"one", "two"} {
		if a := h.as(worker, "POST", "/v1/sessions", `{"id":"`+id+`"}`, nil); a.Code != http.StatusCreated || !bytes.Contains(a.Body, []byte(`"owner":"worker"`)) {
			t.Fatalf("a.Body = %s, want a.Code == 201 and a.Body containing []byte(`\"owner\":\"worker\"`)", a.Body)
		}
	}
	if a := h.as(worker, "PUT", "/v1/sessions/one/processes/p", `{"argv":["sh","-c","echo hello; sleep 1000"]}`, nil); a.Code != http.StatusCreated {
		t.Fatalf("a.Body = %s, want a.Code == 201", a.Body)
	}
	for _, tc := range []struct {
		uid          uint32
		method, path string
		body         string
		want         int
	}{
		{warden, "GET", "/v1/sessions?all=true", "", 200},
		{looker, "GET", "/v1/sessions?all=true", "", 403},
		{worker, "GET", "/v1/sessions?all=true", "", 403},
		{looker, "GET", "/v1/sessions", "", 200},
		{looker, "POST", "/v1/sessions", `{"id":"mine"}`, 403},
		{warden, "GET", "/v1/sessions/one", "", 404},
		{warden, "GET", "/v1/sessions/one?owner=worker", "", 200},
		{warden, "GET", "/v1/sessions/none?owner=worker", "", 404},
		{warden, "GET", "/v1/sessions/one/processes/p/logs?owner=worker", "", 200},
		{warden, "POST", "/v1/sessions/one/exec?owner=worker", `{"argv":["true"]}`, 403},
		{warden, "PATCH", "/v1/sessions/one?owner=worker", `{"ttl":"1h"}`, 403},
		{warden, "POST", "/v1/sessions/one/processes/p/signal?owner=worker", `{"signal":"SIGKILL"}`, 403},
		{looker, "GET", "/v1/sessions/one?owner=worker", "", 403},
		{chief, "POST", "/v1/sessions/one/exec?owner=worker", `{"argv":["true"]}`, 200},
		{warden, "POST", "/v1/sessions/one/processes/p/stop?owner=worker", "", 200},
		{warden, "DELETE", "/v1/sessions/one/processes/p?owner=worker", "", 204},
		{warden, "DELETE", "/v1/sessions/one?owner=worker", "", 204},
		{worker, "GET", "/v1/sessions/one", "", 404},
		{worker, "GET", "/v1/sessions/two", "", 200},
	} {
		if a := h.as(tc.uid, tc.method, tc.path, tc.body, nil); a.Code != tc.want {
			t.Errorf("%d %s %s: %d, want %d: %s", tc.uid, tc.method, tc.path, a.Code, tc.want, a.Body)
		}
	}
}

// An unauthenticated caller gets the same answer, byte for byte, whatever is wrong with the credentials.
func TestWhoIsNotKnownIsAnsweredTheSame(t *testing.T) {
	t.Parallel()
	h := open(t)
	good := h.token("good", "tenant", "")
	old := h.token("old", "tenant", "expires = 2020-01-01T00:00:00Z")
	stray := h.token("stray", "tenant-of-another-host", "")
	gone := h.token("gone", "tenant", "")
	h.revoke("gone")
	strange, hash := access.NewToken()
	if a := h.overTCP(good, "GET", "/v1/sessions", "", nil); a.Code != http.StatusOK {
		t.Fatalf("a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
	var want boxtest.Answer
	for name, token := range map[string]string{
		"none": "", "expired": old, "of another host": stray, "revoked": gone, "made up": strange, "a hash": hash, "truncated": good[:len(good)-1], "longer": good + "A", "long": strings.Repeat("x", 30000),
	} {
		got := h.overTCP(token, "GET", "/v1/sessions", "", nil)
		for _, own := range []string{"Date", "X-Request-Id", "Traceparent"} {
			got.Header.Del(own)
		}
		if got.Code != http.StatusUnauthorized || got.Header.Get("Www-Authenticate") != "Bearer" {
			t.Fatalf(`%s: got.Code = %d, got.Header = %v, got.Body = %s, want got.Code == 401 and got.Header.Get("Www-Authenticate") == "Bearer"`,
				name, got.Code, got.Header, got.Body)
		}
		if want.Code == 0 {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is answered in its own way:\n%s", name, diff)
		}
	}
	// A token is not ignored on the socket either, and its bearer does not act as root.
	if a := h.as(0, "GET", "/v1/sessions", "", http.Header{"Authorization": {"Bearer " + strange}}); a.Code != http.StatusUnauthorized {
		t.Errorf("on the socket: a.Code = %d, a.Body = %s, want a.Code == 401", a.Code, a.Body)
	}
	if a := h.as(0, "GET", "/v1/grants", "", http.Header{"Authorization": {"Bearer " + good}}); a.Code != http.StatusForbidden || a.Problem(h.t).By != "tenant" {
		t.Errorf(`on the socket: a.Code = %d, a.Body = %s, want a.Code == 403 and a.Problem(h.t).By == "tenant"`,
			a.Code, a.Body)
	}
	if strings.Contains(h.Log(), good) || strings.Contains(h.Log(), strange) {
		t.Error("the log has a token")
	}
}

// A web page shown by a browser on this host is refused.
func TestPagesOfOtherPlacesAreRefused(t *testing.T) {
	t.Parallel()
	h := open(t)
	token := h.token("t", "tenant", "")
	_, port, err := net.SplitHostPort(h.address)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		head http.Header
		want int
	}{
		{"no page", nil, 200},
		{"by name", http.Header{"Host": {"localhost:" + port}}, 200},
		{"by another address", http.Header{"Host": {"127.1.2.3"}}, 200},
		{"a name that leads here", http.Header{"Host": {"evil.example:" + port}}, 403},
		{"one that looks like here", http.Header{"Host": {"localhost.evil.example"}}, 403},
		{"an address that is not here", http.Header{"Host": {"10.0.0.1:" + port}}, 403},
		{"another page", http.Header{"Origin": {"https://evil.example"}}, 403},
		{"a page without a name", http.Header{"Origin": {"null"}}, 403},
		{"a page of another port", http.Header{"Origin": {"http://127.0.0.1:1"}}, 403},
		{"its own", http.Header{"Origin": {"http://" + h.address}}, 200},
	} {
		for _, path := range []string{"/v1/sessions", "/v1/exec/stream", "/healthz"} {
			head := upgrades(path)
			if head == nil {
				head = http.Header{}
			}
			maps.Copy(head, tc.head)
			want := tc.want
			if strings.HasSuffix(path, "/stream") && want == 200 {
				want = 101
			}
			if a := h.overTCP(token, "GET", path, "", head); a.Code != want {
				t.Errorf("%s, %s: %d, want %d: %s", tc.name, path, a.Code, want, a.Body)
			}
		}
	}
}

// Revoking a token, or taking a role away, ends the requests running under it.
func TestWhatIsUnderWayEndsWithTheRight(t *testing.T) {
	t.Parallel()
	h := open(t)
	token := h.token("t", "tenant", "")
	other := h.token("other", "rival", "")
	bearer := client.New("http://" + h.address)
	defer bearer.Close()
	bearer.Token = token
	rival := client.New("http://" + h.address)
	defer rival.Close()
	rival.Token = other
	for _, c := range []*client.Client{bearer, rival} {
		if _, _, err := c.CreateSession(t.Context(), &api.SessionRequest{ID: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	ended, lives := make(chan error, 1), make(chan error, 1)
	for c, end := range map[*client.Client]chan error{bearer: ended, rival: lives} {
		go func() {
			_, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: new("touch begun; while [ ! -e over ]; do sleep 0.05; done")})
			end <- err
		}()
		boxtest.Eventually(t, "the program runs", func() bool {
			r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"ls"}})
			return err == nil && strings.Contains(r.Stdout, "begun")
		})
	}
	h.revoke("t")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "authentication failed") {
		t.Errorf(`the end of the running stream: err = %v, want an error containing "authentication failed"`, err)
	}
	if _, err := bearer.Sessions(t.Context(), false); err == nil {
		t.Error("a request with the revoked token succeeded")
	}
	if _, err := rival.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"touch", "over"}}); err != nil {
		t.Error(err)
	}
	if err := <-lives; err != nil {
		t.Errorf("the stream of another caller has ended: %v", err)
	}
	if list, err := h.Sessions(t.Context(), true); err != nil || len(list) != 2 {
		t.Errorf("the sessions are no more: list = %v, err = %v, want no error and len(list) == 2", list, err)
	}
}

// A reload changes the role of open connections.
func TestAReloadChangesTheRoleOfALivingConnection(t *testing.T) {
	t.Parallel()
	h := open(t)
	tr := &http.Transport{DialContext: boxtest.Dialer(h.Socket, users()[access.User]), MaxConnsPerHost: 1}
	defer tr.CloseIdleConnections()
	post := func() int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://boxd/v1/sessions", strings.NewReader(`{"id":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		a := h.send(tr, req)
		return a.Code
	}
	if got := post(); got != http.StatusCreated {
		t.Fatal(got)
	}
	text, err := os.ReadFile(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		role string
		want int
	}{{"viewer", 403}, {"none", 403}, {"no-such-role", 403}, {"user", 200}} {
		changed := strings.Replace(string(text), "uid = 4302\nrole = \"user\"", "uid = 4302\nrole = \""+tc.role+"\"", 1)
		if err := os.WriteFile(h.Config, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		h.hup()
		if got := post(); got != tc.want {
			t.Errorf("with the role %s: %d, want %d", tc.role, got, tc.want)
		}
	}
}

// A grant survives the end of boxd, and expires by itself.
func TestAGrantOutlivesBoxd(t *testing.T) {
	t.Parallel()
	h := open(t, "")
	uid := users()[access.User]
	granted := h.Client
	if _, err := granted.Grant(t.Context(), &api.GrantRequest{Principal: "worker", Role: "admin", For: 3600e9}); err != nil {
		t.Fatal(err)
	}
	h.Stop()
	h.Restart()
	list, err := granted.Grants(t.Context())
	if err != nil || len(list) != 1 || list[0].Principal != "worker" || list[0].By != "uid:0" {
		t.Fatalf(`list = %+v, err = %v, want no error and len(list) == 1 and list[0].Principal == "worker" and list[0].By == "uid:0"`,
			list, err)
	}
	if a := h.as(uid, "GET", "/v1/grants", "", nil); a.Code != http.StatusOK {
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
	if _, err := granted.Grant(t.Context(), &api.GrantRequest{Principal: "worker", Role: "admin", For: 1e9}); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the grant expires", func() bool { return h.as(uid, "GET", "/v1/grants", "", nil).Code == http.StatusForbidden })
	if list, err := granted.Grants(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
}

// A token is valid for its routes and its role only.
func TestATokenIsForItsRoutesAlone(t *testing.T) {
	t.Parallel()
	h := open(t)
	token := h.token("narrow", "tenant", `routes = ["GET /v1/sessions*", "POST /v1/sessions"]`)
	looks := h.token("looks", "tenant", `role = "viewer"`)
	for _, tc := range []struct {
		token, method, path, body string
		want                      int
	}{
		{token, "POST", "/v1/sessions", `{"id":"s"}`, 201},
		{token, "GET", "/v1/sessions/s", "", 200},
		{token, "DELETE", "/v1/sessions/s", "", 403},
		{token, "POST", "/v1/sessions/s/exec", `{"argv":["true"]}`, 403},
		{token, "GET", "/v1/status", "", 403},
		{looks, "GET", "/v1/sessions/s", "", 200},
		{looks, "DELETE", "/v1/sessions/s", "", 403},
	} {
		if a := h.overTCP(tc.token, tc.method, tc.path, tc.body, nil); a.Code != tc.want {
			t.Errorf("%s %s: %d, want %d: %s", tc.method, tc.path, a.Code, tc.want, a.Body)
		}
	}
}
