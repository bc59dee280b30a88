// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd-dev/boxd/internal/archive"
)

// source opens what to send as an archive, see open. For local archives and directories it shows progress.
func (a *app) source(source string, named bool) (r io.Reader, done func(), err error) {
	if source == "-" {
		return a.stdin, func() {}, nil
	}
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, nil, err
	}
	from, size, cleanup, err := a.open(path, named)
	if err != nil {
		return nil, nil, err
	}
	p := a.progress("sent", size)
	return &countedReader{from, p}, func() { // the sender must not close it
		p.end()
		cleanup()
	}, nil
}

// open opens what to send as an archive: standard input for "-", a local archive, or a directory, which is packed while
// it is sent, under its own name if named is set. size is its size, 0 if unknown. done releases it.
func (a *app) open(path string, named bool) (r io.Reader, size int64, done func(), err error) {
	if path == "-" {
		return a.stdin, 0, func() {}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, nil, err
	}
	if !info.IsDir() {
		f, err := os.Open(path)
		if err != nil {
			return nil, 0, nil, err
		}
		return f, info.Size(), func() { f.Close() }, nil
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, 0, nil, err
	}
	as := ""
	if named {
		as = filepath.Base(path)
	}
	in, w := io.Pipe()
	packed := make(chan struct{})
	go func() { // ends with the pipe, which done closes
		defer close(packed)
		_, err := archive.PackDir(w, dir, as, noBounds(), archive.PackRules{})
		w.CloseWithError(err)
	}()
	return in, a.sizeOf(path), func() {
		in.CloseWithError(errUnread)
		<-packed
		dir.Close()
	}, nil
}

var errUnread = errors.New("boxd stopped reading")

// countedReader reports the bytes that are read to a progress.
type countedReader struct {
	from io.Reader
	p    *Progress
}

// Read counts what is read. Messages after its end begin on a new line.
func (w *countedReader) Read(b []byte) (int, error) {
	n, err := w.from.Read(b)
	switch w.p.add(int64(n)); {
	case errors.Is(err, io.EOF):
		w.p.bytesDone()
	case err != nil:
		w.p.end()
	}
	return n, err
}

// sizeOf returns the size of the files of a directory, or of a file, in bytes; 0 if no progress is shown.
func (a *app) sizeOf(source string) (n int64) {
	if !a.showsProgress() {
		return 0
	}
	_ = filepath.WalkDir(source, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // packing it tells
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}
