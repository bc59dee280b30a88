// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// defaultLines is how many lines are read by default, the same as in boxd.
const defaultLines = 2000

type readArgs struct {
	sessionArg
	Path   string `json:"path" jsonschema:"file path, relative to /workspace, or URI of truncated output"`
	Offset int    `json:"offset,omitempty" jsonschema:"first line to read, starting at 1 (default 1)"`
	Limit  int    `json:"limit,omitempty" jsonschema:"number of lines to read (default 2000)"`
	Base64 bool   `json:"base64,omitempty" jsonschema:"return the content as base64, for binary files"`
}

type writeArgs struct {
	sessionArg
	Path        string `json:"path" jsonschema:"file path, relative to /workspace; missing directories are created"`
	Content     string `json:"content" jsonschema:"new content of the file"`
	Mode        string `json:"mode,omitempty" jsonschema:"overwrite (default), append, or create (fails if the file exists)"`
	Base64      bool   `json:"base64,omitempty" jsonschema:"content is base64-encoded"`
	Permissions string `json:"permissions,omitempty" jsonschema:"octal file mode, e.g. 0755"`
}

type editArgs struct {
	sessionArg
	Path  string        `json:"path" jsonschema:"path of a text file, relative to /workspace"`
	Edits []replacement `json:"edits" jsonschema:"replacements, applied in order; if one fails, none is applied"`
}

type replacement struct {
	Old string `json:"old" jsonschema:"text to replace; must occur exactly once unless all is set"`
	New string `json:"new" jsonschema:"replacement text"`
	All bool   `json:"all,omitempty" jsonschema:"replace every occurrence of old"`
}

type globArgs struct {
	sessionArg
	Pattern  string `json:"pattern" jsonschema:"glob, e.g. **/*.go; supports *, **, ?, [a-z] and {a,b}"`
	Path     string `json:"path,omitempty" jsonschema:"directory to search (default /workspace)"`
	Limit    int    `json:"limit,omitempty" jsonschema:"maximum number of files (default 100)"`
	NoIgnore bool   `json:"no_ignore,omitempty" jsonschema:"include files ignored by .gitignore, and .git, node_modules and similar"`
}

type grepArgs struct {
	sessionArg
	Pattern    string   `json:"pattern" jsonschema:"regular expression (RE2)"`
	Path       string   `json:"path,omitempty" jsonschema:"file or directory to search (default /workspace)"`
	Literal    bool     `json:"literal,omitempty" jsonschema:"match pattern as plain text instead of a regular expression"`
	IgnoreCase bool     `json:"ignore_case,omitempty" jsonschema:"match upper and lower case alike"`
	Include    []string `json:"include,omitempty" jsonschema:"search only files that match one of these globs"`
	Exclude    []string `json:"exclude,omitempty" jsonschema:"skip files that match one of these globs"`
	Before     int      `json:"before,omitempty" jsonschema:"lines of context before each match"`
	After      int      `json:"after,omitempty" jsonschema:"lines of context after each match"`
	NamesOnly  bool     `json:"names_only,omitempty" jsonschema:"return only the names of matching files"`
	NoIgnore   bool     `json:"no_ignore,omitempty" jsonschema:"include files ignored by .gitignore, and .git, node_modules and similar"`
	Limit      int      `json:"limit,omitempty" jsonschema:"maximum number of lines (default 200)"`
}

type listArgs struct {
	sessionArg
	Path  string `json:"path,omitempty" jsonschema:"directory to list (default /workspace)"`
	Depth int    `json:"depth,omitempty" jsonschema:"levels of subdirectories (default 1: only the directory itself)"`
	Limit int    `json:"limit,omitempty" jsonschema:"maximum number of entries (default 1000)"`
}

type statArgs struct {
	sessionArg
	Path     string `json:"path" jsonschema:"path, relative to /workspace"`
	NoFollow bool   `json:"no_follow,omitempty" jsonschema:"describe a symbolic link itself, not its target"`
	Digest   bool   `json:"digest,omitempty" jsonschema:"include the SHA-256 of the content"`
}

