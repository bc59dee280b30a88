// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// skillScheme is the prefix of skill URIs: skill://NAME/SKILL.md, and other files.
const skillScheme = "skill://"

// manifest is the file of a skill that has its instructions.
const manifest = "SKILL.md"

type activateArgs struct {
	sessionArg
	Name        string `json:"name" jsonschema:"name of the skill"`
	Environment bool   `json:"environment,omitempty" jsonschema:"also install its Python requirements in a virtual environment"`
}

// addActivate adds the tool that adds a skill to a box.
func (t *tools) addActivate() {
	add(t, &mcp.Tool{
		Name:        "skill_activate",
		Description: "Mount a skill with its scripts and other files read-only at /skills/NAME in the box, and return its instructions.",
		Annotations: changes("Activate a skill", false, true, false),
	}, t.activate)
}

func (t *tools) activate(ctx context.Context, _ *mcp.CallToolRequest, id string, in *activateArgs) (*mcp.CallToolResult, error) {
	c := t.client
	active, _, err := c.ActivateSkill(ctx, id, in.Name)
	if err != nil {
		return nil, err
	}
	s, err := c.Skill(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	where := fmt.Sprintf("The skill is at %s. Paths in its instructions are relative to this directory.", active.Target)
	if in.Environment {
		e, err := c.MakeSkillEnvironment(ctx, id, in.Name, nil)
		if err != nil {
			return nil, fmt.Errorf("the skill is at %s, but its Python environment was not created: %w", active.Target, err)
		}
		where += fmt.Sprintf(" Run its Python scripts with %s/bin/python, which has its requirements installed.", e.Path)
	}
	return text("%s\n\n%s", where, s.Instructions), nil
}

// addSkillResources makes the files of skills resources. The skills are looked up whenever a client lists resources.
func (t *tools) addSkillResources() {
	t.server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "skill", Title: "File of a skill", URITemplate: skillScheme + "{name}/{+path}",
		Description: "file of a skill of the user; " + manifest + " has its instructions",
	}, t.skillResource)
	t.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "resources/list" {
				if err := t.listSkills(ctx); err != nil {
					return nil, withHint(err)
				}
			}
			return next(ctx, method, req)
		}
	})
}

// listSkills updates the server's list of skills.
func (t *tools) listSkills(ctx context.Context) error {
	list, err := t.client.Skills(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := map[string]string{}
	for i := range list {
		k := &list[i]
		uri := skillScheme + url.PathEscape(k.Name) + "/" + manifest
		now[uri] = k.Description
		if old, ok := t.listed[uri]; ok && old == k.Description {
			continue
		}
		t.server.AddResource(&mcp.Resource{URI: uri, Name: k.Name, Description: k.Description, MIMEType: "text/markdown"}, t.skillResource)
	}
	for _, uri := range slices.Sorted(maps.Keys(t.listed)) {
		if _, ok := now[uri]; !ok {
			t.server.RemoveResources(uri)
		}
	}
	t.listed = now
	return nil
}

// skillResource reads a file of a skill.
func (t *tools) skillResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	name, path, ok := skillOf(uri)
	if !ok {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	file, err := t.client.ReadSkillFile(ctx, name, path)
	if p, ok := errors.AsType[*client.Error](err); ok && p.Status < 500 { // it does not exist, or is an invalid name
		return nil, mcp.ResourceNotFoundError(uri)
	}
	if err != nil {
		return nil, withHint(err)
	}
	content, err := contents(uri, path, &file)
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{content}}, nil
}

// skillOf returns the skill and the file that a URI names.
func skillOf(uri string) (name, path string, ok bool) {
	rest, ok := strings.CutPrefix(uri, skillScheme)
	if !ok {
		return "", "", false
	}
	first, rest, ok := strings.Cut(rest, "/")
	name, err := url.PathUnescape(first)
	path, err2 := url.PathUnescape(rest)
	return name, path, ok && err == nil && err2 == nil && name != "" && path != ""
}

func contents(uri, path string, file *api.SkillFile) (*mcp.ResourceContents, error) {
	c := &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: file.Content}
	if strings.HasSuffix(path, ".md") {
		c.MIMEType = "text/markdown"
	}
	if file.Encoding == "base64" {
		data, err := base64.StdEncoding.DecodeString(file.Content)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", uri, err)
		}
		c.MIMEType, c.Text, c.Blob = "application/octet-stream", "", data
	}
	return c, nil
}
