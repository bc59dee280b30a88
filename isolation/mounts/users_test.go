// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const table = `22 1 0:20 / / ro,relatime - tmpfs tmpfs rw
31 22 8:1 /srv/a\040b /mnt/a\040b\134\011c ro,nosuid,nodev - ext4 /dev/sda1 rw
4294967296 31 8:1 / /mnt/x\12 ro shared:1 - ext4 /dev/sda1 rw
` + "32 22 8:1 /srv/\u00a0\r /mnt/a\u00a0b\r\v/t ro - ext4 /dev/sda1 rw\n"

func entries(text string) (list []entry, err error) {
	err = parse(strings.NewReader(text), func(e entry) { list = append(list, e) })
	return list, err
}

func TestMountinfoIsReadExactly(t *testing.T) {
	t.Parallel()
	got, err := entries(table)
	want := []entry{{22, 1, "/", "ro,relatime"}, {31, 22, "/mnt/a b\\\tc", "ro,nosuid,nodev"}, {1 << 32, 31, `/mnt/x\12`, "ro"}, {32, 22, "/mnt/a\u00a0b\r\v/t", "ro"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, err = %v, want no error and got == %+v", got, err, want)
	}
	for _, bad := range []string{"22 1 0:20 / /", "x 1 0:20 / / ro", "22 -1 0:20 / / ro", "22 1 0:20 / / ro\n\n"} {
		if got, err := entries(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// Whatever the table contains, parsing it ends, and yields no more entries than there are lines.
func FuzzParse(f *testing.F) {
	f.Add(table)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := entries(text)
		if err == nil && len(list) > strings.Count(text, "\n")+1 {
			t.Errorf("%d entries of %q", len(list), text)
		}
		for _, e := range list {
			if len(e.path) > len(text) {
				t.Errorf("a path of %d bytes", len(e.path))
			}
		}
	})
}

// Whatever thread a caller is on, onOwnThread never runs its function on the main thread, which could
// not end.
func TestOnOwnThreadNeverUsesTheMainThread(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			err := onOwnThread(func() error {
				if unix.Gettid() == unix.Getpid() {
					return unix.EDEADLK
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestTheDirectoriesOfATargetComeInOrder(t *testing.T) {
	t.Parallel()
	if got := chain("/a/bc/d", ""); !slices.Equal(got, []string{"/a", "/a/bc", "/a/bc/d"}) {
		t.Errorf(`got %q, want []string{"/a", "/a/bc", "/a/bc/d"}`, got)
	}
}

// A process counts as alive whatever signals this process gets meanwhile.
func TestASignalDoesNotMakeALiveProcessCountAsDead(t *testing.T) {
	t.Parallel()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, stop := unix.Gettid(), make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), self, unix.SIGURG) // the runtime's own preemption signal, which it ignores
			}
		}
	})
	dead := 0
	for range 100_000 {
		if !Alive(pidfd) {
			dead++
		}
	}
	close(stop)
	signals.Wait()
	if dead > 0 {
		t.Errorf("dead %d times", dead)
	}
}
