// SPDX-License-Identifier: Apache-2.0

package render

import (
	"io"
	"os"
	"strings"
	"unicode"
)

// Control sequences that every modern terminal supports (ECMA-48 and xterm).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // alternate screen, hidden cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	endOfLine   = "\x1b[K"
	endOfScreen = "\x1b[J"
)

// screen is a whole terminal to draw on. Close restores what was there before.
type screen struct {
	out     io.Writer
	restore func()
}

// newScreen takes over the terminal of in and out; in may be no terminal.
func newScreen(in, out any) (*screen, error) {
	s := &screen{restore: func() {}}
	s.out, _ = out.(io.Writer)
	if f, ok := in.(*os.File); ok && IsTerminal(f) {
		restore, err := RawMode(f)
		if err != nil {
			return nil, err
		}
		s.restore = restore
	}
	if _, err := io.WriteString(s.out, enterScreen); err != nil {
		s.restore()
		return nil, err
	}
	return s, nil
}

// draw shows the first rows of lines. None may be wider than the screen.
func (s *screen) draw(lines []string, rows int) error {
	var b strings.Builder
	b.WriteString(cursorHome)
	for i, line := range lines[:min(len(lines), rows)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString(endOfLine)
	}
	b.WriteString(endOfScreen)
	_, err := io.WriteString(s.out, b.String())
	return err
}

// Close restores the terminal.
func (s *screen) Close() {
	_, _ = io.WriteString(s.out, leaveScreen) // fails if the terminal has hung up
	s.restore()
}

// cutColumns returns the beginning of a line that fits into cols columns.
func cutColumns(line string, cols int) string {
	for i, r := range line {
		if cols -= width(r); cols < 0 {
			return line[:i]
		}
	}
	return line
}

// fitColumns returns text in exactly cols columns, with a mark if it is cut off.
func fitColumns(text string, cols int) string {
	if n := columns(text); n <= cols {
		return text + strings.Repeat(" ", cols-n)
	}
	text = cutColumns(text, cols-1)
	return text + "~" + strings.Repeat(" ", cols-1-columns(text))
}

func columns(text string) (n int) {
	for _, r := range text {
		n += width(r)
	}
	return n
}

// width returns how many columns a printable character takes: none for one that combines with the
// one before, and two for East Asian scripts and emoji.
func width(r rune) int {
	switch {
	case unicode.Is(unicode.Mn, r):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}
