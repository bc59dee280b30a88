// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// ring keeps a bounded part of one output stream in a memfd. Byte n of the stream lies at offset n
// of the file, so the file's size is the sequence number of the next byte, set by the kernel in the
// same call that moves the data; what is no longer kept is a hole and costs nothing.
type ring struct {
	fd     int // -1 until the first byte, if nobody follows
	policy isolation.Output
	size   int64 // bytes written so far
	holeTo int64 // end of the hole: it begins at policy.Head, or at 0 if followed
	taken  int64 // what the follower has
}

// Holes are made in steps, to call the kernel once for many reads.
const holeStep = 256 << 10

// chunk is how much one fill moves at most: the default capacity of a pipe many times over.
const chunk = 1 << 20

func newRing(policy isolation.Output) ring { return ring{fd: -1, policy: policy} }

func (r *ring) create() error {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err == nil {
		r.fd = fd
	}
	return err
}

// fill moves what is in the pipe to the end of the ring, inside the kernel. EAGAIN: the pipe is
// empty; 0: it has no writer left.
func (r *ring) fill(pipe int) (int64, error) {
	if r.fd < 0 {
		if err := r.create(); err != nil {
			return 0, err
		}
	}
	off := r.size
	n, err := unix.Splice(pipe, nil, r.fd, &off, chunk, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if n > 0 {
		r.size += n
		r.trim()
	}
	return n, err
}

// full reports whether a follower is so far behind that the program has to wait.
func (r *ring) full() bool {
	return r.policy.Follow && r.size-r.taken >= int64(r.policy.Tail)
}

// take records how far the follower has come.
func (r *ring) take(offset uint64) {
	if o := int64(min(offset, uint64(r.size))); o > r.taken {
		r.taken = o
		r.trim()
	}
}

// trim gives back what is no longer kept.
func (r *ring) trim() {
	from, to := int64(r.policy.Head), r.size-int64(r.policy.Tail)
	if r.policy.Follow {
		from, to = 0, r.taken
	}
	start := max(from, r.holeTo)
	if to-start < holeStep {
		return
	}
	err := unix.Fallocate(r.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, to-start)
	if err == nil {
		r.holeTo = to
	}
}

// end describes the finished stream. What lies between head and tail counts as cut even where it
// has not been given back yet, so that the answer does not depend on how the reads fell.
func (r *ring) end() isolation.StreamEnd {
	e := isolation.StreamEnd{Total: uint64(r.size)}
	if r.policy.Follow {
		return e
	}
	if keep := r.policy.Head + r.policy.Tail; e.Total > keep {
		e.CutFrom, e.CutTo = r.policy.Head, e.Total-r.policy.Tail
	}
	return e
}
