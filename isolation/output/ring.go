// SPDX-License-Identifier: Apache-2.0

// Package output keeps what a program has written: PID 1 of its box writes, boxd reads.
//
// Byte n of a stream lies at offset n of a memory file, so the file's size is the sequence number of the
// next byte, set by the kernel in the same call that moves the data. What is no longer kept is a hole. A
// journal, a third file, says in which order two streams have grown, and when.
package output

import (
	"golang.org/x/sys/unix"
)

// Ring is the writer's end of a stream: it keeps the first Head bytes and at least the last Tail.
type Ring struct {
	FD         int // -1 until the first byte, unless Create makes it before
	Head, Tail int64
	held       int64 // nothing from here on is given back; -1: no such place
	size       int64 // bytes written so far
	holeTo     int64 // end of the hole; it begins at Head
	full       bool  // the pipe was once, and has been widened
}

// Holes are made in steps, to call the kernel once for many reads, and of whole pages: of a part of one
// the kernel would make zeros (fallocate(2)), which no reader could tell from data.
const (
	holeStep = 256 << 10
	page     = 4096
)

// chunk is how much one Fill moves at most: the default capacity of a pipe many times over.
const chunk = 1 << 20

// Capacity of a pipe, as it is made and for a program that fills it, in bytes (pipe(7)): such a one is then waited
// for a quarter as often, and so are its readers. Not all have it, since a user's are counted (pipe-user-pages-soft).
const (
	pipeSize = 64 << 10
	widePipe = 256 << 10
)

// NewRing returns an empty ring without a file.
func NewRing(head, tail uint64) Ring {
	return Ring{FD: -1, Head: int64(head), Tail: int64(tail), held: -1}
}

// Hold keeps everything from an offset on, until it is called again. -1 lets go.
func (r *Ring) Hold(offset int64) { r.held = offset }

// Size is the number of bytes written so far.
func (r *Ring) Size() int64 { return r.size }

// Create makes the file.
func (r *Ring) Create() error {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err == nil {
		r.FD = fd
	}
	return err
}

// Fill moves what is in the pipe to the end of the ring, inside the kernel. EAGAIN: the pipe is empty; 0: it
// has no writer left.
func (r *Ring) Fill(pipe int) (int64, error) {
	if r.FD < 0 {
		if err := r.Create(); err != nil {
			return 0, err
		}
	}
	off := r.size
	n, err := unix.Splice(pipe, nil, r.FD, &off, chunk, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if n > 0 {
		r.size += n
		r.trim()
	}
	if n >= pipeSize && !r.full {
		r.full = true
		_, _ = unix.FcntlInt(uintptr(pipe), unix.F_SETPIPE_SZ, widePipe) // refused, it stays as it is
	}
	return n, err
}

// Append copies data to the end of the ring, for what cannot be spliced.
func (r *Ring) Append(data []byte) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(r.FD, data, r.size)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
		r.size += int64(max(n, 0))
	}
	r.trim()
	return nil
}

// trim gives back what is no longer kept.
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

// Cut is what of the stream does not count as kept, even where it has not been given back yet, so that it
// does not depend on how the reads fell.
func (r *Ring) Cut() (from, to uint64) {
	if r.size <= r.Head+r.Tail {
		return 0, 0
	}
	return uint64(r.Head), uint64(r.size - r.Tail)
}

// Close releases the file; a copy of it may live on with a reader.
func (r *Ring) Close() {
	if r.FD >= 0 {
		unix.Close(r.FD)
		r.FD = -1
	}
}
