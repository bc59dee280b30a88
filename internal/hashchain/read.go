// SPDX-License-Identifier: Apache-2.0

package hashchain

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Names of the files of a log: the number is that of the first record in it.
const (
	filePrefix = "audit-"
	fileSuffix = ".log"
	fileDigits = 20
)

// FileName returns the name of the file that begins with a record.
func FileName(first uint64) string {
	return fmt.Sprintf("%s%0*d%s", filePrefix, fileDigits, first, fileSuffix)
}

// FirstOf returns the number in the name of a file, 0 if it is no file of a log.
func FirstOf(name string) uint64 {
	digits, ok := strings.CutPrefix(name, filePrefix)
	digits, ok2 := strings.CutSuffix(digits, fileSuffix)
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || !ok2 || err != nil || FileName(n) != name {
		return 0
	}
	return n
}

// Files lists the files of a log, the oldest first.
func Files(dir fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if FirstOf(e.Name()) > 0 && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names) // sorting as text works, as all numbers have the same width
	return names, nil
}

// Line is one line of a file.
type Line struct {
	Text   []byte // without its newline; valid until the next line; nil if it has no newline or is longer than MaxLine
	Number int    // line number in its file, from 1
	Offset int64  // of its first byte
	Size   int64  // including its newline, if it has one
	Ended  bool   // it has a newline; only the last line of a file may have none
	Link   Link
	Err    error // why it is no record of a chain
}

// Lines calls visit for each line of a file, until there are no more or visit fails.
func Lines(r io.Reader, visit func(*Line) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	offset := int64(0)
	var text []byte
	for number := 1; ; number++ {
		text = text[:0]
		tooLong, size := false, int64(0)
		var err error
		for {
			var part []byte
			part, err = in.ReadSlice('\n')
			size += int64(len(part))
			if tooLong = tooLong || size > MaxLine; !tooLong {
				text = append(text, part...)
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if size == 0 {
			return nil
		}
		line := Line{Number: number, Offset: offset, Size: size, Ended: err == nil, Err: errEdited}
		if offset += size; line.Ended && !tooLong {
			line.Text = text[:len(text)-1]
			line.Link, line.Err = Unseal(line.Text)
		}
		if err := visit(&line); err != nil {
			return err
		}
		if err != nil {
			return nil //nolint:nilerr // the end of the file
		}
	}
}
