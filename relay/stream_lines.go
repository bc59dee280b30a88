// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"

	"github.com/boxd-dev/boxd/relay/api"
)

// cutter makes messages of whole lines of a stream that comes in pieces. What is no whole line, because
// its beginning is not kept any more or it is too long, is counted and left out, and told with the reason.
type cutter struct {
	reserve  memoryReserver
	release  func() // of the line, if that is long
	line     []byte // so far
	skipping bool   // to the end of a line
	lost     int64  // bytes left out since the last line
	why      string // they are: "", or api.GapLongLine
}

// add takes the next piece. It calls emit with every line that this completes, and missing with the number
// of bytes that lie before it and are left out, and why.
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

// grow adds a piece to the line, or begins to skip what has become too long.
func (k *cutter) grow(ctx context.Context, piece []byte) error {
	size := len(k.line) + len(piece)
	if size > api.MaxLine+1 { // with the end
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

// skip leaves out the line so far, n bytes that nobody has any more, and what follows up to the next line.
func (k *cutter) skip(n int64) {
	k.lost += k.begun() + n
	k.skipping = true
	k.drop()
}

// begun is the length of the line so far.
func (k *cutter) begun() int64 { return int64(len(k.line)) }

// unfinished is how much is left out at the end, and why: a line without an end is none.
func (k *cutter) unfinished() (n int64, why string) {
	switch {
	case k == nil:
		return 0, ""
	case k.skipping:
		return k.lost, k.why
	}
	return k.begun(), api.GapHalfLine
}

// drop forgets the line so far.
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
