// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
)

var (
	one = strings.Repeat("a1", isolation.KeyLen/2)
	two = strings.Repeat("b2", isolation.KeyLen/2)
)

func full() *record {
	return &record{
		Key: one, PID: 4242, Start: 1<<64 - 1, Boot: "0a-1b", IDBase: 0x70000000, Owner: 1<<32 - 1, Group: "/sys/fs/cgroup/a b/box-x", Scope: true,
		Limits: cgroup.Limits{Memory: 1, MemoryHigh: 2, Swap: 3, OOM: cgroup.OOMSession, CPU: 4, CPUWeight: 5, Pids: 6, IOWeight: 7, IORead: 8, IOWrite: 1 << 63},
	}
}

func least() *record { return &record{Key: two, PID: 2, Boot: "x", IDBase: isolation.IDRange} }

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, want := range []*record{full(), least()} {
		data := want.encode()
		got, err := decode(data)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v, -written +read:\n%s", err, diff)
		}
		for n := range data {
			if r, err := decode(data[:n]); err == nil {
				t.Errorf("the first %d of %d bytes are a record: r = %+v, want an error", n, len(data), r)
			}
		}
	}
}

func TestADamagedRecordIsNone(t *testing.T) {
	t.Parallel()
	good := string(full().encode())
	for name, change := range map[string][2]string{
		"another version":      {head, "boxd box 2"},
		"more than a record":   {"io_write 9223372036854775808\n", "io_write 9223372036854775808\nmore 1\n"},
		"a line twice":         {"pid 4242\n", "pid 4242\npid 4242\n"},
		"a short key":          {one, one[1:]},
		"a key that is a path": {one, "../" + one[3:]},
		"no process":           {"pid 4242", "pid 0"},
		"PID 1 of the host":    {"pid 4242", "pid 1"},
		"a large pid":          {"pid 4242", "pid 4294967296"},
		"a negative pid":       {"pid 4242", "pid -1"},
		"leading zero":         {"pid 4242", "pid 04242"},
		"the host's own ids":   {"ids 1879048192", "ids 0"},
		"half a range":         {"ids 1879048192", "ids 1879048193"},
		"a group that climbs":  {"/sys/fs/cgroup/a b/box-x", "/sys/fs/cgroup/../box-x"},
		"a group of nowhere":   {"/sys/fs/cgroup/a b/box-x", "box-x"},
		"neither true":         {"scope true", "scope 1"},
		"unknown oom":          {"oom 2", "oom 3"},
		"zeroes":               {"memory 1", "memory \x00"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Errorf("%s: nothing is changed", name)
		}
		if r, err := decode([]byte(bad)); err == nil {
			t.Errorf("%s: read as %+v", name, r)
		}
	}
	if _, err := decode(append([]byte(good), make([]byte, maxRecord)...)); err == nil {
		t.Error("a record larger than the limit was decoded")
	}
}

// A record read from a damaged disk is refused, or it is exactly what encode writes for it.
func FuzzDecodeRecord(f *testing.F) {
	f.Add(full().encode())
	f.Add(least().encode())
	f.Add([]byte(head + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err == nil && !bytes.Equal(r.encode(), data) {
			t.Errorf("%q is read as %+v", data, r)
		}
	})
}

func open(t *testing.T) (*recordDir, string) {
	t.Helper()
	run := t.TempDir()
	d, err := openRecords(run)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, run
}

