// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/isolation"
)

// truncate splits data as PID 1 does when it keeps head bytes of the beginning and tail bytes of the end.
func truncate(data []byte, head, tail int) (h, t []byte, end isolation.StreamEnd) {
	end.Total = uint64(len(data))
	if len(data) <= head+tail {
		return bytes.Clone(data), nil, end
	}
	end.CutFrom, end.CutTo = uint64(head), uint64(len(data)-tail)
	return bytes.Clone(data[:head]), bytes.Clone(data[len(data)-tail:]), end
}

func TestOutputKeepsBeginningAndEnd(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in         string
		head, tail int
		want       string
		omitted    uint64
	}{
		{"", 6, 4, "", 0},
		{"0123456789", 6, 4, "0123456789", 0},
		{"0123456789x", 6, 4, "012345\n... [1 bytes omitted] ...\n789x", 1},
		{strings.Repeat("a", 100), 6, 4, "aaaaaa\n... [90 bytes omitted] ...\naaaa", 90},
		{"abc", 0, 1, "\n... [2 bytes omitted] ...\nc", 2},
		// A character that would be cut is omitted as a whole, and counted.
		{"ééééé", 3, 3, "é\n... [6 bytes omitted] ...\né", 6},
		{"€€€€€", 4, 4, "€\n... [9 bytes omitted] ...\n€", 9},
		{"€€€€€", 5, 5, "€\n... [9 bytes omitted] ...\n€", 9},
		{"€€€€€", 6, 3, "€€\n... [6 bytes omitted] ...\n€", 6},
		{"😀😀😀", 1, 1, "\n... [12 bytes omitted] ...\n", 12},
		{"😀😀😀", 7, 3, "😀\n... [8 bytes omitted] ...\n", 8},
		// Bytes that are no valid character are kept as they are.
		{"\xff\xff\xff\xff\xff", 2, 2, "\xff\xff\n... [1 bytes omitted] ...\n\xff\xff", 1},
	} {
		head, tail, end := truncate([]byte(tc.in), tc.head, tc.tail)
		s := newStream(head, tail, end)
		if string(s.Data) != tc.want || s.Omitted != tc.omitted || s.Total != uint64(len(tc.in)) {
			t.Errorf("%q with %d and %d: %q, %d omitted", tc.in, tc.head, tc.tail, s.Data, s.Omitted)
		}
	}
}

// For any output the count is exact, and the cut breaks no character.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("hello, wörld €😀"), uint8(5), uint8(4))
	f.Add([]byte{0xf0, 0x9f, 0x98, 0x80, 0x80, 0x80}, uint8(2), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, headSize, tailSize uint8) {
		head, tail, end := truncate(data, int(headSize), int(tailSize))
		s := newStream(head, tail, end)
		if s.Omitted == 0 {
			if !bytes.Equal(s.Data, data) {
				t.Fatalf("%q became %q", data, s.Data)
			}
			return
		}
		marker := fmt.Appendf(nil, "\n... [%d bytes omitted] ...\n", s.Omitted)
		before, after, ok := bytes.Cut(s.Data, marker)
		if !ok || uint64(len(before)+len(after))+s.Omitted != uint64(len(data)) {
			t.Fatalf("%q of %q: %d omitted", s.Data, data, s.Omitted)
		}
		if !bytes.HasPrefix(data, before) || !bytes.HasSuffix(data, after) {
			t.Fatalf("%q is not the beginning and end of %q", s.Data, data)
		}
		if utf8.Valid(data) && !utf8.Valid(s.Data) {
			t.Fatalf("%q breaks a character of %q", s.Data, data)
		}
		if len(head)-len(before) >= utf8.UTFMax || len(tail)-len(after) >= utf8.UTFMax {
			t.Fatalf("%q has lost more than a character of %q", s.Data, data)
		}
	})
}
