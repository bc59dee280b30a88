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

// logEnd describes the end of the log.
type logEnd struct {
	head    hashchain.Link // of the last valid record, counted on over invalid ones
	damaged int            // lines at the end that are no valid records
	size    int64          // of the last file, up to its last complete line
	torn    string         // hash of the partial line after it, "" if there is none
	tornLen int64
}

// prepareLocked finds the end of the log and continues there. A partial line that an earlier boxd left is cut off, which is
// recorded in the log.
func (l *Log) prepareLocked() error {
	files, err := hashchain.Files(l.dir.FS())
	if err != nil {
		return err
	}
	l.files = files
	if len(files) == 0 {
		return l.newFileLocked()
	}
	var end logEnd
	for i, name := range slices.Backward(files) {
		fileEnd, err := l.scanLocked(name)
		if err != nil {
			return err
		}
		if i == len(files)-1 {
			end = fileEnd
		} else {
			end.head, end.damaged = fileEnd.head, end.damaged+fileEnd.damaged
		}
		if end.head.Seq > 0 {
			break
		}
	}
	if l.head = end.head; l.head.Seq == 0 { // no valid record: continue after the existing lines
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
	return l.noteLocked(&Record{Kind: hashchain.NoteRepaired, Detail: fmt.Sprintf("%d bytes of an incomplete record at the end of %s were cut off; SHA-256: %s", end.tornLen, name, end.torn)})
}

// scanLocked reads one file to its end.
func (l *Log) scanLocked(name string) (end logEnd, err error) {
	f, err := l.dir.Open(name)
	if err != nil {
		return end, err
	}
	defer f.Close()
	complete := true
	err = hashchain.Lines(f, func(line *hashchain.Line) error {
		if complete = line.Ended; !complete {
			end.size = line.Offset
			return nil
		}
		end.size = line.Offset + line.Size
		if end.damaged++; line.Err == nil {
			end.head, end.damaged = line.Link, 0
		}
		return nil
	})
	if err != nil || complete {
		return end, err
	}
	h := sha256.New()
	if end.tornLen, err = io.Copy(h, io.NewSectionReader(f, end.size, 1<<40)); err != nil {
		return end, err
	}
	end.torn = hex.EncodeToString(h.Sum(nil))
	return end, nil
}

// syncLocked waits for the disk.
func (l *Log) syncLocked() error {
	if !l.dirty || l.file == nil {
		return nil
	}
	l.dirty = false
	return unix.Fdatasync(int(l.file.Fd()))
}

// sync waits for the disk without holding the lock.
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

// How often records are synced, and how often the daemon's log notes the end of the audit log.
const (
	syncInterval = time.Second
	headInterval = 10 * time.Minute
)

// Run syncs records, retries those that could not be written, and from time to time logs the position of the end, until ctx ends.
func (l *Log) Run(ctx context.Context) {
	ticker := time.NewTicker(syncInterval)
	defer ticker.Stop()
	loggedAt, loggedHead := time.Now(), hashchain.Link{}
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := l.sync(); err != nil {
			l.log.Error("cannot sync the audit log to disk", "error", err)
		}
		l.retry()
		if head := l.Head(); time.Since(loggedAt) >= headInterval && head != loggedHead {
			loggedAt, loggedHead = time.Now(), head
			l.log.Info("audit log", "head", head.String())
		}
	}
}

// retry tries to write the pending records.
func (l *Log) retry() {
	l.mu.Lock()
	prevErr := l.broken
	if prevErr == nil {
		l.mu.Unlock()
		return
	}
	err := l.flushLocked()
	waiting, lost := len(l.pending), l.lost
	l.mu.Unlock()
	l.report(prevErr, err, waiting, lost)
}

// Head returns the position of the last record.
func (l *Log) Head() hashchain.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// State has the counters of the log, and why it cannot be written, if so.
type State struct {
	Written uint64 // by this boxd
	Failed  uint64 // times a record could not be written at once
	Waiting int    // in memory
	Lost    uint64
	Trouble error
}

// State returns the present state.
func (l *Log) State() State {
	if l == nil {
		return State{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{l.written, l.failed, len(l.pending), l.lost, l.broken}
}

// Close writes and syncs everything, and logs the position of the end.
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
