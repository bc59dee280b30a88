// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"compress/flate"
	"encoding/binary"
	"errors"
	"io"

	"github.com/boxd-dev/boxd/isolation/files"
)

// A snapshot is a sequence of states in the order of a walk, compressed. Each state is stored as its difference from the previous
// one: the part of the path that differs, and the distances of numbers that are often close to each other.

// Bounds of one state.
const (
	maxSuffix = 1 << 9  // bytes of a path after its directory: a slash and a name
	maxDeep   = 1 << 21 // bytes of a path
)

// snapshotWriter writes a snapshot.
type snapshotWriter struct {
	out   *flate.Writer
	limit int64 // bytes that may still be written
	to    io.Writer
	last  fileState
	buf   []byte
}

func newSnapshotWriter(w io.Writer, limit int64) *snapshotWriter {
	p := &snapshotWriter{limit: limit, to: w}
	p.out, _ = flate.NewWriter(p, flate.BestSpeed) // cannot fail: the level is valid
	return p
}

// Write receives the compressed bytes.
func (p *snapshotWriter) Write(b []byte) (int, error) {
	if p.limit -= int64(len(b)); p.limit < 0 {
		return 0, &files.Failure{Kind: files.TooMany, Text: "there are too many files and directories to record", Hint: "skip directories with exclude"}
	}
	return p.to.Write(b)
}

func (p *snapshotWriter) add(s *fileState) error {
	same := 0
	for same < min(len(s.path), len(p.last.path)) && s.path[same] == p.last.path[same] {
		same++
	}
	b := binary.AppendUvarint(p.buf[:0], uint64(same))
	b = binary.AppendUvarint(b, uint64(len(s.path)-same))
	b = append(b, s.path[same:]...)
	b = binary.AppendUvarint(b, uint64(s.mode))
	b = binary.AppendVarint(b, int64(s.inode-p.last.inode))
	b = binary.AppendUvarint(b, uint64(s.size))
	p.buf = binary.AppendVarint(b, s.changed-p.last.changed)
	p.last = *s
	_, err := p.out.Write(p.buf)
	return err
}

func (p *snapshotWriter) end() error { return p.out.Close() }

// snapshotReader reads a snapshot.
type snapshotReader struct {
	in   *bufio.Reader
	last fileState
}

func newSnapshotReader(r io.Reader) *snapshotReader {
	return &snapshotReader{in: bufio.NewReader(flate.NewReader(r))}
}

// next returns the next state, nil at the end. A malformed or truncated snapshot is a Failure.
func (u *snapshotReader) next() (*fileState, error) {
	same, err := binary.ReadUvarint(u.in)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	var s fileState
	if err == nil {
		s, err = u.readState(same)
	}
	if err != nil {
		return nil, &files.Failure{Kind: files.BadRequest, Text: "not a snapshot: " + err.Error()}
	}
	u.last = s
	return &s, nil
}

func (u *snapshotReader) readState(same uint64) (s fileState, err error) {
	length, err := binary.ReadUvarint(u.in)
	if err != nil {
		return s, err
	}
	if same > uint64(len(u.last.path)) || length == 0 || length > maxSuffix || same+length > maxDeep {
		return s, errors.New("a path that cannot be")
	}
	suffix := make([]byte, length)
	if _, err := io.ReadFull(u.in, suffix); err != nil {
		return s, err
	}
	s.path = u.last.path[:same] + string(suffix)
	mode, err := binary.ReadUvarint(u.in)
	if err != nil {
		return s, err
	}
	inode, err := binary.ReadVarint(u.in)
	if err != nil {
		return s, err
	}
	size, err := binary.ReadUvarint(u.in)
	if err != nil {
		return s, err
	}
	changed, err := binary.ReadVarint(u.in)
	if mode > 1<<16-1 || size > 1<<62 {
		return s, errors.New("a number that cannot be")
	}
	s.mode, s.inode, s.size, s.changed = uint32(mode), u.last.inode+uint64(inode), int64(size), u.last.changed+changed
	return s, err
}
