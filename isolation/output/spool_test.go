// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newSpool returns the writer of a ring on disk, and its reader.
func newSpool(t *testing.T, head, tail uint64) (*Ring, *Log) {
	t.Helper()
	rings := [2]Ring{NewRing(head, tail), NewRing(head, tail)}
	journal, err := NewJournal()
	if err != nil {
		t.Fatal(err)
	}
	for i := range rings {
		if err := rings[i].CreateIn(t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	l, err := NewLog(rings[0].FD, rings[1].FD, journal.FD, tail)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if !l.Spooled() {
		t.Error("Spooled is false for output on disk")
	}
	return &rings[0], l
}

// readAll reads the first stream from its beginning, with a zero for every byte that a gap reports as dropped.
func readAll(t *testing.T, l *Log) (all []byte, gaps int64) {
	t.Helper()
	r := l.NewReader([2]int64{}, false)
	buf := make([]byte, 100_000)
	for {
		c, err := r.Next(buf)
		if err != nil {
			t.Fatal(err)
		}
		if c.Len() == 0 {
			return all, gaps
		}
		gaps += c.Gap
		all = append(append(all, c.Data...), make([]byte, c.Gap)...)
	}
}

// nonzero returns n random bytes, none of which is zero.
func nonzero(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + rand.IntN(255))
	}
	return b
}

