// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// hints returns a tool's annotations: read-only, destructive, idempotent, open world.
func hints(t *mcp.Tool) (list [4]bool) {
	a := t.Annotations
	return [4]bool{a.ReadOnlyHint, a.DestructiveHint == nil || *a.DestructiveHint, a.IdempotentHint, a.OpenWorldHint == nil || *a.OpenWorldHint}
}

func (a *agent) tools() map[string]*mcp.Tool {
	a.t.Helper()
	list, err := a.ListTools(a.t.Context(), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	tools := map[string]*mcp.Tool{}
	for _, tool := range list.Tools {
		tools[tool.Name] = tool
	}
	return tools
}

func TestToolsSayWhatTheyDoAndTheServerWhatTheBoxIs(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[mounts]\nallow = [\"%DIR%/lent\", \"%DIR%/rooted\"]\n")
	lent := makeScriptDirs(t, d)
	a := connect(t, d, "-v", lent+":/data:ro", "--memory", "100MiB")
	reads, open := [4]bool{true, false, true, false}, [4]bool{false, true, false, false}
	want := map[string][4]bool{
		"box_read": reads, "box_list": reads, "box_glob": reads, "box_grep": reads, "box_stat": reads, "box_status": reads,
		"process_list": reads, "process_output": reads, "skill_list": reads, "skill_read": reads,
		"box_write": {false, false, true, false}, "box_edit": {false, true, false, false},
		"box_exec": open, "process_start": open, "process_write": open,
		"box_create": {false, false, true, false}, "skill_activate": {false, false, true, false}, "box_delete": {false, true, true, false}, "process_stop": {false, true, true, false},
	}
	tools := a.tools()
	for name, tool := range tools {
		if got := hints(tool); got != want[name] {
			t.Errorf("%s is %v, want %v", name, got, want[name])
		}
		if tool.Annotations.Title == "" || tool.Description == "" || tool.InputSchema == nil {
			t.Errorf("%s is not described", name)
		}
	}
	if len(tools) != len(want) {
		t.Errorf("there are %d tools, want %d", len(tools), len(want))
	}
	text := a.InitializeResult().Instructions
	for _, part := range []string{"/data is a directory of the user (read-only)", "100MiB memory", "Network: no network"} {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in\n%s", part, text)
		}
	}
	a.fails("read-only", "box_write", in{"path": "/data/x", "content": "x"})
	told, err := d.Instructions(t.Context(), "", "")
	if usual := connect(t, d).InitializeResult().Instructions; err != nil || told.Instructions != usual {
		t.Errorf("instructions by the API %q, %v; by the MCP handshake %q", told.Instructions, err, usual)
	}
}

func TestLongOutputIsCutAndAllOfItIsThere(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	a := connect(t, d)
	text, result := a.call("box_exec", in{"command": "seq 100000; echo end >&2"})
	if len(text) > 20<<10 || !strings.Contains(text, "stdout:\n1\n2\n") || !strings.Contains(text, "\n100000\n") || !strings.Contains(text, "bytes omitted") || !strings.Contains(text, "stderr:\nend\n") {
		t.Errorf("%d bytes: %.200q", len(text), text)
	}
	var link *mcp.ResourceLink
	for _, c := range result.Content {
		if l, ok := c.(*mcp.ResourceLink); ok {
			if link != nil {
				t.Error("output that was not truncated has a resource link, want none")
			}
			link = l
		}
	}
	if link == nil || link.Size == nil || *link.Size != 588895 {
		t.Fatalf("link = %+v, want link != nil and link.Size != nil and *link.Size == 588895", link)
	}
	whole, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link.URI})
	if err != nil || len(whole.Contents) != 1 || len(whole.Contents[0].Text) != 588895 {
		t.Errorf("err = %v, whole = %+v, want no error and len(whole.Contents) == 1 and len(whole.Contents[0].Text) == 588895",
			err, whole)
	}
	if got := a.mustCall("[more lines follow: continue with offset 50002]", "box_read", in{"path": link.URI, "offset": 50000, "limit": 2}); !strings.HasPrefix(got, "50000\n50001\n") {
		t.Errorf(`it reads %q, want got starting with "50000\n50001\n"`, got)
	}
	if _, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "boxd://output/999/stdout"}); err == nil {
		t.Error("no error for a resource that does not exist")
	}
}