// encoding returns the name of the encoding of file contents.
func encoding(base64 bool) string {
	if base64 {
		return "base64"
	}
	return ""
}

func (t *tools) addFiles() {
	mcp.AddTool(t.server, &mcp.Tool{Name: "box_read", Description: "Read lines of a text file in the box, or of the truncated output of a command.", Annotations: reads("Read a file")}, t.read)
	add(t, &mcp.Tool{Name: "box_write", Description: "Write a file in the box. The file is replaced atomically.", Annotations: changes("Write a file", false, true, false)}, t.write)
	add(t, &mcp.Tool{Name: "box_edit", Description: "Replace text in a file in the box.", Annotations: changes("Edit a file", true, false, false)}, t.edit)
	add(t, &mcp.Tool{Name: "box_glob", Description: "Find files in the box by name pattern, newest first.", Annotations: reads("Find files")}, t.glob)
	add(t, &mcp.Tool{Name: "box_grep", Description: "Search for text in files in the box.", Annotations: reads("Search in files")}, t.grep)
	add(t, &mcp.Tool{Name: "box_list", Description: "List a directory in the box.", Annotations: reads("List a directory")}, t.list)
	add(t, &mcp.Tool{Name: "box_stat", Description: "Show type, mode, size and modification time of a path in the box.", Annotations: reads("Describe a file")}, t.stat)
}

func (t *tools) read(ctx context.Context, _ *mcp.CallToolRequest, in readArgs) (*mcp.CallToolResult, any, error) {
	if strings.HasPrefix(in.Path, outputScheme+"://") {
		result, err := t.readOutput(&in)
		return result, nil, withHint(err)
	}
	id, err := t.sessions.ID(ctx, in.Session)
	if err != nil {
		return nil, nil, withHint(err)
	}
	got, err := t.client.ReadFile(ctx, id, &api.FileRead{Path: in.Path, Offset: in.Offset, Limit: in.Limit, Encoding: encoding(in.Base64)})
	if err != nil {
		return nil, nil, withHint(t.sessions.explain(ctx, id, err))
	}
	result := text("%s", got.Content)
	switch {
	case got.NextOffset > 0:
		result.Content = append(result.Content, &mcp.TextContent{Text: fmt.Sprintf("[more lines follow: continue with offset %d]", got.NextOffset)})
	case got.Truncated:
		result.Content = append(result.Content, &mcp.TextContent{Text: fmt.Sprintf("[truncated after %d of %d bytes, within a line]", got.NextByteOffset, got.File.Size)})
	}
	return result, nil, nil
}

// readOutput reads stored output by lines.
func (t *tools) readOutput(in *readArgs) (*mcp.CallToolResult, error) {
	stream := t.outputs.get(in.Path)
	if stream == nil {
		f := fault.Field("path", in.Path, "the URI of output that is still stored")
		f.Kind, f.Hint = fault.NotFound, "run the command again and redirect its output to a file"
		return nil, f
	}
	first, count := max(in.Offset, 1), in.Limit
	if count <= 0 {
		count = defaultLines
	}
	whole := t.outputs.whole(stream)
	lines, next := linesFrom(whole, first, count)
	if limit := answerLimit * 4; len(lines) > limit { // lines may be long
		lines = strings.ToValidUTF8(lines[:limit], "") + "\n[… truncated: these lines are too long for one answer …]"
	}
	result := text("%s", lines)
	if next > 0 {
		result.Content = append(result.Content, &mcp.TextContent{Text: fmt.Sprintf("[more lines follow: continue with offset %d]", next)})
	}
	return result, nil
}

func (t *tools) write(ctx context.Context, _ *mcp.CallToolRequest, id string, in *writeArgs) (*mcp.CallToolResult, error) {
	done, err := t.client.WriteFile(ctx, id, &api.FileWrite{Path: in.Path, Content: in.Content, Encoding: encoding(in.Base64), Mode: in.Mode, Permission: in.Permissions})
	if err != nil {
		return nil, err
	}
	verb := "written"
	if done.Created {
		verb = "created"
	}
	return text("%s %s: %d bytes", done.File.Path, verb, done.File.Size), nil
}

