// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// transferTimeout is how long a caller may take to send or read a piece of an archive: every connection has deadlines.
const transferTimeout = time.Minute

// errNotRead stops packing an archive that is no longer read.
var errNotRead = errors.New("the reader has gone")

// transfer writes a response whose reader may take transferTimeout for each piece, until ctx ends.
type transfer struct {
	ctx context.Context //nolint:containedctx // that of the response
	w   http.ResponseWriter
}

// newTransfer returns one that also breaks a write off when ctx ends: whoever ends it does not wait for a caller that reads nothing. The
// response is not usable after that. stop must follow.
func newTransfer(ctx context.Context, w http.ResponseWriter) (t transfer, stop func()) {
	aborted := make(chan struct{})
	end := context.AfterFunc(ctx, func() {
		defer close(aborted)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // every connection has deadlines
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))  // net/http reads what is left of a body first
	})
	return transfer{ctx, w}, func() {
		if !end() {
			<-aborted // or it would end the next response on the connection
		}
	}
}

func (t transfer) Write(b []byte) (int, error) {
	_ = http.NewResponseController(t.w).SetWriteDeadline(time.Now().Add(transferTimeout)) // as above
	if t.ctx.Err() != nil {                                                               // it may have set the other deadline already
		return 0, context.Cause(t.ctx)
	}
	return t.w.Write(b)
}

// sendArchive streams an archive as the response, which begins with the first write of pack. A failure after that leaves both the
// archive and the response without an end.
func sendArchive(ctx context.Context, c *Call, pack func(io.Writer) error) error {
	to, stop := newTransfer(ctx, c.W)
	defer stop()
	a := &archiveSender{transfer: to}
	err := pack(a)
	if err != nil && a.started {
		panic(http.ErrAbortHandler) // makes net/http cut the response off
	}
	return err
}

// packed passes an archive of a directory of a session, which is packed inside its box, to take.
func packed(ctx context.Context, s *session.Session, path string, take func(r io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := sessionfiles.Pack(ctx, s, &files.Pack{Path: []byte(path)}, w)
		w.CloseWithError(err)
		done <- err
	}()
	err := take(r)
	r.CloseWithError(errNotRead)
	cancel() // stops a packer that still runs
	if failed := <-done; failed != nil && !errors.Is(failed, errNotRead) && !errors.Is(failed, context.Canceled) {
		return failed
	}
	return err
}

// archiveSender begins the response with the first write.
type archiveSender struct {
	transfer

	started bool
}

func (s *archiveSender) Write(p []byte) (int, error) {
	if !s.started {
		s.started = true
		archiveHead(s.w.Header())
	}
	return s.transfer.Write(p)
}

func archiveHead(h http.Header) {
	h.Set("Content-Type", media)
	h.Set("X-Content-Type-Options", "nosniff")
}

// wantsUpgrade refuses a request that does not ask to upgrade its connection to protocol (RFC 9110, section 7.8).
func wantsUpgrade(r *http.Request, protocol string) error {
	found := false
	for _, list := range r.Header.Values("Connection") {
		for option := range strings.SplitSeq(list, ",") {
			found = found || strings.EqualFold(strings.TrimSpace(option), "Upgrade")
		}
	}
	switch to := strings.Join(r.Header.Values("Upgrade"), ", "); {
	case r.Method != http.MethodGet:
		return wrongMethod(r.Method, []string{http.MethodGet})
	case !strings.EqualFold(to, protocol):
		return fault.Field("Upgrade", to, protocol)
	case !found || !r.ProtoAtLeast(1, 1):
		return fault.Field("Connection", strings.Join(r.Header.Values("Connection"), ", "), "Upgrade, with HTTP/1.1")
	case r.ContentLength != 0:
		return fault.Field("body", fault.Word("given"), "empty")
	}
	return nil
}
