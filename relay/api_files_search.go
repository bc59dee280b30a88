// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func entries(a *files.Answer, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if a.List == nil {
		return nil, files.ErrMalformed
	}
	out := &api.FileEntries{Entries: []api.File{}, Truncated: a.List.Cut != ""}
	for i := range a.List.Entries {
		out.Entries = append(out.Entries, fileAnswer(&a.List.Entries[i]))
	}
	return out, nil
}

// globFiles finds files by name.
func globFiles(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileGlob, s *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, workspace)
		g := &files.Glob{Path: p, Pattern: in.Pattern, Walk: s.Config().Files.MaxEntries, Ignore: !in.NoIgnore, ByName: in.Sort == "name"}
		if err == nil && in.Sort != "" && in.Sort != "name" && in.Sort != "time" {
			err = fault.Field("sort", in.Sort, "time, name")
		}
		if err == nil && in.Pattern == "" {
			err = fault.Field("pattern", fault.Word("missing"), "a pattern such as **/*.go")
		}
		if err == nil {
			g.Limit, err = bounded("limit", in.Limit, defaultGlob, maxResults)
		}
		return &files.Request{Glob: g}, nil, err
	})
	return entries(a, err)
}

// listFiles lists a directory.
func listFiles(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileList, _ *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, workspace)
		l := &files.List{Path: p, Xattrs: in.Xattrs}
		if err == nil {
			l.Depth, err = bounded("depth", in.Depth, 1, maxDepth)
		}
		if err == nil {
			l.Limit, err = bounded("limit", in.Limit, defaultList, maxResults)
		}
		return &files.Request{List: l}, nil, err
	})
	return entries(a, err)
}

// grepFiles finds matching lines.
func grepFiles(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileGrep, s *session.Session) (*files.Request, []byte, error) {
		limits := s.Config().Files
		p, err := requestPath("path", in.Path, in.PathBase64, workspace)
		g := &files.Grep{
			Path: p, Pattern: in.Pattern, Literal: in.Literal, IgnoreCase: in.IgnoreCase, Include: in.Include, Exclude: in.Exclude, Ignore: !in.NoIgnore,
			Before: in.Before, After: in.After, NamesOnly: in.NamesOnly, Walk: limits.MaxEntries, MaxFile: maxGrepFile, MaxTotal: int64(limits.MaxSearch), MaxLine: maxGrepLine,
		}
		if err == nil && in.Pattern == "" {
			err = fault.Field("pattern", fault.Word("missing"), "a regular expression, or a text with literal")
		}
		for _, n := range []struct {
			field string
			lines int
		}{{"before", in.Before}, {"after", in.After}} {
			if err == nil {
				_, err = bounded(n.field, n.lines, 0, maxContext)
			}
		}
		if err == nil {
			g.Limit, err = bounded("limit", in.Limit, defaultGrep, maxResults)
		}
		return &files.Request{Grep: g}, nil, err
	})
	if err != nil {
		return nil, err
	}
	if a.Grep == nil {
		return nil, files.ErrMalformed
	}
	g := a.Grep
	out := &api.FileMatches{
		Files: []api.FileMatch{}, Matches: g.Matches, Searched: g.Searched, Skipped: g.Binary + g.Large + g.Failed, Truncated: g.Cut != "", TruncatedBy: g.Cut,
	}
	for i := range g.Files {
		var m api.FileMatch
		m.Path, m.PathBase64 = nameAnswer(g.Files[i].Path)
		for _, l := range g.Files[i].Lines {
			m.Lines = append(m.Lines, api.FileLine{Line: l.Number, Column: l.Column, Text: strings.ToValidUTF8(string(l.Text), "�"), Cut: l.Cut})
		}
		out.Files = append(out.Files, m)
	}
	return out, nil
}

// statFile describes the file at a path.
func statFile(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileStat, s *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		r := &files.Stat{Path: p, Follow: !in.NoFollow, Xattrs: in.Xattrs}
		if in.Digest {
			r.Digest = int64(s.Config().Files.MaxContent)
		}
		return &files.Request{Stat: r}, nil, err
	})
	if err != nil {
		return nil, err
	}
	if a.Stat == nil {
		return nil, files.ErrMalformed
	}
	f := fileAnswer(a.Stat)
	return &f, nil
}

// moveFile renames a file or directory.
func moveFile(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileMove, _ *session.Session) (*files.Request, []byte, error) {
		from, err := requestPath("from", in.From, in.FromBase64, "")
		if err != nil {
			return nil, nil, err
		}
		to, err := requestPath("to", in.To, in.ToBase64, "")
		return &files.Request{Move: &files.Move{From: from, To: to, Overwrite: in.Overwrite, Parents: !in.NoParents}}, nil, err
	})
	return done(a, err)
}

// removeFile removes a file or directory.
func removeFile(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileRemove, _ *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		return &files.Request{Remove: &files.Remove{Path: p, Recursive: in.Recursive, Missing: in.MissingOK}}, nil, err
	})
	return done(a, err)
}

// chmodFile changes the mode of a file or directory.
func chmodFile(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileChmod, _ *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		if err != nil {
			return nil, nil, err
		}
		mode, err := strconv.ParseUint(in.Mode, 8, 32)
		if err != nil || mode > 0o777 {
			return nil, nil, fault.Field("mode", in.Mode, "an octal number up to 777")
		}
		return &files.Request{Chmod: &files.Chmod{Path: p, Mode: uint32(mode)}}, nil, nil
	})
	return done(a, err)
}

func done(a *files.Answer, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if !a.Done {
		return nil, files.ErrMalformed
	}
	return &api.FileDone{OK: true}, nil
}
