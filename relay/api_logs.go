// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/quantity"

	"github.com/boxd-dev/boxd/supervisor/process"
)

// logs is a request for the output of a process.
type logs struct {
	follow, timestamps bool

	format  string        // "text", "ndjson" or "sse"
	only    int           // the one stream to send; -1: both
	from    [2]int64      // where it begins, unless tail or lines decides
	resumed bool          // from is the position of an EventSource
	tail    quantity.Size // bytes at the end of each stream; 0: all
	lines   int           // lines at the end; -1: all
	since   time.Time     // skip what was written before; zero: nothing
	end     [2]int64      // of the output at the time of the request
}

// maxTailLines is how many lines of the end may be requested.
const maxTailLines = 10000

// lastEvent is the header in which an EventSource sends its position.
const lastEvent = "Last-Event-ID"

// heartbeat is how often an EventSource gets a heartbeat when a process writes nothing.
const heartbeat = 30 * time.Second

// sendLogs sends the stored output of a process and, with follow, new output as it comes.
func sendLogs(c *Call) (any, error) {
	_, p, err := c.Process()
	if err == nil {
		err = p.Attachable()
	}
	if err != nil {
		return nil, err
	}
	if err := p.Started(c.Context()); c.Context().Err() != nil { // before that, the amount of output is unknown
		return nil, err
	}
	info := p.Info()
	l, err := readLogs(c.R.URL.Query(), c.R.Header.Get(lastEvent), [2]int64{info.Output[0].Bytes, info.Output[1].Bytes})
	if err != nil {
		return nil, err
	}
	release, err := c.Limits.Stream()
	if err != nil {
		return nil, err
	}
	defer release()
	if l.resumed && l.from == l.end && info.State == process.StateEnded {
		return noContent{}, nil // otherwise an EventSource would reconnect forever
	}
	if l.lines >= 0 || !l.since.IsZero() {
		if l.from, err = l.findBegin(c.Context(), p); err != nil {
			return nil, err
		}
	}
	a, err := p.Attach(c.Context(), process.AttachOptions{From: &l.from, Timed: true})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if err := l.send(c, a); err != nil {
		c.Log.Debug("logs ended early", "process", info.ID, "error", err)
		panic(http.ErrAbortHandler) // only this tells a client that there is more
	}
	return nil, nil //nolint:nilnil // it has been sent
}

// readLogs reads the query of a request for output, which ends at end.
func readLogs(query url.Values, last string, end [2]int64) (*logs, error) {
	l := &logs{format: cmp.Or(query.Get("format"), "text"), only: -1, lines: -1, end: end}
	for name, v := range map[string]*bool{"follow": &l.follow, "timestamps": &l.timestamps} {
		switch text := query.Get(name); text {
		case "", "false":
		case "true":
			*v = true
		default:
			return nil, fault.Field(name, text, "true or false")
		}
	}
	switch only := query.Get("stream"); only {
	case "":
	case "stdout", "stderr":
		l.only = map[string]int{"stdout": 0, "stderr": 1}[only]
	default:
		return nil, fault.Field("stream", only, "stdout or stderr")
	}
	switch l.format {
	case "text", "ndjson", "sse":
	default:
		return nil, fault.Field("format", l.format, "text, ndjson or sse")
	}
	return l, l.readBegin(query, last)
}

// readBegin reads where the output is to begin.
func (l *logs) readBegin(query url.Values, last string) error {
	begins := 0
	if query.Has("stdout") || query.Has("stderr") {
		begins++
		for i := range l.from {
			name := streamName(i)
			text := cmp.Or(query.Get(name), "0")
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 || n > l.end[i] {
				return fault.Field(name, text, fmt.Sprintf("0 to %d, the bytes written so far", l.end[i]))
			}
			l.from[i] = n
		}
	}
	if text := query.Get("tail"); text != "" {
		begins++
		if l.tail.UnmarshalJSON([]byte(text)) != nil && l.tail.UnmarshalText([]byte(text)) != nil {
			return fault.Field("tail", text, "a number of bytes, or a size such as 64KiB")
		}
		for i, end := range l.end {
			l.from[i] = max(end-int64(min(l.tail, quantity.TiB)), 0)
		}
	}
	if text := query.Get("lines"); text != "" {
		begins++
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxTailLines {
			return fault.Field("lines", text, fmt.Sprintf("0 to %d", maxTailLines))
		}
		l.lines = n
	}
	if text := query.Get("since"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || at.IsZero() {
			return fault.Field("since", text, "a time such as 2026-11-21T09:30:00Z")
		}
		if l.since = at; l.lines < 0 { // together with lines: the last of those written since
			begins++
		}
	}
	if begins > 1 {
		return fault.Field("query", fault.Word("ambiguous"), "one of tail, lines or since, and stdout or stderr").
			WithText("tail, lines or since, and stdout or stderr cannot be combined: each says where to begin")
	}
	if l.format != "sse" || last == "" {
		return nil
	}
	l.resumed, l.lines, l.since = true, -1, time.Time{}
	for i, text := range strings.SplitN(last, ".", 2) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > l.end[i] || !strings.Contains(last, ".") {
			return fault.Field(lastEvent, last, "the id of an event of this process")
		}
		l.from[i] = n
	}
	return nil
}

