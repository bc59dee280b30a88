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

// tools are the tools of one MCP server: what an agent does in boxes.
type tools struct {
	server        *mcp.Server
	client        *client.Client
	sessions      *Sessions
	outputs       *outputs
	progressEvery time.Duration // between two reports of progress; 0: a second

	mu     sync.Mutex        // guards what follows
	open   bool              // programs reach others over a network, in some box
	listed map[string]string // descriptions of the skills that are resources, by URI
}

// register adds all tools to the server. open says whether programs of the connection's own box reach others over a network.
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

// announceNetwork tells the client that programs of some box reach others over a network now. Tools that are added again are announced.
func (t *tools) announceNetwork() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		t.open = true
		t.addRunning()
	}
}

// addRunning adds the tools that run programs: what they reach is the box's.
func (t *tools) addRunning() {
	t.addExec()
	t.addStart()
}

// reads annotates a tool that changes nothing.
func reads(title string) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: new(false), OpenWorldHint: new(false)}
}

// changes annotates a tool that may do so.
func changes(title string, destructive, idempotent, open bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, DestructiveHint: &destructive, IdempotentHint: idempotent, OpenWorldHint: &open}
}

// sessionArg is the argument that all tools have.
type sessionArg struct {
	Session string `json:"session,omitempty" jsonschema:"id of a box from box_create (default: the box of this connection)"`
}

// about is the session of a call.
func (i sessionArg) about() string { return i.Session }

// add makes a tool of a function that does something in a session. What it returns is the text of the answer.
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

// text is an answer.
func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

// asJSON is an answer of facts.
func asJSON(v any) (*mcp.CallToolResult, error) {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil, err
	}
	return text("%s", data), nil
}

// hintedError is an error with all that helps to do better.
type hintedError struct{ error }

func (e hintedError) Unwrap() error { return e.error }

// Error is the reason, and what to do, and which rule it was.
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
