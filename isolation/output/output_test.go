// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// writer writes output as PID 1 does.
type writer struct {
	rings   [2]Ring
	journal Journal
}

func newWriter(t *testing.T, head, tail uint64) (*writer, *Log) {
	t.Helper()
	w := &writer{rings: [2]Ring{NewRing(head, tail), NewRing(head, tail)}}
	var err error
	if w.journal, err = NewJournal(); err != nil {
		t.Fatal(err)
	}
	fds := [3]int{}
	for i := range w.rings {
		if err := w.rings[i].Create(); err != nil {
			t.Fatal(err)
		}
	}
	for i, fd := range []int{w.rings[0].FD, w.rings[1].FD, w.journal.FD} {
		if fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			t.Fatal(err)
		}
	}
	l, err := NewLog(fds[0], fds[1], fds[2], tail)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.rings[0].Close()
		w.rings[1].Close()
		w.journal.Close()
		l.Close()
	})
	return w, l
}

func (w *writer) write(t *testing.T, stream int, data []byte) {
	t.Helper()
	w.journal.Note(stream, [2]int64{w.rings[0].Size(), w.rings[1].Size()})
	if err := w.rings[stream].Append(data); err != nil {
		t.Fatal(err)
	}
}

// piece is one write of a program, however readers see it split.
type piece struct {
	stream int
	data   []byte
}

func join(pieces []piece) []piece {
	var out []piece
	for _, p := range pieces {
		if n := len(out); n > 0 && out[n-1].stream == p.stream {
			out[n-1].data = append(out[n-1].data, p.data...)
			continue
		}
		out = append(out, piece{p.stream, bytes.Clone(p.data)})
	}
	return out
}

func same(a, b []piece) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].stream != b[i].stream || !bytes.Equal(a[i].data, b[i].data) {
			return false
		}
	}
	return true
}

func TestBothStreamsAreReadInTheOrderTheyWereWritten(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		w, l := newWriter(t, 0, 1<<20)
		var wrote, got []piece
		reader, buf := l.NewReader([2]int64{}, seed%2 == 0), make([]byte, 1+r.IntN(300))
		for range 300 {
			p := piece{r.IntN(2), make([]byte, r.IntN(200))}
			for i := range p.data {
				p.data[i] = byte(r.Uint32())
			}
			w.write(t, p.stream, p.data)
			if len(p.data) > 0 {
				wrote = append(wrote, p)
			}
			for r.IntN(3) > 0 {
				c, err := reader.Next(buf)
				if err != nil {
					t.Fatal(err)
				}
				if c.Gap > 0 {
					t.Fatalf("seed %d: a gap of %d at %d", seed, c.Gap, c.Offset)
				}
				if c.Len() == 0 {
					break
				}
				if seed%2 == 0 && c.Time.IsZero() {
					t.Fatalf("seed %d: no time", seed)
				}
				got = append(got, piece{c.Stream, bytes.Clone(c.Data)})
			}
			if r.IntN(20) == 0 { // another reader continues at this one's position
				reader = l.NewReader(reader.Position(), seed%2 == 0)
			}
		}
		for {
			c, err := reader.Next(buf)
			if err != nil {
				t.Fatal(err)
			}
			if c.Len() == 0 {
				break
			}
			got = append(got, piece{c.Stream, bytes.Clone(c.Data)})
		}
		if !same(join(got), join(wrote)) {
			t.Fatalf("seed %d: the order is another", seed)
		}
	}
}