func (t *tools) edit(ctx context.Context, _ *mcp.CallToolRequest, id string, in *editArgs) (*mcp.CallToolResult, error) {
	req := &api.FileEdit{Path: in.Path}
	for _, e := range in.Edits {
		req.Edits = append(req.Edits, api.FileReplacement{Old: e.Old, New: e.New, All: e.All})
	}
	done, err := t.client.EditFile(ctx, id, req)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s edited", done.File.Path)
	for i, e := range done.Edits {
		fmt.Fprintf(&out, "\nedit %d: %d replaced, first in line %d", i+1, e.Count, e.Line)
	}
	return text("%s", out.String()), nil
}

// more adds a note to an incomplete answer.
func more(out *strings.Builder, truncated bool) {
	if truncated {
		out.WriteString("[truncated: raise limit or narrow the search]\n")
	}
}

func (t *tools) glob(ctx context.Context, _ *mcp.CallToolRequest, id string, in *globArgs) (*mcp.CallToolResult, error) {
	got, err := t.client.GlobFiles(ctx, id, &api.FileGlob{Pattern: in.Pattern, Path: in.Path, Limit: in.Limit, NoIgnore: in.NoIgnore})
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for i := range got.Entries {
		fmt.Fprintln(&out, got.Entries[i].Path)
	}
	more(&out, got.Truncated)
	return orNothing(&out), nil
}

// orNothing reports that nothing was found: an empty text would look like a defect.
func orNothing(out *strings.Builder) *mcp.CallToolResult {
	if out.Len() == 0 {
		return text("nothing found")
	}
	return text("%s", out.String())
}

func (t *tools) grep(ctx context.Context, _ *mcp.CallToolRequest, id string, in *grepArgs) (*mcp.CallToolResult, error) {
	got, err := t.client.GrepFiles(ctx, id, &api.FileGrep{
		Pattern: in.Pattern, Path: in.Path, Literal: in.Literal, IgnoreCase: in.IgnoreCase, Include: in.Include, Exclude: in.Exclude,
		Before: in.Before, After: in.After, NamesOnly: in.NamesOnly, NoIgnore: in.NoIgnore, Limit: in.Limit,
	})
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for _, file := range got.Files {
		if len(file.Lines) == 0 {
			fmt.Fprintln(&out, file.Path)
		}
		for _, l := range file.Lines {
			sign := ":"
			if l.Column == 0 {
				sign = "-"
			}
			fmt.Fprintf(&out, "%s%s%d%s%s\n", file.Path, sign, l.Line, sign, l.Text)
		}
	}
	more(&out, got.Truncated)
	return orNothing(&out), nil
}

func (t *tools) list(ctx context.Context, _ *mcp.CallToolRequest, id string, in *listArgs) (*mcp.CallToolResult, error) {
	got, err := t.client.ListFiles(ctx, id, &api.FileList{Path: in.Path, Depth: in.Depth, Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for i := range got.Entries {
		out.WriteString(entry(&got.Entries[i]))
	}
	more(&out, got.Truncated)
	return orNothing(&out), nil
}

// entry formats a line about a file.
func entry(f *api.File) string {
	target := ""
	if f.Type == "symlink" {
		target = " -> " + f.Target
	}
	return fmt.Sprintf("%s %s %d %s %s%s\n", f.Type, f.Mode, f.Size, f.ModifiedAt.UTC().Format(time.RFC3339), f.Path, target)
}

func (t *tools) stat(ctx context.Context, _ *mcp.CallToolRequest, id string, in *statArgs) (*mcp.CallToolResult, error) {
	got, err := t.client.StatFile(ctx, id, &api.FileStat{Path: in.Path, NoFollow: in.NoFollow, Digest: in.Digest})
	if err != nil {
		return nil, err
	}
	return text("%s", strings.TrimSpace(entry(&got)+got.Digest)), nil
}
