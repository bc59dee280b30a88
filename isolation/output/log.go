// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Log is the reader's end of a program's output. Any number of goroutines may use it. The writer
// is not trusted: it can make a reader see other bytes, and nothing worse.
type Log struct {
	rings   [2]int
	journal int
	tail    int64 // 0: not even the last bytes are sure to be kept
	spooled bool

	mu      sync.Mutex // guards the field below
	changed chan struct{}
}

// ErrNotMemory means that a descriptor is neither a memory file nor a ring on disk: reading it might block or have side effects.
var ErrNotMemory = errors.New("output: not a memory file")

// NewLog takes over the descriptors of two rings and a journal, if they can be those. The writer
// keeps at least the last tail bytes of each ring, unless they are on disk.
func NewLog(ring0, ring1, journal int, tail uint64) (*Log, error) {
	l := &Log{rings: [2]int{ring0, ring1}, journal: journal, tail: int64(tail)}
	if !IsMemory(journal) {
		return nil, ErrNotMemory
	}
	for _, fd := range l.rings {
		if IsMemory(fd) && sameDevice(fd, journal) { // files of a mounted tmpfs have seals as well
			continue
		}
		if !isSpool(fd) {
			return nil, ErrNotMemory
		}
		l.spooled, l.tail = true, 0
	}
	return l, nil
}

// Spooled reports whether the output is on disk. It may then have gaps wherever the disk was full.
func (l *Log) Spooled() bool { return l.spooled }

// IsMemory reports whether fd is a file in memory: only those support seals (fcntl(2),
// F_GET_SEALS), and reading them cannot block.
func IsMemory(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}

// Close closes the descriptors. No reads may be in progress.
func (l *Log) Close() {
	for _, fd := range []int{l.rings[0], l.rings[1], l.journal} {
		unix.Close(fd)
	}
}

// End returns the number of bytes written to each stream so far.
func (l *Log) End() (end [2]int64, err error) {
	for i, fd := range l.rings {
		if end[i], err = size(fd); err != nil {
			return end, err
		}
	}
	return end, nil
}

func size(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("output", err)
	}
	return st.Size, nil
}

// Oldest returns, for each stream, the offset from which on everything is kept.
func (l *Log) Oldest() (from [2]int64, err error) {
	end, err := l.End()
	if err != nil {
		return from, err
	}
	for i, fd := range l.rings {
		for range maxGaps {
			hole, err := unix.Seek(fd, from[i], unix.SEEK_HOLE)
			if err != nil || hole >= end[i] {
				break // no hole, or nothing written
			}
			if from[i], err = unix.Seek(fd, hole, unix.SEEK_DATA); err != nil {
				from[i] = end[i]
			}
			if !l.spooled { // there is at most one
				break
			}
		}
	}
	return from, nil
}

// maxGaps bounds how many gaps Oldest looks for. If a ring on disk has more, its result is not the last gap.
const maxGaps = 10_000

// Beginning returns how many bytes at the beginning of a stream are all kept.
func (l *Log) Beginning(stream int) (int64, error) {
	end, err := size(l.rings[stream])
	if err != nil || end == 0 {
		return 0, err
	}
	hole, err := unix.Seek(l.rings[stream], 0, unix.SEEK_HOLE)
	return min(hole, end), os.NewSyscallError("output", err)
}

// Changed returns a channel that is closed when there is more output than at this call.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Wake closes the channels that Changed has returned.
func (l *Log) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Chunk is a piece of one stream: either Data, or a Gap of bytes that have been dropped.
type Chunk struct {
	Stream int
	Offset int64 // of the first byte
	Data   []byte
	Gap    int64
	Time   time.Time // when it was written, to a tenth of a second; zero if that is not known
}

// Len returns the number of bytes of the stream that the chunk stands for.
func (c *Chunk) Len() int64 { return int64(len(c.Data)) + c.Gap }

// Reader reads the output of a program in the order it was written. It is for one goroutine.
type Reader struct {
	log   *Log
	pos   [2]int64
	timed bool
	hint  int64 // journal entry of the last position
}

// NewReader returns a Reader that starts at a position. A timed reader returns the time of every
// chunk, and smaller chunks because of that.
func (l *Log) NewReader(pos [2]int64, timed bool) *Reader {
	return &Reader{log: l, pos: pos, timed: timed}
}

// Position returns where the reader is: the number of bytes of each stream before it.
func (r *Reader) Position() [2]int64 { return r.pos }

// Next returns the next chunk and moves past it. A chunk of length zero means that there is no
// more output yet. Data is a part of buf.
func (r *Reader) Next(buf []byte) (Chunk, error) {
	end, err := r.log.End() // before the journal, whose entries come before the data they are about
	if err != nil {
		return Chunk{}, err
	}
	if end[0] == r.pos[0] && end[1] > r.pos[1] { // read the other stream again: what was written to it before has arrived since
		if end[0], err = size(r.log.rings[0]); err != nil {
			return Chunk{}, err
		}
	}
	more := [2]bool{end[0] > r.pos[0], end[1] > r.pos[1]}
	c := Chunk{}
	switch {
	case !more[0] && !more[1]:
		return c, nil
	case r.timed || more[0] && more[1]:
		if err := r.order(&c, &end, more); err != nil {
			return c, err
		}
	case more[1]:
		c.Stream = 1
	}
	c.Offset = r.pos[c.Stream]
	if err := r.log.read(&c, buf, end[c.Stream]); err != nil {
		return c, err
	}
	r.pos[c.Stream] += c.Len()
	return c, nil
}