func TestDroppedOutputIsAGapAndNeverZeros(t *testing.T) {
	t.Parallel()
	const head, tail, total = 10_000, 100_000, 3 << 20
	w, l := newWriter(t, head, tail)
	at := func(i int64) byte { return byte(i%251) + 1 } // never 0
	data := make([]byte, total)
	for i := range data {
		data[i] = at(int64(i))
	}
	for off := 0; off < total; off += 10_007 {
		w.write(t, 0, data[off:min(off+10_007, total)])
	}
	for _, from := range []int64{0, 1, head - 1, head, head + 5000, total / 2, total - tail - 1, total - tail, total - 1} {
		reader, buf := l.NewReader([2]int64{from, 0}, false), make([]byte, 64<<10)
		seen, gaps := int64(0), int64(0)
		for {
			c, err := reader.Next(buf)
			if err != nil {
				t.Fatal(err)
			}
			if c.Len() == 0 {
				break
			}
			for i, b := range c.Data {
				if b != at(c.Offset+int64(i)) {
					t.Fatalf("from %d: byte %d is %d, want b == at(c.Offset + int64(i))", from, c.Offset+int64(i), b)
				}
			}
			if c.Gap > 0 && (c.Offset < head || c.Offset+c.Gap > total-tail) {
				t.Fatalf("from %d: the gap at %d, of %d bytes, is in output that must be kept", from, c.Offset, c.Gap)
			}
			seen += c.Len()
			gaps += c.Gap
		}
		if seen != total-from || from <= total/2 && gaps == 0 {
			t.Errorf("from %d: %d bytes, %d of them missing", from, seen, gaps)
		}
	}
	if from, err := l.Oldest(); err != nil || from[0] <= head || from[0] > total-tail || from[1] != 0 {
		t.Errorf("oldest %v, %v", from, err)
	}
	if from, to := w.rings[0].Cut(); from != head || to != total-tail {
		t.Errorf("cut %d to %d", from, to)
	}
	var st unix.Stat_t
	if err := unix.Fstat(w.rings[0].FD, &st); err != nil || st.Blocks*512 > head+tail+2*holeStep {
		t.Errorf("it holds %d bytes, %v", st.Blocks*512, err)
	}
}

