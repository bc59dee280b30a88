// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Linux charges the memory of file locks to no cgroup, and no rlimit bounds them. So the keeper checks how much memory the kernel
// has for locks, which costs microseconds. Once that is more than a box may have, it counts the locks of each box, and ends the
// boxes with too many.
//
// Only a descriptor shows which process has a lock (fdinfo of proc(5)). The seccomp policy refuses locks of open file
// descriptions (F_OFD_SETLK), which outlive the descriptors of a process. A process's lock ends when it closes any descriptor of
// that file; of the other kinds (flock(2), leases) an open file has at most one each, and the memory of open files is charged.

// lockWatch decides when locks have to be counted.
type lockWatch struct {
	limit   uint64    // locks that a box may have
	base    uint64    // locks of the host at the last count, or fewer if there have been fewer since
	largest uint64    // locks of the box with the most at the last count
	last    time.Time // when that ended
	after   time.Time // no count before this
}

// lockCount is the result of a count.
type lockCount struct {
	held    uint64 // locks of all boxes that were not ended
	largest uint64 // locks of the one of them that has most
	ended   int    // boxes that had too many
}

// Pace of the watch. A program makes up to 200,000 locks a second, of 192 bytes each.
const (
	lockInterval = 500 * time.Millisecond
	lockRest     = 20               // after a count that ended nothing, pause for this many times its duration
	lockAnyway   = 10 * time.Second // new locks may reuse memory that the kernel kept from earlier ones
)

// due reports whether a box may have too many locks by now; known is false where the kernel does not report the number of locks.
func (w *lockWatch) due(total uint64, known bool, now time.Time) bool {
	w.base = min(w.base, total)
	switch {
	case now.Before(w.after):
		return false
	case !known:
		return true
	}
	return total > w.limit && (w.largest+total-w.base > w.limit || now.Sub(w.last) >= lockAnyway)
}

// counted records the result of a count that began when the host had total locks.
func (w *lockWatch) counted(total uint64, c lockCount, start, now time.Time) {
	w.base, w.largest, w.last, w.after = total, c.largest, now, now
	if c.ended == 0 {
		w.after = now.Add(lockRest * now.Sub(start))
	} else {
		w.base = c.held // those of the ended boxes are going
	}
}

// watchLocks ends boxes that hold too many file locks, until ctx ends.
func (k *keeper) watchLocks(ctx context.Context) {
	w := &lockWatch{limit: uint64(k.cfg.FileLocks)}
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if k.idle() {
			continue
		}
		start := time.Now()
		if total, known := hostLocks(); w.due(total, known, start) {
			c := k.endLockHoarders(ctx, w.limit)
			w.counted(total, c, start, time.Now())
		}
	}
}

// hostLocks returns for how many file locks the kernel has memory: at least as many as there are, as the kernel may have merged
// their cache with others of the same size. known is false where the kernel does not report it.
func hostLocks() (n uint64, known bool) {
	if text, err := os.ReadFile("/sys/kernel/slab/file_lock_cache/total_objects"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseUint(strings.TrimSpace(first), 10, 64)
		return n, err == nil
	}
	text, _ := os.ReadFile("/proc/slabinfo") // some kernels lack this too
	return slabObjects(string(text), "file_lock_cache")
}

