// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// tools are the tools of one MCP server, with which an agent works in boxes.
type tools struct {
	server        *mcp.Server
	client        *client.Client
	sessions      *Sessions
	outputs       *outputs
	progressEvery time.Duration // between progress reports; 0: a second

	mu     sync.Mutex        // guards the fields below
	open   bool              // programs of some box have network access
	listed map[string]string // descriptions of skill resources, by URI
}

// register adds all tools to the server. open says whether programs of the connection's own box have network access.
func (t *tools) register(open bool) {
	t.open = open
	t.addFiles()
	t.addSessions()
	t.addRunning()
	t.addOutputs()
	t.addSkills()
	t.addActivate()
	t.addSkillResources()
}

// announceNetwork tells the client that programs of some box now have network access, by adding the tools again, which is announced.
func (t *tools) announceNetwork() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		t.open = true
		t.addRunning()
	}
}

// addRunning adds the tools that run programs, whose annotations depend on network access.
func (t *tools) addRunning() {
	t.addExec()
	t.addStart()
}

// reads annotates a read-only tool.
func reads(title string) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: new(false), OpenWorldHint: new(false)}
}

// changes annotates a tool that may change something.
func changes(title string, destructive, idempotent, open bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, DestructiveHint: &destructive, IdempotentHint: idempotent, OpenWorldHint: &open}
}

// sessionArg is the argument common to all tools.
type sessionArg struct {
	Session string `json:"session,omitempty" jsonschema:"id of a box from box_create (default: the box of this connection)"`
}

// about returns the session of a call.
func (i sessionArg) about() string { return i.Session }

// add registers a tool whose function works in a session. Its result is the answer.
func add[Args interface{ about() string }](t *tools, tool *mcp.Tool, do func(ctx context.Context, req *mcp.CallToolRequest, session string, in *Args) (*mcp.CallToolResult, error)) {
	mcp.AddTool(t.server, tool, func(ctx context.Context, req *mcp.CallToolRequest, in Args) (*mcp.CallToolResult, any, error) {
		id, err := t.sessions.ID(ctx, in.about())
		if err != nil {
			return nil, nil, withHint(err)
		}
		result, err := do(ctx, req, id, &in)
		if err != nil {
			return nil, nil, withHint(t.sessions.explain(ctx, id, err))
		}
		return result, nil, nil
	})
}

// text returns an answer of text.
func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

// asJSON returns an answer of JSON.
func asJSON(v any) (*mcp.CallToolResult, error) {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil, err
	}
	return text("%s", data), nil
}

// hintedError adds to an error what helps to resolve it.
type hintedError struct{ error }

func (e hintedError) Unwrap() error { return e.error }

// Error returns the reason, the hint and the rule.
func (e hintedError) Error() string {
	lines := []string{e.error.Error()}
	if f, ok := errors.AsType[*fault.Error](e.error); ok && f.Hint != "" {
		lines = append(lines, "hint: "+f.Hint)
	}
	if p, ok := errors.AsType[*client.Error](e.error); ok {
		if p.Hint != "" {
			lines = append(lines, "hint: "+p.Hint)
		}
		if line := render.Denial(&p.Problem); line != "" {
			lines = append(lines, "rule: "+line)
		}
	}
	if c, ok := errors.AsType[*client.ConnectError](e.error); ok {
		lines = append(lines, "hint: "+render.ConnectHint(c))
	}
	return strings.Join(lines, "\n")
}

func withHint(err error) error {
	if err == nil {
		return nil
	}
	return hintedError{err}
}
