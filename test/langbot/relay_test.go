// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// of returns the headers of a relay.
func of(workspace, generation string) http.Header {
	return header("X-LangBot-Workspace-Id", workspace, "X-LangBot-Placement-Generation", generation)
}

// physical returns boxd's id for a session of this connection.
func (c *rpc) physical(session string) string {
	return wire.Prefix(wire.Namespace(instance, c.workspace), int64(c.generation)) + session
}

// attach connects to a managed process.
func (b *bot) attach(t *testing.T, c *rpc, session, process string) *websocket.Conn {
	t.Helper()
	path := "/managed-process/" + url.PathEscape(process) + "/ws"
	if process == "" {
		path = "/managed-process/ws"
	}
	ws, _, err := websocket.Dial(t.Context(), "ws://"+b.address+"/v1/sessions/"+url.PathEscape(c.physical(session))+path, //nolint:bodyclose // the library has it
		&websocket.DialOptions{HTTPHeader: of(c.workspace, fmt.Sprint(c.generation)), Subprotocols: []string{"mcp"}})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(1 << 20) // like LangBot's client
	t.Cleanup(func() { ws.CloseNow() })
	if ws.Subprotocol() != "mcp" {
		t.Errorf("subprotocol %q", ws.Subprotocol())
	}
	return ws
}

