// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A box whose programs acquire file locks without limit, in any way, is ended with that as the reason; the host gets the memory
// back, and another box keeps its locks.
func TestFileLocksEndTheirBoxAlone(t *testing.T) {
	d := start(t, boxtest.BestEffort+"file_locks = 5000\n")
	other := newBox(t, d)
	holding := other.hold(probe, "locks", "some", "4000")
	rest := hostLocks(t)
	for _, way := range []string{"hoard", "spread", "orphaned"} {
		t.Run(way, func(t *testing.T) {
			a := newBox(t, d)
			if r := a.exec(&api.ExecRequest{Argv: []string{probe, "locks", way}}); r.Status != "lost" {
				t.Errorf("the program has ended by itself:\n%s", boxtest.Show(r))
			}
			boxtest.Eventually(t, "the log says that the session ended because of its file locks", func() bool {
				return strings.Contains(d.Log(), "msg=\"session ended\" session="+a.ID+" owner=uid:0 reason=file_locks")
			})
			_, err := d.Session(t.Context(), a.ID)
			if err == nil || !strings.Contains(err.Error(), "limits.file_locks") {
				t.Errorf(`a request for the session fails with %v, want an error containing "limits.file_locks"`, err)
			}
			boxtest.Eventually(t, "the host has the memory back", func() bool { return hostLocks(t) < rest+5000 })
		})
	}
	if _, r := holding.Release(); r.Status != "exited" || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Errorf(`the program in the box next to it: r = %s, want r.Status == "exited" and r.ExitCode != nil and *r.ExitCode == 0`,
			boxtest.Show(r))
	}
	holding = other.hold(probe, "locks", "some", "4000")
	holding.Release()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock); err != nil {
		t.Errorf("root of the host: %v", err)
	}
}

// An open file description lock would outlive every descriptor that shows its owner, so such locks are refused; to programs the
// kernel looks as if it never had them.
func TestLocksOfOpenFilesAreRefused(t *testing.T) {
	d := start(t)
	b := newBox(t, d)
	r := b.exec(&api.ExecRequest{Argv: []string{probe, "locks", "hidden"}})
	if !strings.Contains(r.Stderr, "invalid argument") {
		t.Errorf(`r = %s, want r.Stderr containing "invalid argument"`, boxtest.Show(r))
	}
}

// hostLocks returns how many file locks the kernel has allocated memory for.
func hostLocks(t *testing.T) int {
	t.Helper()
	if text, err := os.ReadFile("/sys/kernel/slab/file_lock_cache/total_objects"); err == nil {
		n, err := strconv.Atoi(strings.Fields(string(text))[0])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		boxtest.Missing(t, "a kernel that tells how many objects its caches have")
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "file_lock_cache" {
			n, err := strconv.Atoi(f[2])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("/proc/slabinfo has no cache of file locks")
	return 0
}
