// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/tty"
)

// Source opens what is to be sent as an archive: standard input for "-", an archive here, or a directory, which is
// packed as it is sent, under its own name if named is set. Of the last two a person sees how far they are. done ends what it
// has begun.
func (a *App) Source(source string, named bool) (r io.Reader, done func(), err error) {
	if source == "-" {
		return a.Stdin, func() {}, nil
	}
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		p := a.Progress("sent", info.Size())
		return &watched{f, p}, func() { // whoever sends it must not close it
			p.End()
			f.Close()
		}, nil
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, err
	}
	as := ""
	if named {
		as = filepath.Base(path)
	}
	in, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		_, err := archive.PackDir(w, dir, as, archive.Bounds{Bytes: math.MaxInt64, Entries: math.MaxInt, File: math.MaxInt64}, false)
		w.CloseWithError(err)
	}()
	p := a.Progress("sent", a.SizeOf(path))
	return &watched{in, p}, func() {
		p.End()
		in.CloseWithError(errUnread)
		<-packed
		dir.Close()
	}, nil
}

var errUnread = errors.New("boxd does not read on")

// watched is read where a person looks on.
type watched struct {
	from io.Reader
	p    *Progress
}

// Read counts what is read. What is said of it later begins on a line of its own.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.from.Read(b)
	if w.p.Add(int64(n)); err != nil {
		w.p.End()
	}
	return n, err
}

// SizeOf is how large the files of a directory are, or a file, in bytes; 0 if nobody looks on who would want to know.
func (a *App) SizeOf(source string) (n int64) {
	if !tty.Is(a.Stderr) {
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
