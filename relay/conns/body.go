// SPDX-License-Identifier: Apache-2.0

package conns

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// How long a caller may send nothing of an archive, and how long it may take for all of it: others wait for the place that it has.
const (
	pieceTimeout = time.Minute
	archiveTime  = time.Hour
)

// archiveBody is the body of a request, which fails when its caller sends nothing more.
type archiveBody struct {
	w     http.ResponseWriter
	r     *http.Request
	until time.Time
}

// ArchiveBody returns the body of a request that is an archive, which takes its time and may be read only that long.
func ArchiveBody(w http.ResponseWriter, r *http.Request) io.Reader {
	return &archiveBody{w, r, time.Now().Add(archiveTime)}
}

func (b *archiveBody) Read(p []byte) (int, error) {
	until := time.Now().Add(pieceTimeout)
	if b.until.Before(until) {
		until = b.until
	}
	_ = http.NewResponseController(b.w).SetReadDeadline(until) // every connection has deadlines
	n, err := b.r.Body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) { // which is not the store's
		err = fault.Errorf(fault.Invalid, "read the archive: %w", err).WithHint("the upload was cut short; send it again")
	}
	return n, err
}
