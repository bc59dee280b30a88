// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Defaults and limits of requests.
const (
	maxBody      = 24 << 20 // files.max_content of at most 16 MiB, in base64
	defaultLines = 2000
	defaultBytes = 50 << 10
	defaultGlob  = 100
	defaultGrep  = 200
	defaultList  = 1000
	maxResults   = 20_000
	maxContext   = 50
	maxGrepFile  = 10 << 20
	maxGrepLine  = 500
	maxDepth     = 4096
)

// fileRequest finds the session, reads the body and carries out a request.
func fileRequest[In any](c *Call, translate func(in *In, s *session.Session) (*files.Request, []byte, error)) (*files.Answer, []byte, error) {
	s, err := c.session()
	if err != nil {
		return nil, nil, err
	}
	in := new(In)
	if err := c.decodeBody(in, maxBody); err != nil {
		return nil, nil, err
	}
	req, body, err := translate(in, s)
	if err != nil {
		return nil, nil, err
	}
	at, reads := req.Reads()
	if !reads {
		return sessionfiles.Do(c.Context(), s, sessionfiles.BoxUser, req, body)
	}
	var a *files.Answer
	var data []byte
	err = c.Sup.Files(c.Context(), s, string(at), func(ctx context.Context, s *session.Session) (err error) {
		a, data, err = sessionfiles.Do(ctx, s, sessionfiles.BoxUser, req, body)
		return err
	})
	return a, data, err
}

// requestPath reads either form of a path. missing is the default; "": a path is required.
func requestPath(field, text, encoded, missing string) ([]byte, error) {
	switch {
	case text != "" && encoded != "":
		return nil, fault.Field(field+"_base64", encoded, "left out with "+field)
	case text != "":
		return []byte(text), nil
	case encoded != "":
		b, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, fault.Field(field+"_base64", encoded, "the bytes of a path in base64")
		}
		return b, nil
	case missing == "":
		return nil, fault.Field(field, fault.Word("missing"), "a path")
	}
	return []byte(missing), nil
}

const workspace = "/workspace"

// bounded checks a number against its maximum; 0 stands for the default.
func bounded(field string, n, def, limit int) (int, error) {
	switch {
	case n < 0 || n > limit:
		return 0, fault.Field(field, n, fmt.Sprintf("1 to %d", limit))
	case n == 0:
		return def, nil
	}
	return n, nil
}

// Names of encodings.
const (
	utf8Encoding   = "utf-8"
	base64Encoding = "base64"
)

func isBase64(encoding string) (bool, error) {
	switch encoding {
	case "", utf8Encoding:
		return false, nil
	case base64Encoding:
		return true, nil
	}
	return false, fault.Field("encoding", encoding, utf8Encoding+", "+base64Encoding)
}

// readFile returns a part of a file.
func readFile(c *Call) (any, error) {
	var raw bool
	a, data, err := fileRequest(c, func(in *api.FileRead, s *session.Session) (*files.Request, []byte, error) {
		limits := s.Config().Files
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		if err != nil {
			return nil, nil, err
		}
		r := &files.Read{Path: p}
		if raw, err = isBase64(in.Encoding); err != nil {
			return nil, nil, err
		}
		limit := int64(limits.MaxContent)
		if in.MaxBytes < 0 || in.MaxBytes > limit {
			return nil, nil, fault.Field("max_bytes", in.MaxBytes, fmt.Sprintf("1 to %d (files.max_content)", limit))
		}
		r.Raw, r.Bytes = raw, in.MaxBytes
		if r.Bytes == 0 {
			r.Bytes = min(defaultBytes, limit)
		}
		if in.Digest {
			r.Digest = limit
		}
		if r.Line, err = bounded("offset", in.Offset, 1, 1<<31-1); err != nil {
			return nil, nil, err
		}
		if r.Lines, err = bounded("limit", in.Limit, defaultLines, 1_000_000); err != nil {
			return nil, nil, err
		}
		if at := in.ByteOffset; at != nil {
			if *at < 0 || in.Offset != 0 || in.Limit != 0 {
				return nil, nil, fault.Field("byte_offset", *at, "0 or more, without offset and limit")
			}
			r.ByBytes, r.Offset = true, *at
		}
		return &files.Request{Read: r}, nil, nil
	})
	if err != nil {
		return nil, err
	}
	if a.Read == nil {
		return nil, files.ErrMalformed
	}
	return content(a.Read, data, raw), nil
}

