// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// input carries standard input from the connection to the program, so that a program that does not read delays neither
// signals nor the notice that the client is gone. The window limits it.
type input struct {
	refusal  error // why all input is refused; nil: input is allowed
	lines    bool  // every message is a line without its line end
	program  writer
	queue    chan message
	done     chan struct{}
	discards atomic.Bool // input is discarded
	repeated uint64      // bytes that the client sends again although the program has them, as the client knows
	received uint64      // bytes from the client; only add uses this and ended
	ended    bool
	consumed atomic.Uint64 // bytes that the program has read, or never will
}

// writer is the standard input of a program.
type writer struct {
	write func(data []byte) error // nil: no program reads it
	close func()
}

// errNotOurs is returned by a writer if another client writes now, or none. Any other error means that the program no
// longer reads.
var errNotOurs = errors.New("this client no longer writes")

// message is a piece of standard input; without data it is the end.
type message struct {
	data    []byte
	release func()
}

// inputQueue limits the queued messages, as the window limits their bytes.
const inputQueue = 1024

func newInput(refusal error, lines bool, program writer) *input {
	return &input{refusal: refusal, lines: lines, program: program, queue: make(chan message, inputQueue), done: make(chan struct{})}
}

// add queues bytes; none means the end of the input. A single message may be longer than the window.
func (in *input) add(data []byte, release func()) error {
	if in.lines && len(data) > 0 {
		if bytes.IndexByte(data, '\n') >= 0 {
			release()
			return errors.New("a stdin message must be one line, without its line end")
		}
		data = append(data, '\n')
	}
	ahead := in.received - in.consumed.Load()
	var err error
	switch {
	case in.refusal != nil:
		err = in.refusal
	case in.program.write == nil || in.discards.Load(): // the program did not start, or another client writes
		release()
		return nil
	case in.ended:
		err = errors.New("stdin is already closed")
	case len(data) > 0 && ahead > 0 && ahead+uint64(len(data)) > api.StdinWindow+in.repeated:
		err = fmt.Errorf("more than %d bytes of stdin not yet accepted", api.StdinWindow)
	}
	if err == nil {
		in.received += uint64(len(data))
		in.ended = len(data) == 0
		select {
		case in.queue <- message{data, release}:
			return nil
		default:
			err = fmt.Errorf("more than %d stdin messages not yet accepted", inputQueue)
		}
	}
	release()
	return err
}

// confirmDelay is how long the confirmation of a little input may wait for more: it only serves the window, and would be
// a message for every typed line.
const confirmDelay = 10 * time.Millisecond

// pump writes to the program until the end of the input or of the stream. What a program does not read any more is
// dropped and confirmed: the client decides whether to continue sending.
func (in *input) pump(confirm func(consumed uint64)) {
	if in.program.write == nil {
		return
	}
	read := true
	consumed, confirmed := uint64(0), uint64(0)
	confirmNow := func() {
		if confirmed < consumed {
			confirm(consumed)
			confirmed = consumed
		}
	}
	timer := time.NewTimer(confirmDelay)
	defer timer.Stop()
	for {
		select {
		case <-in.done:
			return
		case <-timer.C:
			confirmNow()
		case m := <-in.queue:
			if len(m.data) == 0 {
				confirmNow()
				in.program.close()
				return
			}
			var err error
			if read {
				err = in.program.write(m.data)
			}
			m.release()
			if errors.Is(err, errNotOurs) {
				in.discards.Store(true)
				return
			}
			read = read && err == nil
			if consumed = in.consumed.Add(uint64(len(m.data))); consumed-confirmed >= api.StdinWindow/4 {
				confirmNow()
			} else {
				timer.Reset(confirmDelay)
			}
		}
	}
}

// close ends pump.
func (in *input) close() { close(in.done) }

// drain drops unwritten messages, after add and pump have ended.
func (in *input) drain() {
	for {
		select {
		case m := <-in.queue:
			m.release()
		default:
			return
		}
	}
}
