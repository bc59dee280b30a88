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

// source opens what is to be sent as an archive, see open. Of an archive here or a directory a person sees how far it is.
func (a *app) source(source string, named bool) (r io.Reader, done func(), err error) {
	if source == "-" {
		return a.stdin, func() {}, nil
	}
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, nil, err
	}
	from, size, end, err := a.open(path, named)
	if err != nil {
		return nil, nil, err
	}
	p := a.progress("sent", size)
	return &countedReader{from, p}, func() { // whoever sends it must not close it
		p.end()
		end()
	}, nil
}

// open opens what is to be sent as an archive: standard input for "-", an archive here, or a directory, which is packed as
// it is sent, under its own name if named is set. size is how large it is, 0 if that is not known. done ends what
// it has begun.
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
		_, err := archive.PackDir(w, dir, as, noBounds(), false)
		w.CloseWithError(err)
	}()
	return in, a.sizeOf(path), func() {
		in.CloseWithError(errUnread)
		<-packed
		dir.Close()
	}, nil
}

var errUnread = errors.New("boxd does not read on")

// countedReader reports to a progress what is read.
type countedReader struct {
	from io.Reader
	p    *Progress
}

// Read counts what is read. What is said of it later begins on a line of its own.
func (w *countedReader) Read(b []byte) (int, error) {
	n, err := w.from.Read(b)
	switch w.p.add(int64(n)); {
	case errors.Is(err, io.EOF):
		w.p.through()
	case err != nil:
		w.p.end()
	}
	return n, err
}

// sizeOf is how large the files of a directory are, or a file, in bytes; 0 where nobody sees it.
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
