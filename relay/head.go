// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"net"
	"net/http"
	"sync"

	"github.com/boxd-dev/boxd/internal/fault"
)

// head is the header of a request as far as it has come, as it was sent: net/http drops a Content-Length beside a
// Transfer-Encoding. A request that has both is an attempt to smuggle another one past a proxy that goes by the other of
// the two (RFC 9112, section 6.1): it is refused.
type head struct {
	mu       sync.Mutex // guards the fields below
	sent     []byte
	complete bool // the header is complete
}

var headerEnd = []byte("\r\n\r\n")

// note records bytes that have been read.
func (h *head) note(data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.complete || len(data) == 0 {
		return
	}
	from := max(0, len(h.sent)-len(headerEnd))
	h.sent = append(h.sent, data...)
	if i := bytes.Index(h.sent[from:], headerEnd); i >= 0 {
		h.sent, h.complete = h.sent[:from+i], true
	}
	h.complete = h.complete || len(h.sent) > maxHeader
}

// next prepares for another request.
func (h *head) next() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent, h.complete = h.sent[:0], false
}

// twoLengths reports whether a request with a chunked body may have had a Content-Length too. For a request that arrived
// together with the one before it this is unknown.
func (h *head) twoLengths() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	const name = "content-length"
	lines := bytes.Split(h.sent, []byte("\n"))
	for _, line := range lines[1:] {
		field, _, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(bytes.TrimSpace(field), []byte(name)) {
			return true
		}
	}
	return len(lines) < 2
}

// OneLength refuses a request whose body has two lengths, which is an attempt to smuggle another: see head. What follows
// on its connection is not to be trusted.
func OneLength(w http.ResponseWriter, r *http.Request) error {
	// Under TLS only boxd knows where a request ends.
	if from, _ := caller(r.Context()); r.TLS == nil && len(r.TransferEncoding) > 0 && from.head != nil && from.head.twoLengths() {
		w.Header().Set("Connection", "close")
		return fault.Field("Content-Length", fault.Word("given"), "left out with Transfer-Encoding")
	}
	return nil
}

// watchHeads resets the head of a connection when a request has been answered.
func watchHeads(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(peerConn); ok && c.peer.head != nil && state == http.StateIdle {
		c.peer.head.next()
	}
}
