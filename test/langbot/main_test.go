// SPDX-License-Identifier: Apache-2.0

// Package langbot_test tests LangBot's Box protocol on a real boxd with real boxes, as LangBot uses it.
package langbot_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

const (
	instance  = "probe-instance"
	workspace = "w1"
	owner     = 4243 // of the mounted directories
)

// bot is a boxd that serves LangBot.
type bot struct {
	*boxtest.Daemon
	address string
	shared  string // LangBot's host_root
}

// start starts a boxd; more is configuration that follows the table [langbot], and may begin with keys of that table.
func start(t *testing.T, more ...string) *bot {
	t.Helper()
	address := boxtest.FreeAddress(t, "127.0.0.1")
	shared := filepath.Join(boxtest.TempDir(t), "langbot")
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(shared, owner, owner); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(more, "\n")
	if !strings.Contains(text, "token_file") {
		text = "insecure = true\n" + text
	}
	d := boxtest.Start(t, fmt.Sprintf("[mounts]\nallow = [%q]\n[principals.langbot]\nrole = \"user\"\nuid = %d\n[langbot]\nlisten = %q\n%s", shared, owner, address, text))
	return &bot{d, address, shared}
}

// header returns the header of LangBot's handshake.
func header(values ...string) http.Header {
	h := http.Header{"X-Langbot-Instance-Id": {instance}}
	for i := 0; i < len(values); i += 2 {
		h.Set(values[i], values[i+1])
		if values[i+1] == "" {
			h.Del(values[i])
		}
	}
	return h
}

// rpc is an action RPC connection.
type rpc struct {
	t          *testing.T
	ws         *websocket.Conn
	generation int
	workspace  string

	mu      sync.Mutex // guards the fields below
	seq     int
	waiting map[int]chan reply
}

// reply is an answer as a client gets it.
type reply struct {
	Seq     *int            `json:"seq_id"`
	Code    *int            `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
	Chunk   string          `json:"chunk_status"`
}

// dial connects as LangBot does.
func (b *bot) dial(t *testing.T) *rpc {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), "ws://"+b.address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: header()}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(32 << 20)
	c := &rpc{t: t, ws: ws, generation: 1, workspace: workspace, seq: 41, waiting: map[int]chan reply{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.listen()
	}()
	t.Cleanup(func() {
		ws.CloseNow()
		<-done
	})
	return c
}

// listen passes answers to those waiting for them, until the connection ends.
func (c *rpc) listen() {
	for {
		_, text, err := c.ws.Read(context.WithoutCancel(c.t.Context()))
		var r reply
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		c.mu.Lock()
		if err != nil {
			for _, ch := range c.waiting {
				close(ch)
			}
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		if ch := c.waiting[*r.Seq]; ch != nil {
			ch <- r
			delete(c.waiting, *r.Seq)
		}
		c.mu.Unlock()
	}
}

var errHungUp = errors.New("the connection has ended")

// send sends a request, and returns the channel for its answer.
func (c *rpc) send(action, data string, tenant bool) <-chan reply {
	c.t.Helper()
	c.mu.Lock()
	c.seq++
	seq, ch := c.seq, make(chan reply, 1)
	if c.waiting != nil {
		c.waiting[seq] = ch
	} else {
		close(ch)
	}
	c.mu.Unlock()
	text := fmt.Sprintf(`{"seq_id":%d,"action":%q,"data":%s`, seq, action, data)
	if tenant {
		text += fmt.Sprintf(`,"context":{"instance_uuid":%q,"workspace_uuid":%q,"placement_generation":%d}`, instance, c.workspace, c.generation)
	}
	// If the connection has ended, the listener closes the channel.
	_ = c.ws.Write(c.t.Context(), websocket.MessageText, []byte(text+"}"))
	return ch
}

// host are the actions that concern no Workspace.
var host = regexp.MustCompile(`^(__|box_(health|get_backend_info|init|shutdown|verify|upsert|revoke))`)

// ask makes a request and waits for its answer, which has the common form.
func (c *rpc) ask(action, data string) reply {
	c.t.Helper()
	r, ok := <-c.send(action, data, !host.MatchString(action))
	if !ok {
		c.t.Fatalf("action = %v, errHungUp = %v, want ok == true", action, errHungUp)
	}
	if r.Seq == nil || r.Code == nil || r.Chunk != "continue" || (*r.Code == 0) != (r.Message == "success") || *r.Code == 1 && string(r.Data) != "{}" {
		c.t.Fatalf(`%s: no answer of the protocol: r = %+v, want r.Seq != nil and r.Code != nil and r.Chunk == "continue" and (*r.Code == 0) == (r.Message == "success") and (*r.Code != 1 or r.Data == "{}")`,
			action, r)
	}
	return r
}

// gets expects success, and decodes the data.
func (c *rpc) gets(action, data string, v any) {
	c.t.Helper()
	r := c.ask(action, data)
	if *r.Code != 0 {
		c.t.Fatalf("%s %s: r.Message = %s, want *r.Code == 0", action, data, r.Message)
	}
	if v != nil {
		if err := json.Unmarshal(r.Data, v); err != nil {
			c.t.Fatal(err)
		}
	}
}

// refused expects an error, in whose text boxd's ids are replaced by PHYS-.
func (c *rpc) refused(action, data, want string) {
	c.t.Helper()
	r := c.ask(action, data)
	got := strings.ReplaceAll(r.Message, wire.Prefix(wire.Namespace(instance, c.workspace), int64(c.generation)), "PHYS-")
	exact := got == want
	if begin, ok := strings.CutSuffix(want, "…"); ok {
		exact = strings.HasPrefix(got, begin)
	}
	if *r.Code != 1 || !exact {
		c.t.Errorf("%s %s: %q, want %q", action, data, got, want)
	}
}

// run calls box_exec with a command.
func (c *rpc) run(session, cmd string) map[string]any {
	c.t.Helper()
	var r map[string]any
	c.gets("box_exec", fmt.Sprintf(`{"session_id":%q,"cmd":%q}`, session, cmd), &r)
	return r
}

// sessions returns the ids that box_get_sessions lists.
func (c *rpc) sessions() (ids []string) {
	c.t.Helper()
	var list struct {
		Sessions []struct {
			ID string `json:"session_id"`
		}
	}
	c.gets("box_get_sessions", "{}", &list)
	for _, s := range list.Sessions {
		ids = append(ids, s.ID)
	}
	return ids
}