func TestALongRunReportsAndCanBeCancelled(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	a := connect(t, d)
	a.mustCall("exit code 0", "box_exec", in{"command": "true"})
	id := a.own()
	ctx, cancel := context.WithCancel(t.Context())
	params := &mcp.CallToolParams{Name: "box_exec", Arguments: in{"command": "trap '' TERM INT HUP; (setsid sleep 1000 &); echo step one; sleep 1000", "timeout_seconds": 500}}
	params.SetProgressToken("token")
	ended := make(chan error, 1)
	go func() {
		_, err := a.CallTool(ctx, params)
		ended <- err
	}()
	boxtest.Eventually(t, "the call reports its progress", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.progress) > 0 && strings.Contains(a.progress[len(a.progress)-1], "step one")
	})
	boxtest.Eventually(t, "two sleep programs run", func() bool { return running(d, "sleep") == 2 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("no error from a cancelled call")
	}
	boxtest.Eventually(t, "all programs of the call are killed", func() bool { return running(d, "sleep") == 0 })
	if got := a.own(); got != id {
		t.Errorf("the box is %s, was %s, want got == id", got, id)
	}
	a.mustCall("exit code 0", "box_exec", in{"command": "true"})
}

func TestAnAgentKeepsProcesses(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	a := connect(t, d)
	a.mustCall("no processes", "process_list", nil)
	loop := in{"name": "upper", "command": "echo up; while read -r l; do echo \"$l\" | tr a-z A-Z; done; echo bye", "stdin": true, "ready_line": "^up$"}
	a.mustCall("running, ready", "process_start", loop)
	a.mustCall("running, ready", "process_start", loop) // the same
	if text, result := a.call("process_write", in{"name": "upper", "text": "hello\n", "wait_seconds": 1}); result.IsError || !strings.HasPrefix(text, "written") {
		t.Errorf(`text = %q, want result.IsError == false and text starting with "written"`, text)
	}
	boxtest.Eventually(t, "the process has printed its answer", func() bool {
		text, _ := a.call("process_output", in{"name": "upper"})
		return text == "up\nHELLO\n"
	})
	a.mustCall("upper", "process_list", nil)
	a.mustCall("exit code 0", "process_write", in{"name": "upper", "text": "more\n", "end": true, "wait_seconds": 60})
	a.mustCall("MORE\nbye", "process_output", in{"name": "upper", "lines": 2})
	a.mustCall("running", "process_start", in{"name": "stays", "argv": []string{"sleep", "1000"}})
	a.mustCall("stopped", "process_stop", in{"name": "stays"})
	a.mustCall("stopped", "process_list", in{"name": "stays"})
	a.fails("not started", "process_start", in{"name": "bad", "argv": []string{"/no/such"}})
}

func TestAnAgentHasBoxesOfItsOwnAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	session(t, d, "create", "of-the-user")
	a := connect(t, d)
	a.mustCall(`"id": "second"`, "box_create", in{"id": "second"})
	a.mustCall("created", "box_write", in{"path": "f", "content": "in the second", "session": "second"})
	a.mustCall("nothing found", "box_glob", in{"pattern": "f"})
	a.mustCall("in the second", "box_read", in{"path": "f", "session": "second"})
	a.fails("created", "box_read", in{"path": "f", "session": "of-the-user"})
	a.fails("created", "box_delete", in{"session": "of-the-user"})
	a.fails(`box "of-the-user" exists already`, "box_create", in{"id": "of-the-user"})
	a.mustCall("second", "box_status", nil)
	a.mustCall("deleted", "box_delete", in{"session": "second"})
	a.fails("created", "box_read", in{"path": "f", "session": "second"})
	all := connect(t, d, "--any-session")
	all.mustCall("exit code 0", "box_exec", in{"command": "true", "session": "of-the-user"})
	for _, one := range []*agent{a, all} {
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
	session(t, d, "rm", "of-the-user") // it still exists
	d.NothingLeft(before)
}

