// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"fmt"
	"strings"
	"testing"
)

const maxStream, maxTotal = 8 << 20, 32 << 20

func written(pieces ...string) *outputStream {
	s := &outputStream{max: maxStream}
	for _, p := range pieces {
		if n, err := s.Write([]byte(p)); n != len(p) || err != nil {
			panic(err)
		}
	}
	return s
}

func TestLongTextHasItsBeginningAndItsEnd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stream *outputStream
		limit  int
		want   string
		cut    bool
	}{
		"nothing":       {written(), 10, "", false},
		"short":         {written("one\n", "two\n"), 8, "one\ntwo\n", false},
		"lines":         {written("one\ntwo\nthree\nfour\nfive\n"), 16, "one\ntwo\n[… 11 bytes omitted …]\nfive\n", true},
		"one long line": {written(strings.Repeat("a", 10) + strings.Repeat("b", 10)), 10, "aaaaa\n[… 10 bytes omitted …]\nbbbbb", true},
		"no text":       {written("\xff\xfe"), 10, "\uFFFD", false},
		"a cut rune":    {written(strings.Repeat("é", 20)), 6, "é\uFFFD\n[… 34 bytes omitted …]\n\uFFFDé", true},
	} {
		if got, cut := tc.stream.text(tc.limit); got != tc.want || cut != tc.cut {
			t.Errorf("%s: got %q, cut = %v, want got == %q and cut == %v", name, got, cut, tc.want, tc.cut)
		}
	}
}

func TestAStreamHoldsOnlySoMuch(t *testing.T) {
	t.Parallel()
	s := written("begin")
	line := []byte(strings.Repeat("x", 1<<20))
	for range 3 * maxStream >> 20 {
		_, _ = s.Write(line)
	}
	_, _ = s.Write([]byte("end\n"))
	text, cut := s.text(maxStream)
	total := int64(3*maxStream + len("beginend\n"))
	if !cut || !strings.HasPrefix(text, "begin") || !strings.HasSuffix(text, "xend\n") || len(text) > maxStream+100 || s.written() != total {
		t.Errorf("%d bytes of %d, %v", len(text), s.written(), cut)
	}
	if !strings.Contains(text, fmt.Sprintf("[… %d bytes omitted …]", total-maxStream)) {
		t.Error("the text does not say how many bytes are omitted")
	}
	if got := s.lastLine(); len(got) > 200 || !strings.HasSuffix(strings.Repeat("x", 300), got[:10]) {
		t.Errorf(`the last line is %q, want len(got) <= 200 and strings.Repeat("x", 300) ending with got[:10]`, got)
	}
}

func TestTheLastNonBlankLineIsReturned(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "\n\n": "", "one\ntwo\n\n": "two", "one\ntw": "tw", "\xff": "\uFFFD"} {
		if got := written(text).lastLine(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestTheOldestStoredOutputIsEvictedFirst(t *testing.T) {
	t.Parallel()
	store := newOutputs(DefaultOutputLimits())
	full := strings.Repeat("x", maxStream)
	var uris []string
	for range maxTotal/maxStream + 1 {
		uris = append(uris, store.add(map[string]*outputStream{"stdout": written(full)})["stdout"])
	}
	if store.get(uris[0]) != nil {
		t.Error("the oldest output was not removed")
	}
	for _, uri := range uris[1:] {
		if store.get(uri) == nil {
			t.Errorf("%s was removed", uri)
		}
	}
	if store.get("boxd://output/99/stdout") != nil || store.get("") != nil {
		t.Error("an output was found that was never stored")
	}
	both := store.add(map[string]*outputStream{"stdout": written("a"), "stderr": written("b")})
	if len(both) != 2 || both["stdout"] == both["stderr"] {
		t.Errorf(`both = %v, want len(both) == 2 and both["stdout"] != both["stderr"]`, both)
	}
}

func TestLinesAreCountedFromOne(t *testing.T) {
	t.Parallel()
	const text = "one\ntwo\nthree\nfour"
	for _, tc := range []struct {
		first, count int
		want         string
		next         int
	}{
		{1, 2, "one\ntwo\n", 3}, {3, 2, "three\nfour", 0}, {4, 1, "four", 0}, {5, 9, "", 0}, {1, 4, text, 0},
	} {
		if got, next := linesFrom(text, tc.first, tc.count); got != tc.want || next != tc.next {
			t.Errorf("%d lines from %d: got %q, next = %d, want got == %q and next == %v",
				tc.count, tc.first, got, next, tc.want, tc.next)
		}
	}
}
