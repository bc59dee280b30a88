// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/statedir"
)

// removals removes files that nobody uses any more after the caller has been answered, who waits for a rename alone: the journal of
// the filesystem may hold up the removal of each directory. It is safe for concurrent use.
type removals struct {
	root *os.Root // on the filesystem of what is to be removed
	log  *log.Logger
	done func(projects []uint32) error // called after removals, with the project ids of what is gone; 0: it is not known

	ended chan struct{} // closed by stop

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // when running or closed has changed; of mu
	todo    []removal
	failed  []removal // the next removals try these again, as whoever held them up may be gone
	running bool      // a goroutine removes; it ends when nothing is left to do
	closed  bool
}

// removal is a directory that is to be removed.
type removal struct {
	name    string // in removals.root
	project uint32 // 0: not known
	done    chan struct{}
	failed  bool // it has been tried, and done is closed
}

// closeTimeout bounds how long close waits for what is being removed. The service manager grants the keeper more: see
// TimeoutStopSec= of boxd-keeper.service.
const closeTimeout = 5 * time.Second

// errStopped is the error of a removal that close has stopped.
var errStopped = errors.New("stopped")

// openRemovals opens the directory for what is to be removed, below dir, and goes on with what an earlier keeper has not
// finished.
func openRemovals(dir string, done func([]uint32) error, l *log.Logger) (*removals, error) {
	root, err := openWork(dir, statedir.Removed, 0)
	if err != nil {
		return nil, err
	}
	r := &removals{root: root, log: l, done: done, ended: make(chan struct{})}
	r.changed.L = &r.mu
	left, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		root.Close()
		return nil, err
	}
	for _, e := range left {
		r.add(removal{name: e.Name(), done: make(chan struct{})})
	}
	return r, nil
}

// take removes an entry of a directory with everything below it: it has gone when take returns, and what it takes of the disk is
// free later, when done is closed; nil: it is already. It is no error if there is none. project is the id of its quota, 0 if that is
// not known.
func (r *removals) take(parent *os.Root, name string, project uint32) (done <-chan struct{}, err error) {
	if err := checkEntry(name); err != nil {
		return nil, err
	}
	from, err := parent.Open(".")
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := r.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer to.Close()
	d := removal{name: rand.Text(), project: project, done: make(chan struct{})}
	switch err := unix.Renameat2(int(from.Fd()), name, int(to.Fd()), d.name, unix.RENAME_NOREPLACE); {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT): // EXDEV: the state directory itself has a project id; else there is no room for the name
		if err := removeAll(parent, name); err != nil {
			return nil, err
		}
		return nil, r.done([]uint32{project})
	case err != nil:
		return nil, fmt.Errorf("remove %s: %w", name, err)
	}
	r.add(d)
	return d.done, nil
}

// makeRoom waits for a removal if the disk has little room, so that whoever removes something to have some has it.
func (r *removals) makeRoom(done <-chan struct{}) {
	if done == nil {
		return
	}
	dir, err := r.root.Open(".")
	if err != nil {
		return
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil || st.Bavail < st.Blocks/10 || st.Ffree < st.Files/10 {
		select {
		case <-done:
		case <-r.ended:
		}
	}
}

func (r *removals) add(d removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.todo = append(r.todo, d)
	if len(r.failed) > 0 { // one at a time, so that a removal costs no more than another one
		r.todo, r.failed = append(r.todo, r.failed[0]), r.failed[1:]
	}
	if !r.running && !r.closed {
		r.running = true
		go r.run()
	}
}

// run removes what there is to remove.
func (r *removals) run() {
	for {
		r.mu.Lock()
		now := r.todo
		if r.todo = nil; len(now) == 0 || r.closed {
			r.running = false
			r.changed.Broadcast()
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		projects := make([]uint32, 0, len(now))
		for _, d := range now {
			err := removeAllUntil(r.root, d.name, r.isClosed)
			if errors.Is(err, errStopped) {
				break
			}
			projects = append(projects, d.project)
			if err != nil && !d.failed {
				r.log.Printf("cannot remove %s/%s; later removals try again, and the next start: %v", r.root.Name(), d.name, err)
			}
			if !d.failed {
				close(d.done)
			}
			if err != nil {
				r.again(d)
			}
		}
		if err := r.done(projects); err != nil {
			r.log.Printf("cannot take back the quotas of what was removed: %v", err)
		}
	}
}

// again keeps a removal that has failed.
func (r *removals) again(d removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.failed = true
	r.failed = append(r.failed, d)
}

func (r *removals) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// wait waits until everything is removed, or close is called.
func (r *removals) wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.running && !r.closed {
		r.changed.Wait()
	}
}

// close gives removals closeTimeout to end, and leaves what is left to the next keeper.
func (r *removals) close() {
	timer := time.AfterFunc(closeTimeout, r.stop)
	r.wait()
	timer.Stop()
	r.stop()
	r.mu.Lock()
	for r.running {
		r.changed.Wait()
	}
	r.mu.Unlock()
	r.root.Close()
}

// stop has the goroutine end soon.
func (r *removals) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		close(r.ended)
	}
	r.closed = true
	r.changed.Broadcast()
}
