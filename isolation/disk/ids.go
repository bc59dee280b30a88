// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// Names in the state directory.
const (
	idTableName = "host-quotas"
	newName     = "host-quotas.new"
	lockName    = "host-quotas.lock"
)

// States of an entry. An entry found in any state but bound is undone.
const (
	claiming = "claiming" // the directory may have the id, and so may a directory of another keeper
	making   = "making"   // part of what is in the directory has the id
	bound    = "bound"    // all of it has the id
	lifting  = "lifting"  // part of it may have lost the id
)

// entry is a directory that has a project id, or is just getting or losing one.
type entry struct {
	state    string
	id       uint32
	dev, ino uint64
	limits   Limits
	path     string   // without symbolic links
	users    []string // keys of the boxes that use it, sorted
	active   bool     // work on it is in progress; not in the file
}

// idTable is what a keeper has to know of directories that are not its own, even after a crash.
// It is written before anything is done to a directory.
type idTable struct {
	dir     *os.Root
	lock    *os.File
	entries []*entry
}

// openIDTable opens the id table of a state directory. EWOULDBLOCK: another keeper has it.
func openIDTable(state string) (*idTable, error) {
	dir, err := os.OpenRoot(state)
	if err != nil {
		return nil, err
	}
	b := &idTable{dir: dir}
	if b.lock, err = dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		err = linux.Lock(int(b.lock.Fd()), linux.StartPatience)
	}
	if err == nil {
		err = b.read()
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("%s/%s: %w", state, idTableName, err)
	}
	return b, nil
}

func (b *idTable) close() {
	if b.lock != nil {
		b.lock.Close()
	}
	b.dir.Close()
}

// maxIDTable is in bytes, and far more than any id table needs.
const maxIDTable = 64 << 20

func (b *idTable) read() error {
	f, err := b.dir.OpenFile(idTableName, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIDTable))
	if err != nil {
		return err
	}
	b.entries, err = decode(string(data))
	return err
}

// write replaces the id table and syncs it to disk: project ids survive a loss of power.
func (b *idTable) write() error {
	f, err := b.dir.OpenFile(newName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(encode(b.entries))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = b.dir.Rename(newName, idTableName)
	}
	if err != nil {
		return err
	}
	dir, err := b.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// byID returns the entry with a project id, nil if there is none.
func (b *idTable) byID(id uint32) *entry {
	for _, e := range b.entries {
		if e.id == id {
			return e
		}
	}
	return nil
}

// ofBox returns the entry that a box uses and that contains a path, nil if there is none.
func (b *idTable) ofBox(key, path string) *entry {
	for _, e := range b.entries {
		if slices.Contains(e.users, key) && isolation.Within(path, e.path) {
			return e
		}
	}
	return nil
}

// drop removes an entry.
func (b *idTable) drop(dropped *entry) {
	b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool { return e == dropped })
}

// head is the first line of an id table.
const head = "boxd host quotas 1\n"

// encode writes each entry as a line, which a person can read too.
func encode(entries []*entry) string {
	var s strings.Builder
	s.WriteString(head)
	for _, e := range entries {
		fmt.Fprintf(&s, "%s %d %d %d %d %d %q", e.state, e.id, e.dev, e.ino, e.limits.Bytes, e.limits.Inodes, e.path)
		for _, key := range e.users {
			s.WriteString(" " + key)
		}
		s.WriteString("\n")
	}
	return s.String()
}

// decode parses what encode has written. Anything else is an error.
func decode(text string) ([]*entry, error) {
	rest, ok := strings.CutPrefix(text, head)
	if !ok {
		return nil, errors.New("not a file of this version")
	}
	var list []*entry
	ids := map[uint32]bool{}
	for line := range strings.Lines(rest) {
		e, ok := decodeLine(line)
		if !ok || ids[e.id] {
			return nil, fmt.Errorf("damaged at %q", line)
		}
		ids[e.id] = true
		list = append(list, e)
	}
	return list, nil
}

func decodeLine(line string) (*entry, bool) {
	line, whole := strings.CutSuffix(line, "\n")
	parts := strings.SplitN(line, " ", 7)
	if !whole || len(parts) != 7 || !slices.Contains([]string{claiming, making, bound, lifting}, parts[0]) {
		return nil, false
	}
	var n [5]uint64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseUint(parts[i+1], 10, 64); err != nil {
			return nil, false
		}
	}
	quoted, err := strconv.QuotedPrefix(parts[6])
	if err != nil || n[0]-firstBound >= IDCount {
		return nil, false
	}
	e := &entry{state: parts[0], id: uint32(n[0]), dev: n[1], ino: n[2], limits: Limits{Bytes: n[3], Inodes: n[4]}}
	if e.path, err = strconv.Unquote(quoted); err != nil || !isolation.CleanAbsolute(e.path) {
		return nil, false
	}
	for key := range strings.FieldsSeq(parts[6][len(quoted):]) {
		e.users = append(e.users, key)
	}
	return e, true
}
