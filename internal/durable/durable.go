// SPDX-License-Identifier: Apache-2.0

// Package durable keeps small records on disk so that a crash never leaves half of one.
package durable

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// tempPrefix marks a file that is still being written; readers skip it.
const tempPrefix = ".new-"

// Directory opens a directory that belongs to boxd alone, and makes it (0700) if it does not
// exist. Its parent must exist.
func Directory(path string) (*os.Root, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.OpenRoot(path)
}

// Scratch is the directory of a store for what is not part of it yet.
const Scratch = "scratch"

// OpenStore is Directory for a store. It removes what an earlier process has left in its scratch directory.
func OpenStore(path string) (*os.Root, error) {
	root, err := Directory(path)
	if err != nil {
		return nil, err
	}
	if err := emptyScratch(root); err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// emptyScratch makes the scratch directory, or removes what is in it: on a full disk no directory can be made.
func emptyScratch(root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), Scratch)
	if err != nil {
		return errors.Join(root.RemoveAll(Scratch), root.Mkdir(Scratch, 0o700))
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, root.RemoveAll(path.Join(Scratch, e.Name())))
	}
	return errors.Join(errs...)
}

// NewScratch makes an empty directory in the scratch directory of a store, and returns its path there.
func NewScratch(store *os.Root) (string, error) {
	at := path.Join(Scratch, strings.ToLower(rand.Text()))
	return at, store.Mkdir(at, 0o700)
}

// WriteJSON replaces the file name in dir by v as JSON: a reader sees either the old record or
// the new one. It does not sync to disk. A record survives the death of its writer, which is
// enough for records of things that are alive: none of those survives a loss of power.
func WriteJSON(dir *os.Root, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	temp := tempPrefix + rand.Text()
	if err := dir.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		_ = dir.Remove(temp)
		return fmt.Errorf("record %s: %w", name, err)
	}
	if err := dir.Rename(temp, name); err != nil {
		_ = dir.Remove(temp)
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

// SyncJSON is WriteJSON for what must survive a loss of power: it syncs to disk.
func SyncJSON(dir *os.Root, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	temp := tempPrefix + rand.Text()
	if err = writeSynced(dir, temp, append(data, '\n')); err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp)
		return fmt.Errorf("record %s: %w", name, err)
	}
	d, err := dir.Open(".")
	if err == nil {
		err = d.Sync()
		d.Close()
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

func writeSynced(dir *os.Root, name string, data []byte) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// NameOf returns the name of the record of something with a name of any form: that itself is in no path.
func NameOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16]) + ".json"
}

// ReadJSON reads the record name in dir into v.
func ReadJSON(dir *os.Root, name string, v any) error {
	data, err := read(dir, name)
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

// maxRecord is in bytes, and far more than any record needs.
const maxRecord = 16 << 20

// errNoRecord means that there is something other than a record.
var errNoRecord = errors.New("not a regular file of the size of a record")

// read reads a file of dir that was written as a record. It does not block on a FIFO of that
// name, follow a symbolic link, or read a huge file into memory.
func read(dir *os.Root, name string) ([]byte, error) {
	info, err := dir.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = errNoRecord
	}
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err == nil && len(data) > maxRecord {
		err = errNoRecord
	}
	return data, err
}

// Names lists the records in dir.
func Names(dir *os.Root) ([]string, error) {
	names, _, err := list(dir)
	return names, err
}

// Recover lists the records in dir and removes unfinished files of a dead writer: only for a process that alone writes there, and
// does not yet.
func Recover(dir *os.Root) ([]string, error) {
	names, unfinished, err := list(dir)
	errs := []error{err}
	for _, name := range unfinished {
		errs = append(errs, dir.Remove(name))
	}
	return names, errors.Join(errs...)
}

func list(dir *os.Root) (names, unfinished []string, err error) {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, nil, fmt.Errorf("records: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			unfinished = append(unfinished, e.Name())
		} else {
			names = append(names, e.Name())
		}
	}
	return names, unfinished, nil
}
