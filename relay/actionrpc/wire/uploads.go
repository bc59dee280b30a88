// SPDX-License-Identifier: Apache-2.0

// LangBot sends files in pieces before the action that uses them. They have no name in any filesystem and end with the
// connection.

package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Limits of the protocol.
const (
	uploadPiece = 16 << 10 // bytes
	maxPiece    = (uploadPiece + 2) / 3 * 4
	maxOpen     = 128 // files of one connection
)

// Limits of all connections together, since a client can open as many as it likes.
const (
	allOpen  = 512
	allBytes = 1 << 30
)

// UploadBudget is shared by all connections.
type UploadBudget struct{ files, bytes *semaphore.Weighted }

// NewUploadBudget returns an unused budget.
func NewUploadBudget() *UploadBudget {
	return &UploadBudget{semaphore.NewWeighted(allOpen), semaphore.NewWeighted(allBytes)}
}

// Uploads has the files of one connection.
type Uploads struct {
	budget *UploadBudget

	mu     sync.Mutex
	files  map[string]*file
	closed bool
}

// file is an upload, as far as it has come.
type file struct {
	data *os.File
	size int64
}

// NewUploads returns an empty store. Close must follow.
func NewUploads(b *UploadBudget) *Uploads { return &Uploads{budget: b, files: map[string]*file{}} }

var key = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// chunk is a piece of a file.
type chunk struct {
	key   string
	first bool
	data  []byte
}

func uploadFull() error { return uploadRefused("Active file transfer capacity reached") }

func uploadRefused(text string) error { return Refusef("ValueError", "%s", text) }

func read(fields map[string]json.RawMessage) (*chunk, error) {
	for _, name := range []string{"file_key", "chunk_base64", "chunk_index", "chunk_amount"} {
		if _, given := fields[name]; !given {
			return nil, Refusef("KeyError", "'%s'", name)
		}
	}
	c := &chunk{}
	var ok bool
	if c.key, ok = StringOf(fields["file_key"]); !ok || !key.MatchString(c.key) || strings.Contains(c.key, "..") {
		return nil, uploadRefused("Invalid file transfer key")
	}
	text, ok := StringOf(fields["chunk_base64"])
	if !ok || len(text) > maxPiece {
		return nil, uploadRefused("File transfer chunk exceeds the protocol limit")
	}
	index, ok1 := StrictInt(fields["chunk_index"])
	amount, ok2 := StrictInt(fields["chunk_amount"])
	if !ok1 || !ok2 || amount <= 0 || index < 0 || index >= amount {
		return nil, uploadRefused("Invalid file chunk position")
	}
	var err error
	if c.data, err = base64.StdEncoding.Strict().DecodeString(text); err != nil {
		return nil, Refusef("Error", "%v", err)
	}
	if len(c.data) > uploadPiece {
		return nil, uploadRefused("File transfer chunk exceeds the protocol limit")
	}
	c.first = index == 0
	return c, nil
}

// Put adds a piece to a file of at most most bytes. The first piece starts the file over.
func (s *Uploads) Put(fields map[string]json.RawMessage, limit int64) error {
	c, err := read(fields)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return uploadRefused("the connection has ended")
	}
	f := s.files[c.key]
	if f == nil {
		if len(s.files) >= maxOpen || !s.budget.files.TryAcquire(1) {
			return uploadFull()
		}
		if f, err = unnamed(); err != nil {
			s.budget.files.Release(1)
			return err
		}
		s.files[c.key] = f
	}
	if c.first {
		s.budget.bytes.Release(f.size)
		f.size = 0
		if err := f.data.Truncate(0); err != nil {
			return fmt.Errorf("upload: %w", err)
		}
	}
	if f.size+int64(len(c.data)) > limit {
		s.drop(c.key)
		return uploadRefused("File transfer exceeds the configured size limit")
	}
	if !s.budget.bytes.TryAcquire(int64(len(c.data))) {
		s.drop(c.key)
		return uploadFull()
	}
	f.size += int64(len(c.data))
	if _, err := f.data.WriteAt(c.data, f.size-int64(len(c.data))); err != nil {
		s.drop(c.key)
		return fmt.Errorf("upload: %w", err)
	}
	return nil
}

// unnamed makes a file without a name.
func unnamed() (*file, error) {
	f, err := os.CreateTemp("", "boxd-upload-")
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("upload: %w", err)
	}
	return &file{data: f}, nil
}

// drop forgets a file. s.mu is held.
func (s *Uploads) drop(key string) {
	if f := s.forget(key); f != nil {
		f.Close()
	}
}

// forget releases the budget of a file, without closing it. s.mu is held.
func (s *Uploads) forget(key string) *os.File {
	f := s.files[key]
	if f == nil {
		return nil
	}
	delete(s.files, key)
	s.budget.files.Release(1)
	s.budget.bytes.Release(f.size)
	return f.data
}

// Take hands a file out, once; the caller must close it. It returns false if there is none.
func (s *Uploads) Take(key string) (*os.File, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.forget(key)
	if f == nil {
		return nil, false
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, false
	}
	return f, true
}

// Close drops all files.
func (s *Uploads) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for key := range s.files {
		s.drop(key)
	}
}
