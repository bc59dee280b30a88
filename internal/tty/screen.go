// SPDX-License-Identifier: Apache-2.0

package tty

import (
	"io"
	"os"
	"strings"
	"unicode"
)

// Sequences of every terminal of these days (ECMA-48 and xterm).
const (
	openScreen  = "\x1b[?1049h\x1b[?25l" // the other screen, without cursor
	closeScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	endOfLine   = "\x1b[K"
	endOfScreen = "\x1b[J"
)

// Screen is a whole terminal to draw on. What was there before comes back with Close.
type Screen struct {
	out     io.Writer
	restore func()
}

// OpenScreen takes the terminal of in and out; in may be none.
func OpenScreen(in, out any) (*Screen, error) {
	s := &Screen{restore: func() {}}
	s.out, _ = out.(io.Writer)
	if f, ok := in.(*os.File); ok && Is(f) {
		restore, err := Raw(f)
		if err != nil {
			return nil, err
		}
		s.restore = restore
	}
	if _, err := io.WriteString(s.out, openScreen); err != nil {
		s.restore()
		return nil, err
	}
	return s, nil
}

// Draw shows lines, as many as there are rows. None may be longer than the screen is wide.
func (s *Screen) Draw(lines []string, rows int) error {
	var b strings.Builder
	b.WriteString(home)
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

// Close gives the terminal back.
func (s *Screen) Close() {
	_, _ = io.WriteString(s.out, closeScreen) // it may have hung up
	s.restore()
}

// Cut is the beginning of a line that fits into so many columns.
func Cut(line string, cols int) string {
	for i, r := range line {
		if cols -= width(r); cols < 0 {
			return line[:i]
		}
	}
	return line
}

// Fit is text in exactly so many columns; what is cut off leaves a mark.
func Fit(text string, cols int) string {
	if n := columns(text); n <= cols {
		return text + strings.Repeat(" ", cols-n)
	}
	text = Cut(text, cols-1)
	return text + "~" + strings.Repeat(" ", cols-1-columns(text))
}

func columns(text string) (n int) {
	for _, r := range text {
		n += width(r)
	}
	return n
}

// width is how many columns a printable character takes: nothing, if it goes onto the one before it, and
// two for the scripts of East Asia and emoji.
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
