// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Text from a box never controls the terminal it is shown on, however it is split into pieces, and nothing of it is missing.
func FuzzVisible(f *testing.F) {
	f.Add([]byte("\x1b]0;title\x07 \x9b31m \u0085 \u202e text\n"), 3)
	f.Add([]byte("é日本\xff\xe6\x97"), 7)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		var whole, pieces bytes.Buffer
		for to, parts := range map[*bytes.Buffer][][]byte{&whole: {text}, &pieces: {text[:max(0, min(cut, len(text)))], text[max(0, min(cut, len(text))):]}} {
			v := newVisible(to)
			for _, p := range parts {
				if n, err := v.Write(p); n != len(p) || err != nil {
					t.Fatalf("%d of %d, %v", n, len(p), err)
				}
			}
			if err := v.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(whole.Bytes(), pieces.Bytes()) {
			t.Errorf("%q in pieces is %q, in one %q", text, pieces.Bytes(), whole.Bytes())
		}
		if !utf8.Valid(whole.Bytes()) {
			t.Errorf("%q is shown as %q", text, whole.Bytes())
		}
		for _, r := range whole.String() {
			if r != '\n' && r != '\t' && !unicode.IsGraphic(r) { // spaces of any width are harmless
				t.Errorf("%q is shown with %q", text, r)
			}
		}
	})
}
