// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
)

// attach takes the output of a program that is not durable, and checks that PID 1 claims to have
// kept no more than was asked for.
func (p *Program) attach(reply *isolation.BoxReply, files []int) error {
	n := 0
	for i, attached := range reply.Attached {
		end := reply.Exited.Streams[i]
		if attached {
			if p.durable || n >= len(files) || !output.IsMemory(files[n]) {
				return isolation.ErrMalformed
			}
			n++
		} else if !p.durable && end.Total > 0 {
			return isolation.ErrMalformed
		}
		if end.Total-(end.CutTo-end.CutFrom) > p.output.Head+p.output.Tail {
			return isolation.ErrMalformed
		}
	}
	if n != len(files) {
		return isolation.ErrMalformed
	}
	for i, attached := range reply.Attached {
		if attached {
			p.rings[i] = files[0]
			files = files[1:]
		}
	}
	return nil
}

// Retained returns what is kept of a stream (0 standard output, 1 standard error) of an ended
// program: its beginning and, if output in between was dropped, its end.
func (p *Program) Retained(stream int) (head, tail []byte, err error) {
	return p.RetainedWithin(stream, nil)
}

// RetainedWithin is Retained for output that may be on disk: of that it returns at most maxOutput, nil for the usual amount.
func (p *Program) RetainedWithin(stream int, maxOutput *isolation.Output) (head, tail []byte, err error) {
	if p.exit == nil {
		return nil, nil, nil
	}
	end := p.exit.Streams[stream]
	if limits := &p.output; p.log != nil && (p.log.Spooled() || limits.Head > isolation.MaxOutput || limits.Tail > isolation.MaxOutput) {
		if end, err = p.spooledEnd(stream, end, maxOutput); err != nil {
			return nil, nil, err
		}
	}
	headLen, tailLen := end.Total, uint64(0)
	if end.CutTo > end.CutFrom {
		headLen, tailLen = end.CutFrom, end.Total-end.CutTo
	}
	if limit, err := p.size(stream); err != nil || headLen+tailLen > limit {
		return nil, nil, errors.Join(err, isolation.ErrMalformed)
	}
	buf := make([]byte, headLen+tailLen)
	head, tail = buf[:headLen:headLen], buf[headLen:]
	if err := p.readAt(stream, head, 0); err != nil {
		return nil, nil, err
	}
	return head, tail, p.readAt(stream, tail, int64(end.CutTo))
}

// defaultAnswer is how much of the end of a stream goes into an answer by default.
const defaultAnswer = 1 << 20

// spooledEnd returns what goes into an answer of a stream on disk, where it may have gaps anywhere.
func (p *Program) spooledEnd(stream int, end isolation.StreamEnd, maxOutput *isolation.Output) (isolation.StreamEnd, error) {
	beginning, err := p.log.Beginning(stream)
	if err != nil {
		return end, err
	}
	oldest, err := p.log.Oldest()
	if err != nil {
		return end, err
	}
	head, tail := min(uint64(beginning), end.Total), min(uint64(oldest[stream]), end.Total) // from where on the end is kept
	if end.CutFrom < end.CutTo {
		head, tail = min(head, end.CutFrom), max(tail, end.CutTo)
	}
	limit := isolation.Output{Tail: defaultAnswer}
	if maxOutput != nil { // these were PID 1's limits too
		limit = isolation.Output{Head: min(maxOutput.Head, isolation.MaxOutput), Tail: min(maxOutput.Tail, isolation.MaxOutput)}
	}
	if head < end.Total || end.Total > limit.Head+limit.Tail {
		head = min(head, limit.Head)
		tail = max(tail, end.Total-min(limit.Tail, end.Total))
	}
	if head >= tail { // all of it
		return isolation.StreamEnd{Total: end.Total}, nil
	}
	return isolation.StreamEnd{Total: end.Total, CutFrom: head, CutTo: tail}, nil
}

// size returns how much of a stream can be kept.
func (p *Program) size(stream int) (uint64, error) {
	if p.log != nil {
		end, err := p.log.End()
		return uint64(end[stream]), err
	}
	if p.rings[stream] < 0 {
		return 0, nil
	}
	var st unix.Stat_t
	err := unix.Fstat(p.rings[stream], &st)
	return uint64(st.Size), os.NewSyscallError("output", err)
}

func (p *Program) readAt(stream int, b []byte, off int64) error {
	if p.log != nil {
		return p.log.ReadAt(stream, b, off)
	}
	return output.ReadAt(p.rings[stream], b, off)
}

// Output returns the output of a durable program. It is valid after Started and until Close.
func (p *Program) Output() *output.Log { return p.log }

// wakeReaders wakes the readers of a durable program's output whenever there is more, until event is
// closed. The eventfd is only polled: every write to it is reported once (epoll(7), EPOLLET), and
// as it is never read, polling does not block PID 1.
func wakeReaders(event *os.File, log *output.Log) {
	raw, err := event.SyscallConn()
	for err == nil {
		armed := false
		err = raw.Read(func(uintptr) bool {
			if armed {
				return true
			}
			armed = true
			log.Wake() // for output that came since the last round
			return false
		})
	}
}
