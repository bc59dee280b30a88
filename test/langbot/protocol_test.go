// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// get makes a plain HTTP request.
func (b *bot) get(t *testing.T, path string, h http.Header) boxtest.Answer {
	t.Helper()
	return boxtest.Get(t, "http://"+b.address+path, h)
}

func TestAnybodyMayAskHowItIs(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := b.get(t, "/healthz", nil)
	var health struct {
		Live      bool
		Resources map[string]any
	}
	if err := json.Unmarshal(a.Body, &health); err != nil || a.Code != 200 || !health.Live {
		t.Errorf("a.Code = %d, a.Body = %s, want no error and a.Code == 200 and health.Live == true", a.Code, a.Body)
	}
	for _, name := range []string{"event_loop", "blocking_executor", "sessions", "managed_processes", "completed_processes", "creating_session_tasks", "closing_session_tasks", "background_tasks"} {
		if _, ok := health.Resources[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
	status, ready := b.ready(t) // before the first connection
	if status != 200 || !ready.Ready || ready.Mode != "standard" || !ready.Checks["backend_available"] || len(ready.Checks) != 1 {
		t.Errorf("status = %d, ready = %+v", status, ready)
	}
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"command":"sleep","args":["1000"]}}`, nil)
	if _, ready = b.ready(t); *ready.Resources.Sessions != 1 || *ready.Resources.Processes != 1 {
		t.Errorf("ready = %+v, want *ready.Resources.Sessions == 1 and *ready.Resources.Processes == 1", ready)
	}
	c.gets("box_init", `{"backend":"e2b"}`, nil)
	if status, ready = b.ready(t); status != 503 || ready.Ready || ready.Backend["name"] != "e2b" {
		t.Errorf(`status = %d, ready = %+v, want status == 503 and ready.Ready == false and ready.Backend["name"] == "e2b"`,
			status, ready)
	}
	c.refused("box_create_session", `{"session_id":"t"}`, "BoxBackendUnavailableError: LangBot Box backend unavailable. Install and start Docker or nsjail before using exec.")
}

func TestRequiredAdmissionFailsClosedAndSaysWhy(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_init", `{"admission":{"required":true}}`, nil)
	status, ready := b.ready(t)
	if status != 503 || ready.Ready || ready.Mode != "grant_enforced" || len(ready.Checks) != 14 || ready.Checks["hard_workspace_quota"] || ready.Error == "" || ready.Backend["name"] != "nsjail" {
		t.Errorf("status = %d, ready = %+v", status, ready)
	}
	for _, action := range []string{"box_exec", "box_create_session", "box_get_session", "box_get_sessions", "box_delete_session", "box_start_managed_process", "box_get_managed_process", "box_stop_managed_process"} {
		c.refused(action, `{"session_id":"s","cmd":"true"}`, "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: …")
	}
	c.refused("box_health", `{}`, "BoxReadinessError: managed sandbox isolation is not ready")
	c.refused("box_upsert_sandbox_admission_grant", `{}`, "BoxValidationError: 7 validation errors for SandboxAdmissionGrant\n…")
	c.gets("box_init", `{"admission":{"required":false}}`, nil)
	c.refused("box_exec", `{"session_id":"s","cmd":"true"}`, "BoxReadinessError: Invalid sandbox admission configuration: Sandbox admission enforcement cannot be disabled without restarting the Box Runtime")
}

// Idle connections, however many, neither disturb LangBot's connection nor keep out a new one.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	b := start(t)
	before := b.dial(t)
	for range 600 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	for _, c := range []*rpc{before, b.dial(t)} {
		c.gets("box_create_session", `{"session_id":"s"}`, nil)
	}
	if a := b.get(t, "/healthz", nil); a.Code != 200 {
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
}

// Requests of a web page in a browser come from this host too, under a host name that resolves here, or with another origin.
func TestPagesOfTheWebAreRefused(t *testing.T) {
	t.Parallel()
	b := start(t)
	_, port, _ := net.SplitHostPort(b.address)
	for host, want := range map[string]int{b.address: 200, "localhost:" + port: 200, "[::1]:" + port: 200, "boxd.example:" + port: 403, "10.0.0.1": 403} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.address+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Host %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
	h := header("Origin", "https://page.example")
	ws, resp, err := websocket.Dial(t.Context(), "ws://"+b.address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: h})
	if err == nil {
		ws.CloseNow()
		t.Fatal("a request with an Origin header got an RPC connection")
	}
	resp.Body.Close()
	if resp.StatusCode != 403 {
		t.Errorf("Origin: resp.StatusCode = %d, want 403", resp.StatusCode)
	}
}

func TestOneInstanceIsServed(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, id := range []string{"asks", "first"} { // this pins no instance
		if a := b.get(t, "/rpc/ws", header("X-LangBot-Instance-Id", id)); a.Code != 400 {
			t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 400", a.Code, a.Body)
		}
	}
	ws, _, err := websocket.Dial(t.Context(), "ws://"+b.address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: header("X-LangBot-Instance-Id", "first")}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	ws.CloseNow()
	if a := b.get(t, "/rpc/ws", header()); a.Code != 401 || string(a.Body) != "Unauthorized" || a.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf(`a.Code = %d, a.Body = %s, a.Header = %v, want a.Code == 401 and a.Body == "Unauthorized" and a.Header.Get("Content-Type") == "text/plain; charset=utf-8"`,
			a.Code, a.Body, a.Header)
	}
	if !strings.Contains(b.Log(), "the instance "+instance+" is not the one that is served") {
		t.Error("the log does not say that another instance is served")
	}
	b.Stop()
	b.Restart()
	b.dial(t).gets("box_status", `{}`, nil) // the first one after a restart
	named := start(t, `instance = "named"`)
	for id, want := range map[string]int{instance: 401, "named": 400, "na med": 401, "": 401} {
		if a := named.get(t, "/rpc/ws", header("X-LangBot-Instance-Id", id)); a.Code != want {
			t.Errorf("%q: a.Code = %d, want %v", id, a.Code, want)
		}
	}
}

func TestTheControlTokenIsNeededOnBothRoutes(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("secret-", 6)
	file := filepath.Join(boxtest.TempDir(t), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := start(t, fmt.Sprintf("token_file = %q", file))
	for name, want := range map[string]int{"": 401, token[1:]: 401, token: 400} {
		if a := b.get(t, "/rpc/ws", header("X-LangBot-Box-Control-Token", name)); a.Code != want {
			t.Errorf("%q: a.Code = %d, want %v", name, a.Code, want)
		}
	}
	if a := b.get(t, "/v1/sessions/s/managed-process/ws", of(workspace, "1")); a.Code != 401 {
		t.Errorf("the relay: a.Code = %d, want 401", a.Code)
	}
	if a := b.get(t, "/healthz", nil); a.Code != 200 {
		t.Errorf("health: a.Code = %d, want 200", a.Code)
	}
	if strings.Contains(b.Log(), token) {
		t.Error("the token is in the log")
	}
}

func TestGarbageIsPassedOver(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	for _, text := range []string{"", "x", "[]", "{}", `{"code":0,"seq_id":1}`} {
		if err := c.ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	c.gets("__ping", `{}`, nil)
	bad := c.send("box_status", `[]`, true)
	if r := <-bad; !strings.HasPrefix(r.Message, "ValidationError: ") {
		t.Errorf(`r = %+v, want r.Message starting with "ValidationError: "`, r)
	}
	if err := c.ws.Write(t.Context(), websocket.MessageBinary, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if r, ok := <-c.send("__ping", `{}`, false); ok {
		t.Errorf("after a binary message: r = %+v, want ok == false", r)
	}
}

func TestAMessageHasABound(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	const most = 16 << 20
	frame := `{"seq_id":7,"action":"__ping","data":{"x":""}}`
	ch := make(chan reply, 1)
	c.mu.Lock()
	c.waiting[7] = ch
	c.mu.Unlock()
	if err := c.ws.Write(t.Context(), websocket.MessageText, []byte(strings.Replace(frame, `""`, `"`+strings.Repeat("x", most-len(frame))+`"`, 1))); err != nil {
		t.Fatal(err)
	}
	if r, ok := <-ch; !ok || r.Message != "success" {
		t.Errorf(`the longest message: r = %+v, ok = %v, want ok == true and r.Message == "success"`, r, ok)
	}
	ws, _, err := websocket.Dial(t.Context(), "ws://"+b.address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: header()}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	_ = ws.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", most+1))) // it may be cut off
	if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("err = %v, want websocket.CloseStatus(err) == websocket.StatusMessageTooBig", err)
	}
}

func TestOneCallTooManyIsRefusedAndPingsAreAnswered(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	var under []<-chan reply
	for range 128 { // one runs, and the others wait for it
		under = append(under, c.send("box_exec", `{"session_id":"s","cmd":"sleep 100","timeout_sec":110}`, true))
	}
	if r := <-c.send("__ping", `{}`, false); r.Message != "Runtime connection is busy (max 128 concurrent actions)" {
		t.Errorf(`r = %+v, want r.Message == "Runtime connection is busy (max 128 concurrent actions)"`, r)
	}
	if err := c.ws.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	second := start(t).dial(t) // another connection is free
	second.gets("__ping", `{}`, nil)
	c.ws.Close(websocket.StatusNormalClosure, "")
	for _, ch := range under {
		if r, ok := <-ch; ok {
			t.Errorf("r = %+v, want ok == false", r)
		}
	}
}

// Whatever a payload contains, it is answered, and boxd goes on.
func TestPayloadsOfAnyKindAreAnswered(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	for _, action := range []string{
		"__ping", "__file_chunk", "box_init", "box_health", "box_get_backend_info", "box_status", "box_verify_shared_workspace",
		"box_upsert_sandbox_admission_grant", "box_revoke_sandbox_admission_grant", "box_exec", "box_create_session", "box_get_session", "box_get_sessions",
		"box_delete_session", "box_start_managed_process", "box_get_managed_process", "box_stop_managed_process", "box_list_skills", "box_get_skill",
		"box_create_skill", "box_update_skill", "box_delete_skill", "box_scan_skill_directory", "box_list_skill_files", "box_read_skill_file",
		"box_write_skill_file", "box_preview_skill_zip", "box_install_skill_zip", "box_shutdown",
	} {
		for _, value := range []string{`null`, `true`, `-1`, `1e308`, `99999999999999999999999`, `""`, `"\u0000\ud800"`, `[null]`, `{"":null}`, deep} {
			var data strings.Builder
			for _, key := range []string{
				"session_id", "cmd", "spec", "process_id", "name", "path", "skill", "file_key", "chunk_base64", "chunk_index", "chunk_amount", "limits", "local",
				"extra_mounts", "env", "cpus", "host_path", "timeout_sec", "max_entries", "content", "source_paths", "marker_name",
			} {
				fmt.Fprintf(&data, ",%q:%s", key, value)
			}
			c.ask(action, "{"+data.String()[1:]+"}")
		}
	}
	for _, value := range []string{`null`, `7`, `{"process_id":null,"command":"true","args":null,"env":null,"memory_mb":1e308}`, `{"process_id":"","command":"true","cwd":"\u0000"}`} {
		c.ask("box_create_session", `{"session_id":"s","cpus":1e308,"memory_mb":9007199254740992,"pids_limit":9007199254740992}`)
		c.ask("box_start_managed_process", `{"session_id":"s","spec":`+value+`}`)
	}
	c.gets("__ping", `{}`, nil)
}

// Answers that a client does not read are buffered for a while, and up to a limit: then no more requests are read.
func TestAClientThatTakesNoAnswersIsNotListenedTo(t *testing.T) {
	t.Parallel()
	b := start(t)
	small := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			err = tcp.SetReadBuffer(4096)
		}
		return conn, err
	}}}
	ws, _, err := websocket.Dial(t.Context(), "ws://"+b.address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: header(), HTTPClient: small}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	text := []byte(`{"seq_id":1,"action":"` + strings.Repeat("x", 4000) + `","data":{}}`) // its answer is as long
	const enough = 64 << 20
	sent := 0
	for ; sent < enough; sent += len(text) {
		timeoutCtx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err = ws.Write(timeoutCtx, websocket.MessageText, text)
		cancel()
		if err != nil {
			break
		}
	}
	if err == nil {
		t.Errorf("%d bytes were accepted from a client that reads no answers", sent)
	}
	b.dial(t).gets("__ping", `{}`, nil) // others are served
}

// A setting that LangBot cannot express: how long a session may be idle.
func TestOnlyPersistentSessionsStay(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"a"}`, nil)
	c.gets("box_create_session", `{"session_id":"b","persistent":true}`, nil)
	list, err := b.Sessions(t.Context(), true)
	if err != nil || len(list) != 2 {
		t.Fatalf("list = %v, err = %v, want no error and len(list) == 2", list, err)
	}
	for _, s := range list {
		want := 5 * time.Minute
		if s.ID == c.physical("b") {
			want = 0
		}
		if time.Duration(s.TTL) != want || (s.ExpiresAt == nil) != (want == 0) {
			t.Errorf("%s: s.TTL = %v, s.ExpiresAt = %v, want time.Duration(s.TTL) == want and (s.ExpiresAt == nil) == (want == 0)",
				s.ID, s.TTL, s.ExpiresAt)
		}
	}
}

