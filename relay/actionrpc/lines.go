// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"

	"github.com/boxd-dev/boxd/isolation/output"
)

// Limits of what a client accepts.
const (
	maxFrame = 1 << 20  // a longer frame makes the client hang up
	piece    = 64 << 10 // of a line that is too long
)

// lines turns output into messages: each is a line with its line end. A line that is too long for any client comes in
// pieces, which clients ignore.
type lines struct {
	rest    []byte // of the unfinished line
	tooLong bool   // pieces of the line have been sent
}

// add takes output, and emits complete lines.
func (l *lines) add(data []byte, emit func(text string) error) error {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n') + 1
		whole := end > 0
		if !whole {
			end = len(data)
		}
		l.rest, data = append(l.rest, data[:end]...), data[end:]
		switch {
		case whole:
			if err := l.flush(true, emit); err != nil {
				return err
			}
		case len(l.rest) > maxFrame:
			l.tooLong = true
			if err := l.emitPieces(piece, emit); err != nil {
				return err
			}
		}
	}
	return nil
}

// waits reports whether there is an unfinished line.
func (l *lines) waits() bool { return len(l.rest) > 0 }

// flush emits the buffered text; all says that no more bytes of an incomplete character will come.
func (l *lines) flush(all bool, emit func(text string) error) error {
	ready := l.rest
	if !all {
		ready = output.Whole(l.rest)
	}
	if len(ready) == 0 {
		return nil
	}
	if text := validText(ready); !l.tooLong && len(text) <= maxFrame {
		l.rest = append(l.rest[:0], l.rest[len(ready):]...)
		return emit(text)
	}
	if err := l.emitPieces(1, emit); err != nil {
		return err
	}
	if all {
		l.tooLong = false
		l.rest = l.rest[:0]
	}
	return nil
}

// emitPieces emits pieces until fewer than minimum bytes are left. No piece ends inside a character, and each invalid byte
// becomes three.
func (l *lines) emitPieces(minimum int, emit func(text string) error) error {
	for len(l.rest) >= minimum {
		n := min(piece, len(l.rest))
		if whole := len(output.Whole(l.rest[:n])); whole > 0 {
			n = whole
		}
		if err := emit(validText(l.rest[:n])); err != nil {
			return err
		}
		l.rest = append(l.rest[:0], l.rest[n:]...)
	}
	return nil
}
