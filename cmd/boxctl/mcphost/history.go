// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
)

// maxFailures bounds the servers whose failures are kept; the oldest goes first.
const maxFailures = 32

// Failure is how a server has ended otherwise than it should.
type Failure struct {
	Socket  string    `json:"socket"` // of the boxd that had its box
	Name    string    `json:"name"`
	Session string    `json:"session,omitempty"` // "": none was made
	Phase   string    `json:"phase"`
	Attempt string    `json:"attempt"`          // in that phase, from 1
	Since   string    `json:"since"`            // when that began, RFC 3339
	Stderr  string    `json:"stderr,omitempty"` // the last line of it
	Ended   time.Time `json:"ended"`
	Words   string    `json:"words"` // those of boxctl
}

// HistoryDir is where that is kept: in boxctl's part of the user's state, as XDG_STATE_HOME or HOME say. "" is nowhere.
func HistoryDir(getenv func(string) string) string {
	state := getenv("XDG_STATE_HOME")
	if home := getenv("HOME"); !filepath.IsAbs(state) && filepath.IsAbs(home) {
		state = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(state) {
		return ""
	}
	return filepath.Join(state, "boxctl", "mcp")
}

// historyRecord is the file of a server.
func historyRecord(socket, name string) string {
	sum := sha256.Sum256([]byte(socket + "\x00" + name))
	return hex.EncodeToString(sum[:12]) + ".json"
}

var errNowhere = errors.New("neither XDG_STATE_HOME nor HOME is set")

// KeepFailure replaces what is kept of a server.
func KeepFailure(dir string, f *Failure) error {
	if dir == "" {
		return errNowhere
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := durable.WriteJSON(root, historyRecord(f.Socket, f.Name), f); err != nil {
		return err
	}
	return prune(root)
}

// prune removes the oldest files, also those that a writer which died has left.
func prune(root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil || len(entries) <= maxFailures {
		return err
	}
	type file struct {
		name string
		at   time.Time
	}
	var list []file
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // else another has removed it
			list = append(list, file{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b file) int { return a.at.Compare(b.at) })
	for _, f := range list[:max(0, len(list)-maxFailures)] {
		if err := root.Remove(f.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ForgetFailures removes what is kept of a server: it has ended as it should.
func ForgetFailures(dir, socket, name string) error {
	if dir == "" {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		err = root.Remove(historyRecord(socket, name))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Failures lists what is kept of servers of one boxd, the last to fail first. What cannot be read is in the error.
func Failures(dir, socket string) (list []Failure, err error) {
	if dir == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := fs.Glob(root.FS(), "*.json")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		var f Failure
		switch err := durable.ReadJSON(root, name, &f); {
		case errors.Is(err, fs.ErrNotExist): // meanwhile
		case err != nil:
			errs = append(errs, err)
		case f.Socket == socket:
			list = append(list, f)
		}
	}
	slices.SortFunc(list, func(a, b Failure) int { return b.Ended.Compare(a.Ended) })
	return list, errors.Join(errs...)
}
