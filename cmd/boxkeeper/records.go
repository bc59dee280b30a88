// SPDX-License-Identifier: Apache-2.0

// The run directory of the keeper: its socket, and for each live box a directory with a record
// for the next keeper and the socket on which PID 1 of the box listens.

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// Names in the directory of a box.
const (
	recordName = "record"
	newName    = "record.new"
	socketName = "init"
)

// recordDir is the directory of all boxes of one keeper. Calls for different boxes may be made
// concurrently.
type recordDir struct {
	root *os.Root
	fd   *os.File
	boot string // the id of this boot of the host
}

// openRecords opens the directory of the boxes in a run directory, and makes it first if it does
// not exist.
func openRecords(run string) (*recordDir, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	root, err := openPrivate(run, isolation.BoxesDir, 0)
	if err != nil {
		return nil, err
	}
	fd, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &recordDir{root, fd, strings.TrimSpace(string(boot))}, nil
}

// openPrivate opens a directory of the caller's, and makes it first if there is none. It is closed to all others, but for a group; 0: none.
func openPrivate(parent, name string, group int) (*os.Root, error) {
	above, err := os.OpenRoot(parent)
	if err != nil {
		return nil, err
	}
	defer above.Close()
	if err := above.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := above.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	f, err := root.Open(".")
	if err == nil {
		defer f.Close()
		err = unix.Fstat(int(f.Fd()), &st)
	}
	mode := uint32(0o700)
	if group != 0 {
		mode = 0o750
	}
	switch {
	case err != nil:
	case st.Mode&0o727 != 0o700 || int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("want mode 0700 and owner uid %d, have %#o and %d", os.Geteuid(), st.Mode&0o7777, st.Uid)
	default:
		if err = unix.Fchown(int(f.Fd()), -1, group); err == nil {
			err = unix.Fchmod(int(f.Fd()), mode)
		}
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("%s: %w", root.Name(), err)
	}
	return root, nil
}

// Close closes the directory.
func (d *recordDir) Close() {
	d.fd.Close()
	d.root.Close()
}

// Make makes the directory of a box and a socket in it; the listener is the caller's. EEXIST: the
// directory exists.
func (d *recordDir) Make(key string) (listener int, err error) {
	if err := d.root.Mkdir(key, 0o700); err != nil {
		return -1, err
	}
	listener, err = fdpass.Bind(int(d.fd.Fd()), key+"/"+socketName)
	if err != nil {
		return -1, errors.Join(err, d.root.Remove(key))
	}
	return listener, nil
}

// Dial connects to PID 1 of a box.
func (d *recordDir) Dial(key string) (int, error) {
	return fdpass.Dial(int(d.fd.Fd()), key+"/"+socketName)
}

// Write replaces the record of a box. It does not sync to disk: no box survives a loss of power.
func (d *recordDir) Write(r *record) error {
	temp := r.Key + "/" + newName
	err := d.root.WriteFile(temp, r.encode(), 0o600)
	if err == nil {
		err = d.root.Rename(temp, r.Key+"/"+recordName)
	}
	if err != nil {
		return fmt.Errorf("record of box %s: %w", r.Key, err)
	}
	return nil
}

// Read reads the record of a box. fs.ErrNotExist: it has none, as its start was interrupted.
func (d *recordDir) Read(key string) (*record, error) {
	data, err := d.read(key + "/" + recordName)
	if err != nil {
		return nil, fmt.Errorf("record of box %s: %w", key, err)
	}
	r, err := decode(data)
	if err == nil && r.Key != key {
		err = errors.New("it belongs to another box")
	}
	if err != nil {
		return nil, fmt.Errorf("record of box %s: %w", key, err)
	}
	return r, nil
}

// read reads a record. It does not block on a FIFO of that name, and does not follow a symbolic
// link.
func (d *recordDir) read(name string) ([]byte, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRecord+1)) // decode refuses more than maxRecord
}

// Remove removes the directory of a dead box, if it exists.
func (d *recordDir) Remove(key string) error {
	for _, name := range []string{key + "/" + newName, key + "/" + socketName, key + "/" + recordName, key} {
		if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Keys lists the keys of the boxes that have a directory.
func (d *recordDir) Keys() ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Name()
	}
	return keys, nil
}
