// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"encoding/binary"
	"errors"
	"math"
)

// ErrMalformed is a message that is not of its form: too short, too long, out of range, or of a
// peer that speaks another version.
var ErrMalformed = errors.New("malformed isolation message")

// encoder appends little-endian, length-prefixed fields to a message.
type encoder struct{ b []byte }

func (e *encoder) u8(v uint8)   { e.b = append(e.b, v) }
func (e *encoder) u32(v uint32) { e.b = binary.LittleEndian.AppendUint32(e.b, v) }
func (e *encoder) i64(v int64)  { e.u64(uint64(v)) }

func (e *encoder) u64(list ...uint64) {
	for _, v := range list {
		e.b = binary.LittleEndian.AppendUint64(e.b, v)
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.u8(1)
	} else {
		e.u8(0)
	}
}

func (e *encoder) str(s string) {
	e.u32(uint32(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) strs(list []string) {
	e.u32(uint32(len(list)))
	for _, s := range list {
		e.str(s)
	}
}

// decoder reads what encoder wrote. The first thing that does not fit makes every later read zero
// and done report ErrMalformed, so a caller checks once, at the end.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) i64() int64 { return int64(d.u64()) }

func (d *decoder) bool() bool {
	v := d.u8()
	if v > 1 {
		d.bad = true
	}
	return v == 1
}

func (d *decoder) str() string {
	n := d.u32()
	if n > math.MaxInt32 {
		d.bad = true
		return ""
	}
	return string(d.take(int(n)))
}

// count reads a list's length; every element takes at least size bytes, so a length that the rest
// of the message cannot hold is refused before anything is allocated for it.
func (d *decoder) count(size int) int {
	n := d.u32()
	if d.bad || int64(n)*int64(size) > int64(len(d.b)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) strs() []string {
	n := d.count(4)
	if n == 0 {
		return nil
	}
	list := make([]string, 0, n)
	for range n {
		list = append(list, d.str())
	}
	return list
}

func (d *decoder) done() error {
	if d.bad || len(d.b) != 0 {
		return ErrMalformed
	}
	return nil
}

// message starts a message of type t; every message begins with its type.
func message(t uint8) *encoder {
	return &encoder{b: append(make([]byte, 0, 256), t)}
}