func TestReaderBesideAWriterThatTrims(t *testing.T) {
	t.Parallel()
	w, l := newWriter(t, 0, 64<<10)
	done := make(chan struct{})
	at := func(s int, i int64) byte { return byte((i*7+int64(s))%250) + 1 }
	go func() {
		defer close(done)
		var off [2]int64
		buf := make([]byte, 5000)
		for n := range 4000 {
			s := n / 3 % 2
			for i := range buf {
				buf[i] = at(s, off[s]+int64(i))
			}
			w.journal.Note(s, [2]int64{w.rings[0].Size(), w.rings[1].Size()})
			_ = w.rings[s].Append(buf)
			off[s] += int64(len(buf))
		}
	}()
	reader, buf := l.NewReader([2]int64{}, false), make([]byte, 16<<10)
	over := false
	for {
		c, err := reader.Next(buf)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range c.Data {
			if b != at(c.Stream, c.Offset+int64(i)) {
				t.Fatalf("stream %d byte %d is %d, want b == at(c.Stream, c.Offset+int64(i))",
					c.Stream, c.Offset+int64(i), b)
			}
		}
		if c.Len() > 0 {
			continue
		}
		if over {
			break
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	if end, _ := l.End(); reader.Position() != end || end[0]+end[1] != 20_000_000 {
		t.Errorf("at %v of %v", reader.Position(), end)
	}
}

// An old part of the journal is dropped before the data is: then standard output comes first.
func TestTheOrderIsForgottenBeforeTheData(t *testing.T) {
	t.Parallel()
	w, l := newWriter(t, 0, 1<<20)
	const n = 40_000
	for i := range n {
		w.write(t, i%2, []byte{byte('a' + i%2)})
	}
	reader, buf := l.NewReader([2]int64{}, false), make([]byte, 64<<10)
	var got [2]int64
	switches, last := 0, -1
	for {
		c, err := reader.Next(buf)
		if err != nil {
			t.Fatal(err)
		}
		if c.Len() == 0 {
			break
		}
		for _, b := range c.Data {
			if b != byte('a'+c.Stream) {
				t.Fatalf("stream %d has %q, want b == byte('a' + c.Stream)", c.Stream, b)
			}
		}
		if c.Stream != last {
			switches++
		}
		last = c.Stream
		got[c.Stream] += c.Len()
	}
	if got != [2]int64{n / 2, n / 2} || switches < journalKeep/entrySize || switches > n/2 {
		t.Errorf("%v, %d switches", got, switches)
	}
	var st unix.Stat_t
	if err := unix.Fstat(w.journal.FD, &st); err != nil || st.Blocks*512 > 2*journalKeep+page {
		t.Errorf("the journal holds %d bytes, %v", st.Blocks*512, err)
	}
}

// What a lossless reader has not read yet is kept, even if Fill has moved more at once than the
// limit.
func TestOutputUnreadByALosslessReaderIsKept(t *testing.T) {
	t.Parallel()
	w, l := newWriter(t, 0, 64<<10)
	held := &w.rings[0]
	held.Hold(1 << 20)
	w.write(t, 0, make([]byte, 4<<20))
	if from, err := l.Oldest(); err != nil || from[0] != 1<<20 {
		t.Errorf("the oldest kept output is at %v, %v", from, err)
	}
	held.Hold(-1)
	w.write(t, 0, []byte("x"))
	if from, err := l.Oldest(); err != nil || from[0] < 3<<20 {
		t.Errorf("then from %v, %v", from, err)
	}
}

func TestNewOutputWakesWaitingReaders(t *testing.T) {
	t.Parallel()
	_, l := newWriter(t, 0, 4096)
	news := l.Changed()
	select {
	case <-news:
		t.Fatal("a notification though there is no new output")
	default:
	}
	time.AfterFunc(time.Millisecond, l.Wake)
	<-news
	l.Wake() // without a waiting reader
}

func TestOnlyMemoryFilesAreALog(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t, 0, 4096)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := NewLog(w.rings[0].FD, int(f.Fd()), w.journal.FD, 0); err == nil {
		t.Error("NewLog accepted a file on disk")
	}
}

// Whatever the files contain, a reader reaches their end.
func FuzzReader(f *testing.F) {
	f.Add([]byte{}, []byte("out"), []byte("err"), int64(0), int64(0), true)
	f.Add((&entry{offset: [2]int64{5, 5}, time: 1, stream: 1}).encode(), []byte("out"), []byte("err"), int64(1), int64(0), false)
	f.Fuzz(func(t *testing.T, journal, out, errs []byte, from0, from1 int64, timed bool) {
		w, l := newWriter(t, 0, 1<<20)
		for fd, data := range map[int][]byte{w.journal.FD: journal, w.rings[0].FD: out, w.rings[1].FD: errs} {
			if _, err := unix.Pwrite(fd, data, 0); err != nil {
				t.Fatal(err)
			}
		}
		end := [2]int64{int64(len(out)), int64(len(errs))}
		pos := [2]int64{min(max(from0, 0), end[0]), min(max(from1, 0), end[1])}
		reader, buf := l.NewReader(pos, timed), make([]byte, 7)
		for range len(out) + len(errs) + 1 {
			c, err := reader.Next(buf)
			if err != nil {
				t.Fatal(err)
			}
			if c.Len() == 0 {
				break
			}
		}
		if reader.Position() != end {
			t.Errorf("at %v, not %v", reader.Position(), end)
		}
	})
}

// The pipe of a program that fills it is enlarged; that of any other stays as it is.
func TestAFullPipeIsWidened(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		written, want int
	}{{pipeSize - 4096, pipeSize}, {pipeSize, widePipe}} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[0])
		defer unix.Close(fds[1])
		if n, err := unix.Write(fds[1], make([]byte, tc.written)); n != tc.written || err != nil {
			t.Fatalf("n = %v, err = %v, want n == %v and no error", n, err, tc.written)
		}
		r := NewRing(0, 1<<20)
		defer r.Close()
		if n, err := r.Fill(fds[0]); n != int64(tc.written) || err != nil {
			t.Errorf("n = %v, err = %v, want n == int64(tc.written) and no error", n, err)
		}
		if size, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETPIPE_SZ, 0); size != tc.want || err != nil {
			t.Errorf("after %d bytes the pipe has %d, %v, want size == %v and no error", tc.written, size, err, tc.want)
		}
	}
}
