// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// testDirName is a directory that exists while testEnforced runs.
const testDirName = ".quota-proof"

// testEnforced makes a directory with small limits and exceeds each of them.
func (q *Quotas) testEnforced(root *os.Root) error {
	if err := root.RemoveAll(testDirName); err != nil { // a keeper that was killed during a test has left it
		return fmt.Errorf("try project quota: %w", err)
	}
	if err := root.Mkdir(testDirName, 0o700); err != nil {
		return fmt.Errorf("try project quota: %w", err)
	}
	err := q.testEnforcedIn(root)
	if rerr := root.RemoveAll(testDirName); rerr != nil {
		err = errors.Join(err, rerr)
	}
	// Takes back the directory's project id; if its usage drops late, the next Sweep does.
	return errors.Join(err, q.Sweep())
}

func (q *Quotas) testEnforcedIn(root *os.Root) error {
	dir, err := root.OpenRoot(testDirName)
	if err != nil {
		return fmt.Errorf("try project quota: %w", err)
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return fmt.Errorf("try project quota: %w", err)
	}
	defer f.Close()
	limits := Limits{Bytes: 256 * q.block, Inodes: 6} // xfs needs dozens of free blocks to create one file
	id, err := q.Make(int(f.Fd()), limits)
	if err != nil {
		return explain(root.Name(), q.fd(), err)
	}
	err = asUser(func() error {
		if err := q.fillBytes(dir, id, limits); err != nil {
			return err
		}
		return q.fillInodes(dir, id, limits)
	})
	if errors.Is(err, errNoLimit) {
		return &UnavailableError{Reason: NotEnforced, Path: root.Name(), Kind: kindOf(q.fd())}
	}
	if err != nil {
		return fmt.Errorf("try project quota: %w", err)
	}
	return nil
}

// Outcomes of an experiment.
var (
	errNoLimit = errors.New("more fits than the limit allows")
	errFull    = errors.New("writing stops before the limit: is the filesystem full?")
)

// fillBytes writes up to the limit, and then beyond it with a higher limit, to show that it was
// the limit that stopped it.
func (q *Quotas) fillBytes(dir *os.Root, id uint32, l Limits) error {
	f, err := dir.OpenFile("bytes", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, q.block)
	more := func() error {
		_, err := f.Write(block)
		return err
	}
	if err := untilFull(int(l.Bytes/q.block), more); err != nil {
		return err
	}
	if err := q.Set(id, Limits{Bytes: 2 * l.Bytes, Inodes: l.Inodes}); err != nil {
		return err
	}
	if err := more(); err != nil {
		return fmt.Errorf("%w (%w)", errFull, err)
	}
	return nil
}

// fillInodes does the same with empty files.
func (q *Quotas) fillInodes(dir *os.Root, id uint32, l Limits) error {
	created := 0
	more := func() error {
		f, err := dir.OpenFile(strconv.Itoa(created), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		created++
		return f.Close()
	}
	if err := untilFull(int(l.Inodes), more); err != nil {
		return err
	}
	if err := q.Set(id, Limits{Bytes: 2 * l.Bytes, Inodes: 2 * l.Inodes}); err != nil {
		return err
	}
	if err := more(); err != nil {
		return fmt.Errorf("%w (%w)", errFull, err)
	}
	return nil
}

// untilFull repeats a step until the limit stops it; within the limit it can succeed at most so
// many times.
func untilFull(limit int, step func() error) error {
	for range limit + 1 {
		err := step()
		if errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) { // ext4 returns the first, xfs the second
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errNoLimit
}

// asUser calls f without CAP_SYS_RESOURCE, whose holder may write beyond limits on ext4. Only the
// calling thread drops it, and gets it back.
func asUser(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var old, fewer [2]unix.CapUserData
		if err := unix.Capget(&header, &old[0]); err != nil {
			done <- fmt.Errorf("capget: %w", err)
			return
		}
		fewer = old
		fewer[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&header, &fewer[0]); err != nil {
			done <- fmt.Errorf("capset: %w", err)
			return
		}
		err := f()
		// A thread that cannot get it back stays locked, and ends with its goroutine.
		if unix.Capset(&header, &old[0]) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
