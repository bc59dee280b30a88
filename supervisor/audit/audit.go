// SPDX-License-Identifier: Apache-2.0

// Package audit records who changed what: a record for each call that changes something, each with the hash of the previous one.
// The kernel has a record before its call is answered, so that it survives the death of boxd; the disk is synced once a second.
// No record is written twice, and records that cannot be written are counted and reported.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/hashchain"
)

// dirName is the log's directory in the state directory.
const dirName = "audit"

// Log is the audit log of one boxd. A nil Log accepts everything and writes nothing.
type Log struct {
	cfg    Config
	dir    *os.Root
	log    *slog.Logger
	notify func(failed bool, detail string)
	// write writes a record; tests replace it to simulate a full disk.
	write func(f *os.File, p []byte, at int64) (int, error)

	mu           sync.Mutex // guards the fields below
	file         *os.File   // the newest, nil until one can be opened
	size         int64
	files        []string // all, oldest first; the last is file
	head         hashchain.Link
	dirty        bool     // not everything is synced yet
	pending      [][]byte // records not written yet
	pendingBytes int      // bytes in pending
	lost         uint64   // records dropped for lack of memory or space in a line
	broken       error    // why writing fails
	written      uint64
	failed       uint64 // times a record could not be written at once

	anonymousAt time.Time // time of the last record of an anonymous call
	anonymous   uint64    // anonymous calls since, without a record
}

// anonymousInterval is the least time between records of anonymous calls. They change nothing, and any client that can connect could
// make enough of them to push all other records out of the log.
const anonymousInterval = time.Second

// Bounds of what is kept in memory while writing fails.
const (
	maxPending      = 4096
	maxPendingBytes = 16 << 20 // bytes
)

// Open returns the log in a state directory. A disk that cannot be written is no error of Open: see Admit. notify is called when
// writing begins to fail, and when it works again.
func Open(stateDir string, cfg Config, log *slog.Logger, notify func(failed bool, detail string)) (*Log, error) {
	dir, err := durable.Directory(filepath.Join(stateDir, dirName))
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	l := &Log{cfg: cfg, dir: dir, log: log, notify: notify, write: (*os.File).WriteAt}
	l.Append(&Record{Kind: kindStarted, PID: os.Getpid()})
	return l, nil
}

// Append writes a record, and waits until the kernel has it. A record that cannot be written is kept for later.
func (l *Log) Append(r *Record) {
	if l == nil {
		return
	}
	l.mu.Lock()
	prevErr := l.broken
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	data, err := json.Marshal(l.cfg.shaped(r))
	if err != nil { // r is plain data, so unexpected
		l.lost++
		l.log.Error("cannot encode an audit record", "error", err)
	} else if len(l.pending) < maxPending && l.pendingBytes+len(data) < maxPendingBytes {
		l.pending = append(l.pending, data)
		l.pendingBytes += len(data)
	} else {
		l.lost++
	}
	err = l.flushLocked()
	if err != nil {
		l.failed++
	}
	waiting, lost := len(l.pending), l.lost
	l.mu.Unlock()
	l.report(prevErr, err, waiting, lost)
}

// AppendAnonymous is Append for a refused call of an unauthenticated caller. It writes one record a second, with the number of
// calls before it that have none.
func (l *Log) AppendAnonymous(r *Record) {
	if l == nil {
		return
	}
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.anonymousAt) < anonymousInterval {
		l.anonymous++
		l.mu.Unlock()
		return
	}
	n := l.anonymous
	l.anonymousAt, l.anonymous = now, 0
	l.mu.Unlock()
	if n > 0 {
		r.Detail = fmt.Sprintf("%d earlier calls have no record; ", n) + r.Detail
	}
	l.Append(r)
}

// report notifies once when writing begins to fail, and once when it works again.
func (l *Log) report(prevErr, newErr error, waiting int, lost uint64) {
	switch {
	case prevErr == nil && newErr != nil:
		l.notify(true, fmt.Sprintf("%v; %d records wait in memory, %d are lost", newErr, waiting, lost))
	case prevErr != nil && newErr == nil:
		l.notify(false, "waiting records were written")
	}
}

