// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a cgroup by a descriptor of its directory, which works wherever the descriptor is
// held: also in a box, where the cgroup filesystem is read-only.
type Group struct{ FD int }

// Open opens the cgroup at a path.
func Open(path string) (Group, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return Group{fd}, err
}

// Open opens a child cgroup.
func (g Group) Open(name string) (Group, error) {
	fd, err := unix.Openat(g.FD, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	return Group{fd}, err
}

// Make makes a child cgroup.
func (g Group) Make(name string) (Group, error) {
	if err := unix.Mkdirat(g.FD, name, 0o755); err != nil {
		return Group{-1}, err
	}
	child, err := g.Open(name)
	if err != nil {
		_ = unix.Unlinkat(g.FD, name, unix.AT_REMOVEDIR)
	}
	return child, err
}

// Remove removes a child cgroup. EBUSY: it has processes or children.
func (g Group) Remove(name string) error { return unix.Unlinkat(g.FD, name, unix.AT_REMOVEDIR) }

// Close closes the descriptor; the cgroup stays.
func (g Group) Close() { unix.Close(g.FD) }

// fileError says which file of a cgroup refused which text.
type fileError struct {
	Setting
	Err error
}

func (e *fileError) Error() string {
	return "write " + strconv.Quote(e.Text) + " to " + e.File + ": " + e.Err.Error()
}

func (e *fileError) Unwrap() error { return e.Err }

// Write writes a text to a file of the cgroup. The error is a *fileError.
func (g Group) Write(file, text string) error {
	fd, err := unix.Openat(g.FD, file, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
		unix.Close(fd)
	}
	if err != nil {
		return &fileError{Setting{file, text}, err}
	}
	return nil
}

// Apply writes settings, in order, up to the first that fails. Files that a host may lack without
// losing a limit are skipped if they do not exist.
func (g Group) Apply(settings []Setting) error {
	for _, s := range settings {
		err := g.Write(s.File, s.Text)
		if err == nil || Optional(s.File) && errors.Is(err, unix.ENOENT) {
			continue
		}
		return err
	}
	return nil
}

// readSize is enough for nearly every file that is read here: the longest are io.stat, with a
// line of some 100 bytes for each device, and cgroup.procs.
const readSize = 4 << 10

// Read returns the content of a file of the cgroup.
func (g Group) Read(file string) ([]byte, error) {
	fd, err := unix.Openat(g.FD, file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, readSize)
	for n := 0; ; { // the kernel returns at most a page at a time
		got, err := unix.Read(fd, buf[n:])
		if err != nil {
			return nil, err
		}
		if n += got; got == 0 {
			return bytes.TrimSpace(buf[:n]), nil
		}
		if n == len(buf) {
			buf = append(buf, make([]byte, n)...)
		}
	}
}

// Number returns the number in a file that contains only one; "max" is the largest.
func (g Group) Number(file string) (uint64, error) {
	text, err := g.Read(file)
	if err != nil {
		return 0, err
	}
	if string(text) == unlimited {
		return 1<<64 - 1, nil
	}
	return strconv.ParseUint(string(text), 10, 64)
}

// Key returns a number from a file of "key number" lines, such as memory.events or cpu.stat; zero
// if the key is missing.
func (g Group) Key(file, key string) (uint64, error) {
	text, err := g.Read(file)
	if err != nil {
		return 0, err
	}
	return KeyOf(text, key), nil
}

// KeyOf is Key for a text that has been read already.
func KeyOf(text []byte, key string) uint64 {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) == 2 && string(fields[0]) == key {
			n, _ := strconv.ParseUint(string(fields[1]), 10, 64)
			return n
		}
	}
	return 0
}

// Populated reports whether a living process is in the cgroup or below it.
func (g Group) Populated() (bool, error) {
	n, err := g.Key("cgroup.events", "populated")
	return n != 0, err
}

// Kill sends SIGKILL to every process in the cgroup and below it, including those that are just
// forking. Await tells when they are dead. Since Linux 6.12 nothing can be started in the cgroup
// afterwards.
func (g Group) Kill() error { return g.Write("cgroup.kill", "1") }

// Await waits until a key of cgroup.events, "populated" or "frozen", has a value. It returns
// false if that takes longer than timeout.
func (g Group) Await(key string, value uint64, timeout time.Duration) (bool, error) {
	fd, err := unix.Openat(g.FD, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	deadline := now() + timeout
	var buf [256]byte
	for {
		n, err := unix.Pread(fd, buf[:], 0)
		if err != nil {
			return false, err
		}
		if KeyOf(buf[:n], key) == value {
			return true, nil
		}
		left := deadline - now()
		if left <= 0 {
			return false, nil
		}
		// POLLPRI: cgroup.events has changed since it was last read.
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
		if _, err := unix.Poll(poll, int(left/time.Millisecond)+1); err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
}

func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return time.Duration(ts.Nano())
}

// Use is what the processes of a cgroup have used since it was made, including those that have
// ended.
type Use struct {
	User, System time.Duration
	MemoryPeak   uint64 // bytes; zero if the kernel does not report it
	PidsPeak     uint64 // likewise
	Read, Write  uint64 // bytes, of all devices together
	OOMKills     uint64 // processes killed because memory was used up
}

// Use reads what the cgroup has used. What the kernel does not report is zero.
func (g Group) Use() Use {
	var u Use
	if text, err := g.Read("cpu.stat"); err == nil {
		u.User = time.Duration(KeyOf(text, "user_usec")) * time.Microsecond
		u.System = time.Duration(KeyOf(text, "system_usec")) * time.Microsecond
	}
	u.MemoryPeak, _ = g.Number("memory.peak")
	u.PidsPeak, _ = g.Number("pids.peak")
	u.OOMKills, _ = g.Key("memory.events.local", "oom_kill")
	if text, err := g.Read("io.stat"); err == nil {
		u.Read, u.Write = ioOf(text)
	}
	return u
}

// ioOf adds up the lines of io.stat: "8:0 rbytes=1 wbytes=2 …".
func ioOf(text []byte) (read, written uint64) {
	for field := range bytes.FieldsSeq(text) {
		key, value, _ := bytes.Cut(field, []byte("="))
		n, err := strconv.ParseUint(string(value), 10, 64)
		switch {
		case err != nil:
		case string(key) == "rbytes":
			read += n
		case string(key) == "wbytes":
			written += n
		}
	}
	return read, written
}

// Processes returns the PIDs of the processes in the cgroup itself, in the reader's pid
// namespace.
func (g Group) Processes() ([]int, error) {
	text, err := g.Read("cgroup.procs")
	var pids []int
	for field := range bytes.FieldsSeq(text) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
