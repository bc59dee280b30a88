// SPDX-License-Identifier: Apache-2.0

package conns

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// An archive has to be there in time, however diligently its caller sends.
func TestAnArchiveTakesNoTimeWithoutEnd(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := ArchiveBody(w, r).(*archiveBody) //nolint:forcetypeassert // it is one
		if left := time.Until(body.until); left <= pieceTimeout || left > archiveTime {
			t.Errorf("it has %v, want left > piecePatience and left <= archiveTime", left)
		}
		body.until = time.Now().Add(100 * time.Millisecond)
		timer := time.AfterFunc(time.Minute, func() { _ = r.Body.Close() }) // or the test would not end
		defer timer.Stop()
		_, err := io.Copy(io.Discard, body)
		failed <- err
	}))
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, endless{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := s.Client().Do(req); err == nil { // it may get an error that the body is no longer read, or no answer
		resp.Body.Close()
	}
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || fault.KindOf(err) != fault.Invalid { // not an error of the store
		t.Error(err)
	}
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
