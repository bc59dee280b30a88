// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// visible writes text to a terminal that cannot control the terminal: unprintable characters are shown as \x1b, \u202e
// and the like, except for newline and tab. An incomplete character at the end of a Write waits for its rest.
// character at the end of a Write waits for its rest.
type visible struct {
	to   io.Writer
	rest []byte
}

// newVisible returns a visible that writes to to.
func newVisible(to io.Writer) *visible { return &visible{to: to} }

// Write writes all of p except an incomplete character at its end.
func (v *visible) Write(p []byte) (int, error) {
	text := append(v.rest, p...)
	out := make([]byte, 0, len(text)+len(text)/8)
	for len(text) > 0 && utf8.FullRune(text) {
		r, n := utf8.DecodeRune(text)
		out = appendVisible(out, r, text[:n])
		text = text[n:]
	}
	v.rest = append([]byte(nil), text...)
	if _, err := v.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes an incomplete character whose rest will not come.
func (v *visible) Flush() error {
	var out []byte
	for _, b := range v.rest {
		out = appendVisible(out, utf8.RuneError, []byte{b})
	}
	v.rest = nil
	_, err := v.to.Write(out)
	return err
}

func appendVisible(out []byte, r rune, encoded []byte) []byte {
	switch {
	case r == '\n' || r == '\t':
		return append(out, byte(r))
	case r == utf8.RuneError && len(encoded) == 1 || r < 0x20 || r == 0x7f:
		return fmt.Appendf(out, `\x%02x`, encoded[0])
	case !strconv.IsGraphic(r) && r > 0xffff:
		return fmt.Appendf(out, `\U%08x`, r)
	case !strconv.IsGraphic(r):
		return fmt.Appendf(out, `\u%04x`, r)
	}
	return append(out, encoded...)
}
