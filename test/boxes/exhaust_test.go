// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/quantity"
)

// limitsOfObjects are the errors on which a box runs out of kernel objects. "0" marks an object that comes from a pool of the
// whole host, of which a box gets none.
var limitsOfObjects = map[string]string{
	"inotify":       "EMFILE",       // user.max_inotify_instances of the box, fs.inotify.max_user_instances of its owner
	"watches":       "ENOSPC|EBADF", // likewise; EBADF: the host allows so few instances that they ran out first
	"timers":        "EAGAIN",       // RLIMIT_SIGPENDING
	"queues":        "EMFILE",       // RLIMIT_MSGQUEUE
	"aio":           "ENOSYS 0",
	"huge-pages":    "ENOMEM 0",
	"huge-files":    "ENOMEM 0",
	"huge-segments": "ENOMEM 0",
	"keys":          "EPERM 0",
	"pipes":         "EPERM",  // fs.pipe-user-pages-soft
	"terminals":     "ENOSPC", // its own devpts
	"locked":        "ENOMEM", // RLIMIT_MEMLOCK
	"segments":      "ENOSPC", // from here on: its own IPC namespace
	"messages":      "ENOSPC",
	"semaphores":    "ENOSPC",
}

// A box that uses up every kernel object available to it takes none from the host's root, and none from another box.
func TestKernelObjectsRunOutInTheBoxAlone(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	kinds := slices.Sorted(maps.Keys(limitsOfObjects))
	kinds = append(slices.DeleteFunc(kinds, func(k string) bool { return k == "watches" }), "watches") // these need instances
	large := withTmp(16 * quantity.MiB)
	argv := append([]string{probe, "exhaust"}, kinds...)
	a, b := newBox(t, d, large), newBox(t, d, large)
	holding := a.hold(argv...)
	for kind, err := range objectsOfRoot(t) {
		if err != nil {
			t.Errorf("root of the host, while a box has all it can get: %s: %v", kind, err)
		}
	}
	other := b.hold(argv...)
	first, _ := holding.Release()
	second, _ := other.Release()
	if first != second {
		t.Errorf("first box:\n%s\nsecond box, at the same time:\n%s", first, second)
	}
	got := fields(lines(first))
	for kind, want := range limitsOfObjects {
		if !slices.ContainsFunc(strings.Split(want, "|"), func(w string) bool { return got[kind] == w || strings.HasPrefix(got[kind], w+" ") }) {
			t.Errorf("%s: %q, want %s", kind, got[kind], want)
		}
	}
	a.remove()
	b.remove()
	d.NothingLeft(before)
}

// objectsOfRoot creates one object of each kind that is limited per user or per host, as the host's root.
func objectsOfRoot(t *testing.T) map[string]error {
	t.Helper()
	failed := map[string]error{}
	raw := func(kind string, nr uintptr, args ...uintptr) uintptr {
		args = append(args, 0, 0, 0, 0)
		r, _, errno := unix.Syscall6(nr, args[0], args[1], args[2], args[3], 0, 0)
		failed[kind] = nil
		if errno != 0 {
			failed[kind] = errno
		}
		return r
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	failed["inotify"] = err
	if err == nil {
		_, failed["watches"] = unix.InotifyAddWatch(fd, t.TempDir(), unix.IN_MODIFY)
		unix.Close(fd)
	}
	id := new(uint64)
	raw("timers", unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(id)))
	if failed["timers"] == nil {
		raw("timers", unix.SYS_TIMER_DELETE, uintptr(uint32(*id)))
	}
	*id = 0
	raw("aio", unix.SYS_IO_SETUP, 16, uintptr(unsafe.Pointer(id)))
	if failed["aio"] == nil {
		raw("aio", unix.SYS_IO_DESTROY, uintptr(*id))
	}
	name, err := unix.BytePtrFromString("boxd-test-queue")
	if err != nil {
		t.Fatal(err)
	}
	queue := raw("queues", unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600, 0)
	if failed["queues"] == nil {
		unix.Close(int(queue))
		raw("queues", unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)))
	}
	runtime.KeepAlive(id)
	runtime.KeepAlive(name)
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	failed["terminals"] = err
	if err == nil {
		terminal.Close()
	}
	return failed
}