// slabObjects returns how many objects a cache has memory for (slabinfo(5)).
func slabObjects(slabinfo, cache string) (n uint64, ok bool) {
	for line := range strings.Lines(slabinfo) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == cache {
			n, err := strconv.ParseUint(fields[2], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// lockHolder is a box and its processes, by their host PIDs.
type lockHolder struct {
	key  string
	box  *box
	pids []int
}

// endLockHoarders counts the file locks of all boxes and kills the boxes with more than limit.
func (k *keeper) endLockHoarders(ctx context.Context, limit uint64) (c lockCount) {
	for _, h := range k.lockHolders() {
		if ctx.Err() != nil {
			return c
		}
		n := locksOf(h.pids, limit)
		if n <= limit {
			c.held += n
			c.largest = max(c.largest, n)
			continue
		}
		c.ended++
		k.mu.Lock()
		k.hoarders.add(h.key)
		k.mu.Unlock()
		k.cfg.Log.Printf("ended box %s: its programs hold more than %d file locks (limits.file_locks)", h.key, limit)
		h.box.signalKill() // watch releases it
	}
	return c
}

// lockHolders returns the boxes with their processes, smallest first: a box that is slow to count, having many processes, delays
// only others like it. A process belongs to the box whose pid namespace it is in, as nothing in a box can make another namespace.
func (k *keeper) lockHolders() []*lockHolder {
	bySpace := map[uint64]*lockHolder{}
	k.mu.Lock()
	for key, b := range k.boxes {
		if b.pidfd == nil {
			continue // it is starting
		}
		space, err := pidNamespace(b.pid)
		if err == nil && b.lives() { // then the PID is still its own
			bySpace[space] = &lockHolder{key: key, box: b}
		}
	}
	k.mu.Unlock()
	if own, err := pidNamespace(os.Getpid()); err == nil {
		delete(bySpace, own)
	}
	for _, pid := range numbers("/proc") {
		if space, err := pidNamespace(pid); err == nil && bySpace[space] != nil {
			bySpace[space].pids = append(bySpace[space].pids, pid)
		}
	}
	holders := make([]*lockHolder, 0, len(bySpace))
	for _, h := range bySpace {
		holders = append(holders, h)
	}
	slices.SortFunc(holders, func(a, b *lockHolder) int { return cmp.Compare(len(a.pids), len(b.pids)) })
	return holders
}

// pidNamespace returns the inode number of the pid namespace of a process.
func pidNamespace(pid int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/pid", &st)
	return st.Ino, err
}

// numbers returns the entries of a directory whose names are numbers, none if it has gone.
func numbers(dir string) (list []int) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// locksOf counts the file locks of processes, and stops at the first that is more than limit.
func locksOf(pids []int, limit uint64) (n uint64) {
	var tables descriptorTables
	for _, pid := range pids {
		tasks := numbers("/proc/" + strconv.Itoa(pid) + "/task")
		for _, task := range tasks {
			if !tables.add(pid, task) {
				continue
			}
			if n += locksOfTable(task, limit-n); n > limit {
				return n
			}
		}
	}
	return n
}

// descriptorTables is a set of descriptor tables, each by a thread that uses it, in the order that
// kcmp(2) gives them. Threads, and processes too, may share one (CLONE_FILES).
type descriptorTables struct {
	tasks   []int
	process int // the last process that was added where there is no kcmp
}

// add adds the table of a thread and reports whether it was not there yet.
func (t *descriptorTables) add(pid, task int) bool {
	first, end := 0, len(t.tasks)
	for first < end {
		middle := (first + end) / 2
		order, err := compareTables(t.tasks[middle], task)
		switch {
		case errors.Is(err, unix.ESRCH) && !exists(task):
			return false
		case errors.Is(err, unix.ESRCH): // the other thread has ended
			t.tasks = slices.Delete(t.tasks, middle, middle+1)
			end--
		case err != nil: // no kcmp in this kernel: all threads of a process share one, as is usual
			added := t.process != pid
			t.process = pid
			return added
		case order == 0:
			return false
		case order < 0:
			first = middle + 1
		default:
			end = middle
		}
	}
	t.tasks = slices.Insert(t.tasks, first, task)
	t.process = pid
	return true
}

// compareTables orders the descriptor tables of two threads (kcmp(2)).
func compareTables(a, b int) (order int, err error) {
	const kcmpFiles = 2 // KCMP_FILES of linux/kcmp.h
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	switch {
	case errno != 0:
		return 0, errno
	case r == 0:
		return 0, nil
	case r == 1:
		return -1, nil
	}
	return 1, nil
}

func exists(task int) bool {
	_, err := os.Lstat("/proc/" + strconv.Itoa(task))
	return err == nil
}

// locksOfTable counts the file locks of a descriptor table, and stops at the first that is more
// than limit. The kernel lists all locks that the table has of a file with each of its descriptors
// of the file, so one of them is read: otherwise a thousand descriptors would have the kernel walk
// a long list as often.
func locksOfTable(task int, limit uint64) (n uint64) {
	type file struct {
		major, minor uint32
		inode        uint64
	}
	seen := map[file]bool{}
	dir := "/proc/" + strconv.Itoa(task)
	for _, fd := range numbers(dir + "/fd") {
		var st unix.Statx_t
		name := strconv.Itoa(fd)
		// Without waiting for a server: what the kernel knows of the file is enough.
		if unix.Statx(unix.AT_FDCWD, dir+"/fd/"+name, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) != nil {
			continue // closed meanwhile
		}
		f := file{st.Dev_major, st.Dev_minor, st.Ino}
		if seen[f] {
			continue
		}
		seen[f] = true
		if n += lockLines(dir+"/fdinfo/"+name, limit-n); n > limit {
			return n
		}
	}
	return n
}

// lockLines counts the locks in a file of /proc/PID/fdinfo, and stops at the first that is more
// than limit.
func lockLines(path string, limit uint64) (n uint64) {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	for r := bufio.NewReaderSize(f, 64<<10); err == nil && n <= limit; {
		var line []byte
		if line, err = r.ReadSlice('\n'); bytes.HasPrefix(line, []byte("lock:")) {
			n++
		}
	}
	return n
}

// lockHoarders are the boxes recently ended for their file locks, by key, for boxd to ask later, as it may not be connected at
// the moment. Its zero value is empty.
type lockHoarders struct {
	keys  map[string]bool
	order []string // oldest first
}

// maxLockHoarders is how many are remembered.
const maxLockHoarders = 1024

func (h *lockHoarders) add(key string) {
	if h.keys == nil {
		h.keys = map[string]bool{}
	}
	h.keys[key] = true
	if h.order = append(h.order, key); len(h.order) > maxLockHoarders {
		delete(h.keys, h.order[0])
		h.order = h.order[1:]
	}
}

// whyEnded returns why the keeper has ended a box.
func (k *keeper) whyEnded(key string) *isolation.Ended {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hoarders.keys[key] {
		return &isolation.Ended{Cause: isolation.CauseFileLocks}
	}
	return &isolation.Ended{}
}
