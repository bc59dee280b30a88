// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// uploads are the multipart uploads of a server.
type uploads struct {
	s     *server
	mu    sync.Mutex
	parts map[string]map[int][]byte // by key
	meta  map[string]http.Header
	given int    // up
	lose  func() // called before the answer to a completed upload; nil: it is sent
}

func (u *uploads) answer(w http.ResponseWriter, r *http.Request, next http.Handler) {
	q := r.URL.Query()
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		u.parts[key], u.meta[key] = map[int][]byte{}, r.Header
		_, _ = fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", "of-it")
	case !q.Has("uploadId"):
		next.ServeHTTP(w, r)
	case u.parts[key] == nil:
		fail(w, http.StatusNotFound, "NoSuchUpload", "there is none")
	case r.Method == http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		n, _ := strconv.Atoi(q.Get("partNumber"))
		u.parts[key][n] = data
		w.Header().Set("ETag", etag(data))
	case r.Method == http.MethodDelete:
		u.given++
		delete(u.parts, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		var whole []byte
		for n := 1; n <= len(u.parts[key]); n++ {
			whole = append(whole, u.parts[key][n]...)
		}
		u.s.mu.Lock()
		u.s.put(key, whole, u.meta[key])
		u.s.mu.Unlock()
		delete(u.parts, key)
		if u.lose != nil {
			u.lose()
		}
		_, _ = io.WriteString(w, "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")
	}
}

// A file larger than a part is sent in parts, even if the answer to its completion is lost; a failed upload is aborted.
func TestALargeFileGoesInParts(t *testing.T) {
	t.Parallel()
	s := serve(t)
	u := &uploads{s: s, parts: map[string]map[int][]byte{}, meta: map[string]http.Header{}}
	s.does(u.answer)
	b := s.open(t, func(o *BucketOptions) { o.Part = "1KiB" })
	want := map[string]string{"large!": strings.Repeat("0123456789", 300), "small": "x", "just": strings.Repeat("x", 1024)}
	var counted atomic.Int64
	if done, err := b.Push(t.Context(), some(want), false, func(n int64) { counted.Add(n) }); err != nil || done.Sent != 3 || counted.Load() != 4025 || s.puts != 3 {
		t.Fatalf("%+v, %d bytes, %d objects, %v", done, counted.Load(), s.puts, err)
	}
	if got, err := b.fetched(t); err != nil || !maps.Equal(got, want) {
		t.Errorf("fetched %q, %v", got, err)
	}
	u.lose = func() { panic(http.ErrAbortHandler) }
	lost := s.open(t, func(o *BucketOptions) { o.Part, o.Address = "1KiB", "s3://bucket/lost" })
	if done, err := lost.Push(t.Context(), some(want), false, uncounted); err != nil || done.Sent != 3 {
		t.Errorf("a lost answer: done = %+v, err = %v, want no error and done.Sent == 3", done, err)
	}
	s.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Get("partNumber") == "2" {
			fail(w, http.StatusForbidden, "AccessDenied", "no")
			return
		}
		u.answer(w, r, next)
	})
	bad := s.open(t, func(o *BucketOptions) { o.Part, o.Address = "1KiB", "s3://bucket/bad" })
	if _, err := bad.Push(t.Context(), some(want), false, uncounted); err == nil || u.given != 1 || len(u.parts) != 0 {
		t.Errorf("a part is refused: %v, given up %d times", err, u.given)
	}
	if n := (&Bucket{part: 1}).partsOf(maxObject); n*maxParts < maxObject || n > maxPart {
		t.Errorf("the largest object has parts of %d bytes", n)
	}
	for _, size := range []string{"0B", "6GiB", "x"} {
		if _, err := OpenBucket(&BucketOptions{Address: "s3://bucket/x", Part: size, Getenv: env(nil)}); err == nil {
			t.Errorf("no error for parts of %s", size)
		}
	}
}
