// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/mounts"
)

// preforkedBox is a PID 1 that has been cloned and waits for its Setup: it has namespaces and an
// id range, and nothing of any session. The clone and the way to its first line of code are more
// than half of a start, so the keeper has some ready in advance.
type preforkedBox struct {
	ids     idRange
	control int // the keeper's end of its control socket
	pid     int
	pidfd   int
	ahead   bool // cloned before a box needed it
}

// alive reports whether the preforked box can still become a box.
func (e *preforkedBox) alive() bool { return mounts.Alive(e.pidfd) }

// discard kills a preforked box and waits until it is dead, so that its id range is free.
func (e *preforkedBox) discard(from *idRanges) {
	_ = unix.PidfdSendSignal(e.pidfd, unix.SIGKILL, nil, 0)
	poll := []unix.PollFd{{Fd: int32(e.pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(poll, int(endTimeout/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	unix.Close(e.control)
	unix.Close(e.pidfd)
	from.Release(e.ids)
}

// preforkPool holds the preforked boxes.
type preforkPool struct {
	want int

	mu       sync.Mutex // guards the fields below
	ready    []*preforkedBox
	stamp    string // hostStamp of the zygote that cloned them
	starting int    // number of starts in progress, which take precedence
	timer    *time.Timer
	closed   bool
	work     sync.WaitGroup
}

// refillDelay is how long no box may have been started before one is preforked: a box that has just
// started has work to do, and a clone takes processor time.
const refillDelay = 5 * time.Millisecond

// enter records the start of a box and returns a preforked one for it, nil if there is none;
// leave must follow. All preforked boxes are of the image "host" and have a network of their own:
// fresh says that the box needs another kind.
func (n *preforkPool) enter(fresh bool, from *idRanges) *preforkedBox {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.starting++
	if fresh {
		return nil
	}
	return n.takeLocked(from)
}

// await waits for a preforked box in progress and returns one, nil if there is none. The caller is between enter and leave, and
// no other prefork begins meanwhile.
func (n *preforkPool) await(from *idRanges) *preforkedBox {
	n.work.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.takeLocked(from)
}

func (n *preforkPool) takeLocked(from *idRanges) *preforkedBox {
	for len(n.ready) > 0 {
		e := n.ready[0]
		n.ready = n.ready[1:]
		if e.alive() && n.stamp == hostStamp() {
			return e
		}
		e.discard(from)
	}
	return nil
}

// leave records that a start is over. After a quiet while, the preforked box that it took is
// replaced.
func (n *preforkPool) leave(k *keeper) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.starting--
	if n.closed || n.starting > 0 || len(n.ready) >= n.want {
		return
	}
	if n.timer == nil {
		n.timer = time.AfterFunc(refillDelay, func() { n.refill(k) })
	} else {
		n.timer.Reset(refillDelay)
	}
}

// refill preforks boxes until there are enough, or until a box is started.
func (n *preforkPool) refill(k *keeper) {
	n.mu.Lock()
	if n.closed || n.starting > 0 {
		n.mu.Unlock()
		return // leave sets the timer again
	}
	n.work.Add(1)
	n.mu.Unlock()
	defer n.work.Done()
	for n.prefork(k) {
	}
}

// refillRetry is the pause before the next attempt after a prefork has failed.
const refillRetry = time.Second

// prefork preforks one box and reports whether another should follow at once.
func (n *preforkPool) prefork(k *keeper) bool {
	stamp := hostStamp()
	e, err := k.beginClone()
	if err != nil {
		if !errors.Is(err, unix.EUSERS) { // EUSERS: all id ranges are in use, which is no fault
			k.cfg.Log.Printf("cannot prefork a box: %v", err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if !n.closed {
			n.timer.Reset(refillRetry)
		}
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || len(n.ready) >= n.want {
		e.discard(k.ids)
		return false
	}
	if n.stamp != stamp {
		for _, old := range n.ready {
			old.discard(k.ids)
		}
		n.ready, n.stamp = nil, stamp
	}
	e.ahead = true
	n.ready = append(n.ready, e)
	return n.starting == 0 && len(n.ready) < n.want
}

// close kills all preforked boxes.
func (n *preforkPool) close(from *idRanges) {
	n.mu.Lock()
	n.closed = true
	if n.timer != nil {
		n.timer.Stop()
	}
	n.mu.Unlock()
	n.work.Wait()
	for _, e := range n.ready {
		e.discard(from)
	}
	n.ready = nil
}

// beginClone clones a PID 1 for the pool.
func (k *keeper) beginClone() (*preforkedBox, error) {
	ids, err := k.ids.take()
	if err != nil {
		return nil, err
	}
	c, err := k.requestPrefork("", ids, noGroup, false)
	if err != nil {
		return nil, err
	}
	return c.await()
}

// pendingClone is a PID 1 that the zygote has been asked for.
type pendingClone struct {
	k     *keeper
	e     *preforkedBox
	image string
	group int
	share bool
	clone *cloning
	retry bool // it has been requested again
}

// requestPrefork asks the zygote of an image for a PID 1 with an id range, which it takes over. The PID 1 is cloned into the
// cgroup of descriptor group, if that is not noGroup, and has a network of its own unless it is to share the host's. The caller
// must call await, and may do other things before that.
func (k *keeper) requestPrefork(image string, ids idRange, group int, share bool) (*pendingClone, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		k.ids.Release(ids)
		return nil, err
	}
	clone, err := k.zygotes.of(image).Request(ids, ends[1], group, share)
	if err != nil {
		unix.Close(ends[0])
		k.ids.Release(ids)
		return nil, err
	}
	return &pendingClone{k: k, e: &preforkedBox{ids: ids, control: ends[0]}, image: image, group: group, share: share, clone: clone}, nil
}

func (c *pendingClone) await() (*preforkedBox, error) {
	pid, pidfd, err := c.clone.Await()
	if err != nil {
		unix.Close(c.e.control)
	}
	if errors.Is(err, errZygoteGone) && !c.retry {
		// The zygote has died since it was last used, or in the middle of it. A PID 1 that it may have cloned exits
		// when its socket is closed.
		next, err := c.k.requestPrefork(c.image, c.e.ids, c.group, c.share)
		if err != nil {
			return nil, err
		}
		*c = *next
		c.retry = true
		return c.await()
	}
	if err != nil {
		c.k.ids.Release(c.e.ids)
		return nil, err
	}
	c.e.pid, c.e.pidfd = pid, pidfd
	return c.e, nil
}