func say(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func hears(t *testing.T, ws *websocket.Conn, want string) {
	t.Helper()
	_, got, err := ws.Read(t.Context())
	if err != nil || string(got) != want {
		t.Fatalf("%.200q, %v, want %.200q", got, err, want)
	}
}

// ends expects the connection to be closed with a code.
func ends(t *testing.T, ws *websocket.Conn, code websocket.StatusCode) {
	t.Helper()
	for {
		_, text, err := ws.Read(t.Context())
		if err == nil {
			t.Logf("also received %.100q", text)
			continue
		}
		if got := websocket.CloseStatus(err); got != code {
			t.Fatalf("closed with %v, want %v: %v", got, code, err)
		}
		return
	}
}

// echo is a process that echoes every line.
const echo = `{"session_id":"s","spec":{"process_id":"p","command":"sh","args":["-c","echo ready; while read -r l; do echo \"got $l\"; done; echo bye >&2; echo end"],"env":{"B":"x","A":"y"}}}`

func TestAProcessIsStartedAskedAndStopped(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	var p map[string]any
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"bad","command":"no-such-program"}}`, nil)
	boxtest.Eventually(t, "the process whose program does not exist has ended", func() bool {
		c.gets("box_get_managed_process", `{"session_id":"s","process_id":"bad"}`, &p)
		return p["status"] == "exited" && p["exit_code"] == 127.0
	})
	c.gets("box_start_managed_process", echo, &p)
	for k, want := range map[string]string{"session_id": "s", "process_id": "p", "status": "running", "command": "sh", "cwd": "/workspace", "env_keys": "[A B]", "attached": "false", "exited_at": "<nil>", "exit_code": "<nil>"} {
		if fmt.Sprint(p[k]) != want {
			t.Errorf("%s is %v, want %s", k, p[k], want)
		}
	}
	var status, s map[string]any
	c.gets("box_status", `{}`, &status)
	c.gets("box_get_session", `{"session_id":"s"}`, &s)
	if all, ok := s["managed_processes"].(map[string]any); status["managed_processes"] != 1.0 || !ok || len(all) != 2 || s["managed_process"] != nil {
		t.Errorf(`status = %v, s = %v, want status["managed_processes"] == 1.0 and ok == true and len(all) == 2 and s["managed_process"] == nil`,
			status, s)
	}
	var stopped map[string]any
	c.gets("box_stop_managed_process", `{"session_id":"s","process_id":"p"}`, &stopped)
	if stopped["stopped"] != "p" {
		t.Errorf(`stopped = %v, want stopped["stopped"] == "p"`, stopped)
	}
	c.refused("box_get_managed_process", `{"session_id":"s","process_id":"p"}`, "BoxManagedProcessNotFoundError: session PHYS-s has no managed process with process_id=p")
	// A process in a directory of the image, which is reported as it was requested.
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"u","command":"sh","args":["-c","pwd >&2; exec sleep 1000"],"cwd":"/usr"}}`, nil)
	boxtest.Eventually(t, "the process has printed its working directory", func() bool {
		c.gets("box_get_managed_process", `{"session_id":"s","process_id":"u"}`, &p)
		return p["stderr_preview"] == "/usr"
	})
	if got := fmt.Sprintf("%v %v %v", p["command"], p["args"], p["cwd"]); got != "sh [-c pwd >&2; exec sleep 1000] /usr" {
		t.Errorf(`p = %v, want got == "sh [-c pwd >&2; exec sleep 1000] /usr"`, p)
	}
	// The end of a process, with its exit code and output.
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"command":"sh","args":["-c","echo one >&2; echo two >&2; exit 5"]}}`, nil)
	boxtest.Eventually(t, "the process has ended", func() bool {
		c.gets("box_get_managed_process", `{"session_id":"s"}`, &p)
		if p["status"] == "exited" && (p["exit_code"] == nil || p["exited_at"] == nil) {
			t.Fatalf(`half of an end: p = %v, want p["status"] != "exited" or p["exit_code"] != nil and p["exited_at"] != nil`,
				p)
		}
		return p["status"] == "exited"
	})
	if p["exit_code"] != 5.0 || p["stderr_preview"] != "one\ntwo" {
		t.Errorf(`p = %v, want p["exit_code"] == 5.0 and p["stderr_preview"] == "one\ntwo"`, p)
	}
	c.gets("box_init", `{"limits":{"completed_process_retention_sec":0}}`, nil)
	c.refused("box_get_managed_process", `{"session_id":"s"}`, "BoxManagedProcessNotFoundError: …")
}

func TestARelayIsLinesEitherWay(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	c.gets("box_start_managed_process", echo, nil)
	first := b.attach(t, c, "s", "p")
	hears(t, first, "ready\n") // written before it attached
	say(t, first, `{"a": "ä"}`)
	hears(t, first, "got {\"a\": \"ä\"}\n")
	if err := first.Write(t.Context(), websocket.MessageBinary, []byte("not this")); err != nil {
		t.Fatal(err)
	}
	say(t, first, "one\ntwo")
	hears(t, first, "got one\n")
	hears(t, first, "got two\n")
	var p map[string]any
	c.gets("box_get_managed_process", `{"session_id":"s","process_id":"p"}`, &p)
	if p["attached"] != true {
		t.Errorf(`p = %v, want p["attached"] == true`, p)
	}
	second := b.attach(t, c, "s", "p") // it waits, and so does its input
	say(t, second, "from the second")
	say(t, first, "from the first")
	hears(t, first, "got from the first\n")
	first.Close(websocket.StatusNormalClosure, "")
	hears(t, second, "got from the second\n")
	c.gets("box_stop_managed_process", `{"session_id":"s","process_id":"p"}`, nil)
	ends(t, second, websocket.StatusNormalClosure)
}

// Data that a client sends before it closes is delivered.
func TestTheLastWordsOfAClientArrive(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"p","command":"sh","args":["-c","while read l; do echo $l >&2; done"]}}`, nil)
	var want []string
	for i := range 20 {
		ws := b.attach(t, c, "s", "p")
		for j := range 3 {
			want = append(want, fmt.Sprintf("%d.%d", i, j))
			say(t, ws, want[len(want)-1])
		}
		_ = ws.Close(websocket.StatusNormalClosure, "") // it waits for five seconds for an answer, which may be late
		boxtest.Eventually(t, "all messages of the client have arrived", func() bool {
			var p map[string]any
			c.gets("box_get_managed_process", `{"session_id":"s","process_id":"p"}`, &p)
			return p["stderr_preview"] == strings.Join(want, "\n")
		})
	}
}

