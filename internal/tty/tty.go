// SPDX-License-Identifier: Apache-2.0

// Package tty is a person's terminal: raw mode, its size, the keys that detach, a screen that is
// redrawn again and again, and text that must not control it.
package tty

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Size is that of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// Is reports whether v, a reader or a writer, is a terminal.
func Is(v any) bool {
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	is := false
	_ = control(f, func(fd int) error {
		is = term.IsTerminal(fd)
		return nil
	})
	return is
}

// SizeOf returns the size of the first of the given readers and writers that is a terminal and
// has one.
func SizeOf(list ...any) (Size, bool) {
	for _, v := range list {
		f, ok := v.(*os.File)
		if !ok {
			continue
		}
		var cols, rows int
		err := control(f, func(fd int) (err error) {
			cols, rows, err = term.GetSize(fd)
			return err
		})
		if err == nil && rows > 0 && cols > 0 {
			return Size{Rows: clip(rows), Cols: clip(cols)}, true
		}
	}
	return Size{}, false
}

func clip(n int) uint16 { return uint16(min(n, 1<<16-1)) }

// control uses a descriptor without removing it from the Go poller, as os.File.Fd does.
func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var derr error
	err = raw.Control(func(fd uintptr) { derr = do(int(fd)) })
	return errors.Join(err, derr)
}

// Raw sets raw mode, in which every key is a byte of the terminal's input. restore, which may be
// called more than once, undoes it.
func Raw(in *os.File) (restore func(), err error) {
	var state *term.State
	err = control(in, func(fd int) (err error) {
		state, err = term.MakeRaw(fd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		_ = control(in, func(fd int) error { return term.Restore(fd, state) }) // fails if the terminal has hung up
	}), nil
}

// Watch calls tell with the size of the first of the given readers and writers that is a
// terminal, now and whenever it changes, until ctx ends.
func Watch(ctx context.Context, tell func(Size), list ...any) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	defer signal.Stop(changes)
	for {
		if size, ok := SizeOf(list...); ok {
			tell(size)
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return
		}
	}
}

// Keys returns the keys read from a terminal in raw mode. It ends with the input.
func Keys(in io.Reader) <-chan byte {
	keys := make(chan byte)
	go func() { // a Read cannot be interrupted: this may live as long as the program
		defer close(keys)
		var key [1]byte
		for {
			n, err := in.Read(key[:])
			if n > 0 {
				keys <- key[0]
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}
