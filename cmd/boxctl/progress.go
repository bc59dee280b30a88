// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/render"
)

// Progress shows on standard error how much of a long transfer is through, on a terminal. It has no colours
// and no cursor movement but back to the beginning of its line. It is safe for concurrent use.
type Progress struct {
	to    io.Writer // nil: standard error is no terminal, or nobody wants to see it
	cols  int       // of the terminal; 0: not known
	word  string    // what happens to the bytes
	after string    // what happens when all of them are through, "" if that is all
	of    int64     // how many there will be; 0: not known
	now   func() time.Time

	mu    sync.Mutex // guards the fields below
	began time.Time
	shown time.Time // zero: it has not been yet
	n     int64
	width int // of the line that is there
	over  bool
}

const (
	progressDelay = 500 * time.Millisecond // before the first line: what takes no time says nothing
	progressPace  = 200 * time.Millisecond // between two lines
)

// addQuiet is for commands that show progress.
func (a *app) addQuiet(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&a.quiet, "quiet", "q", false, what)
}

// showsProgress says whether somebody looks on.
func (a *app) showsProgress() bool { return !a.quiet && !a.json && render.IsTerminal(a.stderr) }

// progress begins one: word is what happens to the bytes, of how many there will be; 0: not known.
func (a *app) progress(word string, of int64) *Progress {
	p := &Progress{word: word, of: of, now: time.Now, began: time.Now()}
	if a.showsProgress() {
		p.to = a.stderr
		size, _ := render.SizeOfTerminal(a.stderr)
		p.cols = int(size.Cols)
	}
	return p
}

// Write counts what goes through.
func (p *Progress) Write(b []byte) (int, error) {
	p.add(int64(len(b)))
	return len(b), nil
}

// add counts bytes.
func (p *Progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += n
	if p.to == nil || p.over {
		return
	}
	now := p.now()
	if since := now.Sub(p.began); since < progressDelay || now.Sub(p.shown) < progressPace {
		return
	}
	p.shown = now
	p.show(p.line(now.Sub(p.began)))
}

// through says that all bytes are: what happens now takes as long as it takes.
func (p *Progress) through() {
	if p.after == "" {
		p.end()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to != nil && !p.over {
		p.show(p.after)
	}
}

// line is what is shown after some time.
func (p *Progress) line(after time.Duration) string {
	const cells = 20
	rate, speed := float64(p.n)/after.Seconds(), ""
	if rate >= 1 {
		speed = fmt.Sprintf("  %v/s", roundSize(int64(rate)))
	}
	if p.of <= 0 {
		return fmt.Sprintf("%s %v%s", p.word, roundSize(p.n), speed)
	}
	n := min(p.n, p.of)
	full := int(n * cells / p.of)
	line := fmt.Sprintf("%s [%s%s] %3d%% of %v%s", p.word, strings.Repeat("#", full), strings.Repeat(".", cells-full), n*100/p.of, roundSize(p.of), speed)
	if left := float64(p.of-n) / rate; rate >= 1 && left >= 1 {
		line += fmt.Sprintf("  %v left", quantity.Duration(time.Duration(left)*time.Second))
	}
	return line
}

// roundSize is a size in as few digits as a person reads.
func roundSize(n int64) quantity.Size {
	for unit := int64(1 << 40); unit > 1; unit >>= 10 {
		if n > 4*unit {
			return quantity.Size(n - n%unit)
		}
	}
	return quantity.Size(n)
}

func (p *Progress) show(line string) {
	if p.cols > 1 {
		line = line[:min(len(line), p.cols-1)]
	}
	fmt.Fprintf(p.to, "\r%s%s", line, strings.Repeat(" ", max(0, p.width-len(line))))
	p.width = len(line)
}

// end takes the line back. It may be called more than once.
func (p *Progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over = true; p.width > 0 {
		p.show("")
		fmt.Fprintf(p.to, "\r")
		p.width = 0
	}
}