// order finds which stream comes next, up to where, and when it was written. Where the journal
// has been dropped, standard output comes first.
func (r *Reader) order(c *Chunk, end *[2]int64, more [2]bool) error {
	at, next, err := r.log.find(r.pos, &r.hint)
	if err != nil {
		return err
	}
	switch {
	case at != nil:
		c.Stream, c.Time = at.stream, time.Unix(0, at.time)
		if end[c.Stream], err = size(r.log.rings[c.Stream]); err != nil { // its size was read before that of the other one
			return err
		}
		more[c.Stream] = end[c.Stream] > r.pos[c.Stream]
	case !more[0]:
		c.Stream = 1
	}
	if next != nil {
		if limit := next.offset[c.Stream]; limit > r.pos[c.Stream] {
			end[c.Stream] = min(end[c.Stream], limit)
		} else if other := 1 - c.Stream; at == nil && more[other] && next.offset[other] > r.pos[other] {
			c.Stream = other
			end[other] = min(end[other], next.offset[other])
		}
	}
	if !more[c.Stream] { // the writer breaks the rules
		c.Stream = 1 - c.Stream
	}
	return nil
}

// read fills a chunk from its offset up to end.
func (l *Log) read(c *Chunk, buf []byte, end int64) error {
	if end <= c.Offset { // the file has shrunk: its writer breaks the rules
		return nil
	}
	fd := l.rings[c.Stream]
	n := min(end-c.Offset, int64(len(buf)))
	if err := ReadAt(fd, buf[:n], c.Offset); err != nil {
		return err
	}
	// Look for a hole after reading, so that zeros from a hole are never taken for data. Look
	// only where there can be a hole, since the kernel makes lseek wait for the writer.
	if now, err := size(fd); err != nil {
		return err
	} else if c.Offset >= now-l.tail {
		c.Data = buf[:n]
		return nil
	}
	hole, err := unix.Seek(fd, c.Offset, unix.SEEK_HOLE)
	if err != nil {
		return os.NewSyscallError("output", err)
	}
	if hole > c.Offset {
		c.Data = buf[:min(n, hole-c.Offset)]
		return nil
	}
	data, err := unix.Seek(fd, c.Offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // only a hole up to the end
		data, err = end, nil
	}
	if err != nil {
		return os.NewSyscallError("output", err)
	}
	c.Gap = max(data, c.Offset+1) - c.Offset
	return nil
}

// ReadAt fills b from a file; it is an error if there are fewer bytes.
func ReadAt(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, off)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("output", err)
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			b, off = b[n:], off+int64(n)
		}
	}
	return nil
}

// find returns the journal entry that covers a position, and the one after it. The first is nil
// if the journal has been dropped that far back, the second is nil at the end of the journal.
func (l *Log) find(pos [2]int64, hint *int64) (at, next *entry, err error) {
	bytes, err := size(l.journal)
	if err != nil {
		return nil, nil, err
	}
	count := bytes / entrySize
	behind := func(e *entry) bool { return e.offset[0] <= pos[0] && e.offset[1] <= pos[1] }
	low, high := int64(-1), count // the entry at low is not after the position, the one at high is
	pair := [2]entry{}
	if h := *hint; h < count { // usually it is the same entry as last time, or the next one
		n, err := l.entries(h, pair[:])
		if err != nil {
			return nil, nil, err
		}
		switch {
		case !behind(&pair[0]):
			high = h
		case n == 1 || !behind(&pair[1]):
			low, high = h, h+1
		default:
			low = h + 1
		}
	}
	for high-low > 1 {
		mid := low + (high-low)/2
		if _, err := l.entries(mid, pair[:1]); err != nil {
			return nil, nil, err
		}
		if behind(&pair[0]) {
			low = mid
		} else {
			high = mid
		}
	}
	*hint = max(low, 0)
	if low >= 0 {
		if _, err := l.entries(low, pair[:1]); err != nil {
			return nil, nil, err
		}
		if pair[0].time != 0 {
			at = &pair[0]
		}
	}
	if high < count {
		if _, err := l.entries(high, pair[1:]); err != nil {
			return nil, nil, err
		}
		next = &pair[1]
	}
	return at, next, nil
}

// ReadAt reads bytes of a stream that are known to be retained.
func (l *Log) ReadAt(stream int, b []byte, off int64) error {
	return ReadAt(l.rings[stream], b, off)
}

// entries reads journal entries, and returns how many there were.
func (l *Log) entries(index int64, to []entry) (int, error) {
	var buf [2 * entrySize]byte
	n, err := unix.Pread(l.journal, buf[:len(to)*entrySize], index*entrySize)
	if err != nil || n < entrySize {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	for i := range n / entrySize {
		to[i].decode(buf[i*entrySize:])
	}
	return n / entrySize, nil
}

// Whole returns b without a character at its end of which the rest is missing.
func Whole(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
}