// This test is not parallel: a program that another test starts has a copy of the listener for a
// moment, which the kernel may close only after the start has returned.
func TestABoxIsRememberedUntilItIsRemoved(t *testing.T) {
	d, run := open(t)
	fd, err := d.Make(one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Make(one); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second of the same key: err = %v, want err is fs.ErrExist", err)
	}
	if _, err := d.Read(one); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it is written: err = %v, want err is fs.ErrNotExist", err)
	}
	for _, pid := range []int{10, 11} {
		r := full()
		r.PID = pid
		if err := d.Write(r); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Read(one); err != nil || !cmp.Equal(got, r) {
			t.Errorf("got %+v, err = %v, want no error and got == %+v", got, err, r)
		}
	}
	conn, err := d.Dial(one)
	if err != nil {
		t.Error(err)
	}
	unix.Close(conn)
	unix.Close(fd)
	if _, err := d.Dial(one); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("when the other end does not listen: err = %v, want err is unix.ECONNREFUSED", err)
	}
	if fd, err = d.Make(two); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if err := os.WriteFile(filepath.Join(run, "boxes", two, recordName), full().encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := d.Read(two); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another box's record: r = %+v, err = %v, want an error and err is not fs.ErrNotExist", r, err)
	}
	if keys, err := d.Keys(); err != nil || !slices.Equal(keys, []string{one, two}) {
		t.Errorf("keys = %q, err = %v, want no error and keys == []string{one, two}", keys, err)
	}
	for range 2 {
		for _, key := range []string{one, two} {
			if err := d.Remove(key); err != nil {
				t.Error(err)
			}
		}
	}
	if keys, err := d.Keys(); err != nil || len(keys) > 0 {
		t.Errorf("left: keys = %q, err = %v, want no error and len(keys) == 0", keys, err)
	}
	if err := d.Write(full()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record of a removed box: err = %v, want err is fs.ErrNotExist", err)
	}
}

func TestTheDirectoryIsClosedToOthers(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	if err := os.Mkdir(filepath.Join(run, "boxes"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := openRecords(run); err == nil || !strings.Contains(err.Error(), "want mode 0700") {
		t.Errorf(`err = %v, want an error containing "want mode 0700"`, err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(run, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := openPrivate(run, "link", 0); err == nil {
		t.Error("a symbolic link out of the run directory was followed")
	}
}

func TestAProcessIsKnownByMoreThanItsNumber(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t) // creating a user namespace with such ids needs root
	r := full()
	ids := []syscall.SysProcIDMap{{HostID: int(r.IDBase), Size: isolation.IDRange}}
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := r.identify(cmd.Process.Pid, "this"); err != nil {
		t.Fatal(err)
	}
	living := func(what string, r record, want error) {
		t.Helper()
		fd, err := r.Living("this")
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	living("the process itself", *r, nil)
	later, earlier := *r, *r
	later.Start++
	earlier.Boot = "another"
	living("a later process of that number", later, unix.ESRCH)
	living("one of an earlier boot", earlier, unix.ESRCH)
	// These records name a live process that is not the box.
	other, foreign, none := *r, *r, *r
	other.IDBase += isolation.IDRange
	none.IDBase = 0
	if err := foreign.identify(os.Getpid(), "this"); err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]record{"a box of other ids": other, "a process of the host": foreign, "no ids": none} {
		if fd, err := r.Living("this"); err == nil || errors.Is(err, unix.ESRCH) || !strings.Contains(err.Error(), "it is another process") {
			t.Errorf(`%s: fd = %d, err = %v, want an error and err is not unix.ESRCH and err containing "it is another process"`,
				what, fd, err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	living("a dead one that nobody has waited for", *r, unix.ESRCH)
	_ = cmd.Wait() // it was killed above
	living("a dead one", *r, unix.ESRCH)
}

func TestTheNameOfAProcessDoesNotConfuse(t *testing.T) {
	t.Parallel()
	stat := "7 (a) S 1 (b) R) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2\n"
	if n, err := startIn([]byte(stat)); n != 98765 || err != nil {
		t.Errorf("n = %d, err = %v, want n == 98765 and no error", n, err)
	}
	for _, bad := range []string{"", "7 (a) S", "7 a S 1 7 7 0"} {
		if _, err := startIn([]byte(bad)); err == nil {
			t.Errorf("%q has a start", bad)
		}
	}
}
