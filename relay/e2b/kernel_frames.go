// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"bytes"
	"encoding/json"
)

// What a kernel tells of itself.
const (
	kernelBegin  = "begin"  // of an execution, on both streams
	kernelResult = "result" // a value, or what code has displayed
	kernelError  = "error"
	kernelEnd    = "end"    // of an execution, on both streams
	kernelSynced = "synced" // the answer to a request for that, on both streams
)

// kernelEvent is what a kernel tells. All of it is the box's word: code can write the same, and deceives nobody but itself.
type kernelEvent struct {
	Kind      string                     `json:"e"`
	ID        string                     `json:"id"`
	Count     int64                      `json:"count"`
	Main      bool                       `json:"main"`
	Data      map[string]json.RawMessage `json:"data"` // by MIME type
	Name      string                     `json:"name"`
	Value     string                     `json:"value"`
	Traceback string                     `json:"traceback"`
}

// Bounds of frames. A frame is at most PIPE_BUF bytes, so that a pipe has it in one piece (pipe(7)).
const (
	maxFrame = 4096
	maxEvent = 16 << 20
)

// frames tells output of code and events of its kernel apart, in one stream that has both. See kernels/python.py for their form.
type frames struct {
	mark    []byte // what every frame begins with
	rest    []byte // what may be the beginning of a frame
	event   []byte // the pieces of an event whose last has not come
	tooLong bool   // it is thrown away
}

func newFrames(nonce string) *frames { return &frames{mark: append([]byte{0x1e}, nonce...)} }

// add takes what has come, and hands on what is whole. What output gets is good until it returns. Events that make no sense are
// dropped.
func (f *frames) add(data []byte, output func([]byte) error, event func(*kernelEvent) error) error {
	if len(f.rest) > 0 {
		data = append(f.rest, data...)
	}
	for len(data) > 0 {
		at := bytes.Index(data, f.mark)
		if at < 0 {
			at = len(data) - f.partialMark(data)
			if err := handOn(data[:at], output); err != nil {
				return err
			}
			f.rest = append(f.rest[:0], data[at:]...)
			return nil
		}
		if err := handOn(data[:at], output); err != nil {
			return err
		}
		data = data[at:]
		end := bytes.IndexByte(data[:min(len(data), maxFrame)], '\n')
		switch {
		case end < 0 && len(data) >= maxFrame: // somebody else's
			if err := output(data[:1]); err != nil {
				return err
			}
			data = data[1:]
			continue
		case end < 0:
			f.rest = append(f.rest[:0], data...)
			return nil
		}
		if err := f.frame(data[len(f.mark):end], event); err != nil {
			return err
		}
		data = data[end+1:]
	}
	f.rest = f.rest[:0]
	return nil
}

// flush hands on what will not become a frame any more.
func (f *frames) flush(output func([]byte) error) error {
	err := handOn(f.rest, output)
	f.rest, f.event = nil, nil
	return err
}

func handOn(data []byte, output func([]byte) error) error {
	if len(data) == 0 {
		return nil
	}
	return output(data)
}

// partialMark is how many bytes at the end of data may be the beginning of a frame's mark.
func (f *frames) partialMark(data []byte) int {
	for n := min(len(f.mark)-1, len(data)); n > 0; n-- {
		if bytes.HasSuffix(data, f.mark[:n]) {
			return n
		}
	}
	return 0
}

// frame takes what is between mark and newline.
func (f *frames) frame(body []byte, event func(*kernelEvent) error) error {
	if len(body) == 0 {
		return nil
	}
	switch body[0] {
	case '!': // whole, and perhaps between the pieces of another
		return emit(body[1:], event)
	case '^': // of one before it the end will not come
		f.event, f.tooLong = nil, false
	case '.', '+':
	default:
		return nil
	}
	if f.tooLong = f.tooLong || len(f.event)+len(body) > maxEvent; f.tooLong {
		f.event = nil
	} else {
		f.event = append(f.event, body[1:]...)
	}
	if body[0] != '.' {
		return nil
	}
	whole := f.event
	f.event, f.tooLong = nil, false
	return emit(whole, event)
}

// emit hands on an event, if it is one.
func emit(text []byte, event func(*kernelEvent) error) error {
	if e := (&kernelEvent{}); json.Unmarshal(text, e) == nil {
		return event(e)
	}
	return nil
}
