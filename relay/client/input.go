// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/api"
)

// maxInFlight is the maximum number of messages of standard input that boxd has not confirmed; boxd has a limit of its
// own.
const maxInFlight = 512

// detachTimeout is how long ErrDetached waits for boxd to confirm the input.
const detachTimeout = time.Second

// outbox has what is to be sent: standard input until boxd has confirmed it, so that it can be sent again, and control
// messages. Offsets are those of the process.
type outbox struct {
	lines bool
	ready bool // boxd accepts input on this connection
	lost  bool // but not from this client any more, or not at all
	eof   bool // no input follows pending

	base    int64  // offset of pending
	pending []byte // read but not confirmed, sent or not
	sent    int64  // end of what was sent on this connection
	eofSent bool
	acked   int64   // confirmed by boxd
	flight  []int64 // ends of the unconfirmed messages

	signals []string
	size    *api.Terminal // the requested size
	sized   bool          // it was sent
}

func (b *outbox) end() int64 { return b.base + int64(len(b.pending)) }

// renew prepares for a new connection: everything unconfirmed is sent again.
func (b *outbox) renew() {
	b.ready, b.eofSent, b.sent, b.flight, b.sized = false, false, b.base, nil, false
}

// confirm drops what boxd has taken. In lines mode a partly taken line is kept: only whole lines can be sent again.
func (b *outbox) confirm(acked int64) {
	b.acked = max(b.acked, min(acked, b.end()))
	for len(b.flight) > 0 && b.flight[0] <= b.acked {
		b.flight = b.flight[1:]
	}
	b.trim()
}

func (b *outbox) trim() {
	n := min(b.acked, b.sent) - b.base
	if n <= 0 {
		return
	}
	if b.lines {
		n = int64(bytes.LastIndexByte(b.pending[:n], '\n') + 1)
	}
	b.pending = b.pending[n:]
	b.base += n
}

// next builds the next message in frame, nil if there is none now; done must be called when it has been sent.
func (b *outbox) next(frame []byte) (message []byte, done func(), err error) {
	switch {
	case len(b.signals) > 0:
		message, err = controlMessage(api.ClientControl{Signal: b.signals[0]})
		return message, func() { b.signals = b.signals[1:] }, err
	case b.size != nil && !b.sized:
		size := *b.size
		message, err = controlMessage(api.ClientControl{Resize: &size})
		return message, func() { b.sized = *b.size == size }, err
	case !b.ready || len(b.flight) >= maxInFlight:
	case b.sent < b.end():
		data := b.pending[b.sent-b.base:]
		length := min(len(data), api.MaxFrame-1)
		end := b.sent + int64(length)
		if b.lines {
			length = bytes.IndexByte(data, '\n') // pump guarantees that there is one
			end = b.sent + int64(length) + 1
		}
		frame = append(append(frame[:0], api.ChannelStdin), data[:length]...)
		return frame, func() {
			b.sent = end
			if end > b.acked {
				b.flight = append(b.flight, end)
			}
			b.trim()
		}, nil
	case b.eof && !b.eofSent:
		return append(frame[:0], api.ChannelStdin), func() { b.eofSent = true }, nil
	}
	return nil, nil, nil
}

func controlMessage(msg api.ClientControl) ([]byte, error) {
	data, err := encode(msg)
	return append([]byte{api.ChannelControl}, data...), err
}

// send sends messages until the connection ends.
func (s *stream) send(ctx context.Context, ws *websocket.Conn) {
	frame := make([]byte, 0, api.MaxFrame)
	for {
		s.mu.Lock()
		message, done, err := s.in.next(frame)
		for message == nil && err == nil && ctx.Err() == nil {
			s.changed.Wait()
			message, done, err = s.in.next(frame)
		}
		s.mu.Unlock()
		if err != nil || ctx.Err() != nil || ws.Write(ctx, websocket.MessageBinary, message) != nil {
			return // receive notices it too
		}
		s.mu.Lock()
		done()
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

// startInput begins to read standard input, of which the process has already taken some bytes from others. It is sent
// only if writes is set.
func (s *stream) startInput(acked int64, writes bool) {
	if s.stdio.Stdin == nil {
		return
	}
	s.mu.Lock()
	s.in.lines, s.in.ready, s.in.lost = s.options.Lines, writes, !writes
	s.in.base, s.in.sent, s.in.acked = acked, acked, acked
	s.mu.Unlock()
	s.pumps.Do(func() { go s.pump() }) // ends with the input or the stream, except for an uninterruptible Read
}

// pump reads standard input, at most as much as the window allows.
func (s *stream) pump() {
	err := s.pumpAll()
	switch {
	case errors.Is(err, io.EOF):
		s.mu.Lock()
		s.in.eof = true
		s.changed.Broadcast()
		s.mu.Unlock()
	case errors.Is(err, ErrDetached):
		s.awaitConfirmed()
		s.fail(ErrDetached)
	case err != nil: // part of an input must not pass for all of it
		s.fail(fmt.Errorf("read standard input: %w", err))
	}
}

// pumpAll returns why the input has ended, nil if no more is wanted.
func (s *stream) pumpAll() error {
	if s.options.Lines {
		return s.pumpLines()
	}
	buf := make([]byte, api.MaxFrame-1)
	for {
		n, err := s.stdio.Stdin.Read(buf)
		if n > 0 && !s.queue(buf[:n]) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// pumpLines ensures that the last line has a line end too. Empty lines cannot be sent: an empty message is the end of
// the input.
func (s *stream) pumpLines() error {
	r := bufio.NewReaderSize(s.stdio.Stdin, api.MaxFrame)
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		if len(line) > api.MaxLine+1 {
			return fmt.Errorf("a line is longer than %d bytes", api.MaxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && len(line) > 0 {
			line = append(line, '\n')
		}
		if len(line) > 1 && !s.queue(line) {
			return nil
		}
		if err != nil {
			return err
		}
		line = line[:0]
	}
}

// queue waits until data fits into the window, which longer data gets alone; false means that it is not wanted any more.
func (s *stream) queue(data []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.end() > s.in.acked && s.in.end()+int64(len(data))-s.in.acked > api.StdinWindow && !s.ended && !s.in.lost {
		s.changed.Wait()
	}
	if s.ended || s.in.lost { // after lost, input is still read, for ErrDetached
		return !s.ended
	}
	s.in.pending = append(s.in.pending, data...)
	s.changed.Broadcast()
	return true
}

// awaitConfirmed waits a short time until boxd has confirmed all input.
func (s *stream) awaitConfirmed() {
	expired := false
	timer := time.AfterFunc(detachTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		expired = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.acked < s.in.end() && !expired && !s.ended && !s.in.lost {
		s.changed.Wait()
	}
}

// forward queues signals and sizes, so that they wait for a connection if there is none.
func (s *stream) forward(signals <-chan string, sizes <-chan api.Terminal) {
	for signals != nil || sizes != nil {
		var name string
		var size api.Terminal
		var isSignal, ok bool
		select {
		case <-s.done:
			return
		case name, ok = <-signals:
			if isSignal = true; !ok {
				signals = nil
				continue
			}
		case size, ok = <-sizes:
			if !ok {
				sizes = nil
				continue
			}
		}
		s.mu.Lock()
		if isSignal {
			s.in.signals = append(s.in.signals, name)
		} else {
			s.in.size, s.in.sized = &size, false
		}
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}
