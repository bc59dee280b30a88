// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestControlCharactersInTextAreEscaped(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\ttext\n":           "plain\ttext\n",
		"é 日本 😀\u00a0":            "é 日本 😀\u00a0",
		"\x1b[31mred\x1b[0m":      `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\a":          `\x1b]0;title\x07`,
		"a\rb\b\x7f\x00":          `a\x0db\x08\x7f\x00`,
		"\u009b31m\u0085":         `\u009b31m\u0085`, // CSI as a single character
		"\u202eabc\u2066\u200b":   `\u202eabc\u2066\u200b`,
		"\xff\xc3(\xe6\x97":       `\xff\xc3(\xe6\x97`,
		"\ufffd":                  "\ufffd",
		"\U000e0041 tag, \ue000 ": `\U000e0041 tag, \ue000 `,
		"\u2028":                  `\u2028`,
	} {
		for _, size := range []int{1, 2, 3, len(in)} {
			var out bytes.Buffer
			v := newVisible(&out)
			for rest := []byte(in); len(rest) > 0; {
				n, err := v.Write(rest[:min(size, len(rest))])
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := v.Flush(); err != nil || out.String() != want {
				t.Errorf("%q by %d: out = %q, err = %v, want no error and out.String() == %q",
					in, size, out.String(), err, want)
			}
		}
	}
}

func TestTextFitsIntoColumns(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"", "      "}, {"abc", "abc   "}, {"abcdef", "abcdef"}, {"abcdefg", "abcde~"}, {"日本", "日本  "}, {"日本語", "日本語"}, {"日本語x", "日本~ "}, {"e\u0301tude", "e\u0301tude "},
	} {
		if got := fitColumns(tc.in, 6); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestOnlyTerminalsAreTerminals(t *testing.T) {
	t.Parallel()
	screen, line := openTerminal(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if !IsTerminal(line) || IsTerminal(null) || IsTerminal(strings.NewReader("")) || IsTerminal(nil) || IsTerminal((*os.File)(nil)) {
		t.Error("IsTerminal is wrong about the terminal or about what is none")
	}
	if _, ok := SizeOfTerminal(null, line, nil); ok {
		t.Error("SizeOfTerminal returned a size for what has none")
	}
	if err := pty.Setsize(screen, &pty.Winsize{Rows: 33, Cols: 111}); err != nil {
		t.Fatal(err)
	}
	if size, ok := SizeOfTerminal(null, nil, line); !ok || size != (TerminalSize{33, 111}) {
		t.Errorf("size = %v, ok = %v, want ok == true and size == TerminalSize{33, 111}", size, ok)
	}
}

func openTerminal(t *testing.T) (screen, line *os.File) {
	t.Helper()
	screen, line, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		line.Close()
		screen.Close()
	})
	return screen, line
}

func termios(t *testing.T, f *os.File) (s *unix.Termios) {
	t.Helper()
	err := withDescriptor(f, func(fd int) (err error) {
		s, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheTerminalIsRestored(t *testing.T) {
	t.Parallel()
	screen, line := openTerminal(t)
	odd := termios(t, line)
	odd.Cc[unix.VEOF], odd.Lflag = 5, odd.Lflag&^unix.ECHO // unusual terminal settings
	if err := withDescriptor(line, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, odd) }); err != nil {
		t.Fatal(err)
	}
	restore, err := RawMode(line)
	if err != nil {
		t.Fatal(err)
	}
	if raw := termios(t, line); raw.Lflag&(unix.ISIG|unix.ICANON) != 0 {
		t.Error("the terminal still has ISIG or ICANON")
	}
	restore()
	restore()
	if diff := cmp.Diff(odd, termios(t, line)); diff != "" {
		t.Error(diff)
	}

	s, err := newScreen(line, line)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.draw([]string{"one", "two", "three"}, 2); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if diff := cmp.Diff(odd, termios(t, line)); diff != "" {
		t.Error(diff)
	}
	const want = enterScreen + "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J" + leaveScreen
	got := make([]byte, len(want))
	if _, err := io.ReadFull(screen, got); err != nil || string(got) != want {
		t.Errorf("got %q, err = %v, want no error and got == want", got, err)
	}
	line.Close()
	restore() // on a terminal that was hung up
}

// This test is not parallel: the signal is for the whole process.
func TestTheSizeIsWatched(t *testing.T) {
	screen, line := openTerminal(t)
	resize := func(rows uint16) {
		if err := pty.Setsize(screen, &pty.Winsize{Rows: rows, Cols: 80}); err != nil {
			t.Fatal(err)
		}
	}
	resize(24)
	ctx, cancel := context.WithCancel(t.Context())
	sizes, done := make(chan TerminalSize), make(chan struct{})
	go func() {
		defer close(done)
		WatchSize(ctx, func(s TerminalSize) { sizes <- s }, nil, line)
	}()
	if got := <-sizes; got != (TerminalSize{24, 80}) {
		t.Error(got)
	}
	resize(30)
	if err := unix.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if got := <-sizes; got != (TerminalSize{30, 80}) {
		t.Error(got)
	}
	cancel()
	<-done
}