// Admit refuses a call that must not happen without a record, while none can be written. A call that only ends things is always
// admitted: it may be what frees space on the disk.
func (l *Log) Admit(ends bool) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	prevErr := l.broken
	if prevErr == nil {
		l.mu.Unlock()
		return nil
	}
	err := l.flushLocked() // it may work again
	waiting, lost := len(l.pending), l.lost
	l.mu.Unlock()
	l.report(prevErr, err, waiting, lost)
	if err == nil || ends || l.cfg.OnError == onErrorContinue {
		return nil
	}
	return fault.Errorf(fault.Unavailable, "cannot write the audit log, and audit.on_error forbids changes without a record: %w", err).
		WithHint("free space on the disk of the state directory; boxctl rm still works")
}

// flushLocked writes the pending records in order.
func (l *Log) flushLocked() (err error) {
	defer func() { l.broken = err }()
	if l.file == nil {
		if err := l.prepareLocked(); err != nil {
			return err
		}
	}
	for len(l.pending) > 0 {
		if err := l.rotateLocked(len(l.pending[0])); err != nil {
			return err
		}
		if err := l.writeLocked(l.pending[0]); err != nil {
			return err
		}
		l.pendingBytes -= len(l.pending[0])
		if l.pending = l.pending[1:]; len(l.pending) == 0 {
			l.pending = nil
		}
	}
	if l.lost == 0 {
		return nil
	}
	err = l.noteLocked(&Record{Kind: hashchain.NoteLost, Records: l.lost, Detail: "records could not be written, nor kept in memory"})
	if err == nil {
		l.lost = 0
	}
	return err
}

// writeLocked appends one record to the newest file, or leaves the file as it was.
func (l *Log) writeLocked(record []byte) error {
	line, link, err := hashchain.Seal(l.head, record)
	if err != nil { // shaped limits records so that they fit
		l.lost++
		l.log.Error("audit record dropped", "error", err)
		return nil
	}
	if _, err := l.write(l.file, line, l.size); err != nil {
		if terr := l.file.Truncate(l.size); terr != nil { // a partial line may remain: examine the file again
			l.file.Close()
			l.file = nil
		}
		return err
	}
	l.size += int64(len(line))
	l.head, l.dirty = link, true
	l.written++
	return nil
}

// noteLocked writes a record about the log itself.
func (l *Log) noteLocked(r *Record) error {
	r.Time = time.Now()
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return l.writeLocked(data)
}

// rotateLocked begins another file if a record does not fit, and removes the oldest if there are too many. A record of the
// removal is written first.
func (l *Log) rotateLocked(more int) error {
	if l.size > 0 && l.size+int64(more) > int64(l.cfg.MaxSize) {
		if err := l.syncLocked(); err != nil {
			return err
		}
		if err := l.newFileLocked(); err != nil {
			return err
		}
	}
	for len(l.files) > l.cfg.MaxFiles {
		if err := l.dropLocked(l.files[0], l.files[1]); err != nil {
			return err
		}
		l.files = l.files[1:]
	}
	return nil
}

// newFileLocked creates the next file.
func (l *Log) newFileLocked() error {
	name := hashchain.FileName(l.head.Seq + 1)
	f, err := l.dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.size, l.files = f, 0, append(l.files, name)
	l.log.Info("audit log writes to a new file", "file", name, "head", l.head.String())
	return nil
}

// dropLocked removes a file, after recording the hash of its last record, which the next file begins with.
func (l *Log) dropLocked(name, next string) error {
	last := hashchain.FirstOf(next) - 1
	hash := ""
	f, err := l.dir.Open(next)
	if err == nil {
		err = hashchain.Lines(f, func(line *hashchain.Line) error {
			if line.Err == nil && line.Link.Seq == last+1 {
				hash = line.Link.Prev.String()
			}
			return io.EOF // the first is enough
		})
		f.Close()
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	note := &Record{Kind: hashchain.NoteDropped, Last: last, LastAt: hash, Detail: name + " was removed: there were more than audit.max_files"}
	if hash == "" { // the next file was edited, or removed by hand
		note.LastAt = "unknown"
	}
	if err := l.noteLocked(note); err != nil {
		return err
	}
	if err := l.dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // it was removed by hand
}