// wants reports whether to send pieces of a stream.
func (l *logs) wants(stream int) bool { return l.only < 0 || l.only == stream }

// before reports whether a position is before the end of the output at the time of the request.
func (l *logs) before(at [2]int64) bool { return at[0] < l.end[0] || at[1] < l.end[1] }

// findBegin finds where the last lines begin, or what was written since a time.
func (l *logs) findBegin(ctx context.Context, p *process.Process) ([2]int64, error) {
	a, err := p.Attach(ctx, process.AttachOptions{From: new([2]int64), Timed: !l.since.IsZero()})
	if err != nil {
		return l.end, err
	}
	defer a.Close()
	t := &tail{lines: l.lines, since: l.since}
	for l.before(a.Position()) {
		at := a.Position()
		c, err := a.Next(ctx)
		if err != nil {
			return l.end, err
		}
		if !t.isSince(&c) {
			continue
		}
		if l.lines < 0 {
			return at, nil
		}
		if l.wants(c.Stream) {
			t.add(at, &c)
		}
	}
	return t.begin(l.end), nil
}

// tail records where the last lines begin, from pieces in order.
type tail struct {
	lines  int
	since  time.Time  // skip what was written before; zero: nothing
	starts [][2]int64 // the oldest first
	inside [2]bool    // a line of the stream has begun
}

// isSince reports whether a piece was written since the requested time. Discarded output was not, and a piece without a
// time follows one that has a time.
func (t *tail) isSince(c *output.Chunk) bool {
	return t.since.IsZero() || c.Gap == 0 && !c.Time.IsZero() && !c.Time.Before(t.since)
}

func (t *tail) add(at [2]int64, c *output.Chunk) {
	for i := 0; i < len(c.Data); {
		if !t.inside[c.Stream] {
			start := at
			start[c.Stream] = c.Offset + int64(i)
			t.starts = append(t.starts, start)
			if len(t.starts) > 2*t.lines {
				t.starts = append(t.starts[:0], t.starts[len(t.starts)-t.lines:]...)
			}
		}
		n := bytes.IndexByte(c.Data[i:], '\n')
		if t.inside[c.Stream] = n < 0; n < 0 {
			return
		}
		i += n + 1
	}
}

// begin returns where the last lines begin in an output with this end.
func (t *tail) begin(end [2]int64) [2]int64 {
	if t.lines == 0 || len(t.starts) == 0 {
		return end
	}
	return t.starts[max(len(t.starts)-t.lines, 0)]
}

// send sends the output. An error means that there would have been more.
func (l *logs) send(c *Call, a *process.Attachment) error {
	f := &logFormat{kind: l.format, timestamps: l.timestamps, at: a.Position()}
	out := http.NewResponseController(c.W)
	c.W.Header().Set("Content-Type", f.contentType())
	c.W.Header().Set("X-Content-Type-Options", "nosniff")
	c.W.Header().Set("Cache-Control", "no-store")
	c.limitReadTime()
	c.W.WriteHeader(http.StatusOK)
	write := func(data []byte) error {
		_ = out.SetWriteDeadline(time.Now().Add(stallTimeout)) // every connection has deadlines
		if len(data) > 0 {
			if _, err := c.W.Write(data); err != nil {
				return err
			}
		}
		return out.Flush()
	}
	if err := write(nil); err != nil || c.R.Method == http.MethodHead {
		return err
	}
	for l.follow || l.before(a.Position()) {
		piece, err := l.next(c.Context(), a)
		switch {
		case errors.Is(err, io.EOF):
			return write(f.end())
		case err != nil:
			return err
		case piece == nil:
			err = write([]byte(":\n\n")) // a comment
		case l.wants(piece.Stream):
			err = write(f.piece(piece))
		default:
			f.pass(piece)
		}
		if err != nil {
			return err
		}
	}
	return write(f.drain())
}

// next waits for the next piece; nil means that a heartbeat is due.
func (l *logs) next(ctx context.Context, a *process.Attachment) (*output.Chunk, error) {
	timeoutCtx, cancel := ctx, func() {}
	if l.format == "sse" {
		timeoutCtx, cancel = context.WithTimeout(ctx, heartbeat)
	}
	defer cancel()
	c, err := a.Next(timeoutCtx)
	if err != nil && timeoutCtx.Err() != nil && ctx.Err() == nil {
		return nil, nil //nolint:nilnil // as said
	}
	return &c, err
}
