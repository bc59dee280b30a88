// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// streamTimeout is how long a client may take nothing of an answer: as long as programs wait for it.
const streamTimeout = 10 * time.Minute

// expectBody gives a client a while to send what it has announced. net/http wants that before it sends an answer, also to who
// has not proven who he is, and reads it by itself where nobody else does.
func expectBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // every connection of ours has deadlines
	}
}

// timedBody is the body of a request whose client has a while to send each part of it. When all of it is there the
// connection has no deadline, by which net/http looks out for its end.
type timedBody struct {
	io.ReadCloser

	conn    *http.ResponseController
	until   time.Time // by when all of it has to be there; zero: each part has its while
	release func()    // gives back the room that the body had, once all of it is there; called once
}

// Read reads a part.
func (b *timedBody) Read(p []byte) (int, error) {
	until := b.until
	if until.IsZero() {
		until = time.Now().Add(bodyTimeout)
	}
	_ = b.conn.SetReadDeadline(until) // every connection of ours has deadlines
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		b.release()
	}
	return n, err
}

// Close ends the body.
func (b *timedBody) Close() error {
	b.release()
	return b.ReadCloser.Close()
}
