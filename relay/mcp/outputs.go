// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// OutputLimits limit the stored output, in bytes.
type OutputLimits struct {
	Stream int // of one stream: its beginning and its end are stored
	Total  int // of all streams; the oldest is dropped first
}

// DefaultOutputLimits are the limits of a server for a single client.
func DefaultOutputLimits() OutputLimits { return OutputLimits{Stream: 8 << 20, Total: 32 << 20} }

// outputScheme is the scheme of output URIs.
const outputScheme = "boxd"

// outputTemplate is the template of output URIs (RFC 6570).
const outputTemplate = outputScheme + "://output/{exec}/{stream}"

// outputStream collects one stream of a program, up to a maximum size. It is safe for concurrent use.
type outputStream struct {
	max int

	mu    sync.Mutex // guards the fields below
	head  []byte
	tail  []byte // what follows head, or its end
	total int64
}

// Write stores a piece, or of too much output the end.
func (s *outputStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += int64(len(p))
	n := min(len(p), s.max/2-len(s.head))
	s.head = append(s.head, p[:n]...)
	s.tail = append(s.tail, p[n:]...)
	if len(s.tail) > s.max { // keeps at least half of max
		s.tail = append(s.tail[:0], s.tail[len(s.tail)-s.max/2:]...)
	}
	return len(p), nil
}

// written returns how many bytes were ever written.
func (s *outputStream) written() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// lastLine returns the last non-empty line, at most 200 bytes of it.
func (s *outputStream) lastLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	tail := s.tail
	if len(tail) == 0 {
		tail = s.head
	}
	const maximum = 4096
	text := strings.TrimSpace(string(tail[max(0, len(tail)-maximum):]))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(text[:min(len(text), 200)], "\uFFFD")
}

// text returns at most limit bytes of the stored output: beginning and end of longer output, in whole lines if possible.
// truncated says that it is not all that was written. Invalid UTF-8 becomes U+FFFD.
func (s *outputStream) text(limit int) (text string, truncated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := int64(len(s.head) + len(s.tail))
	if stored == s.total && stored <= int64(limit) {
		return strings.ToValidUTF8(string(s.head)+string(s.tail), "\uFFFD"), false
	}
	head, tail := s.head, s.tail
	if len(tail) == 0 {
		tail = head[len(head)/2:]
		head = head[:len(head)/2]
	}
	head = wholeStart(head[:min(len(head), limit/2)])
	tail = wholeEnd(tail[max(0, len(tail)-limit/2):])
	missing := s.total - int64(len(head)+len(tail))
	between := "\n"
	if strings.HasSuffix(string(head), between) {
		between = ""
	}
	return strings.ToValidUTF8(fmt.Sprintf("%s%s[… %d bytes omitted …]\n%s", head, between, missing, tail), "\uFFFD"), true
}

// wholeStart drops an incomplete line at the end, unless that is most of the piece.
func wholeStart(b []byte) []byte {
	if i := strings.LastIndexByte(string(b), '\n'); i > len(b)/2 {
		return b[:i+1]
	}
	return b
}

// wholeEnd drops an incomplete line at the beginning, unless that is most of the piece.
func wholeEnd(b []byte) []byte {
	if i := strings.IndexByte(string(b), '\n'); i >= 0 && i < len(b)/2 {
		return b[i+1:]
	}
	return b
}

// size returns how many bytes are stored.
func (s *outputStream) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.head) + len(s.tail)
}

// outputs stores output that was too long for an answer, by URI and as long as there is room.
type outputs struct {
	limits OutputLimits

	mu      sync.Mutex // guards the fields below
	next    int
	streams map[string]*outputStream
	order   []string // the oldest first
}

// newOutputs returns an empty store.
func newOutputs(l OutputLimits) *outputs {
	return &outputs{limits: l, streams: map[string]*outputStream{}}
}

// newStream returns an empty stream, to be stored later with add.
func (s *outputs) newStream() *outputStream { return &outputStream{max: s.limits.Stream} }

// whole returns all stored text of a stream.
func (s *outputs) whole(of *outputStream) string {
	text, _ := of.text(s.limits.Stream)
	return text
}

// add stores the streams of one execution, and returns their URIs.
func (s *outputs) add(streams map[string]*outputStream) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	uris := map[string]string{}
	for _, name := range []string{"stdout", "stderr"} {
		if streams[name] == nil {
			continue
		}
		uri := fmt.Sprintf("%s://output/%d/%s", outputScheme, s.next, name)
		uris[name], s.streams[uri] = uri, streams[name]
		s.order = append(s.order, uri)
	}
	total := 0
	for i, key := range slices.Backward(s.order) {
		if total += s.streams[key].size(); total > s.limits.Total && i < len(s.order)-1 {
			for _, old := range s.order[:i+1] {
				delete(s.streams, old)
			}
			s.order = slices.Clone(s.order[i+1:])
			break
		}
	}
	return uris
}

// get returns the stream of a URI, nil if it is not stored.
func (s *outputs) get(uri string) *outputStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[uri]
}

// linesFrom returns count lines of a text from line first on, counted from 1, and the number of the next line, 0 if
// there is none.
func linesFrom(text string, first, count int) (lines string, next int) {
	n := 0
	var out strings.Builder
	for line := range strings.Lines(text) {
		n++
		switch {
		case n < first:
		case n >= first+count:
			return out.String(), n
		default:
			out.WriteString(line)
		}
	}
	return out.String(), 0
}
