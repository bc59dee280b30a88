// SPDX-License-Identifier: Apache-2.0

package mcphost

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
	initialized chan struct{} // closed when the server has answered the handshake

	mu          sync.Mutex        // guards what follows
	waiting     map[string]string // requests without an answer, by their ids: "initialize", or the name of a tool
	onHandshake func()            // is called when the handshake begins; nil: it has begun
	active      bool              // the server has said something since the last question for a sign of life
}

func newWatch(onHandshake func()) *watch {
	return &watch{initialized: make(chan struct{}), waiting: map[string]string{}, onHandshake: onHandshake}
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

// activity reports whether the server has said something since the last call, and whether it has been greeted and owes no answer.
func (w *watch) activity() (active, idle bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	active, w.active = w.active, false
	select {
	case <-w.initialized:
		return active, len(w.waiting) == 0
	default:
		return active, false
	}
}

// answered reports whether all requests have an answer.
func (w *watch) answered() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) == 0
}

// noteOutput notes that the server has said something.
func (w *watch) noteOutput() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = true
}

// scanLong looks at the beginning of an answer that is too long to be looked at: its id mostly comes before what it is about.
func (w *watch) scanLong(b []byte) {
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil || key == "method" { // a request of the server's own
			return
		}
		if key == "id" {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.waiting, string(value))
			return
		}
	}
}

// message looks at a message, and reports whether it is the answer to a ping of ours.
func (w *watch) message(b []byte) (private bool) {
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
	if isPing(m.ID) {
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
		if w.onHandshake != nil {
			w.onHandshake()
			w.onHandshake = nil
		}
	case "tools/call":
		w.waiting[id] = m.Params.Name
	case "": // an answer
		if what, ok := w.waiting[id]; ok && what == "" {
			select {
			case <-w.initialized:
			default:
				close(w.initialized)
			}
		}
		delete(w.waiting, id)
	}
	return false
}

// lines cuts what passes into lines.
type lines struct {
	handle func([]byte)
	rest   []byte
	long   bool // the line is too long, and is passed over
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
			l.handle(l.rest)
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

// writer passes on what a server says, but for what is for us alone. A line is held back until it is whole, or too long to be
// that.
type writer struct {
	io.Writer

	watch *watch
	line  []byte // of a line that has not ended
	past  bool   // the line is the client's, who has what has come of it
}

// Write looks, and writes.
func (w *writer) Write(b []byte) (int, error) {
	w.watch.noteOutput()
	for rest := b; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		whole := end > 0
		if !whole {
			end = len(rest)
		}
		if err := w.piece(rest[:end], whole); err != nil {
			return 0, err
		}
		rest = rest[end:]
	}
	return len(b), nil
}

func (w *writer) piece(b []byte, whole bool) error {
	if !w.past {
		w.line = append(w.line, b...)
		switch {
		case whole:
			line := w.line
			w.line = nil
			if w.watch.message(line) {
				return nil
			}
			_, err := w.Writer.Write(line)
			return err
		case len(w.line) <= maxLine:
			return nil
		}
		b, w.line, w.past = w.line, nil, true
		w.watch.scanLong(b)
	}
	w.past = !whole
	_, err := w.Writer.Write(b)
	return err
}

// flush passes on the beginning of a line that has no end.
func (w *writer) flush() error {
	b := w.line
	w.line = nil
	if len(b) == 0 {
		return nil
	}
	_, err := w.Writer.Write(b)
	return err
}
