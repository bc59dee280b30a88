// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
)

const (
	botToken    = "0123456789abcdef0123456789abcdef" //nolint:gosec // of tests
	botInstance = "probe-instance"
)

// buildLangBot is like build, with a gateway and nodes that serve LangBot.
func buildLangBot(t *testing.T, nodes int) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), bot: boxtest.FreeAddress(t, "127.0.0.1")}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	return h.fill(nodes)
}

// botHeader is the header of LangBot's handshake; more are names and values.
func botHeader(more ...string) http.Header {
	out := http.Header{}
	for i, all := 0, append([]string{wire.HeaderToken, botToken, wire.HeaderInstance, botInstance}, more...); i < len(all); i += 2 {
		out.Set(all[i], all[i+1])
	}
	return out
}

// bot is a connection of LangBot, for one Workspace. It sends one request after the other.
type bot struct {
	t          testing.TB
	ws         *websocket.Conn
	seq        int
	workspace  string
	generation int
	others     map[int]said // answers to earlier requests, by sequence number
}

// dials connects to a gateway as LangBot does.
func dials(t testing.TB, address, workspace string, generation int) *bot {
	t.Helper()
	return dialsBy(t, http.DefaultClient, "ws://"+address, workspace, generation)
}

// dialsBy is dials with a client.
func dialsBy(t testing.TB, by *http.Client, address, workspace string, generation int) *bot {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), address+wire.PathRPC, &websocket.DialOptions{HTTPClient: by, HTTPHeader: botHeader()}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(32 << 20)
	t.Cleanup(func() { ws.CloseNow() })
	return &bot{t: t, ws: ws, workspace: workspace, generation: generation, others: map[int]said{}}
}

// said is an answer.
type said struct {
	Seq     int             `json:"seq_id"`
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// try makes a request and waits for its answer. It reports an error only if the connection ends.
func (b *bot) try(action, data string) (a said, err error) {
	seq, err := b.send(action, data)
	if err != nil {
		return a, err
	}
	return b.waits(seq)
}

// send makes a request and returns its sequence number.
func (b *bot) send(action, data string) (seq int, err error) {
	b.seq++
	text := fmt.Sprintf(`{"seq_id":%d,"action":%q,"data":%s`, b.seq, action, data)
	if known, _ := wire.ActionOf(action); !known.Host {
		text += fmt.Sprintf(`,"context":{"instance_uuid":%q,"workspace_uuid":%q,"placement_generation":%d}`, botInstance, b.workspace, b.generation)
	}
	return b.seq, b.ws.Write(context.WithoutCancel(b.t.Context()), websocket.MessageText, []byte(text+"}"))
}

// waits waits for the answer to a request.
func (b *bot) waits(seq int) (a said, err error) {
	for {
		if a, ok := b.others[seq]; ok {
			delete(b.others, seq)
			return a, nil
		}
		_, answer, err := b.ws.Read(context.WithoutCancel(b.t.Context()))
		if err != nil {
			return a, err
		}
		var next said
		if err := json.Unmarshal(answer, &next); err != nil {
			return a, err
		}
		b.others[next.Seq] = next
	}
}

// asks is try on a connection that must not end.
func (b *bot) asks(action, data string) said {
	b.t.Helper()
	a, err := b.try(action, data)
	if err != nil {
		b.t.Fatalf("%s: %v", action, err)
	}
	return a
}

// gets expects success, and decodes the data.
func (b *bot) gets(action, data string, v any) {
	b.t.Helper()
	a := b.asks(action, data)
	if a.Code != 0 {
		b.t.Fatalf("%s %.200s: a.Message = %s, want a.Code == 0", action, data, a.Message)
	}
	if v != nil {
		if err := json.Unmarshal(a.Data, v); err != nil {
			b.t.Fatal(err)
		}
	}
}

// eventually makes a request until it succeeds: a node may be late on a host that has much to do.
func (b *bot) eventually(action, data string) {
	b.t.Helper()
	boxtest.Eventually(b.t, action+" succeeds", func() bool { return b.asks(action, data).Code == 0 })
}

// refused expects a refusal that has all of these texts.
func (b *bot) refused(action, data string, want ...string) {
	b.t.Helper()
	a := b.asks(action, data)
	for _, text := range want {
		if a.Code != 1 || !strings.Contains(a.Message, text) {
			b.t.Errorf("%s: %d %q, want %q", action, a.Code, a.Message, text)
		}
	}
}

// runs runs a command in session s and returns its output.
func (b *bot) runs(cmd string) string {
	b.t.Helper()
	var r struct {
		Stdout string `json:"stdout"`
	}
	b.gets("box_exec", fmt.Sprintf(`{"session_id":"s","cmd":%q,"timeout_sec":120,"persistent":true}`, cmd), &r)
	return r.Stdout
}

// physical is boxd's id of session s.
func (b *bot) physical() string {
	return wire.Prefix(wire.Namespace(botInstance, b.workspace), int64(b.generation)) + "s"
}

// home is the claim of the Workspace.
func (b *bot) home(h *house) api.FleetClaim {
	b.t.Helper()
	return h.where("workspace/" + wire.Namespace(botInstance, b.workspace))
}

// hasOfBot reports whether boxd of a node has a session of LangBot.
func (n *host) hasOfBot(t testing.TB, id string) bool {
	t.Helper()
	all, err := n.boxd.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(s api.Session) bool { return s.ID == id && s.Owner == "langbot" })
}

