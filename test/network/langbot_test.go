// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// A session for which LangBot requests a network gets one of its own: it reaches the internet, and nothing of the host.
func TestANetworkThatLangBotAsksFor(t *testing.T) {
	newWorld(t)
	const address = "127.0.0.1:5410" // in the world's host namespace, where it is free
	boxtest.Start(t, configuration+fmt.Sprintf("[principals.langbot]\nrole = \"user\"\nuid = 1234\n[langbot]\nlisten = %q\ninsecure = true\n", address))
	own, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "[::]:8080")
	must(t, err)
	defer own.Close()
	// Other goroutines are not in the world.
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	must(t, err)
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	ws, _, err := websocket.Dial(t.Context(), "ws://"+address+"/rpc/ws", &websocket.DialOptions{ //nolint:bodyclose // the library has it
		HTTPClient: &http.Client{Transport: transport}, HTTPHeader: http.Header{"X-Langbot-Instance-Id": {"11111111-2222-3333-4444-555555555555"}},
	})
	must(t, err)
	defer ws.CloseNow()
	seq := 0
	exec := func(line string) string {
		t.Helper()
		seq++
		line = fmt.Sprintf(`{"seq_id":%d,"action":"box_exec","data":{"session_id":"s","network":"on","cmd":%q},`+
			`"context":{"instance_uuid":"11111111-2222-3333-4444-555555555555","workspace_uuid":"w","placement_generation":1}}`, seq, line)
		must(t, ws.Write(t.Context(), websocket.MessageText, []byte(line)))
		_, text, err := ws.Read(t.Context())
		must(t, err)
		var r struct {
			Message string
			Data    struct{ Stdout, Stderr string }
		}
		must(t, json.Unmarshal(text, &r))
		if r.Message != "success" {
			t.Fatal(r.Message)
		}
		return r.Data.Stdout + r.Data.Stderr
	}
	connects := func(to string) string {
		t.Helper()
		return exec("bash -c 'exec 3<>/dev/tcp/" + to + " && read -r line <&3 && echo \"$line\"'")
	}
	if printed := connects(public4 + "/80"); !strings.HasPrefix(printed, "tcp ") || !strings.Contains(printed, host4) {
		t.Errorf(`the internet: printed = %q, want printed starting with "tcp " and printed containing host4`, printed)
	}
	for _, to := range []string{host4 + "/8080", cloud4 + "/80", "10.99.0.1/80"} {
		if printed := connects(to); !shut(printed) {
			t.Errorf("%s: printed = %q, want shut(printed)", to, printed)
		}
	}
}
