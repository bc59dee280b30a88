// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// ErrMalformed means that a message is malformed: too short, too long, out of range, or from a
// peer of another version.
var ErrMalformed = errors.New("malformed isolation message")

// codec encodes the fields of a message, or decodes them: each message lists its fields once, in
// order, for both directions. Numbers are little-endian, and texts and lists are preceded by
// their lengths.
//
// Encoding never changes the message. When decoding, the first mismatch makes every later field
// zero and done return ErrMalformed, so a caller checks once, at the end.
type codec struct {
	b       []byte // what has been written, or what is left to be read
	reading bool
	bad     bool // when decoding: there was a mismatch
}

// fielder is a message, or a part of one, that lists its fields.
type fielder[T any] interface {
	*T
	fields(c *codec)
}

// writeMessage returns a codec that encodes a message of type kind; every message begins with its
// type.
func writeMessage(kind uint8) *codec {
	return &codec{b: append(make([]byte, 0, 256), kind)}
}

// readMessage returns a codec that decodes a message, and the type of the message.
func readMessage(b []byte) (c *codec, kind uint8) {
	c = &codec{b: b, reading: true}
	c.u8(&kind)
	return c, kind
}

// done returns an error unless the whole message has been read and is well-formed.
func (c *codec) done() error {
	if c.bad || len(c.b) != 0 {
		return ErrMalformed
	}
	return nil
}

// refuse marks a message as malformed if its fields are nonsense.
func (c *codec) refuse(nonsense bool) { c.bad = c.bad || nonsense }

// set sets a field that is true in every message of this type when it is decoded.
func (c *codec) set(p *bool) {
	if c.reading {
		*p = true
	}
}

// take returns the next n bytes of the message, nil if it has fewer.
func (c *codec) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *codec) u8(p *uint8) {
	if !c.reading {
		c.b = append(c.b, *p)
		return
	}
	*p = 0
	if b := c.take(1); b != nil {
		*p = b[0]
	}
}

func (c *codec) u16(p *uint16) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint16(c.b, *p)
		return
	}
	*p = 0
	if b := c.take(2); b != nil {
		*p = binary.LittleEndian.Uint16(b)
	}
}

func (c *codec) u32(list ...*uint32) {
	for _, p := range list {
		if !c.reading {
			c.b = binary.LittleEndian.AppendUint32(c.b, *p)
			continue
		}
		*p = 0
		if b := c.take(4); b != nil {
			*p = binary.LittleEndian.Uint32(b)
		}
	}
}

func (c *codec) u64(list ...*uint64) {
	for _, p := range list {
		if !c.reading {
			c.b = binary.LittleEndian.AppendUint64(c.b, *p)
			continue
		}
		*p = 0
		if b := c.take(8); b != nil {
			*p = binary.LittleEndian.Uint64(b)
		}
	}
}

// small encodes a number of another type in one byte.
func small[T ~int | ~uint8](c *codec, p *T) {
	n := uint8(*p)
	if c.u8(&n); c.reading {
		*p = T(n)
	}
}

// durations are in nanoseconds, and may be negative.
func (c *codec) durations(list ...*time.Duration) {
	for _, p := range list {
		n := uint64(*p)
		if c.u64(&n); c.reading {
			*p = time.Duration(n)
		}
	}
}

// bool takes one byte, which is 0 or 1.
func (c *codec) bool(list ...*bool) {
	for _, p := range list {
		var n uint8
		if *p {
			n = 1
		}
		if c.u8(&n); c.reading {
			c.refuse(n > 1)
			*p = n == 1
		}
	}
}

func (c *codec) bytes(p *[]byte) {
	n := uint32(len(*p))
	c.u32(&n)
	if !c.reading {
		c.b = append(c.b, *p...)
		return
	}
	c.refuse(n > math.MaxInt32)
	*p = append([]byte{}, c.take(int(n))...)
}

func (c *codec) str(list ...*string) {
	for _, p := range list {
		n := uint32(len(*p))
		c.u32(&n)
		if !c.reading {
			c.b = append(c.b, *p...)
			continue
		}
		c.refuse(n > math.MaxInt32)
		*p = string(c.take(int(n)))
	}
}

// MaxItem bounds the texts of a StepError, so that a reply always fits a small buffer.
const MaxItem = 512

// items are texts of at most MaxItem bytes: longer ones are cut when they are written.
func (c *codec) items(list ...*string) {
	for _, p := range list {
		if !c.reading {
			short := (*p)[:min(len(*p), MaxItem)]
			c.str(&short)
			continue
		}
		c.str(p)
		c.refuse(len(*p) > MaxItem)
	}
}

// rest is everything that is left of a message, in any form.
func (c *codec) rest(p *string) {
	if !c.reading {
		c.b = append(c.b, *p...)
		return
	}
	*p = string(c.take(len(c.b)))
}

// listOf encodes a list. Every element takes at least size bytes, so a length that the rest of
// the message cannot hold is refused before anything is allocated for it.
func listOf[T any](c *codec, p *[]T, size int, element func(*T)) {
	n := uint32(len(*p))
	c.u32(&n)
	if c.reading {
		*p = nil
		c.refuse(int64(n)*int64(size) > int64(len(c.b)))
		if c.bad || n == 0 {
			return
		}
		*p = make([]T, n)
	}
	for i := range *p {
		element(&(*p)[i])
	}
}

// list encodes a list of elements that list their fields.
func list[T any, P fielder[T]](c *codec, p *[]T, size int) {
	listOf(c, p, size, func(element *T) { P(element).fields(c) })
}

func (c *codec) strs(p *[]string) { listOf(c, p, 4, func(s *string) { c.str(s) }) }

// part encodes a part of a message that is always there.
func part[T any, P fielder[T]](c *codec, p **T) {
	if c.reading {
		*p = new(T)
	}
	P(*p).fields(c)
}

// optional encodes a part that may be missing.
func optional[T any, P fielder[T]](c *codec, p **T) {
	exists := *p != nil
	c.bool(&exists)
	if !exists {
		*p = nil
		return
	}
	part[T, P](c, p)
}
