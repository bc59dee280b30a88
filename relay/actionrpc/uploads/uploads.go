// SPDX-License-Identifier: Apache-2.0

// Package uploads takes files that LangBot sends in pieces, before the action that uses them. They are gone with the
// connection, and with boxd: no file of theirs has a name.
package uploads

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

	"github.com/boxd-dev/boxd/relay/actionrpc/envelope"
	"github.com/boxd-dev/boxd/relay/actionrpc/lax"
)

// Bounds of the protocol.
const (
	piece    = 16 << 10 // bytes
	maxPiece = (piece + 2) / 3 * 4
	maxOpen  = 128 // files of one connection
)

// Bounds of all connections together, which a client can have as many of as it likes.
const (
	allOpen  = 512
	allBytes = 1 << 30
)

// Room is that of all connections.
type Room struct{ files, bytes *semaphore.Weighted }

// NewRoom returns one that is empty.
func NewRoom() *Room { return &Room{semaphore.NewWeighted(allOpen), semaphore.NewWeighted(allBytes)} }

// Store has the files of one connection.
type Store struct {
	room *Room

	mu     sync.Mutex
	files  map[string]*file
	closed bool
}

// file is one of them, as far as it has come.
type file struct {
	*os.File
	size int64
}

// New returns a store of nothing. Close must follow.
func New(room *Room) *Store { return &Store{room: room, files: map[string]*file{}} }

var key = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// chunk is a piece of a file.
type chunk struct {
	key   string
	first bool
	data  []byte
}

func full() error { return refused("Active file transfer capacity reached") }

func refused(text string) error { return envelope.Errorf("ValueError", "%s", text) }

func read(fields map[string]json.RawMessage) (*chunk, error) {
	for _, name := range []string{"file_key", "chunk_base64", "chunk_index", "chunk_amount"} {
		if _, given := fields[name]; !given {
			return nil, envelope.Errorf("KeyError", "'%s'", name)
		}
	}
	c := &chunk{}
	var ok bool
	if c.key, ok = lax.String(fields["file_key"]); !ok || !key.MatchString(c.key) || strings.Contains(c.key, "..") {
		return nil, refused("Invalid file transfer key")
	}
	text, ok := lax.String(fields["chunk_base64"])
	if !ok || len(text) > maxPiece {
		return nil, refused("File transfer chunk exceeds the protocol limit")
	}
	index, ok1 := lax.Strict(fields["chunk_index"])
	amount, ok2 := lax.Strict(fields["chunk_amount"])
	if !ok1 || !ok2 || amount <= 0 || index < 0 || index >= amount {
		return nil, refused("Invalid file chunk position")
	}
	var err error
	if c.data, err = base64.StdEncoding.Strict().DecodeString(text); err != nil {
		return nil, envelope.Errorf("Error", "%v", err)
	}
	if len(c.data) > piece {
		return nil, refused("File transfer chunk exceeds the protocol limit")
	}
	c.first = index == 0
	return c, nil
}

// Put adds a piece to a file of at most so many bytes. The first piece begins the file anew.
func (s *Store) Put(fields map[string]json.RawMessage, most int64) error {
	c, err := read(fields)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return refused("the connection has ended")
	}
	f := s.files[c.key]
	if f == nil {
		if len(s.files) >= maxOpen || !s.room.files.TryAcquire(1) {
			return full()
		}
		if f, err = unnamed(); err != nil {
			s.room.files.Release(1)
			return err
		}
		s.files[c.key] = f
	}
	if c.first {
		s.room.bytes.Release(f.size)
		f.size = 0
		if err := f.Truncate(0); err != nil {
			return fmt.Errorf("upload: %w", err)
		}
	}
	if f.size+int64(len(c.data)) > most {
		s.drop(c.key)
		return refused("File transfer exceeds the configured size limit")
	}
	if !s.room.bytes.TryAcquire(int64(len(c.data))) {
		s.drop(c.key)
		return full()
	}
	f.size += int64(len(c.data))
	if _, err := f.WriteAt(c.data, f.size-int64(len(c.data))); err != nil {
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
	return &file{File: f}, nil
}

// drop forgets a file. s.mu is held.
func (s *Store) drop(key string) {
	if f := s.forget(key); f != nil {
		f.Close()
	}
}

// forget makes room, without closing the file. s.mu is held.
func (s *Store) forget(key string) *os.File {
	f := s.files[key]
	if f == nil {
		return nil
	}
	delete(s.files, key)
	s.room.files.Release(1)
	s.room.bytes.Release(f.size)
	return f.File
}

// Take hands a file out, once; its caller must close it. It reports false if there is none.
func (s *Store) Take(key string) (*os.File, bool) {
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

// Close forgets all of them.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for key := range s.files {
		s.drop(key)
	}
}
