// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// editFile replaces texts in a file: all requested edits, or none.
func editFile(req *files.Edit) (*files.EditAnswer, error) {
	requested, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	path, err := resolveFinal(requested)
	if err != nil {
		return nil, err
	}
	f, st, err := openRegular(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, req.Most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > req.Most {
		return nil, tooLarge(req.Most)
	}
	if is := digestOfBytes(content); req.IfMatch != "" && is != req.IfMatch {
		return nil, &files.Failure{Kind: files.Changed, Text: "its digest is " + is + ", not that of if_match"}
	}
	if err := unix.Faccessat2(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return nil, err
	}
	edited, replaced, err := replaceText(content, req.Edits, req.Most)
	if err != nil {
		return nil, err
	}
	if st, err = replaceFile(path, edited, st.Mode&0o777, st, nil, false); err != nil {
		return nil, err
	}
	a := &files.EditAnswer{File: entryOf(requested, st), Edits: replaced}
	a.File.Digest = digestOfBytes(edited)
	return a, nil
}

func tooLarge(limit int64) *files.Failure {
	return &files.Failure{Kind: files.TooLarge, Text: fmt.Sprintf("more than %d bytes", limit)}
}

// replaceText applies edits to a content, one after the other: each sees the result of those before
// it.
func replaceText(content []byte, edits []files.Replacement, limit int64) ([]byte, []files.Replaced, error) {
	replaced := make([]files.Replaced, 0, len(edits))
	for i, e := range edits {
		field := "edits[" + strconv.Itoa(i) + "]"
		count := 0
		if len(e.Old) > 0 {
			count = bytes.Count(content, e.Old)
		}
		switch {
		case len(e.Old) == 0:
			return nil, nil, &files.Failure{Kind: files.BadRequest, Field: field + ".old", Text: "nothing to replace", Allowed: "a text of the file", Hint: "write makes a new file"}
		case bytes.Equal(e.Old, e.New):
			return nil, nil, &files.Failure{Kind: files.BadRequest, Field: field + ".new", Text: "the old and the new text are the same", Allowed: "another text than old"}
		case count == 0:
			return nil, nil, &files.Failure{Kind: files.NoMatch, Field: field + ".old", Text: field + ": the old text is not in the file", Hint: suggest(content, e.Old)}
		case count > 1 && !e.All:
			return nil, nil, &files.Failure{
				Kind: files.NotUnique, Field: field + ".old", Text: fmt.Sprintf("%s: the old text occurs %d times, in lines %s", field, count, placesOf(content, e.Old)),
				Hint: "include surrounding lines, or set all = true",
			}
		case int64(len(content))+int64(count)*int64(len(e.New)-len(e.Old)) > limit:
			return nil, nil, tooLarge(limit)
		}
		replaced = append(replaced, files.Replaced{Count: count, Line: lineOf(content, bytes.Index(content, e.Old))})
		content = bytes.ReplaceAll(content, e.Old, e.New)
	}
	return content, replaced, nil
}

func lineOf(content []byte, at int) int { return bytes.Count(content[:at], []byte{'\n'}) + 1 }

// placesOf lists the first lines in which a text occurs.
func placesOf(content, text []byte) string {
	const limit = 5
	var list []string
	for at := 0; ; {
		i := bytes.Index(content[at:], text)
		if i < 0 {
			return strings.Join(list, ", ")
		}
		if len(list) == limit {
			return strings.Join(list, ", ") + ", …"
		}
		list = append(list, strconv.Itoa(lineOf(content, at+i)))
		at += i + len(text)
	}
}

// suggest says why a text may not have been found.
func suggest(content, text []byte) string {
	switch {
	case bytes.Contains(content, []byte("\r\n")) && !bytes.Contains(text, []byte("\r\n")) && bytes.Contains(bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n")), text):
		return "the lines of the file end with CR LF, those of the text do not"
	case bytes.Contains(bytes.Join(bytes.Fields(content), []byte{' '}), bytes.Join(bytes.Fields(text), []byte{' '})):
		return "it occurs with other white space"
	}
	return "read the file again: the text must be the same to the byte"
}
