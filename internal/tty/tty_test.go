// SPDX-License-Identifier: Apache-2.0

package tty

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestKeysAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want []byte
		ok   bool
	}{
		{"", nil, true},
		{"ctrl-p,ctrl-q", []byte{0x10, 0x11}, true},
		{"CTRL-P,a,Z,~", []byte{0x10, 'a', 'Z', '~'}, true},
		{"ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_", []byte{0, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f}, true},
		{",", nil, false},
		{"ctrl-", nil, false},
		{"ctrl-1", nil, false},
		{"ctrl-pq", nil, false},
		{"ab", nil, false},
		{"é", nil, false},
		{"\x10", nil, false},
		{"a,", nil, false},
	} {
		got, err := ParseKeys(tc.text)
		if !bytes.Equal(got, tc.want) || (err == nil) != tc.ok {
			t.Errorf("%q: %q, %v", tc.text, got, err)
		}
	}
}

func TestKeysDetachAndNothingElseIsLost(t *testing.T) {
	t.Parallel()
	detached := errors.New("detached")
	const pq, ppq = "\x10\x11", "\x10\x10\x11"
	for _, tc := range []struct {
		keys, typed, want string
		detaches          bool
	}{
		{pq, "", "", false},
		{pq, "abc", "abc", false},
		{pq, pq, "", true},
		{pq, "abc" + pq + "def", "abc", true},
		{pq, "\x10a\x10", "\x10a\x10", false}, // the last key is held back only while more may follow
		{pq, "\x11\x10", "\x11\x10", false},
		{pq, ppq, "\x10", true},
		{ppq, "\x10" + ppq, "\x10", true},
		{ppq, "\x10\x10a" + ppq, "\x10\x10a", true},
		{"aab", "aaaab", "aa", true},
		{"abab", "abaabab", "aba", true},
		{"x", "yx", "y", true},
		{"", pq, pq, false},
	} {
		for name, in := range map[string]io.Reader{"at once": strings.NewReader(tc.typed), "key by key": iotest.OneByteReader(strings.NewReader(tc.typed)), "with the end": iotest.DataErrReader(strings.NewReader(tc.typed))} {
			got, err := io.ReadAll(NewDetacher(in, []byte(tc.keys), detached))
			if string(got) != tc.want || errors.Is(err, detached) != tc.detaches || err != nil && !tc.detaches {
				t.Errorf("%q %s, keys %q: %q, %v", tc.typed, name, tc.keys, got, err)
			}
		}
	}
}

func TestTextDoesNotSpeakToTheTerminal(t *testing.T) {
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
			v := NewVisible(&out)
			for rest := []byte(in); len(rest) > 0; {
				n, err := v.Write(rest[:min(size, len(rest))])
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := v.Flush(); err != nil || out.String() != want {
				t.Errorf("%q by %d: %q, %v", in, size, out.String(), err)
			}
		}
	}
}

func TestTextFitsIntoColumns(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"", "      "}, {"abc", "abc   "}, {"abcdef", "abcdef"}, {"abcdefg", "abcde~"}, {"日本", "日本  "}, {"日本語", "日本語"}, {"日本語x", "日本~ "}, {"e\u0301tude", "e\u0301tude "},
	} {
		if got := Fit(tc.in, 6); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestOnlyTerminalsAreTerminals(t *testing.T) {
	t.Parallel()
	screen, line := open(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if !Is(line) || Is(null) || Is(strings.NewReader("")) || Is(nil) || Is((*os.File)(nil)) {
		t.Error("one is taken for another")
	}
	if _, ok := SizeOf(null, line, nil); ok {
		t.Error("a terminal without a size has one")
	}
	if err := pty.Setsize(screen, &pty.Winsize{Rows: 33, Cols: 111}); err != nil {
		t.Fatal(err)
	}
	if size, ok := SizeOf(null, nil, line); !ok || size != (Size{33, 111}) {
		t.Errorf("%v, %v", size, ok)
	}
}

func open(t *testing.T) (screen, line *os.File) {
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

func settings(t *testing.T, f *os.File) (s *unix.Termios) {
	t.Helper()
	err := control(f, func(fd int) (err error) {
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
	screen, line := open(t)
	odd := settings(t, line)
	odd.Cc[unix.VEOF], odd.Lflag = 5, odd.Lflag&^unix.ECHO // settings that no terminal has by default
	if err := control(line, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, odd) }); err != nil {
		t.Fatal(err)
	}
	restore, err := Raw(line)
	if err != nil {
		t.Fatal(err)
	}
	if raw := settings(t, line); raw.Lflag&(unix.ISIG|unix.ICANON) != 0 {
		t.Error("keys are still signals or lines")
	}
	restore()
	restore()
	if diff := cmp.Diff(odd, settings(t, line)); diff != "" {
		t.Error(diff)
	}

	s, err := OpenScreen(line, line)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Draw([]string{"one", "two", "three"}, 2); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if diff := cmp.Diff(odd, settings(t, line)); diff != "" {
		t.Error(diff)
	}
	const want = openScreen + "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J" + closeScreen
	got := make([]byte, len(want))
	if _, err := io.ReadFull(screen, got); err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	line.Close()
	restore() // on a terminal that has hung up
}

// This test is not parallel: the signal is for the whole process.
func TestTheSizeIsWatched(t *testing.T) {
	screen, line := open(t)
	resize := func(rows uint16) {
		if err := pty.Setsize(screen, &pty.Winsize{Rows: rows, Cols: 80}); err != nil {
			t.Fatal(err)
		}
	}
	resize(24)
	ctx, cancel := context.WithCancel(t.Context())
	sizes, done := make(chan Size), make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, func(s Size) { sizes <- s }, nil, line)
	}()
	if got := <-sizes; got != (Size{24, 80}) {
		t.Error(got)
	}
	resize(30)
	if err := unix.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if got := <-sizes; got != (Size{30, 80}) {
		t.Error(got)
	}
	cancel()
	<-done
}
