// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// ring reads what PID 1 keeps of a stream: byte n of the stream is at offset n of the file.
type ring struct {
	fd   int
	read int64 // how far a follower has come
}

func newRing(fd int) *ring { return &ring{fd: fd} }

// size is the number of bytes written to the stream so far.
func (r *ring) size() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return 0, fmt.Errorf("output: %w", err)
	}
	return st.Size, nil
}

func (r *ring) readAt(p []byte, off int64) error {
	for n := 0; n < len(p); {
		m, err := unix.Pread(r.fd, p[n:], off+int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("output: %w", err)
		}
		if m == 0 {
			return io.ErrUnexpectedEOF
		}
		n += m
	}
	return nil
}

// Kept returns what is kept of a stream (0 standard output, 1 standard error) of an ended program:
// its beginning and, if something between is gone, its end. Of one that was followed it is nothing:
// Follow has handed out everything.
func (p *Program) Kept(stream int) (head, tail []byte, err error) {
	r := p.rings[stream]
	if p.exit == nil || r == nil || p.output.Follow {
		return nil, nil, nil
	}
	end := p.exit.Streams[stream]
	headLen, tailLen := end.Total, uint64(0)
	if end.CutTo > end.CutFrom {
		headLen, tailLen = end.CutFrom, end.Total-end.CutTo
	}
	buf := make([]byte, headLen+tailLen)
	head, tail = buf[:headLen:headLen], buf[headLen:]
	if err := r.readAt(head, 0); err != nil {
		return nil, nil, err
	}
	if err := r.readAt(tail, int64(end.CutTo)); err != nil {
		return nil, nil, err
	}
	return head, tail, nil
}

// followChunk is how much of a stream is handed over at once, and how often PID 1 hears of it.
const followChunk = 64 << 10

// Follow hands the output of a followed program to emit as it comes and returns when there is no
// more of it, emit fails or ctx ends. The program waits while emit does not return and the ring is
// full. The slice is reused after emit returns.
func (p *Program) Follow(ctx context.Context, emit func(stream int, data []byte) error) error {
	if p.event == nil { // never ran
		_, err := p.Wait(ctx)
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.event.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, followChunk)
	for {
		// Looked at before the rings: if it was over then, what is there now is all.
		over := false
		select {
		case <-p.exited:
			over = true
		default:
		}
		moved := false
		for i, r := range p.rings {
			n, err := p.handOver(i, r, buf, emit)
			if err != nil {
				return err
			}
			moved = moved || n > 0
		}
		if moved {
			continue
		}
		if over {
			return p.err
		}
		var count [8]byte
		if _, err := p.event.Read(count[:]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("output: %w", err)
		}
	}
}

// handOver emits up to one buffer of a stream and tells PID 1 that its place is free.
func (p *Program) handOver(stream int, r *ring, buf []byte, emit func(int, []byte) error) (int, error) {
	size, err := r.size()
	if err != nil {
		return 0, err
	}
	n := min(size-r.read, int64(len(buf)))
	if n <= 0 {
		return 0, nil
	}
	if err := r.readAt(buf[:n], r.read); err != nil {
		return 0, err
	}
	if err := emit(stream, buf[:n]); err != nil {
		return 0, err
	}
	r.read += n
	select {
	case <-p.exited:
	default:
		taken := isolation.Taken{Stream: uint8(stream), Offset: uint64(r.read)}
		// Without PID 1 there is nobody to tell; what the program wrote before can still be read.
		_ = p.tell(&isolation.BoxRequest{ID: p.id, Taken: &taken})
	}
	return int(n), nil
}
