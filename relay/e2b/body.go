// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"io"
	"net/http"
	"time"
)

// streamPatience is how long a client may take nothing of an answer: as long as programs wait for it.
const streamPatience = 10 * time.Minute

// timedBody is the body of a request whose client has a while to send each part of it. When all of it is there the
// connection has no deadline, by which net/http looks out for its end.
type timedBody struct {
	io.ReadCloser

	conn *http.ResponseController
	end  func() // gives back the room that the body had; called once
}

// Read reads a part.
func (b *timedBody) Read(p []byte) (int, error) {
	_ = b.conn.SetReadDeadline(time.Now().Add(bodyPatience)) // every connection of ours has deadlines
	n, err := b.ReadCloser.Read(p)
	_ = b.conn.SetReadDeadline(time.Time{})
	if err != nil {
		b.end()
	}
	return n, err
}

// Close ends the body.
func (b *timedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}
