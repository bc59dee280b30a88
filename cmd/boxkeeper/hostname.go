// SPDX-License-Identifier: Apache-2.0

// The hostname of a live box is set from outside: this is how a preforked box becomes that of a
// session.

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// setBoxHostname sets the hostname of the box whose PID 1 has this PID. alive reports whether that process is still the one that
// is meant, as the PID may have been reused. No program of the box may run yet.
func setBoxHostname(pid int, alive func() bool, hostname string) error {
	uts, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("host names of the box: %w", err)
	}
	defer unix.Close(uts)
	root, err := openBoxRoot(pid, alive) // both belong to PID 1 of the box, as it was alive after they were opened
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := setHostname(uts, hostname); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	for _, f := range isolation.HostnameFiles(hostname) {
		if err := rewrite(root, isolation.RunDir[1:]+"/"+f.Name, f.Text); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// setResolvConf replaces resolv.conf(5) of a live box from outside; text is not empty, and shorter than a page. Programs of the
// box may run: the directory belongs to root. It takes no memory that the box does not have already.
func setResolvConf(pid int, alive func() bool, text string) error {
	root, err := openBoxRoot(pid, alive)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := rewrite(root, isolation.RunDir[1:]+"/resolv.conf", text); err != nil {
		return fmt.Errorf("resolv.conf: %w", err)
	}
	return nil
}

// setView changes from outside the limits that programs of a live box see.
func setView(pid int, alive func() bool, v *isolation.View) error {
	root, err := openBoxRoot(pid, alive)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	for _, f := range isolation.ViewFiles(v) {
		if err := rewrite(root, isolation.RunDir[1:]+"/"+f.Name, f.Text); err != nil && !errors.Is(err, unix.ENOENT) { // a box of an earlier version may lack the file
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// openBoxRoot opens the root of a live box.
func openBoxRoot(pid int, alive func() bool) (int, error) {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("tree of the box: %w", err)
	}
	if !alive() { // then it may be that of another process
		unix.Close(root)
		return -1, unix.ESRCH
	}
	return root, nil
}

// setHostname sets the hostname in a UTS namespace, on a thread that enters it and returns.
func setHostname(uts int, hostname string) error {
	ownNS, err := unix.Open("/proc/thread-self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ownNS)
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread() // if the thread cannot return, it ends with this goroutine
		if err := unix.Setns(uts, unix.CLONE_NEWUTS); err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err := unix.Sethostname([]byte(hostname))
		back := unix.Setns(ownNS, unix.CLONE_NEWUTS)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}

// rewrite replaces the text of a file that PID 1 has made. No component of the path may be a symbolic link, and opening a FIFO
// does not wait for a reader. The file is truncated after the text is written, so that its page is reused.
func rewrite(root int, name, text string) error {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	return errors.Join(err, f.Close())
}
