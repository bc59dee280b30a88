// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// transferPatience is how long a caller may take to send or read a piece of an archive: every connection has deadlines.
const transferPatience = time.Minute

// errNotRead stops packing an archive that is no longer read.
var errNotRead = errors.New("the reader has gone")

// body streams the body of a request.
type body struct{ c *Call }

func (b body) Read(p []byte) (int, error) {
	_ = http.NewResponseController(b.c.W).SetReadDeadline(time.Now().Add(transferPatience))
	return b.c.R.Body.Read(p)
}

// archiveSender streams an archive as the response, which begins with its first write.
type archiveSender struct {
	c     *Call
	begun bool
}

func (s *archiveSender) begin() {
	_ = http.NewResponseController(s.c.W).SetWriteDeadline(time.Now().Add(transferPatience))
	if !s.begun {
		s.begun = true
		s.c.W.Header().Set("Content-Type", Media)
		s.c.W.Header().Set("X-Content-Type-Options", "nosniff")
	}
}

func (s *archiveSender) Write(p []byte) (int, error) {
	s.begin()
	return s.c.W.Write(p)
}

// wantsUpgrade refuses a request that does not ask to upgrade its connection to protocol (RFC 9110, section 7.8).
func wantsUpgrade(r *http.Request, protocol string) error {
	asked := false
	for _, list := range r.Header.Values("Connection") {
		for option := range strings.SplitSeq(list, ",") {
			asked = asked || strings.EqualFold(strings.TrimSpace(option), "Upgrade")
		}
	}
	switch to := strings.Join(r.Header.Values("Upgrade"), ", "); {
	case r.Method != http.MethodGet:
		return wrongMethod(r.Method, []string{http.MethodGet})
	case !strings.EqualFold(to, protocol):
		return fault.Field("Upgrade", to, protocol)
	case !asked || !r.ProtoAtLeast(1, 1):
		return fault.Field("Connection", strings.Join(r.Header.Values("Connection"), ", "), "Upgrade, with HTTP/1.1")
	case r.ContentLength != 0:
		return fault.Field("body", fault.Word("given"), "empty")
	}
	return nil
}
