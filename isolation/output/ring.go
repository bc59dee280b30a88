// SPDX-License-Identifier: Apache-2.0

// Package output keeps what a program has written, by PID 1 of its box, for boxd to read.
//
// Byte n of a stream is at offset n of a memory file, so the file's size is the number of bytes
// written, updated by the kernel in the same call that moves the data. Dropped bytes are a hole.
// On request the file is one on disk, see CreateIn.
// A third file, the journal, records in which order the two streams have grown, and when.
package output

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Ring is the writer's end of a stream: it keeps the first Head bytes and at least the last Tail.
type Ring struct {
	FD         int // -1 until the first byte, unless Create makes it before
	Head, Tail int64
	held       int64 // nothing from this offset on is dropped; -1: no such offset
	size       int64 // bytes written so far
	holeTo     int64 // end of the hole; it begins at Head
	full       bool  // the pipe was full once, and has been enlarged
	spooled    bool  // the file is on disk
	skipped    bool  // the last bytes were dropped as they came
	scratch    []byte
}

// Holes are punched in steps, to call the kernel once for many reads, and only in whole pages: a
// part of one would be overwritten with zeros (fallocate(2)), which no reader could tell from
// data.
const (
	holeStep = 256 << 10
	page     = 4096
)

// chunk is how much one Fill moves at most: many times the default capacity of a pipe.
const chunk = 1 << 20

// Capacity of a pipe in bytes (pipe(7)), by default and for a program that has filled it: then
// the program waits a quarter as often, and so do its readers. Not every pipe is that large,
// since those of a user are counted (pipe-user-pages-soft).
const (
	pipeSize = 64 << 10
	widePipe = 256 << 10
)

// NewRing returns an empty ring without a file.
func NewRing(head, tail uint64) Ring {
	return Ring{FD: -1, Head: int64(head), Tail: int64(tail), held: -1}
}

// Hold keeps everything from an offset on, until the next call. -1 ends that.
func (r *Ring) Hold(offset int64) { r.held = offset }

// Size returns the number of bytes written so far.
func (r *Ring) Size() int64 { return r.size }

// Create creates the file, in memory.
func (r *Ring) Create() error {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err == nil {
		r.FD = fd
	}
	return err
}

// Fill moves what is in the pipe to the end of the ring, inside the kernel. EAGAIN: the pipe is
// empty; 0: it has no writer left.
func (r *Ring) Fill(pipe int) (int64, error) {
	if r.FD < 0 {
		if err := r.Create(); err != nil {
			return 0, err
		}
	}
	off, limit := r.size, chunk
	if r.spooled {
		if left := r.left(); left > 0 {
			return r.skip(pipe, nil, left)
		}
		limit = spoolChunk
	}
	n, err := unix.Splice(pipe, nil, r.FD, &off, limit, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if r.spooled && noSpace(err) {
		return r.noRoom(pipe, nil)
	}
	if n > 0 {
		r.size += n
		r.trim()
	}
	if n >= pipeSize && !r.full {
		r.full = true
		_, _ = unix.FcntlInt(uintptr(pipe), unix.F_SETPIPE_SZ, widePipe) // if that is refused, the pipe stays as it is
	}
	return n, err
}

// Append copies data to the end of the ring, for what cannot be spliced.
func (r *Ring) Append(data []byte) error {
	for len(data) > 0 {
		if left := r.left(); left > 0 {
			n, err := r.skip(-1, data, left)
			if err != nil {
				return err
			}
			data = data[n:]
			continue
		}
		n, err := unix.Pwrite(r.FD, data, r.size)
		if r.spooled && noSpace(err) {
			dropped, err := r.noRoom(-1, data)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			data = data[dropped:]
			continue
		}
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
		r.size += int64(max(n, 0))
	}
	r.trim()
	return nil
}

// trim frees what need not be kept any more.
func (r *Ring) trim() {
	start := max((r.Head+page-1)&^(page-1), r.holeTo)
	end := r.size - r.Tail
	if r.held >= 0 {
		end = min(end, r.held)
	}
	end &^= page - 1
	if end-start < holeStep {
		return
	}
	if unix.Fallocate(r.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, end-start) == nil {
		r.holeTo = end
	}
}

// Cut returns the part of the stream that counts as dropped, even where it has not been freed
// yet, so that the result does not depend on the sizes of the reads.
func (r *Ring) Cut() (from, to uint64) {
	if r.size <= r.Head+r.Tail {
		return 0, 0
	}
	return uint64(r.Head), uint64(r.size - r.Tail)
}

// Close closes the file; a reader may still have a copy of the descriptor.
func (r *Ring) Close() {
	if r.FD >= 0 {
		unix.Close(r.FD)
		r.FD = -1
	}
}