func TestARelayHasTheRestOfAProcessThatHasEnded(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	long := strings.Repeat("x", 900_000)
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"command":"sh","args":["-c","read -r l; echo a; echo b; head -c 900000 /dev/zero | tr '\\0' x; echo; printf 'no end'; exit 3"]}}`, nil)
	ws := b.attach(t, c, "s", "")
	say(t, ws, "go")
	hears(t, ws, "a\n")
	hears(t, ws, "b\n")
	line := "" // in pieces if the writer pauses: text without an end of line is sent after a while
	for !strings.HasSuffix(line, "\n") {
		_, text, err := ws.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		line += string(text)
	}
	if line != long+"\n" {
		t.Fatalf("%d bytes, %.200q, want %d", len(line), line, len(long)+1)
	}
	hears(t, ws, "no end")
	ends(t, ws, websocket.StatusNormalClosure)
}

func TestWhatHasNoEndOfLineComesAfterAWhile(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"command":"sh","args":["-c","printf '> '; read -r l; echo $l"]}}`, nil)
	ws := b.attach(t, c, "s", "")
	hears(t, ws, "> ")
	say(t, ws, "x")
	hears(t, ws, "x\n")
	ends(t, ws, websocket.StatusNormalClosure)
}

func TestWhoMayNotAttachIsToldBeforeTheUpgrade(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	c.gets("box_start_managed_process", echo, nil)
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"over","command":"true"}}`, nil)
	boxtest.Eventually(t, "the process has ended", func() bool {
		var p map[string]any
		c.gets("box_get_managed_process", `{"session_id":"s","process_id":"over"}`, &p)
		return p["status"] == "exited"
	})
	good, other := of(workspace, "1"), of("w2", "1")
	for _, tc := range []struct {
		name   string
		head   http.Header
		path   string
		status int
		want   string
	}{
		{"no instance", header("X-Langbot-Instance-Id", ""), c.physical("s") + "/managed-process/p/ws", 401, "Unauthorized"},
		{"another instance", header("X-Langbot-Instance-Id", "other"), c.physical("s") + "/managed-process/p/ws", 401, "Unauthorized"},
		{"no Workspace", header(), c.physical("s") + "/managed-process/p/ws", 401, "Unauthorized"},
		{"a Workspace nobody has seen", other, c.physical("s") + "/managed-process/p/ws", 401, "Unauthorized"},
		{"a generation that is no number", of(workspace, "01"), c.physical("s") + "/managed-process/p/ws", 401, "Unauthorized"},
		{"a generation to come", of(workspace, "2"), c.physical("s") + "/managed-process/p/ws", 401, "Unauthorized"},
		{"a logical id", good, "s/managed-process/p/ws", 401, "Unauthorized"},
		{"no session", good, c.physical("x") + "/managed-process/p/ws", 400, `{"error":{"code":"BoxSessionNotFoundError","message":"session ` + c.physical("x") + ` not found"}}`},
		{"no process", good, c.physical("s") + "/managed-process/x/ws", 400, `{"error":{"code":"BoxManagedProcessNotFoundError","message":"session ` + c.physical("s") + ` has no managed process with process_id=x"}}`},
		{"a process that has ended", good, c.physical("s") + "/managed-process/over/ws", 400, `{"error":{"code":"BoxManagedProcessConflictError","message":"managed process over in session ` + c.physical("s") + ` is not running"}}`},
		{"no WebSocket", good, c.physical("s") + "/managed-process/p/ws", 400, ""},
		{"no such route", good, c.physical("s") + "/managed-process/p/q/ws", 404, ""},
	} {
		a := b.get(t, "/v1/sessions/"+tc.path, tc.head)
		if a.Code != tc.status || tc.want != "" && string(a.Body) != tc.want {
			t.Errorf(`%s: a.Code = %d, a.Body = %s, want a.Code == %v and (tc.want == "" or a.Body == tc.want)`,
				tc.name, a.Code, a.Body, tc.status)
		}
		if a.Code == 401 && a.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf(`%s: a.Header = %v, want a.Code != 401 or a.Header.Get("Content-Type") == "text/plain; charset=utf-8"`,
				tc.name, a.Header)
		}
	}
}

func TestALaterGenerationEndsWhatIsOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	b := start(t)
	old, now := b.dial(t), b.dial(t)
	now.generation = 5
	old.gets("box_create_session", `{"session_id":"s","persistent":true}`, nil)
	old.gets("box_start_managed_process", echo, nil)
	relay := b.attach(t, old, "s", "p")
	hears(t, relay, "ready\n")
	running := old.send("box_exec", `{"session_id":"other","cmd":"sleep 100","timeout_sec":110}`, true)
	boxtest.Eventually(t, "the session of the command exists", func() bool { return slices.Contains(old.sessions(), "other") })
	if ids := now.sessions(); len(ids) != 0 {
		t.Errorf("ids = %q, want len(ids) == 0", ids)
	}
	if r := <-running; r.Message != "PermissionError: Stale Box placement generation" {
		t.Errorf(`r = %+v, want r.Message == "PermissionError: Stale Box placement generation"`, r)
	}
	ends(t, relay, websocket.StatusNormalClosure)
	old.refused("box_get_sessions", `{}`, "PermissionError: Stale Box placement generation")
	if list, err := b.Sessions(t.Context(), true); err != nil || len(list) != 0 {
		t.Errorf("%d sessions still exist, %v", len(list), err)
	}
	elsewhere := b.dial(t)
	elsewhere.workspace = "w2"
	elsewhere.gets("box_create_session", `{"session_id":"s"}`, nil)
	if ids := now.sessions(); len(ids) != 0 {
		t.Errorf("sessions of another Workspace: ids = %q, want len(ids) == 0", ids)
	}
}

func TestSessionsOutliveBoxd(t *testing.T) {
	t.Parallel()
	b := start(t, boxtest.Kept)
	c := b.dial(t)
	c.generation = 3
	c.gets("box_create_session", `{"session_id":"s","cpus":0.5,"image":"mine"}`, nil)
	c.gets("box_start_managed_process", echo, nil)
	ws := b.attach(t, c, "s", "p")
	hears(t, ws, "ready\n")
	b.Stop()
	ends(t, ws, websocket.StatusGoingAway)
	b.Restart()
	c = b.dial(t)
	c.refused("box_status", `{}`, "PermissionError: Stale Box placement generation")
	c.generation = 3
	var s, p map[string]any
	c.gets("box_get_session", `{"session_id":"s"}`, &s)
	c.gets("box_get_managed_process", `{"session_id":"s","process_id":"p"}`, &p)
	if s["cpus"] != 0.5 || s["image"] != "mine" || p["status"] != "running" {
		t.Errorf(`s = %v, p = %v, want s["cpus"] == 0.5 and s["image"] == "mine" and p["status"] == "running"`, s, p)
	}
	c.refused("box_create_session", `{"session_id":"s"}`, "BoxSessionConflictError: Box session PHYS-s already exists with image=mine")
	ws = b.attach(t, c, "s", "p")
	say(t, ws, "again")
	hears(t, ws, "got again\n")
}

func TestSocketsAreClosedInOrderWhenBoxdStops(t *testing.T) {
	t.Parallel()
	b := start(t)
	ws, _, err := websocket.Dial(t.Context(), "ws://"+b.address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: header()}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	heard := make(chan error, 1)
	go func() {
		_, _, err := ws.Read(context.WithoutCancel(t.Context()))
		heard <- err
	}()
	b.Stop()
	if err := <-heard; websocket.CloseStatus(err) != websocket.StatusGoingAway || !strings.Contains(err.Error(), "Box runtime shutting down") {
		t.Errorf(`err = %v, want websocket.CloseStatus(err) == websocket.StatusGoingAway and err containing "Box runtime shutting down"`,
			err)
	}
	b.Restart()
}

// resources are the counts in unauthenticated answers.
type resources struct {
	Sessions  *int `json:"sessions"`
	Processes *int `json:"managed_processes"`
}

// readiness is the part of LangBot's object that the tests check.
type readiness struct {
	Ready     bool
	Mode      string
	Error     string
	Checks    map[string]bool
	Backend   map[string]any
	Resources resources
}

func (b *bot) ready(t *testing.T) (status int, body readiness) {
	t.Helper()
	a := b.get(t, "/readyz", nil)
	if err := json.Unmarshal(a.Body, &body); err != nil {
		t.Fatal(err)
	}
	return a.Code, body
}