func content(a *files.ReadAnswer, data []byte, raw bool) *api.FileContent {
	f := &api.FileContent{
		File: fileAnswer(&a.File), Encoding: utf8Encoding, StartLine: a.FirstLine, EndLine: a.LastLine, ByteOffset: a.Offset, NextByteOffset: a.Next,
		Truncated: a.Cut != "", TruncatedBy: a.Cut,
	}
	if raw || !utf8.Valid(data) {
		f.Encoding, f.Content = base64Encoding, base64.StdEncoding.EncodeToString(data)
	} else {
		f.Content = string(data)
	}
	if a.Cut != "" && a.LastLine > 0 && len(data) > 0 && data[len(data)-1] == '\n' {
		f.NextOffset = a.LastLine + 1
	}
	return f
}

// checkDigest checks an if_match.
func checkDigest(d string) error {
	if d != "" && !regexp.MustCompile(`\A`+files.DigestPrefix+`[0-9a-f]{64}\z`).MatchString(d) {
		return fault.Field("if_match", d, "a digest as it comes in answers: sha256: and 64 hexadecimal digits")
	}
	return nil
}

// writeFile writes a file.
func writeFile(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileWrite, s *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		if err != nil {
			return nil, nil, err
		}
		w := &files.Write{Path: p, How: in.Mode, Parents: !in.NoParents, IfMatch: in.IfMatch, Most: int64(s.Config().Files.MaxContent)}
		if w.How == "" {
			w.How = files.Overwrite
		}
		if modes := []string{files.Overwrite, files.Append, files.Create}; !slices.Contains(modes, w.How) {
			return nil, nil, fault.Field("mode", in.Mode, "overwrite, append, create")
		}
		if in.Permission != "" {
			mode, err := permissions("permissions", in.Permission)
			if err != nil {
				return nil, nil, err
			}
			w.Mode = &mode
		}
		if w.Xattrs, err = xattrsOf(in.XattrsPrefix, in.Xattrs); err != nil {
			return nil, nil, err
		}
		body := []byte(in.Content)
		encoded, err := isBase64(in.Encoding)
		if err == nil {
			err = checkDigest(in.IfMatch)
		}
		if encoded && err == nil {
			if body, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
				err = fault.Field("content", fault.Word("no base64"), "base64 (see encoding)")
			}
		}
		if err == nil && int64(len(body)) > w.Most {
			err = fault.Field("content", len(body), fmt.Sprintf("at most %d bytes (files.max_content)", w.Most)).WithHint("send larger files as an archive")
		}
		return &files.Request{Write: w}, body, err
	})
	return written(a, err)
}

// editFile replaces text in a file.
func editFile(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileEdit, s *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		if err == nil {
			err = checkDigest(in.IfMatch)
		}
		if err == nil && len(in.Edits) == 0 {
			err = fault.Field("edits", fault.Word("empty"), "at least one edit")
		}
		e := &files.Edit{Path: p, IfMatch: in.IfMatch, Most: int64(s.Config().Files.MaxContent)}
		for _, r := range in.Edits {
			e.Edits = append(e.Edits, files.Replacement{Old: []byte(r.Old), New: []byte(r.New), All: r.All})
		}
		return &files.Request{Edit: e}, nil, err
	})
	if err != nil {
		return nil, err
	}
	if a.Edit == nil {
		return nil, files.ErrMalformed
	}
	out := &api.FileEdited{File: fileAnswer(&a.Edit.File), Edits: []api.FileReplaced{}}
	for _, r := range a.Edit.Edits {
		out.Edits = append(out.Edits, api.FileReplaced(r))
	}
	return out, nil
}
