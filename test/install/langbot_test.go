// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// langbotSocket is the socket unit for LangBot, and langbotAddress where it listens.
const (
	langbotSocket  = "boxd-langbot.socket"
	langbotAddress = "127.0.0.1:5411"
)

// LangBot connects through a systemd socket, as docs/langbot.md says: the socket starts boxd, requires the token, and stays open
// while boxd is stopped. LangBot's boxes survive that.
func TestLangBotComesByASocketOfSystemd(t *testing.T) {
	installed(t, this)
	a := live(t)
	const secret = "0123456789abcdef0123456789abcdef"
	put(t, map[string]string{
		"/etc/boxd/langbot.token":              secret + "\n",
		"/etc/boxd/box.toml.d/50-langbot.toml": "langbot.token_file = \"/etc/boxd/langbot.token\"\nlangbot.profile = \"small\"\n[profiles.small]\ntmp = \"4MiB\"\nworkspace_quota = \"32MiB\"\n[principals.langbot]\nrole = \"user\"\nuser = \"" + stranger + "\"\n",
	})
	run(t, "systemctl", "stop", service)
	run(t, "systemctl", "enable", "--now", langbotSocket)
	t.Cleanup(func() {
		run(t, "systemctl", "disable", "--now", langbotSocket)
		run(t, "systemctl", "stop", service)
	})
	if got := state(t, service); got != "inactive" {
		t.Errorf(`before the first connection boxd is %s, want "inactive"`, got)
	}

	// The first client starts boxd, and needs a token for everything except the health check.
	if a := boxtest.Get(t, "http://"+langbotAddress+"/healthz", nil); a.Code != http.StatusOK || !strings.Contains(string(a.Body), `"live"`) {
		t.Errorf("/healthz is %d %s, want a.Code == 200 and a.Body containing `\"live\"`", a.Code, a.Body)
	}
	boxtest.Eventually(t, "the connection has started boxd", func() bool { return state(t, service) == "active" })
	for _, token := range []string{"", secret + "x"} {
		if _, err := langbot(t, token); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf(`with the token %q: err = %v, want an error containing "401"`, token, err)
		}
	}
	bot, err := langbot(t, secret)
	if err != nil {
		t.Fatal(err)
	}
	if out := bot.exec("echo hello >/tmp/kept; id -un"); out != "box" {
		t.Errorf(`a command prints %q, want "box"`, out)
	}
	// The home directory is on disk, and limited by the workspace quota.
	if out := bot.exec("head -c 8000000 /dev/zero >~/fetched; wc -c <~/fetched; head -c 60000000 /dev/zero >~/more 2>/dev/null || echo full; rm ~/more"); out != "8000000\nfull" {
		t.Errorf(`after writing to the home directory: out = %q, want "8000000\nfull"`, out)
	}

	// When boxd restarts, the socket stays, and LangBot reconnects and has its session unchanged.
	run(t, "systemctl", "stop", service)
	if got := state(t, langbotSocket); got != "active" {
		t.Errorf(`while boxd is away its socket is %s, want "active"`, got)
	}
	if bot, err = langbot(t, secret); err != nil { // this starts it
		t.Fatal(err)
	}
	if out := bot.exec("cat /tmp/kept; wc -c <~/fetched"); out != "hello\n8000000" {
		t.Errorf(`after a restart of boxd a command in the session prints %q, want "hello\n8000000"`, out)
	}
	a.unharmed(t, "LangBot has come")
	if log := run(t, "journalctl", "--no-pager", "--output=cat", "--unit="+service, "--lines=200"); strings.Contains(log, secret) {
		t.Error("the token is in the journal")
	}
	bot.ask("box_delete_session", map[string]any{"session_id": "s"})
}

// The page is followed to the letter: its block of commands, and the LangBot configuration it shows.
func TestThePageForLangBotIsFollowed(t *testing.T) {
	installed(t, this)
	undone(t, langbotSocket, "/etc/boxd/box.toml.d/langbot.toml", "/etc/boxd/langbot.token")
	follow(t, "boxd/langbot.md", "How to switch")
	token, err := os.ReadFile("/etc/boxd/langbot.token")
	if err != nil || len(token) != 64 {
		t.Fatalf("%d bytes of token, %v", len(token), err)
	}
	bot, err := langbot(t, string(token))
	if err != nil {
		t.Fatal(err)
	}
	bot.ask("box_init", map[string]any{"local": map[string]any{"host_root": "/srv/langbot/box", "allowed_mount_roots": []string{"/srv/langbot/box"}}})
	own := "/srv/langbot/box/default"
	r := bot.ask("box_exec", map[string]any{"session_id": "paged", "host_path": own, "cmd": "echo made >by-the-box && id -un", "timeout_sec": 120})
	if out, _ := r["stdout"].(string); out != "box" {
		t.Errorf(`r = %v, want out == "box"`, r)
	}
	info, err := os.Stat(own + "/by-the-box")
	if err != nil {
		t.Fatal(err)
	}
	if who := strings.TrimSpace(run(t, "id", "-u", "langbot")); fmt.Sprint(info.Sys().(*syscall.Stat_t).Uid) != who {
		t.Errorf("a file that a box has written belongs to uid %v, want %s", info.Sys().(*syscall.Stat_t).Uid, who)
	}
	bot.ask("box_delete_session", map[string]any{"session_id": "paged"})
}

// conversation is a LangBot connection with one request at a time.
type conversation struct {
	t   *testing.T
	ws  *websocket.Conn
	seq int
}

// langbot connects as LangBot does.
func langbot(t *testing.T, token string) (*conversation, error) {
	t.Helper()
	header := http.Header{"X-Langbot-Instance-Id": {"installed"}}
	if token != "" {
		header.Set("X-Langbot-Box-Control-Token", token)
	}
	ws, _, err := websocket.Dial(t.Context(), "ws://"+langbotAddress+"/rpc/ws", &websocket.DialOptions{HTTPHeader: header}) //nolint:bodyclose // the library has it
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = ws.CloseNow() }) // boxd may have closed it
	c := &conversation{t: t, ws: ws}
	c.ask("__ping", map[string]any{})
	return c, nil
}

// ask makes a call that must succeed, and returns its data.
func (c *conversation) ask(action string, data map[string]any) (answer map[string]any) {
	c.t.Helper()
	c.seq++
	text, err := json.Marshal(map[string]any{
		"seq_id": c.seq, "action": action, "data": data,
		"context": map[string]any{"instance_uuid": "installed", "workspace_uuid": "w", "placement_generation": 1},
	})
	if err == nil {
		err = c.ws.Write(c.t.Context(), websocket.MessageText, text)
	}
	if err != nil {
		c.t.Fatalf("%s: %v", action, err)
	}
	_, reply, err := c.ws.Read(c.t.Context())
	if err != nil {
		c.t.Fatalf("%s: %v", action, err)
	}
	var r struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	}
	decode(c.t, string(reply), &r)
	if r.Code != 0 {
		c.t.Fatalf("%s: r.Message = %s, want r.Code == 0", action, r.Message)
	}
	return r.Data
}

// exec runs a command in LangBot's session s, creating it if necessary, and returns the output.
func (c *conversation) exec(command string) string {
	c.t.Helper()
	r := c.ask("box_exec", map[string]any{"session_id": "s", "cmd": command, "persistent": true, "timeout_sec": 120})
	out, _ := r["stdout"].(string)
	return out
}
