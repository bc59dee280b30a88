// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/internal/tty"
)

// Progress shows on standard error how much of a long transfer is through, on a terminal. It has no colours
// and no cursor movement but back to the beginning of its line. It is safe for concurrent use.
type Progress struct {
	to   io.Writer // nil: standard error is no terminal
	word string
	of   int64

	mu    sync.Mutex // guards the fields below
	n     int64
	shown int64
	width int
	over  bool
}

// progressStep is how much goes through between two lines, in bytes: a copy that takes no time says nothing.
const progressStep = 8 << 20

// progress begins one: word is what happens to the bytes, of how many there will be; 0: not known.
func (a *app) progress(word string, of int64) *Progress {
	p := &Progress{word: word, of: of}
	if tty.Is(a.stderr) {
		p.to = a.stderr
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
	if p.n += n; p.to == nil || p.over || p.n-p.shown < progressStep {
		return
	}
	p.shown = p.n
	p.show(p.line())
}

// line is what is shown.
func (p *Progress) line() string {
	const cells = 20
	at := quantity.Size(p.n - p.n%progressStep)
	if p.of <= 0 {
		return fmt.Sprintf("%s %v", p.word, at)
	}
	full := int(min(p.n, p.of) * cells / p.of)
	return fmt.Sprintf("%s [%s%s] %3d%% of %v", p.word, strings.Repeat("#", full), strings.Repeat(".", cells-full), min(p.n, p.of)*100/p.of, roundSize(p.of))
}

// roundSize is a size in as few digits as a person reads.
func roundSize(n int64) quantity.Size {
	if n > 4<<20 {
		n -= n % (1 << 20)
	}
	return quantity.Size(n)
}

func (p *Progress) show(line string) {
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
