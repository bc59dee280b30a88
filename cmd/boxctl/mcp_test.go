// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// agent is an MCP client of boxctl mcp.
type agent struct {
	*mcp.ClientSession

	t        *testing.T
	mu       sync.Mutex // guards the fields below
	progress []string
	changed  int // tool list notifications
}

// connect starts boxctl mcp and performs the handshake. Its requests end with the test at the latest.
func connect(t *testing.T, d *boxtest.Daemon, args ...string) *agent {
	t.Helper()
	a := &agent{t: t}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.progress = append(a.progress, req.Params.Message)
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.changed++
		},
	})
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: d.Boxctl(t, append([]string{"mcp"}, args...)...), TerminateDuration: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.ClientSession = session
	t.Cleanup(func() { _ = session.Close() }) // most have closed it
	return a
}

// call uses a tool and returns the text of its answer.
func (a *agent) call(tool string, args map[string]any) (text string, result *mcp.CallToolResult) {
	a.t.Helper()
	result, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		a.t.Fatalf("%s %v: %v", tool, args, err)
	}
	return textOf(result), result
}

func textOf(result *mcp.CallToolResult) string {
	var all []string
	for _, c := range result.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			all = append(all, t.Text)
		}
	}
	return strings.Join(all, "\n")
}

// mustCall uses a tool whose answer must be no error and contain want.
func (a *agent) mustCall(want, tool string, args map[string]any) string {
	a.t.Helper()
	text, result := a.call(tool, args)
	if result.IsError || !strings.Contains(text, want) {
		a.t.Errorf("%s %v: error %v: %q, want %q", tool, args, result.IsError, text, want)
	}
	return text
}

// fails uses a tool whose answer must be an error that contains want.
func (a *agent) fails(want, tool string, args map[string]any) {
	a.t.Helper()
	if text, result := a.call(tool, args); !result.IsError || !strings.Contains(text, want) {
		a.t.Errorf("%s %v: error %v: %q, want %q", tool, args, result.IsError, text, want)
	}
}

type in = map[string]any

func TestAnAgentDoesAWholeTask(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	a := connect(t, d)
	if list, err := d.Sessions(t.Context(), true); err != nil || len(list) > 0 {
		t.Errorf("sessions before the first use: %+v, %v, want no error and len(list) == 0", list, err)
	}
	if got := a.InitializeResult().ProtocolVersion; got != "2026-07-28" { // the tests with raw lines use older ones
		t.Errorf(`the protocol is %s, want "2026-07-28"`, got)
	}
	a.mustCall("no box yet", "box_status", nil)
	a.mustCall("created: ", "box_write", in{"path": "calc/add.sh", "content": "add() { echo $(($1 - $2)); }\n"})
	a.mustCall("created: ", "box_write", in{"path": "calc/test.sh", "content": ". ./add.sh\n[ \"$(add 2 3)\" = 5 ] || { echo FAIL: add 2 3 is $(add 2 3); exit 1; }\necho PASS\n"})
	failed := a.mustCall("exit code 1", "box_exec", in{"command": "sh test.sh", "cwd": "/workspace/calc"})
	if !strings.Contains(failed, "FAIL: add 2 3 is -1") {
		t.Errorf(`the output of the failed test is %q, want failed containing "FAIL: add 2 3 is -1"`, failed)
	}
	a.mustCall("calc/add.sh:1:add()", "box_grep", in{"pattern": `\$1 - \$2`})
	a.mustCall("calc/add.sh", "box_glob", in{"pattern": "**/add.*"})
	a.mustCall("edit 1: 1 replaced, first in line 1", "box_edit", in{"path": "calc/add.sh", "edits": []in{{"old": "$1 - $2", "new": "$1 + $2"}}})
	a.mustCall("$1 + $2", "box_read", in{"path": "calc/add.sh"})
	a.mustCall("PASS", "box_exec", in{"argv": []string{"sh", "test.sh"}, "cwd": "/workspace/calc"})
	a.mustCall("directory", "box_list", in{})
	a.mustCall("sha256:", "box_stat", in{"path": "calc/add.sh", "digest": true})
	if list, err := d.Sessions(t.Context(), true); err != nil || len(list) != 1 {
		t.Errorf("sessions: %+v, %v, want no error and len(list) == 1", list, err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if list, err := d.Sessions(t.Context(), true); err != nil || len(list) > 0 {
		t.Errorf("sessions afterwards: %+v, %v, want no error and len(list) == 0", list, err)
	}
	d.NothingLeft(before)
}

func TestAnAgentIsToldWhatWasWrong(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	a := connect(t, d)
	a.fails("no/such", "box_read", in{"path": "no/such"})
	a.mustCall("created", "box_write", in{"path": "twice", "content": "a a"})
	a.fails("2", "box_edit", in{"path": "twice", "edits": []in{{"old": "a", "new": "b"}}})
	a.fails("argv", "box_exec", in{})
	a.fails("not started: ", "box_exec", in{"argv": []string{"/no/such/program"}})
	a.fails("killed: timeout after", "box_exec", in{"command": "sleep 600", "timeout_seconds": 0.2})
	a.fails("hint: omit it", "box_exec", in{"command": "true", "session": "of-somebody-else"})
	a.fails("profile", "box_create", in{"profile": "no-such-profile"})
	a.fails("network", "box_create", in{"network": "all-of-it"})
	a.fails("none", "process_output", in{"name": "none"})
	a.fails("output that is still stored", "box_read", in{"path": "boxd://output/7/stdout"})
	a.mustCall("exit code 3", "box_exec", in{"command": "exit 3"}) // no error: the agent decides what it means
	if err := d.DeleteSession(t.Context(), a.own()); err != nil {
		t.Fatal(err)
	}
	a.fails("hint: the next call creates a new, empty one", "box_list", in{})
	a.mustCall("nothing found", "box_list", in{})
}

// own returns the id of its box.
func (a *agent) own() string {
	a.t.Helper()
	text, _ := a.call("box_status", nil)
	var list struct {
		Sessions []struct{ ID string }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Sessions) != 1 {
		a.t.Fatalf("%s: err = %v, want no error and len(list.Sessions) == 1", text, err)
	}
	return list.Sessions[0].ID
}