const created = `{"session_id":"s","persistent":true}`

func TestLangBotThroughTheGateway(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 2)
	if a := boxtest.Get(t, "http://"+h.bot+"/readyz", nil); a.Code != http.StatusOK || !strings.Contains(string(a.Body), `"ready":true`) {
		t.Errorf("a.Code = %d, a.Body = %s, want a.Code == 200 and a.Body containing `\"ready\":true`", a.Code, a.Body)
	}
	b := dials(t, h.bot, "w1", 1)
	b.gets("__ping", "{}", nil)
	b.gets("box_init", `{"limits":{"max_sessions":1},"backend":"boxd"}`, nil)
	b.refused("box_init", `{"limits":{"max_sessions":-1}}`, "ValueError: box.limits.max_sessions must be between 0 and 5000")
	var backend struct {
		Name      string
		Available bool
	}
	if b.gets("box_get_backend_info", "{}", &backend); !backend.Available {
		t.Errorf("backend = %+v, want backend.Available == true", backend)
	}
	b.refused("__heartbeat", "{}", "ValueError: Action __heartbeat not found")
	b.eventually("box_create_session", created)
	// The node has got the INIT, though it was not connected then.
	b.refused("box_create_session", `{"session_id":"t"}`, "BoxCapacityExceededError: ")
	if out := b.runs("echo kept > f; printf %s \"$(cat f)\""); out != "kept" {
		t.Errorf(`out = %q, want "kept"`, out)
	}
	var status map[string]any
	if b.gets("box_status", "{}", &status); status["active_sessions"] != 1.0 {
		t.Errorf(`status = %v, want status["active_sessions"] == 1.0`, status)
	}
	var list struct {
		Sessions []struct {
			ID string `json:"session_id"`
		}
	}
	if b.gets("box_get_sessions", "{}", &list); len(list.Sessions) != 1 || list.Sessions[0].ID != "s" {
		t.Errorf(`list = %+v, want len(list.Sessions) == 1 and list.Sessions[0].ID == "s"`, list)
	}
	b.refused("box_get_session", `{"session_id":"gone"}`, "BoxSessionNotFoundError: session ws-")
	claim := b.home(h)
	if claim.Owner != "langbot" || claim.State != api.FleetClaimLive || !h.on(claim.Node).hasOfBot(t, b.physical()) {
		t.Errorf(`claim = %+v, want claim.Owner == "langbot" and claim.State == api.FleetClaimLive and h.on(claim.Node).hasOfBot(t, b.physical())`,
			claim)
	}
	if code := h.get("POST", "/v1/fleet/sessions/"+url.PathEscape(claim.ID)+"/move?owner=langbot", nil, nil); code != http.StatusNotImplemented {
		t.Errorf("a move: code = %d, want 501", code)
	}
	if code := h.get("DELETE", "/v1/sessions/"+url.PathEscape(claim.ID)+"?owner=langbot", nil, nil); code != http.StatusConflict || b.home(h).Generation != claim.Generation {
		t.Errorf("its claim is removed: code = %d, want code == 409 and b.home(h).Generation == claim.Generation", code)
	}
	b.gets("box_delete_session", `{"session_id":"s"}`, nil)
	if h.on(claim.Node).hasOfBot(t, b.physical()) {
		t.Error("the session is still on the node")
	}
}

