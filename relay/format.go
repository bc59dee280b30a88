// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/relay/api"
)

// logFormat formats pieces of output as the request wants them.
type logFormat struct {
	kind       string // "text", "ndjson" or "sse"
	timestamps bool   // in text
	inside     [2]bool
	at         [2]int64  // how far output has been written
	partial    [2][]byte // the beginning of an incomplete character
	times      [2]time.Time
	buf        bytes.Buffer
}

func (f *logFormat) contentType() string {
	switch f.kind {
	case "ndjson":
		return "application/x-ndjson"
	case "sse":
		return "text/event-stream"
	}
	return "text/plain; charset=utf-8"
}

// piece formats the next piece. The result is valid until the next call.
func (f *logFormat) piece(c *output.Chunk) []byte {
	f.buf.Reset()
	switch {
	case f.kind != "text":
		f.json(c)
	case c.Gap > 0:
		fmt.Fprintf(&f.buf, "\n... [%d bytes omitted] ...\n", c.Gap)
		f.inside[c.Stream] = false
	case f.timestamps:
		f.lines(c)
	default:
		return c.Data
	}
	return f.buf.Bytes()
}

// lines writes a piece with the time at the start of every line.
func (f *logFormat) lines(c *output.Chunk) {
	for line := range bytes.Lines(c.Data) {
		if !f.inside[c.Stream] {
			f.buf.WriteString(c.Time.UTC().Format("2006-01-02T15:04:05.000000000Z "))
		}
		f.buf.Write(line)
		f.inside[c.Stream] = line[len(line)-1] != '\n'
	}
}

// json writes a piece as an api.LogLine. An incomplete character waits for its rest.
func (f *logFormat) json(c *output.Chunk) {
	if c.Gap > 0 {
		f.flush(c.Stream)
		f.line(api.LogLine{Stream: streamName(c.Stream), Offset: c.Offset, Time: c.Time, Gap: c.Gap}, c.Stream, c.Gap)
		return
	}
	data := c.Data
	if partial := f.partial[c.Stream]; len(partial) > 0 {
		data = append(partial, data...)
	}
	whole := len(output.Whole(data))
	if whole > 0 {
		f.text(c.Stream, c.Time, data[:whole])
	}
	f.partial[c.Stream], f.times[c.Stream] = bytes.Clone(data[whole:]), c.Time
}

func (f *logFormat) text(stream int, at time.Time, data []byte) {
	l := api.LogLine{Stream: streamName(stream), Offset: f.at[stream], Time: at, Data: string(data)}
	if !utf8.Valid(data) {
		l.Data, l.Base64 = base64.StdEncoding.EncodeToString(data), true
	}
	f.line(l, stream, int64(len(data)))
}

// line writes an api.LogLine about the next n bytes of a stream.
func (f *logFormat) line(l api.LogLine, stream int, n int64) {
	f.at[stream] += n
	if f.kind == "sse" {
		fmt.Fprintf(&f.buf, "id: %d.%d\ndata: ", f.at[0], f.at[1])
	}
	e := json.NewEncoder(&f.buf)
	e.SetEscapeHTML(false)
	_ = e.Encode(l) // plain data, into memory
	if f.kind == "sse" {
		f.buf.WriteByte('\n')
	}
}

// flush writes an incomplete character that has waited for its rest.
func (f *logFormat) flush(stream int) {
	if partial := f.partial[stream]; len(partial) > 0 {
		f.text(stream, f.times[stream], partial)
		f.partial[stream] = nil
	}
}

// pass counts a piece of a stream that is not sent.
func (f *logFormat) pass(c *output.Chunk) { f.at[c.Stream] += c.Len() }

// drain formats what is left at the end of the present output.
func (f *logFormat) drain() []byte {
	f.buf.Reset()
	f.flush(0)
	f.flush(1)
	return f.buf.Bytes()
}

// end is drain at the end of the process, after which an EventSource need not reconnect.
func (f *logFormat) end() []byte {
	f.drain()
	if f.kind == "sse" {
		fmt.Fprintf(&f.buf, "event: end\nid: %d.%d\ndata: {}\n\n", f.at[0], f.at[1])
	}
	return f.buf.Bytes()
}
