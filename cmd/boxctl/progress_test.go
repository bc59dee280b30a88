// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestProgressIsOneLineThatGoes(t *testing.T) {
	t.Parallel()
	const most = 20 // columns
	for _, tc := range []struct {
		of   int64
		cols int
		add  []int64 // a quarter of a second apart
		want []string
	}{
		{of: 0, add: []int64{1 << 20}},
		{of: 0, add: []int64{2 << 20, 0}, want: []string{"sent 2MiB  4MiB/s"}}, // nothing in the first half second
		{of: 0, add: []int64{8 << 20, 0, 16 << 20}, want: []string{"sent 8MiB  16MiB/s", "sent 24MiB  32MiB/s"}},
		{of: 32 << 20, add: []int64{4 << 20, 4 << 20, 0, 8 << 20}, want: []string{
			"sent [#####...............]  25% of 32MiB  16MiB/s  1s left", "sent [#####...............]  25% of 32MiB  10MiB/s  2s left",
			"sent [##########..........]  50% of 32MiB  16MiB/s  1s left",
		}},
		{of: 8 << 20, add: []int64{0, 9 << 20}, want: []string{"sent [####################] 100% of 8MiB  18MiB/s"}}, // more than announced
		{of: 100, add: []int64{0, 1}, want: []string{"sent [....................]   1% of 100B  2B/s  49s left"}},
		{of: 100, add: []int64{0, 0}, want: []string{"sent [....................]   0% of 100B"}},
		{of: 32 << 20, cols: most, add: []int64{0, 16 << 20}, want: []string{"sent [##########..."}},
	} {
		var out bytes.Buffer
		now := time.Unix(1e9, 0)
		p := &Progress{to: &out, word: "sent", total: tc.of, cols: tc.cols, start: now, now: func() time.Time { return now }}
		for _, n := range tc.add {
			now = now.Add(250 * time.Millisecond)
			p.add(n)
		}
		p.end()
		p.add(1 << 30)
		p.end()
		var got []string
		for line := range strings.SplitSeq(out.String(), "\r") {
			if line = strings.TrimRight(line, " "); line != "" {
				got = append(got, line)
			}
		}
		if strings.Join(got, "|") != strings.Join(tc.want, "|") || len(got) > 0 && !strings.HasSuffix(out.String(), " \r") || strings.Contains(out.String(), "\x1b") {
			t.Errorf(`%+v: out = %q, want strings.Join(got, "|") == strings.Join(tc.want, "|") and (len(got) == 0 or out.String() ending with " \r") and out.String() without "\x1b"`,
				tc, out.String())
		}
	}
}

func TestProgressIsForWhoLooksOn(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := (&app{stderr: &out}).progress("sent", 1)
	p.start = time.Now().Add(-time.Hour)
	p.add(1 << 30)
	p.end()
	if out.Len() > 0 {
		t.Errorf("without a terminal the progress is %q, want out.Len() <= 0", out.String())
	}
}

// A sender may still be reading while the answer is shown, and afterwards: its progress must not be written into that.
func TestProgressEndsWhoeverReadsOn(t *testing.T) {
	t.Parallel()
	var shown bytes.Buffer
	p := &Progress{to: &shown, word: "sent", after: "unpacking", now: time.Now} // started long ago
	r := &countedReader{bytes.NewReader(make([]byte, 10<<20)), p}
	piece := make([]byte, 1<<20)
	if _, err := io.ReadFull(r, piece); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	others.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{r}) })
	p.end()
	text := shown.String()
	others.Wait()
	if shown.String() != text || !strings.HasSuffix(text, " \r") {
		t.Errorf("showed %q, and in the end %q", text, shown.String())
	}
	shown.Reset()
	p = &Progress{to: &shown, word: "sent", after: "unpacking", now: time.Now}
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{&countedReader{bytes.NewReader(make([]byte, 10)), p}}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(strings.TrimRight(shown.String(), " "), "\runpacking") {
		t.Errorf("when all has been read it shows %q", shown.String())
	}
}

// A user sees the progress of a transfer, but not with JSON output or --quiet.
func TestATerminalShowsProgress(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	slow := func(command string) string {
		t.Helper()
		// An archive that takes time: more of it than a pipe holds, so that reading has started, and the rest more than half a
		// second later.
		cmd := commandOf(t, d, "/bin/sh", "-c", `(printf hello >f; tar -cf - f; head -c 1000000 /dev/zero; sleep 0.7; head -c 100000 /dev/zero) | "$0" `+command+`; echo done`, boxtest.Programs(t)+"/boxctl")
		cmd.Dir = t.TempDir()
		term := onTerminal(t, cmd)
		term.shows("done")
		term.ends(0)
		return strings.TrimSuffix(term.text(), "done\n")
	}
	if text := slow(`images import - --name mine:1`); !strings.Contains(text, "\rsent ") || !strings.Contains(text, "\runpacking") || !strings.Contains(text, "\rmine:1 sha256:") {
		t.Errorf("it shows %q", text)
	}
	if text := slow(`images import - --name mine:1 -q`); text != "mine:1\n" {
		t.Errorf("with -q it shows %q", text)
	}
	if text := slow(`images import - --name mine:1 --json`); strings.Contains(text, "\r") || !strings.HasPrefix(text, "{") {
		t.Errorf("with --json it shows %q", text)
	}
	session(t, d, "images", "rm", "mine:1")
	d.NothingLeft(before)
}