// A file is uploaded before the gateway knows its node.
func TestLangBotUploadsASkillThroughTheGateway(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 1)
	b := dials(t, h.bot, "w1", 1)
	noise := make([]byte, 40000) // of several pieces, in order
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	zip := boxtest.Zip(map[string]string{"SKILL.md": "---\nname: report\ndescription: Reports.\n---\n", "noise": string(noise)})
	upload := func() {
		t.Helper()
		const piece = 16384
		amount := (len(zip) + piece - 1) / piece
		for i := range amount {
			b.gets("__file_chunk", fmt.Sprintf(`{"file_key":"up.zip","chunk_index":%d,"chunk_amount":%d,"chunk_base64":%q}`,
				i, amount, base64.StdEncoding.EncodeToString(zip[i*piece:min((i+1)*piece, len(zip))])), nil)
		}
	}
	upload()
	var found struct{ Skills []struct{ Name string } }
	if b.gets("box_preview_skill_zip", `{"file_key":"up.zip"}`, &found); len(found.Skills) != 1 || found.Skills[0].Name != "report" {
		t.Errorf(`found = %+v, want len(found.Skills) == 1 and found.Skills[0].Name == "report"`, found)
	}
	b.refused("box_install_skill_zip", `{"file_key":"up.zip"}`, "BoxValidationError: ") // it was used
	upload()
	b.gets("box_install_skill_zip", `{"file_key":"up.zip"}`, nil)
	if b.gets("box_list_skills", "{}", &found); len(found.Skills) != 1 || found.Skills[0].Name != "report" {
		t.Errorf(`found = %+v, want len(found.Skills) == 1 and found.Skills[0].Name == "report"`, found)
	}
	b.refused("__file_chunk", `{"file_key":"../x","chunk_index":0,"chunk_amount":1,"chunk_base64":""}`, "ValueError: Invalid file transfer key")
}

func TestLangBotAttachesToAProcessThroughTheGateway(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 1)
	b := dials(t, h.bot, "w1", 2)
	b.eventually("box_create_session", created)
	b.gets("box_start_managed_process", `{"session_id":"s","spec":{"process_id":"p","command":"sh","args":["-c","while read -r l; do echo \"got $l\"; done"]}}`, nil)
	path := "ws://" + h.bot + "/v1/sessions/" + b.physical() + "/managed-process/p/ws"
	attach := func(generation string) (*websocket.Conn, int) {
		ws, resp, err := websocket.Dial(t.Context(), path, &websocket.DialOptions{
			HTTPHeader: botHeader(wire.HeaderWorkspace, "w1", wire.HeaderGeneration, generation), Subprotocols: []string{"mcp"},
		})
		if err == nil {
			t.Cleanup(func() { ws.CloseNow() })
			return ws, 0
		}
		if resp == nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return nil, resp.StatusCode
	}
	for _, generation := range []string{"1", "3", "02", ""} {
		if _, code := attach(generation); code != http.StatusUnauthorized {
			t.Errorf("generation %q: code = %d, want 401", generation, code)
		}
	}
	ws, code := attach("2")
	if ws == nil || ws.Subprotocol() != "mcp" {
		t.Fatalf(`code = %d, want ws != nil and ws.Subprotocol() == "mcp"`, code)
	}
	if err := ws.Write(t.Context(), websocket.MessageText, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := ws.Read(t.Context()); err != nil || string(text) != "got one\n" {
		t.Errorf(`text = %q, err = %v, want no error and text == "got one\n"`, text, err)
	}
	// A later generation ends it.
	later := dials(t, h.bot, "w1", 3)
	later.gets("box_status", "{}", nil)
	if _, text, err := ws.Read(t.Context()); err == nil {
		t.Errorf("received %q", text)
	}
}

func TestStrangersAtTheGatewayForLangBot(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 1)
	b := dials(t, h.bot, "w1", 1)
	for name, header := range map[string]http.Header{
		"no token":         {http.CanonicalHeaderKey(wire.HeaderInstance): {botInstance}},
		"a wrong token":    botHeader(wire.HeaderToken, botToken+"x"),
		"a gateway's":      botHeader(wire.HeaderToken, h.token),
		"another instance": botHeader(wire.HeaderInstance, "other"),
		"no instance":      botHeader(wire.HeaderInstance, ""),
	} {
		for _, path := range []string{wire.PathRPC, "/v1/sessions/" + b.physical() + "/managed-process/ws"} {
			a := boxtest.Get(t, "http://"+h.bot+path, header)
			if a.Code != http.StatusUnauthorized || string(a.Body) != "Unauthorized" {
				t.Errorf(`%s at %s: a.Code = %d, a.Body = %q, want a.Code == 401 and a.Body == "Unauthorized"`,
					name, path, a.Code, a.Body)
			}
		}
	}
	if a := boxtest.Get(t, "http://"+h.bot+"/v1/sessions", botHeader()); a.Code != http.StatusNotFound {
		t.Errorf("a route of the API: a.Code = %d, want 404", a.Code)
	}
	b.gets("box_status", "{}", nil)
}

