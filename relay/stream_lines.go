// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"

	"github.com/boxd-dev/boxd/relay/api"
)

// cutter makes messages of whole lines from a stream of pieces. A line that is incomplete, because its beginning is no
// longer stored, or too long is left out, counted and reported with the reason.
type cutter struct {
	reserve  memoryReserver
	release  func() // of the line, if it is long
	line     []byte // so far
	skipping bool   // up to the end of a line
	lost     int64  // bytes left out since the last line
	why      string // the reason: "", or api.GapLongLine
}

// add takes the next piece. It calls emit with every completed line, and missing with the number of bytes left out
// before it, and the reason.
func (k *cutter) add(ctx context.Context, data []byte, emit func(context.Context, []byte) error, missing func(n int64, why string) error) error {
	for len(data) > 0 {
		piece, whole := data, false
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			piece, whole = data[:i+1], true
		}
		data = data[len(piece):]
		if !k.skipping {
			if err := k.grow(ctx, piece); err != nil {
				return err
			}
		}
		switch {
		case k.skipping:
			k.lost += int64(len(piece))
			if whole {
				lost, why := k.lost, k.why
				k.skipping, k.lost, k.why = false, 0, ""
				if err := missing(lost, why); err != nil {
					return err
				}
			}
		case whole:
			err := emit(ctx, k.line[:len(k.line)-1])
			k.drop()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// grow adds a piece to the line, or starts to skip a line that has become too long.
func (k *cutter) grow(ctx context.Context, piece []byte) error {
	size := len(k.line) + len(piece)
	if size > api.MaxLine+1 { // with the line end
		k.skip(0)
		k.why = api.GapLongLine
		return nil
	}
	if size > api.MaxFrame && k.release == nil {
		release, err := k.reserve(ctx, api.MaxLine)
		if err != nil {
			return err
		}
		k.release = release
	}
	k.line = append(k.line, piece...)
	return nil
}

// skip leaves out the line so far, n bytes that are no longer stored, and the rest up to the next line.
func (k *cutter) skip(n int64) {
	k.lost += k.lineLength() + n
	k.skipping = true
	k.drop()
}

// lineLength returns the length of the line so far.
func (k *cutter) lineLength() int64 { return int64(len(k.line)) }

// unfinished returns how many bytes are left out at the end, and why: a line without a line end is incomplete.
func (k *cutter) unfinished() (n int64, why string) {
	switch {
	case k == nil:
		return 0, ""
	case k.skipping:
		return k.lost, k.why
	}
	return k.lineLength(), api.GapHalfLine
}

// drop discards the line so far.
func (k *cutter) drop() {
	switch {
	case k == nil:
	case k.release != nil:
		k.release()
		k.line, k.release = nil, nil
	default:
		k.line = k.line[:0]
	}
}
