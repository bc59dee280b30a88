// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/hashchain"
)

// found is what the log has at its end.
type found struct {
	head    hashchain.Link // of the last record that is in order, counted on over those that are not
	damaged int            // lines at the end that are no records
	size    int64          // of the last file, up to its last whole line
	torn    string         // hash of what is behind it, "" if there is nothing
	tornLen int64
}

// prepareLocked finds the end of the log and goes on there. What an earlier boxd died in is cut off, and that is said
// in the log.
func (l *Log) prepareLocked() error {
	files, err := hashchain.Files(l.dir.FS())
	if err != nil {
		return err
	}
	l.files = files
	if len(files) == 0 {
		return l.beginLocked()
	}
	var end found
	for i, name := range slices.Backward(files) {
		at, err := l.lookLocked(name)
		if err != nil {
			return err
		}
		if i == len(files)-1 {
			end = at
		} else {
			end.head, end.damaged = at.head, end.damaged+at.damaged
		}
		if end.head.Seq > 0 {
			break
		}
	}
	if l.head = end.head; l.head.Seq == 0 { // nothing is in order: go on behind what was there
		l.head.Seq = hashchain.FirstOf(files[0]) - 1
	}
	l.head.Seq += uint64(end.damaged) //nolint:gosec // it counts
	name := files[len(files)-1]
	f, err := l.dir.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if end.torn != "" {
		if err := f.Truncate(end.size); err != nil {
			f.Close()
			return err
		}
	}
	l.file, l.size = f, end.size
	if end.damaged > 0 {
		l.log.Error("the audit log was edited: its last records do not match what was written", "records", end.damaged, "file", name)
	}
	if end.torn == "" {
		return nil
	}
	l.log.Warn("removed an incomplete last record of the audit log: boxd died while writing it", "file", name, "bytes", end.tornLen)
	return l.noteLocked(&Record{Kind: hashchain.NoteRepaired, Detail: fmt.Sprintf("%d bytes at the end of %s were no whole record and were cut off; their SHA-256 is %s", end.tornLen, name, end.torn)})
}

// lookLocked reads one file to its end.
func (l *Log) lookLocked(name string) (at found, err error) {
	f, err := l.dir.Open(name)
	if err != nil {
		return at, err
	}
	defer f.Close()
	whole := true
	err = hashchain.Lines(f, func(line *hashchain.Line) error {
		if whole = line.Ended; !whole {
			at.size = line.Offset
			return nil
		}
		at.size = line.Offset + line.Size
		if at.damaged++; line.Err == nil {
			at.head, at.damaged = line.Link, 0
		}
		return nil
	})
	if err != nil || whole {
		return at, err
	}
	h := sha256.New()
	if at.tornLen, err = io.Copy(h, io.NewSectionReader(f, at.size, 1<<40)); err != nil {
		return at, err
	}
	at.torn = hex.EncodeToString(h.Sum(nil))
	return at, nil
}

// syncLocked waits for the disk.
func (l *Log) syncLocked() error {
	if !l.dirty || l.file == nil {
		return nil
	}
	l.dirty = false
	return unix.Fdatasync(int(l.file.Fd()))
}

// sync waits for the disk, and nobody waits for it.
func (l *Log) sync() error {
	l.mu.Lock()
	if !l.dirty || l.file == nil {
		l.mu.Unlock()
		return nil
	}
	l.dirty = false
	fd, err := unix.FcntlInt(l.file.Fd(), unix.F_DUPFD_CLOEXEC, 0) // rotation may close the file meanwhile
	l.mu.Unlock()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fdatasync(fd)
}

// How often records are put on the disk, and how often the log says where the end of the audit log is.
const (
	syncEvery = time.Second
	headEvery = 10 * time.Minute
)

// Run puts records on the disk, tries again what could not be written, and says from time to time in the log where
// the end is, until ctx ends.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	logged, at := time.Now(), hashchain.Link{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := l.sync(); err != nil {
			l.log.Error("cannot sync the audit log to disk", "error", err)
		}
		l.retry()
		if head := l.Head(); time.Since(logged) >= headEvery && head != at {
			logged, at = time.Now(), head
			l.log.Info("audit log", "head", head.String())
		}
	}
}

// retry tries to write what waits.
func (l *Log) retry() {
	l.mu.Lock()
	before := l.broken
	if before == nil {
		l.mu.Unlock()
		return
	}
	err := l.flushLocked()
	waiting, lost := len(l.pending), l.lost
	l.mu.Unlock()
	l.report(before, err, waiting, lost)
}

// Head is the place of the last record.
func (l *Log) Head() hashchain.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// State is the log in figures, and why it cannot be written, if so.
type State struct {
	Written uint64 // by this boxd
	Failed  uint64 // times that a record could not be written at once
	Waiting int    // in memory
	Lost    uint64
	Trouble error
}

// State returns it as it is now.
func (l *Log) State() State {
	if l == nil {
		return State{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{l.written, l.failed, len(l.pending), l.lost, l.broken}
}

// Close puts all on the disk, and says where the end is.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.flushLocked()
	if err == nil {
		err = l.syncLocked()
	}
	if err != nil {
		l.log.Error("cannot sync the audit log to disk", "error", err)
	}
	l.log.Info("audit log", "head", l.head.String())
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
	l.dir.Close()
}