// A burst of Workspaces does not land on one node, and each stays where it is.
func TestWorkspacesOfLangBotAreSpread(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 2)
	bots := make([]*bot, 8)
	for i := range bots {
		bots[i] = dials(t, h.bot, fmt.Sprintf("w%d", i), 1)
	}
	var placing sync.WaitGroup
	answers := make([]said, len(bots))
	for i, b := range bots {
		placing.Go(func() { answers[i], _ = b.try("box_status", "{}") })
	}
	placing.Wait()
	on := map[string]int{}
	for i, b := range bots {
		if answers[i].Message != "success" {
			t.Errorf(`%d: answers[i] = %+v, want answers[i].Message == "success"`, i, answers[i])
		}
		on[b.home(h).Node]++
	}
	if on["n1"] == 0 || on["n2"] == 0 || on["n1"]+on["n2"] != len(bots) {
		t.Errorf(`on = %v, want on["n1"] != 0 and on["n2"] != 0 and on["n1"] + on["n2"] == len(bots)`, on)
	}
	first := bots[0].home(h)
	bots[0].eventually("box_create_session", created)
	bots[0].runs("echo here > f")
	again := dials(t, h.bot, "w0", 1)
	if out := again.runs("cat f"); out != "here" {
		t.Errorf(`out = %q, want "here"`, out)
	}
	if now := again.home(h); now.Node != first.Node || now.Generation != first.Generation {
		t.Errorf("%+v, then %+v", first, now)
	}
	// A later placement of the same Workspace ends the earlier one.
	later := dials(t, h.bot, "w0", 5)
	later.gets("box_status", "{}", nil)
	bots[0].refused("box_status", "{}", "PermissionError: Stale Box placement generation")
	if later.home(h).Node != first.Node || h.on(first.Node).hasOfBot(t, bots[0].physical()) {
		t.Errorf("later.home(h) = %+v, want later.home(h).Node == %v and not h.on(first.Node).hasOfBot(t, bots[0].physical())",
			later.home(h), first.Node)
	}
}

// A Workspace whose node is lost is created nowhere else, unless LangBot sends a new placement. Then the node ends its own copy
// when it is back.
func TestAWorkspaceOfANodeThatIsLost(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 2)
	b := dials(t, h.bot, "w1", 1)
	b.eventually("box_create_session", created)
	home := b.home(h)
	old, other := h.on(home.Node), h.on(map[string]string{"n1": "n2", "n2": "n1"}[home.Node])
	old.agent.kill()
	boxtest.Eventually(t, "the Workspace is lost", func() bool { return b.home(h).State == api.FleetClaimLost })
	b.refused("box_status", "{}", "BoxBackendUnavailableError: the Workspace is lost", "node "+old.name)
	if now := b.home(h); now.Node != old.name || other.hasOfBot(t, b.physical()) {
		t.Errorf("it was made again: now = %+v, want now.Node == %v and not other.hasOfBot(t, b.physical())",
			now, old.name)
	}
	second := dials(t, h.bot, "w2", 1) // others are placed
	second.eventually("box_create_session", created)
	if second.home(h).Node != other.name {
		t.Errorf("second.home(h) = %+v, want second.home(h).Node == %v", second.home(h), other.name)
	}
	later := dials(t, h.bot, "w1", 2)
	later.eventually("box_create_session", created)
	if now := later.home(h); now.Node != other.name || now.State != api.FleetClaimLive || !other.hasOfBot(t, later.physical()) {
		t.Errorf("now = %+v, want now.Node == %v and now.State == api.FleetClaimLive and other.hasOfBot(t, later.physical())",
			now, other.name)
	}
	b.refused("box_status", "{}", "PermissionError: Stale Box placement generation")
	if !old.hasOfBot(t, b.physical()) {
		t.Error("the node that was cut off has ended the session by itself")
	}
	old.agent.start()
	boxtest.Eventually(t, "the node that is back has ended its copy of the session", func() bool { return !old.hasOfBot(t, b.physical()) })
	h.ready(2)
	later.eventually("box_get_session", `{"session_id":"s"}`)
}

