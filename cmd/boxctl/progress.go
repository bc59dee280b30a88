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

// Progress shows the progress of a long transfer on standard error, if that is a terminal. It uses no colours, and as
// cursor movement only the return to the beginning of its line. It is safe for concurrent use.
type Progress struct {
	to    io.Writer // nil: standard error is no terminal, or progress is off
	cols  int       // of the terminal; 0: unknown
	word  string    // what happens to the bytes
	after string    // what happens after the last byte, "": nothing
	total int64     // total number; 0: unknown
	now   func() time.Time

	mu       sync.Mutex // guards the fields below
	start    time.Time
	shown    time.Time // zero: not yet
	n        int64
	width    int // of the present line
	finished bool
}

const (
	progressDelay = 500 * time.Millisecond // before the first line: short transfers print nothing
	progressPace  = 200 * time.Millisecond // between two lines
)

// addQuiet is for commands that show progress.
func (a *app) addQuiet(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&a.quiet, "quiet", "q", false, what)
}

// showsProgress reports whether progress is shown.
func (a *app) showsProgress() bool { return !a.quiet && !a.json && render.IsTerminal(a.stderr) }

// progress starts a Progress: word is what happens to the bytes, of is their number, 0: unknown.
func (a *app) progress(word string, total int64) *Progress {
	p := &Progress{word: word, total: total, now: time.Now, start: time.Now()}
	if a.showsProgress() {
		p.to = a.stderr
		size, _ := render.SizeOfTerminal(a.stderr)
		p.cols = int(size.Cols)
	}
	return p
}

// Write counts bytes.
func (p *Progress) Write(b []byte) (int, error) {
	p.add(int64(len(b)))
	return len(b), nil
}

// add counts bytes.
func (p *Progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += n
	if p.to == nil || p.finished {
		return
	}
	now := p.now()
	if since := now.Sub(p.start); since < progressDelay || now.Sub(p.shown) < progressPace {
		return
	}
	p.shown = now
	p.show(p.line(now.Sub(p.start)))
}

// bytesDone marks the end of the bytes: the time of what follows is unknown.
func (p *Progress) bytesDone() {
	if p.after == "" {
		p.end()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to != nil && !p.finished {
		p.show(p.after)
	}
}

// line returns the line to show after some time.
func (p *Progress) line(after time.Duration) string {
	const cells = 20
	rate, speed := float64(p.n)/after.Seconds(), ""
	if rate >= 1 {
		speed = fmt.Sprintf("  %v/s", roundSize(int64(rate)))
	}
	if p.total <= 0 {
		return fmt.Sprintf("%s %v%s", p.word, roundSize(p.n), speed)
	}
	n := min(p.n, p.total)
	full := int(n * cells / p.total)
	line := fmt.Sprintf("%s [%s%s] %3d%% of %v%s", p.word, strings.Repeat("#", full), strings.Repeat(".", cells-full), n*100/p.total, roundSize(p.total), speed)
	if left := float64(p.total-n) / rate; rate >= 1 && left >= 1 {
		line += fmt.Sprintf("  %v left", quantity.Duration(time.Duration(left)*time.Second))
	}
	return line
}

// roundSize rounds a size to few digits.
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

// end erases the line. It may be called more than once.
func (p *Progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished = true; p.width > 0 {
		p.show("")
		fmt.Fprintf(p.to, "\r")
		p.width = 0
	}
}
