// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/fault"
)

type skillArgs struct {
	Name string `json:"name" jsonschema:"name of the skill"`
	Path string `json:"path,omitempty" jsonschema:"file in the skill (default: its instructions and a list of its files)"`
}

func (t *tools) addSkills() {
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "skill_list",
		Description: "List the skills of the user (instruction packages for tasks) with their descriptions.",
		Annotations: reads("List skills"),
	}, t.skills)
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "skill_read",
		Description: "Read the instructions of a skill, or one of its files.",
		Annotations: reads("Read a skill"),
	}, t.skill)
}

func (t *tools) skills(ctx context.Context, _ *mcp.CallToolRequest, _ noArgs) (*mcp.CallToolResult, any, error) {
	list, err := t.client.Skills(ctx)
	if err != nil {
		return nil, nil, withHint(err)
	}
	var out strings.Builder
	for i := range list {
		fmt.Fprintf(&out, "%s: %s\n", list[i].Name, list[i].Description)
	}
	if out.Len() == 0 {
		return text("no skills"), nil, nil
	}
	return text("%s", out.String()), nil, nil
}

func (t *tools) skill(ctx context.Context, _ *mcp.CallToolRequest, in skillArgs) (*mcp.CallToolResult, any, error) {
	c := t.client
	if in.Path != "" {
		file, err := c.ReadSkillFile(ctx, in.Name, in.Path)
		if err != nil {
			return nil, nil, withHint(err)
		}
		if file.Encoding == "base64" {
			return nil, nil, withHint(fault.Field("path", in.Path, "a text file"))
		}
		return text("%s", file.Content), nil, nil
	}
	s, err := c.Skill(ctx, in.Name)
	if err != nil {
		return nil, nil, withHint(err)
	}
	files, err := c.SkillFiles(ctx, in.Name, "", false, 0)
	if err != nil {
		return nil, nil, withHint(err)
	}
	result := text("%s", s.Instructions)
	var names strings.Builder
	for _, f := range files.Entries {
		fmt.Fprintln(&names, f.Path)
	}
	result.Content = append(result.Content, &mcp.TextContent{Text: "files of the skill:\n" + names.String()})
	return result, nil, nil
}