// An operator can give a lost Workspace up, for a LangBot that never sends a new placement.
func TestALostWorkspaceIsGivenUp(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 2)
	b := dials(t, h.bot, "w1", 1)
	b.eventually("box_create_session", created)
	home := b.home(h)
	old := h.on(home.Node)
	old.agent.kill()
	boxtest.Eventually(t, "the Workspace is lost", func() bool { return b.home(h).State == api.FleetClaimLost })
	target := "/v1/sessions/" + url.PathEscape(home.ID) + "?owner=langbot"
	if code := h.as(h.user, "DELETE", target, nil, nil); code != http.StatusForbidden {
		t.Errorf("another user: code = %d, want 403", code)
	}
	if code := h.get("DELETE", target, nil, nil); code != http.StatusNoContent {
		t.Fatalf("code = %d, want 204", code)
	}
	b.eventually("box_create_session", created)
	if now := b.home(h); now.Node == old.name || !h.on(now.Node).hasOfBot(t, b.physical()) {
		t.Errorf("now = %+v, want now.Node != %v and h.on(now.Node).hasOfBot(t, b.physical())", now, old.name)
	}
	old.agent.start()
	boxtest.Eventually(t, "the node that is back has ended its copy of the session", func() bool { return !old.hasOfBot(t, b.physical()) })
	b.eventually("box_get_session", `{"session_id":"s"}`)
}

// A call that runs on a node that is cut off fails, with the reason; all other calls on the same connection continue.
func TestANodeIsCutOffFromLangBot(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 2)
	b := dials(t, h.bot, "w1", 1)
	b.eventually("box_create_session", created)
	old := h.on(b.home(h).Node)
	elsewhere := ""
	for i := 2; elsewhere == ""; i++ { // the first, unless the other node is late
		b.workspace = fmt.Sprint("w", i)
		b.eventually("box_create_session", created)
		if b.home(h).Node != old.name {
			elsewhere = b.workspace
		}
	}
	b.workspace = "w1"
	seq, err := b.send("box_exec", `{"session_id":"s","cmd":"touch begun; sleep 1000","timeout_sec":2000,"persistent":true}`)
	if err != nil {
		t.Fatal(err)
	}
	old.boxd.Owner = "langbot"
	boxtest.Eventually(t, "the command runs", func() bool {
		r, err := old.boxd.Exec(t.Context(), b.physical(), &api.ExecRequest{Argv: []string{"test", "-e", "begun"}})
		return err == nil && r.ExitCode != nil && *r.ExitCode == 0
	})
	old.agent.kill()
	a, err := b.waits(seq)
	if err != nil || a.Code != 1 || !strings.HasPrefix(a.Message, "BoxBackendUnavailableError: the connection to node "+old.name+" has ended") {
		t.Errorf(`a = %+v, err = %v, want no error and a.Code == 1 and a.Message starting with "BoxBackendUnavailableError: the connection to node " + old.name + " has ended"`,
			a, err)
	}
	b.workspace = elsewhere
	b.eventually("box_exec", `{"session_id":"s","cmd":"echo on","persistent":true}`)
}

// A node that is found again continues to serve its Workspaces.
func TestAWorkspaceReturnsWithItsNode(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 1)
	b := dials(t, h.bot, "w1", 1)
	b.eventually("box_create_session", created)
	b.runs("echo here > f")
	h.nodes[0].agent.kill()
	boxtest.Eventually(t, "the Workspace is lost", func() bool { return b.home(h).State == api.FleetClaimLost })
	h.nodes[0].agent.start()
	b.eventually("box_get_session", `{"session_id":"s"}`)
	if out := b.runs("cat f"); out != "here" {
		t.Errorf(`out = %q, want "here"`, out)
	}
}

// Any gateway serves LangBot, and none stores state of it.
func TestAGatewayForLangBotDies(t *testing.T) {
	t.Parallel()
	h := buildLangBot(t, 1)
	b := dials(t, h.bot, "w1", 1)
	b.eventually("box_create_session", created)
	b.runs("echo here > f")
	h.gate.kill()
	if _, err := b.try("__ping", "{}"); err == nil {
		t.Error("a call without a gateway was answered")
	}
	h.gate.start()
	h.ready(1)
	again := dials(t, h.bot, "w1", 1)
	if out := again.runs("cat f"); out != "here" {
		t.Errorf(`out = %q, want "here"`, out)
	}
}
