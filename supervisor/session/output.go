// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
)

// Stream is what is kept of one output stream of an execution.
type Stream struct {
	Data    []byte // the beginning, a line that marks the cut if there is one, and the end
	Total   uint64 // bytes the program wrote
	Omitted uint64 // bytes of them that are not in Data
}

// newStream joins what was kept. It drops parts of UTF-8 characters on either side of a cut.
func newStream(head, tail []byte, end isolation.StreamEnd) Stream {
	s := Stream{Data: head, Total: end.Total}
	if end.CutTo == end.CutFrom {
		return s
	}
	head, tail = output.Whole(head), trimStart(tail)
	s.Omitted = end.Total - uint64(len(head)+len(tail))
	s.Data = append(head, s.Mark()...)
	s.Data = append(s.Data, tail...)
	return s
}

// Mark is the line that stands for the omitted output.
func (s *Stream) Mark() []byte { return fmt.Appendf(nil, "\n... [%d bytes omitted] ...\n", s.Omitted) }

// trimStart drops the rest of a character at the beginning: at most three bytes that do not start one.
func trimStart(b []byte) []byte {
	rest := min(utf8.UTFMax, len(b))
	for i := range rest {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	if rest < utf8.UTFMax {
		return nil
	}
	return b
}
