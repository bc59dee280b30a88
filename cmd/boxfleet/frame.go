// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
)

// What a frame says besides its numbers.
const (
	flagOpen   = 1 << iota // the connection may be new to the receiver
	flagEnd                // nothing follows the bytes of this frame
	flagClosed             // the sender does not read any more
	flagReset              // the connection is over; the bytes are the reason
	flagAgain              // bytes before those that came are missing
)

// frame is a message: bytes of one direction, and how far the other has come. The end of a direction counts as one byte
// more, so that it is acknowledged as bytes are.
type frame struct {
	flags  byte
	offset uint64 // of the first byte
	acked  uint64 // the offset that the sender expects next
	limit  uint64 // the offset up to which it has room
	bytes  []byte
}

const frameHeader = 1 + 3*8

var errFrame = errors.New("a message is no frame of a stream")

func (f *frame) encode() []byte {
	out := make([]byte, frameHeader, frameHeader+len(f.bytes))
	out[0] = f.flags
	binary.BigEndian.PutUint64(out[1:], f.offset)
	binary.BigEndian.PutUint64(out[9:], f.acked)
	binary.BigEndian.PutUint64(out[17:], f.limit)
	return append(out, f.bytes...)
}

func decodeFrame(data []byte) (f frame, err error) {
	if len(data) < frameHeader || len(data) > frameHeader+maxFrame {
		return f, errFrame
	}
	return frame{
		flags: data[0], offset: binary.BigEndian.Uint64(data[1:]), acked: binary.BigEndian.Uint64(data[9:]),
		limit: binary.BigEndian.Uint64(data[17:]), bytes: data[frameHeader:],
	}, nil
}
