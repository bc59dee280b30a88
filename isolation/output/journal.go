// SPDX-License-Identifier: Apache-2.0

package output

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// Journal is the writer's end of the order in which two streams were written.
type Journal struct {
	FD     int
	count  int64 // number of entries ever written
	holeTo int64
	stream int
	noted  time.Time
}

// entry says where both streams were when one of them grew; until the next entry only that one
// grows.
type entry struct {
	offset [2]int64
	time   int64 // nanoseconds since 1970; 0: the entry has been dropped
	stream int
}

const entrySize = 32

func (e *entry) encode() []byte {
	var b [entrySize]byte
	binary.LittleEndian.PutUint64(b[0:], uint64(e.offset[0]))
	binary.LittleEndian.PutUint64(b[8:], uint64(e.offset[1]))
	binary.LittleEndian.PutUint64(b[16:], uint64(e.time))
	b[24] = byte(e.stream)
	return b[:]
}

// decode decodes an entry from any bytes.
func (e *entry) decode(b []byte) {
	e.offset[0] = int64(binary.LittleEndian.Uint64(b[0:]) &^ (1 << 63))
	e.offset[1] = int64(binary.LittleEndian.Uint64(b[8:]) &^ (1 << 63))
	e.time = int64(binary.LittleEndian.Uint64(b[16:]))
	e.stream = int(b[24] & 1)
}

// How much of the journal is kept, in bytes, and the least time between two entries of one
// stream.
const (
	journalKeep = 256 << 10
	resolution  = 100 * time.Millisecond
)

// NewJournal makes an empty journal.
func NewJournal() (Journal, error) {
	fd, err := unix.MemfdCreate("journal", unix.MFD_CLOEXEC)
	return Journal{FD: fd}, err
}

// Note records that a stream is about to grow. offset is where both streams are.
func (j *Journal) Note(stream int, offset [2]int64) {
	now := time.Now()
	if j.count > 0 && stream == j.stream && now.Sub(j.noted) < resolution {
		return
	}
	e := entry{offset: offset, time: now.UnixNano(), stream: stream}
	if n, err := unix.Pwrite(j.FD, e.encode(), j.count*entrySize); err != nil || n != entrySize {
		return // out of memory: the data is kept, only its order is lost
	}
	j.count++
	j.stream, j.noted = stream, now
	if end := (j.count*entrySize - journalKeep) &^ (page - 1); end-j.holeTo >= journalKeep {
		if unix.Fallocate(j.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, j.holeTo, end-j.holeTo) == nil {
			j.holeTo = end
		}
	}
}

// Close releases the file.
func (j *Journal) Close() {
	if j.FD >= 0 {
		unix.Close(j.FD)
		j.FD = -1
	}
}
