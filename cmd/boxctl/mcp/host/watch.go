// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"encoding/json"
	"io"
	"sync"
)

// maxLine is the longest message of a client that is looked at, in bytes. Longer ones pass unseen.
const maxLine = 1 << 20

// watch looks at the messages that pass between a client and a server, to know in what a server was when it failed.
type watch struct {
	greeted chan struct{} // closed when the server has answered the handshake

	mu      sync.Mutex        // guards what follows
	waiting map[string]string // requests without an answer, by their ids: "initialize", or the name of a tool
	asked   func()            // is called when the handshake begins; nil: it has begun
	said    bool              // the server has said something since the last question for a sign of life
}

func newWatch(asked func()) *watch {
	return &watch{greeted: make(chan struct{}), waiting: map[string]string{}, asked: asked}
}

// phase is what the server is in.
func (w *watch) phase() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	tool := ""
	for _, what := range w.waiting {
		if what == "" {
			return "handshake"
		}
		tool = what
	}
	if tool != "" {
		return "tool call " + tool
	}
	return "run time"
}

// sign reports whether the server has said something since the last call, and whether it has been greeted and owes no answer.
func (w *watch) sign() (said, idle bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	said, w.said = w.said, false
	select {
	case <-w.greeted:
		return said, len(w.waiting) == 0
	default:
		return said, false
	}
}

// owesNothing reports whether all requests have an answer.
func (w *watch) owesNothing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) == 0
}

// heard looks at what the server says, and reports whether that is for us alone.
func (w *watch) heard(b []byte) (private bool) {
	w.mu.Lock()
	w.said = true
	w.mu.Unlock()
	return w.line(b)
}

// line looks at a message, and reports whether it is the answer to a ping of ours.
func (w *watch) line(b []byte) (private bool) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name      string          `json:"name"`
			RequestID json.RawMessage `json:"requestId"`
		} `json:"params"`
	}
	if json.Unmarshal(b, &m) != nil {
		return false
	}
	if ours(m.ID) {
		return m.Method == ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.Method == "notifications/cancelled" { // a server need not answer that request any more
		delete(w.waiting, string(m.Params.RequestID))
	}
	if len(m.ID) == 0 {
		return false
	}
	id := string(m.ID)
	switch m.Method {
	case "initialize":
		w.waiting[id] = ""
		if w.asked != nil {
			w.asked()
			w.asked = nil
		}
	case "tools/call":
		w.waiting[id] = m.Params.Name
	case "": // an answer
		if what, ok := w.waiting[id]; ok && what == "" {
			select {
			case <-w.greeted:
			default:
				close(w.greeted)
			}
		}
		delete(w.waiting, id)
	}
	return false
}

// lines cuts what passes into lines.
type lines struct {
	see  func([]byte)
	rest []byte
	long bool // the line is too long, and is passed over
}

func (l *lines) feed(b []byte) {
	for {
		piece, rest, whole := bytes.Cut(b, []byte{'\n'})
		if l.long = l.long || len(l.rest)+len(piece) > maxLine; l.long {
			l.rest = nil
		} else {
			l.rest = append(l.rest, piece...)
		}
		if !whole {
			return
		}
		if !l.long {
			l.see(l.rest)
		}
		l.rest, l.long, b = l.rest[:0], false, rest
	}
}

// reader passes on what a client says.
type reader struct {
	io.Reader

	lines lines
}

// Read reads, and looks.
func (r *reader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.lines.feed(b[:n])
	return n, err
}

// writer passes on what a server says, each Write a line. What is for us alone goes no further.
type writer struct {
	io.Writer

	heard func([]byte) (private bool)
}

// Write looks, and writes.
func (w *writer) Write(b []byte) (int, error) {
	if w.heard(b) {
		return len(b), nil
	}
	return w.Writer.Write(b)
}
