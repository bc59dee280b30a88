// SPDX-License-Identifier: Apache-2.0

// The user's terminal: raw mode, its size, the keys that are pressed.

package render

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

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Rows, Cols uint16 }

// IsTerminal reports whether v, a reader or a writer, is a terminal.
func IsTerminal(v any) bool {
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	is := false
	_ = withDescriptor(f, func(fd int) error {
		is = term.IsTerminal(fd)
		return nil
	})
	return is
}

// SizeOfTerminal returns the size of the first of the given readers and writers that is a terminal and
// has one.
func SizeOfTerminal(list ...any) (TerminalSize, bool) {
	for _, v := range list {
		f, ok := v.(*os.File)
		if !ok {
			continue
		}
		var cols, rows int
		err := withDescriptor(f, func(fd int) (err error) {
			cols, rows, err = term.GetSize(fd)
			return err
		})
		if err == nil && rows > 0 && cols > 0 {
			return TerminalSize{Rows: clip(rows), Cols: clip(cols)}, true
		}
	}
	return TerminalSize{}, false
}

func clip(n int) uint16 { return uint16(min(n, 1<<16-1)) }

// withDescriptor uses a descriptor without removing it from the Go poller, as os.File.Fd does.
func withDescriptor(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var derr error
	err = raw.Control(func(fd uintptr) { derr = do(int(fd)) })
	return errors.Join(err, derr)
}

// RawMode sets raw mode, in which every key is a byte of the terminal's input. restore, which may be
// called more than once, undoes it.
func RawMode(in *os.File) (restore func(), err error) {
	var state *term.State
	err = withDescriptor(in, func(fd int) (err error) {
		state, err = term.MakeRaw(fd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		_ = withDescriptor(in, func(fd int) error { return term.Restore(fd, state) }) // fails if the terminal has hung up
	}), nil
}

// WatchSize calls report with the size of the first of the given readers and writers that is a terminal, now and after
// each change, until ctx ends.
func WatchSize(ctx context.Context, report func(TerminalSize), list ...any) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	defer signal.Stop(changes)
	for {
		if size, ok := SizeOfTerminal(list...); ok {
			report(size)
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return
		}
	}
}

// readKeys returns the keys read from a terminal in raw mode. It ends with the input.
func readKeys(in io.Reader) <-chan byte {
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
