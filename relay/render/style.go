// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// palette paints words; the zero palette leaves them as they are.
type palette struct{ on bool }

// styleOf returns the palette for out: colours on a terminal that supports them, unless the user has disabled them
// (NO_COLOR, see no-color.org).
func styleOf(out any) palette {
	term := os.Getenv("TERM")
	return palette{on: IsTerminal(out) && os.Getenv("NO_COLOR") == "" && term != "" && term != "dumb"}
}

// Escape sequences of ECMA-48.
const (
	sgrBold   = "\x1b[1m"
	sgrRed    = "\x1b[31m"
	sgrYellow = "\x1b[33m"
	sgrReset  = "\x1b[0m"
)

// bold is for headings.
func (s palette) bold(text string) string { return s.with(sgrBold, text) }

// bad is for failures.
func (s palette) bad(text string) string { return s.with(sgrRed, text) }

// warn is for problems that are no failures.
func (s palette) warn(text string) string { return s.with(sgrYellow, text) }

func (s palette) with(sequence, text string) string {
	if !s.on || text == "" {
		return text
	}
	return sequence + text + sgrReset
}

// table is text in columns. It is painted after the layout, as a tabwriter counts escape sequences as columns.
type table struct {
	text bytes.Buffer
	*tabwriter.Writer
}

func newTable() *table {
	t := &table{}
	t.Writer = tabwriter.NewWriter(&t.text, 0, 0, 2, ' ', 0)
	return t
}

// print writes the table, each line painted by paint.
func (t *table) print(out io.Writer, paint func(i int, line string) string) error {
	if err := t.Flush(); err != nil {
		return err
	}
	i := 0
	for line := range strings.Lines(t.text.String()) {
		if _, err := fmt.Fprintln(out, paint(i, strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
		i++
	}
	return nil
}

// headed paints a table with a heading, and the cells of column in the lines that highlight lists.
func (s palette) headed(column string, highlight map[int]func(string) string) func(i int, line string) string {
	at := 0
	return func(i int, line string) string {
		if i == 0 {
			at = strings.Index(line, column)
			return s.bold(line)
		}
		paint, ok := highlight[i]
		if !ok {
			return line
		}
		cells := []rune(line) // a heading has one byte per column
		end := at
		for end < len(cells) && (cells[end] != ' ' || end+1 < len(cells) && cells[end+1] != ' ') { // two spaces end a cell
			end++
		}
		return string(cells[:at]) + paint(string(cells[at:end])) + string(cells[end:])
	}
}