// Output on disk reads like output in memory and has the same limits, whether it comes from a pipe or is appended.
func TestOutputOnDiskIsReadAsOther(t *testing.T) {
	t.Parallel()
	const head, tail = 100_000, 1 << 20
	ring, l := newSpool(t, head, tail)
	pipe := [2]int{}
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	data := nonzero(5 << 20)
	for rest := data; len(rest) > 0; {
		piece := rest[:min(len(rest), 1+rand.IntN(60_000))]
		rest = rest[len(piece):]
		if rand.IntN(2) == 0 {
			if err := ring.Append(piece); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if n, err := unix.Write(pipe[1], piece); err != nil || n != len(piece) {
			t.Fatalf("n = %v, err = %v, want no error and n == len(piece)", n, err)
		}
		for n := int64(0); n < int64(len(piece)); {
			moved, err := ring.Fill(pipe[0])
			if err != nil {
				t.Fatal(err)
			}
			n += moved
		}
	}
	all, gaps := readAll(t, l)
	end := len(data) - tail
	if len(all) != len(data) || !bytes.Equal(all[:head], data[:head]) || !bytes.Equal(all[end:], data[end:]) || gaps < int64(end-head-2*holeStep) {
		t.Errorf("%d of %d bytes, %d of them missing", len(all), len(data), gaps)
	}
	if from, err := l.Oldest(); err != nil || from[0] > int64(end) || from[0] < head {
		t.Errorf("the oldest kept byte is %d, %v", from, err)
	}
	if n, err := l.Beginning(0); err != nil || n < head || n > head+2*page {
		t.Errorf("%d bytes of the beginning, %v", n, err)
	}
}

// On a full disk the older half of the kept output is dropped first, repeatedly, and then new output: none of it is read as
// zeros, and what is written once there is room again is kept.
func TestSpoolingToAFullDiskLeavesGaps(t *testing.T) {
	t.Parallel()
	for _, before := range []int{0, 1, page, 300_001} {
		ring, l := newSpool(t, 0, 1<<30)
		data := nonzero(before)
		if err := ring.Append(data); err != nil {
			t.Fatal(err)
		}
		drop := func(piece []byte) {
			t.Helper()
			for len(piece) > 0 {
				n, err := ring.noRoom(-1, piece)
				if err != nil && !errors.Is(err, unix.EINTR) {
					t.Fatal(err)
				}
				piece = piece[n:]
			}
		}
		lost := nonzero(100_000)
		look := func() (all []byte, gaps int64) {
			t.Helper()
			all, gaps = readAll(t, l)
			if len(all) != len(data) || ring.Size() != int64(len(data)) {
				t.Fatalf("%d: %d of %d bytes", before, len(all), len(data))
			}
			var zeros int64
			for i, b := range all {
				switch b {
				case data[i]:
				case 0:
					zeros++
				default:
					t.Fatalf("%d: byte %d is another", before, i)
				}
			}
			if zeros != gaps {
				t.Errorf("%d: %d bytes of %d are missing, %d were reported missing", before, zeros, len(data), gaps)
			}
			return all, gaps
		}
		drop(lost[:10])
		data = append(data, lost[:10]...)
		look()
		drop(lost[10:])
		data = append(data, lost[10:]...)
		look()
		kept := nonzero(50_000)
		if err := ring.Append(kept); err != nil {
			t.Fatal(err)
		}
		data = append(data, kept...)
		drop(lost)
		data = append(data, lost...)
		last := nonzero(2 * page)
		if err := ring.Append(last); err != nil {
			t.Fatal(err)
		}
		data = append(data, last...)
		all, gaps := look()
		if gaps < int64(2*len(lost)) {
			t.Errorf("%d: %d bytes are missing", before, gaps)
		}
		if n := page; !bytes.Equal(all[len(all)-n:], data[len(data)-n:]) {
			t.Errorf("%d: output is missing that was written when the disk had free space", before)
		}
		if from, err := l.Oldest(); err != nil || from[0] != int64(len(data)-len(last))+int64(page-(len(data)-len(last))%page)%page {
			t.Errorf("%d: the oldest kept byte is %d of %d, %v", before, from[0], len(data), err)
		}
	}
}

// What a lossless reader has not read yet is not dropped to make room: the new output is dropped instead.
func TestAFullDiskKeepsWhatIsHeld(t *testing.T) {
	t.Parallel()
	ring, l := newSpool(t, 0, 1<<30)
	data := nonzero(64 * page)
	if err := ring.Append(data); err != nil {
		t.Fatal(err)
	}
	ring.Hold(0)
	if n, err := ring.noRoom(-1, make([]byte, page)); err != nil || n != page {
		t.Errorf("dropped %d, %v", n, err)
	}
	if all, gaps := readAll(t, l); gaps != page || !bytes.Equal(all[:len(data)], data) {
		t.Errorf("%d bytes are missing", gaps)
	}
	for range 2 { // with several gaps, only what follows the last one counts as fully kept
		if err := ring.Append(data[:page]); err != nil {
			t.Fatal(err)
		}
		if from, err := l.Oldest(); err != nil || from[0] != ring.Size()-page {
			t.Errorf("the oldest kept byte is %d of %d, %v", from[0], ring.Size(), err)
		}
		if n, err := l.Beginning(0); err != nil || n != int64(len(data)) {
			t.Errorf("%d bytes of the beginning, %v", n, err)
		}
		if _, err := ring.noRoom(-1, make([]byte, page)); err != nil {
			t.Fatal(err)
		}
	}
}

// Only an unnamed file on a local filesystem is accepted as output on disk: reading any other might block or have side effects.
func TestOutputOnDiskIsAnUnnamedFile(t *testing.T) {
	t.Parallel()
	journal, err := NewJournal()
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	named, err := os.Create(filepath.Join(t.TempDir(), "named"))
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	proc, err := os.Open("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	pipe, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer end.Close()
	files := []*os.File{named, proc, pipe}
	if queue := unnamedQueue(); queue != nil {
		defer queue.Close()
		files = append(files, queue)
	}
	for _, f := range files {
		if _, err := NewLog(int(f.Fd()), journal.FD, journal.FD, 1); !errors.Is(err, ErrNotMemory) {
			t.Errorf("%s: err = %v, want err is ErrNotMemory", f.Name(), err)
		}
	}
	ring := NewRing(0, 1)
	if err := ring.CreateIn("/proc/self"); err == nil {
		t.Error("no error for a filesystem that cannot create files")
		ring.Close()
	}
}

// unnamedQueue returns an unlinked message queue, which is a regular file to fstat(2), or nil if this kernel has none.
func unnamedQueue() *os.File {
	name, err := unix.BytePtrFromString("boxd-output-" + strconv.Itoa(os.Getpid()))
	if err != nil {
		return nil
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600, 0, 0, 0)
	if errno != 0 {
		return nil
	}
	_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
	return os.NewFile(fd, "queue")
}
