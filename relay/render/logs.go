// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/boxd-dev/boxd/relay/api"
)

// Logs prints pieces of the output of a process.
type Logs struct {
	timestamps bool
	to         [2]io.Writer
	inLine     [2]bool // the last printed line has no line end yet
	notes      io.Writer
}

// NewLogs returns Logs for output and errors. Control characters reach a terminal only if raw is set.
func NewLogs(stdout, stderr io.Writer, timestamps, raw bool) *Logs {
	p := &Logs{timestamps: timestamps, to: [2]io.Writer{stdout, stderr}, notes: stderr}
	for i, w := range p.to {
		if !raw && IsTerminal(w) {
			p.to[i] = newVisible(w)
		}
	}
	return p
}

// Print prints one piece.
func (p *Logs) Print(l *api.LogLine) error {
	i := 0
	if l.Stream == "stderr" {
		i = 1
	}
	if l.Gap > 0 {
		if p.inLine[i] {
			p.inLine[i] = false
			fmt.Fprintln(p.to[i])
		}
		fmt.Fprintf(p.notes, "boxctl: %d bytes of %s are no longer stored\n", l.Gap, l.Stream)
		return nil
	}
	if !p.timestamps {
		_, err := io.WriteString(p.to[i], l.Data)
		return err
	}
	stamp := l.Time.UTC().Format("2006-01-02T15:04:05.000Z ")
	var out bytes.Buffer
	for line := range bytes.Lines([]byte(l.Data)) {
		if !p.inLine[i] {
			out.WriteString(stamp)
		}
		out.Write(line)
		p.inLine[i] = line[len(line)-1] != '\n'
	}
	_, err := p.to[i].Write(out.Bytes())
	return err
}

// Flush ends the output.
func (p *Logs) Flush() error {
	var errs []error
	for _, w := range p.to {
		if v, ok := w.(*visible); ok {
			errs = append(errs, v.Flush())
		}
	}
	return errors.Join(errs...)
}