func TestACommandEndsWithItsClientAndTheSessionLives(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_session", `{"session_id":"s"}`, nil)
	c.send("box_exec", `{"session_id":"s","cmd":"sleep 119","timeout_sec":120}`, true)
	boxtest.Eventually(t, "the command runs", func() bool {
		list, err := b.Sessions(t.Context(), true)
		return err == nil && len(list) == 1 && list[0].Running == 1
	})
	c.ws.CloseNow()
	boxtest.Eventually(t, "the command has ended with its client", func() bool {
		list, err := b.Sessions(t.Context(), true)
		return err == nil && len(list) == 1 && list[0].Running == 0
	})
	if ids := b.dial(t).sessions(); len(ids) != 1 {
		t.Errorf("ids = %q, want len(ids) == 1", ids)
	}
}

func TestWhatLangBotDoesIsInTheAuditLog(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_exec", `{"session_id":"s","cmd":"echo audited","env":{"SECRET":"hidden"}}`, nil)
	c.gets("box_create_skill", `{"skill":{"name":"audited-skill","instructions":"hidden"}}`, nil)
	c.gets("box_status", `{}`, nil)
	files, err := filepath.Glob(filepath.Join(b.State, "audit", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	read := func() {
		all.Reset()
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	for _, want := range []string{"langbot box_exec", "echo audited", "SECRET", c.physical("s"), "langbot box_create_skill", "skill=audited-skill"} {
		boxtest.Eventually(t, fmt.Sprintf("the audit log has %q", want), func() bool { // a record may come after the answer
			read()
			return strings.Contains(all.String(), want)
		})
	}
	for _, not := range []string{"hidden", "box_status"} {
		if strings.Contains(all.String(), not) {
			t.Errorf("the audit log has %q, want all.String() without not", not)
		}
	}
}

func TestAnUploadIsUsedUp(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	const install = `{"file_key":"a.zip"}`
	c.refused("__file_chunk", `{"file_key":"../a","chunk_index":0,"chunk_amount":1,"chunk_base64":""}`, "ValueError: Invalid file transfer key")
	c.refused("box_install_skill_zip", install, "BoxValidationError: no uploaded file has this key")
	c.gets("__file_chunk", `{"file_key":"a.zip","file_length":1,"chunk_index":0,"chunk_amount":1,"chunk_size":1,"chunk_base64":"eA=="}`, nil)
	if _, ok := <-b.dial(t).send("box_install_skill_zip", install, true); !ok {
		t.Error(errHungUp)
	}
	c.refused("box_install_skill_zip", install, "BoxValidationError: Uploaded file must be a valid .zip archive")
	c.refused("box_preview_skill_zip", install, "BoxValidationError: no uploaded file has this key")
	c.gets("box_init", `{"limits":{"max_rpc_file_bytes":1}}`, nil) // takes effect at once
	c.refused("__file_chunk", `{"file_key":"a.zip","chunk_index":0,"chunk_amount":1,"chunk_base64":"eHg="}`, "ValueError: File transfer exceeds the configured size limit")
}

// An independent client: python3 with its own WebSocket implementation.
func TestAClientInPythonSpeaksWithBoxd(t *testing.T) {
	t.Parallel()
	b := start(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		boxtest.Missing(t, "python3")
	}
	host, port, _ := strings.Cut(b.address, ":")
	out, err := exec.CommandContext(t.Context(), python, "testdata/client.py", host, port, instance).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "hello from python" {
		t.Errorf(`%v: out = %s, want no error and strings.TrimSpace(string(out)) == "hello from python"`, err, out)
	}
}
