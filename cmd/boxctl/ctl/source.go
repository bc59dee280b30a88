// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/boxd-dev/boxd/internal/tarball"
)

// Source opens what is to be sent as an archive: standard input for "-", an archive here, or a directory, which is
// packed as it is sent, under its own name if named is set. done ends what it has begun.
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
		return struct{ io.Reader }{f}, func() { f.Close() }, nil // whoever sends it must not close it
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
		_, err := tarball.PackDir(w, dir, as, tarball.Bounds{Bytes: math.MaxInt64, Entries: math.MaxInt, File: math.MaxInt64})
		w.CloseWithError(err)
	}()
	return struct{ io.Reader }{in}, func() {
		in.CloseWithError(errUnread)
		<-packed
		dir.Close()
	}, nil
}

var errUnread = errors.New("boxd does not read on")
