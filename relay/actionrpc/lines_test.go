// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEachLineIsAMessage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		in   []string // in pieces, as received
		want []string
		rest string // returned by a flush
	}{
		{"several at once", []string{"a\nb\nc"}, []string{"a\n", "b\n"}, "c"},
		{"one in pieces", []string{"a", "b", "c\n"}, []string{"abc\n"}, ""},
		{"empty ones", []string{"\n\n"}, []string{"\n", "\n"}, ""},
		{"a character in pieces", []string{"\xc3", "\xa4\n"}, []string{"ä\n"}, ""},
		{"half of one waits", []string{"x\xc3"}, nil, "x"},
		{"no text", []string{"\xff\n"}, []string{"\ufffd\n"}, ""},
	} {
		var l lines
		var got []string
		emit := func(s string) error { got = append(got, s); return nil }
		for _, in := range tc.in {
			if err := l.add([]byte(in), emit); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		got = nil
		if err := l.flush(false, emit); err != nil || strings.Join(got, "|") != tc.rest {
			t.Errorf(`%s: the rest is %q, %v, want no error and strings.Join(got, "|") == tc.rest`, tc.name, got, err)
		}
	}
}

func TestALineUpToTheBoundIsWholeAndALongerOneInPieces(t *testing.T) {
	t.Parallel()
	for _, size := range []int{maxFrame - 1, maxFrame, 3 * maxFrame} {
		var l lines
		var got []string
		emit := func(s string) error { got = append(got, s); return nil }
		line := strings.Repeat("ä", size/2) + strings.Repeat("x", size%2)
		for in := range slices.Chunk([]byte(line+"\nnext\n"), 10_001) {
			if err := l.add(in, emit); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Join(got, "") != line+"\nnext\n" || got[len(got)-1] != "next\n" {
			t.Errorf("%d bytes: something is lost, or joined", size)
		}
		if whole := len(line) < maxFrame; whole != (len(got) == 2) {
			t.Errorf("%d bytes: %d messages", size, len(got))
		}
		for _, s := range got {
			if len(s) > maxFrame || !utf8.ValidString(s) || strings.Contains(s, "\ufffd") {
				t.Errorf("%d bytes: a message of %d", size, len(s))
			}
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb"), 1)
	f.Add([]byte("\xc3\xa4\n\xff"), 2)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		var l lines
		var got strings.Builder
		emit := func(s string) error {
			if len(s) == 0 || len(s) > maxFrame || !utf8.ValidString(s) {
				t.Fatalf("a message of %d bytes", len(s))
			}
			if i := strings.IndexByte(s, '\n'); i >= 0 && i < len(s)-1 {
				t.Fatalf("two lines in %q", s)
			}
			got.WriteString(s)
			return nil
		}
		for in := range slices.Chunk(data, max(size&0xff, 1)) {
			if err := l.add(in, emit); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.flush(true, emit); err != nil {
			t.Fatal(err)
		}
		if utf8.Valid(data) && got.String() != string(data) {
			t.Fatalf("%q became %q", data, got.String())
		}
	})
}
