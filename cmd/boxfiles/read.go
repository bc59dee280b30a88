// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/isolation/output"
)

// readFile writes a part of a file to w.
func readFile(req *files.Read, w io.Writer) (*files.ReadAnswer, error) {
	path, err := checkPath(req.Path)
	if err != nil {
		return nil, err
	}
	f, st, err := openRegular(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &files.ReadAnswer{File: entryOf(path, st)}
	if a.File.Digest, err = digestOf(f, st, req.Digest); err != nil {
		return nil, err
	}
	var content []byte
	if req.ByBytes {
		content, err = readBytes(f, req, a)
	} else {
		content, err = readLines(f, req, a)
	}
	if err != nil {
		return nil, err
	}
	if !req.Raw && !isText(content) {
		return nil, &files.Failure{Kind: files.Binary, Text: "not text: it has NUL or is not UTF-8", Hint: "read it with encoding base64"}
	}
	_, err = w.Write(content)
	return a, err
}

func isText(content []byte) bool { return utf8.Valid(content) && bytes.IndexByte(content, 0) < 0 }

func readBytes(f *os.File, req *files.Read, a *files.ReadAnswer) ([]byte, error) {
	content, err := io.ReadAll(io.NewSectionReader(f, req.Offset, req.Bytes))
	if err != nil {
		return nil, err
	}
	if !req.Raw {
		content = output.Whole(content)
	}
	a.Offset, a.Next = req.Offset, req.Offset+int64(len(content))
	if a.Next < a.File.Size {
		a.Cut = files.CutBytes
	}
	return content, nil
}

func readLines(f *os.File, req *files.Read, a *files.ReadAnswer) ([]byte, error) {
	in := bufio.NewReaderSize(f, 64<<10)
	offset, line := int64(0), 1
	for line < req.Line { // skip the lines before the first
		piece, err := in.ReadSlice('\n')
		offset += int64(len(piece))
		if errors.Is(err, io.EOF) {
			a.Offset, a.Next = offset, offset
			return nil, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if err == nil {
			line++
		}
	}
	a.Offset = offset
	var content []byte
	for last := line + req.Lines - 1; line <= last; line++ {
		start := len(content)
		more := true
		for more {
			piece, err := in.ReadSlice('\n')
			content = append(content, piece...)
			if int64(len(content)) > req.Bytes {
				return cutLine(content, start, line, req, a), nil
			}
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
				return nil, err
			}
			more = errors.Is(err, bufio.ErrBufferFull)
			if errors.Is(err, io.EOF) {
				last = line
			}
		}
		if len(content) > start {
			countLine(a, line)
		}
	}
	a.Next = a.Offset + int64(len(content))
	if _, err := in.Peek(1); err == nil {
		a.Cut = files.CutLines
	}
	return content, nil
}

// cutLine drops a line that makes the content too long, or, if it is the first, the part of it
// that is too long.
func cutLine(content []byte, start, line int, req *files.Read, a *files.ReadAnswer) []byte {
	a.Cut = files.CutBytes
	if start == 0 {
		content = content[:req.Bytes]
		if !req.Raw {
			content = output.Whole(content)
		}
		countLine(a, line)
	} else {
		content = content[:start]
	}
	a.Next = a.Offset + int64(len(content))
	return content
}

// digestOf digests a file that is not too large, and seeks back to its beginning.
func digestOf(f *os.File, st *unix.Stat_t, limit int64) (string, error) {
	if st.Size > limit || limit == 0 {
		return "", nil
	}
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, limit+1))
	if err != nil || n > limit {
		return "", err
	}
	_, err = f.Seek(0, io.SeekStart)
	return files.DigestPrefix + hex.EncodeToString(sum.Sum(nil)), err
}

// digestAt digests a regular file in a directory without following a symbolic link; "" if it cannot
// be read or has more than limit bytes.
func digestAt(dir int, name string, limit int64) string {
	f, st, err := openRegular(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return ""
	}
	defer f.Close()
	sum, _ := digestOf(f, st, limit) // "" on errors, as documented
	return sum
}

func digestOfBytes(content []byte) string {
	sum := sha256.Sum256(content)
	return files.DigestPrefix + hex.EncodeToString(sum[:])
}

// countLine counts a line that was read.
func countLine(a *files.ReadAnswer, line int) {
	if a.FirstLine == 0 {
		a.FirstLine = line
	}
	a.LastLine = line
}