func TestANamedSessionStays(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for _, step := range []struct{ tool, want string }{{"box_write", "created"}, {"box_read", "kept"}} {
		a := connect(t, d, "--session", "project")
		if !strings.Contains(a.InitializeResult().Instructions, `the box "project"`) {
			t.Error(a.InitializeResult().Instructions)
		}
		args := in{"path": "f"}
		if step.tool == "box_write" {
			args["content"] = "kept"
		}
		a.mustCall(step.want, step.tool, args)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	session(t, d, "rm", "project")
}

// bare starts boxctl mcp without a client library, sends requests to it, and with wait returns once the last one, whose id is 2,
// has been answered.
func bare(t *testing.T, d *boxtest.Daemon, last string, wait bool, args ...string) (cmd *exec.Cmd, in io.Closer) {
	t.Helper()
	cmd = d.Boxctl(t, append([]string{"mcp"}, args...)...)
	typing, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":` + last + `}`,
	} {
		if _, err := io.WriteString(typing, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	for answers := json.NewDecoder(out); wait; {
		var answer struct {
			ID     int
			Result struct{ IsError bool }
		}
		if err := answers.Decode(&answer); err != nil || answer.Result.IsError {
			t.Fatalf("answer = %+v, err = %v, want no error and answer.Result.IsError == false", answer, err)
		}
		wait = answer.ID != 2
	}
	return cmd, typing
}

func noBoxes(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	boxtest.Eventually(t, "there is no box", func() bool {
		list, err := d.Sessions(t.Context(), true)
		return err == nil && len(list) == 0
	})
}

// When the server ends, its boxes are ended, at once or by their ttl.
func TestAnEndLeavesNoBox(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	for _, tc := range []struct {
		signal syscall.Signal
		ttl    string
	}{{syscall.SIGTERM, "10m"}, {syscall.SIGINT, "10m"}, {syscall.SIGKILL, "20s"}} {
		cmd, _ := bare(t, d, `{"name":"process_start","arguments":{"name":"p","argv":["sleep","1000"]}}`, true, "--ttl", tc.ttl)
		if err := cmd.Process.Signal(tc.signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); tc.signal != syscall.SIGKILL && err != nil {
			t.Errorf("%v: err = %v, want tc.signal == syscall.SIGKILL or no error", tc.signal, err)
		}
		noBoxes(t, d)
	}
	d.NothingLeft(before)
}

// EOF on its input means that the client has crashed. Running programs are not waited for.
func TestAClientThatGoesEndsWhatRuns(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	cmd, in := bare(t, d, `{"name":"box_exec","arguments":{"command":"(setsid sleep 1000 &); sleep 1000","timeout_seconds":550}}`, false)
	boxtest.Eventually(t, "both sleep programs run", func() bool { return running(d, "sleep") == 2 })
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	noBoxes(t, d)
	d.NothingLeft(before)
}

// A third-party server behaves the same to its client when it runs in a box.
func TestAServerInABoxIsStillAServer(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, scriptConfig)
	lent := makeScriptDirs(t, d)
	program, err := os.ReadFile(boxtest.Build(t, "./test/survival/mcpserver"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lent, "mcpserver"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(lent, "mcp.json")
	if err := os.WriteFile(list, []byte(`{"mcpServers": {"square": {"command": "/opt/mcpserver", "env": {"A": "b"}}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	d.Warm()
	before := d.Look()
	for _, args := range [][]string{{"square", "--", "/opt/mcpserver"}, {"--from", list, "square"}} {
		cmd := d.Boxctl(t, append([]string{"mcp", "run", "-v", lent + ":/opt:ro"}, args...)...)
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n < 4; n++ {
			r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "square", Arguments: in{"number": n}})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := textOf(r), fmt.Sprintf(`{"calls":%d,"square":%d}`, n, n*n); got != want {
				t.Errorf("%q: %s, want %s", args, got, want)
			}
		}
		if err := session.Close(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		d.NothingLeft(before)
	}
}

func TestManyCallsAtOnceHaveOneBox(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	a := connect(t, d)
	const calls = 150
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			r, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "box_write", Arguments: in{"path": fmt.Sprintf("%d", i), "content": "x"}})
			if err != nil || r.IsError && !strings.Contains(textOf(r), "its limit (exec.max_per_session)") { // a caller may only run so many at once
				t.Errorf(`err = %v, r = %+v, want no error and (r.IsError == false or textOf(r) containing "its limit (exec.max_per_session)")`,
					err, r)
			}
		})
	}
	wg.Wait()
	a.own() // fails unless there is one
}

// A restart of boxd ends nothing: a pending call gets its answer.
func TestACallOutlivesARestartOfTheDaemon(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	a := connect(t, d)
	a.mustCall("created", "box_write", in{"path": "f", "content": "kept"})
	id := a.own()
	type answer struct {
		result *mcp.CallToolResult
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		r, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "box_exec", Arguments: in{"command": "echo before; until [ -e go ]; do sleep 0.1; done; echo after", "timeout_seconds": 550}})
		answers <- answer{r, err}
	}()
	boxtest.Eventually(t, "the program of the call runs", func() bool { return running(d, "sleep") > 0 })
	d.Kill()
	d.Restart()
	a.mustCall("kept", "box_read", in{"path": "f"})
	a.mustCall("created", "box_write", in{"path": "go", "content": ""})
	got := <-answers
	if got.err != nil || got.result.IsError || !strings.Contains(textOf(got.result), "before\nafter\n") {
		t.Errorf(`%v, %+v: textOf(got.result) = %q, want no error and got.result.IsError == false and textOf(got.result) containing "before\nafter\n"`,
			got.err, got.result, textOf(got.result))
	}
	if now := a.own(); now != id {
		t.Errorf("the box is %s, was %s, want now == id", now, id)
	}
}

func TestAnAgentReadsSkills(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	a := connect(t, d)
	store := d.Client
	if _, err := store.CreateSkill(t.Context(), &api.SkillRequest{Name: "greeting", Description: "says hello to people", Instructions: "Say hello."}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.WriteSkillFile(t.Context(), "greeting", &api.SkillFileWrite{Path: "words.txt", Content: "hello\n"}); err != nil {
		t.Fatal(err)
	}
	a.mustCall("greeting: says hello to people", "skill_list", nil)
	if got := a.mustCall("Say hello.", "skill_read", in{"name": "greeting"}); !strings.Contains(got, "words.txt") {
		t.Errorf(`got %q, want got containing "words.txt"`, got)
	}
	a.mustCall("hello", "skill_read", in{"name": "greeting", "path": "words.txt"})
	a.fails("none", "skill_read", in{"name": "none"})
	a.fails("", "skill_read", in{"name": "greeting", "path": "../../etc/passwd"})
	a.mustCall("no box yet", "box_status", nil) // skills need no box
	list, err := a.ListResources(t.Context(), nil)
	if err != nil || !slices.ContainsFunc(list.Resources, func(r *mcp.Resource) bool {
		return r.URI == "skill://greeting/SKILL.md" && r.Description == "says hello to people"
	}) {
		t.Errorf("list = %+v, err = %v", list, err)
	}
	for uri, want := range map[string]string{"skill://greeting/SKILL.md": "Say hello.", "skill://greeting/words.txt": "hello\n"} {
		r, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil || !strings.Contains(r.Contents[0].Text, want) {
			t.Errorf("%s: r = %+v, err = %v, want no error and r.Contents[0].Text containing %q", uri, r, err, want)
		}
	}
	for _, uri := range []string{"skill://none/SKILL.md", "skill://greeting/../../etc/passwd", "skill://greeting/none"} {
		if r, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s: r = %+v, want an error", uri, r)
		}
	}
	a.mustCall("The skill is at /skills/greeting", "skill_activate", in{"name": "greeting"})
	a.mustCall("hello", "box_exec", in{"command": "cat /skills/greeting/words.txt"})
	a.fails("none", "skill_activate", in{"name": "none"})
	if _, err := store.WriteSkillFile(t.Context(), "greeting", &api.SkillFileWrite{Path: "requirements.txt", Content: "#"}); err != nil {
		t.Fatal(err)
	}
	a.mustCall("/workspace/.skill-envs/greeting/", "skill_activate", in{"name": "greeting", "environment": true})
	if err := store.DeleteSkill(t.Context(), "greeting"); err != nil {
		t.Fatal(err)
	}
	list, err = a.ListResources(t.Context(), nil)
	if err != nil || slices.ContainsFunc(list.Resources, func(r *mcp.Resource) bool { return r.Name == "greeting" }) {
		t.Errorf("afterwards %+v, %v", list, err)
	}
}
