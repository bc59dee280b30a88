// SPDX-License-Identifier: Apache-2.0

// The hostname of a live box is changed from outside: a preforked box becomes a session's by that.

package keeper

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// SetHostname gives the box of a process, its PID 1, a hostname. alive reports whether that process still is the
// one that is meant: its number may have been given to another. No program of the box may run yet.
func SetHostname(pid int, alive func() bool, hostname string) error {
	proc := "/proc/" + strconv.Itoa(pid)
	uts, err := unix.Open(proc+"/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("host names of the box: %w", err)
	}
	defer unix.Close(uts)
	root, err := unix.Open(proc+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tree of the box: %w", err)
	}
	defer unix.Close(root)
	if !alive() { // both are of that process, as it has lived until after they were opened
		return unix.ESRCH
	}
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

// SetResolvConf gives a living box another resolv.conf(5), from outside: text is not empty, and less than a page. Programs of
// the box may run: the directory is root's. It takes no memory that the box does not have.
func SetResolvConf(pid int, alive func() bool, text string) error {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tree of the box: %w", err)
	}
	defer unix.Close(root)
	if !alive() {
		return unix.ESRCH
	}
	if err := rewrite(root, isolation.RunDir[1:]+"/resolv.conf", text); err != nil {
		return fmt.Errorf("resolv.conf: %w", err)
	}
	return nil
}

// SetView shows the programs of a living box other limits, from outside.
func SetView(pid int, alive func() bool, v *isolation.View) error {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tree of the box: %w", err)
	}
	defer unix.Close(root)
	if !alive() {
		return unix.ESRCH
	}
	for _, f := range isolation.ViewFiles(v) {
		if err := rewrite(root, isolation.RunDir[1:]+"/"+f.Name, f.Text); err != nil && !errors.Is(err, unix.ENOENT) { // an earlier boxd has made the box
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// setHostname sets the name in a namespace, by a thread that goes there and comes back.
func setHostname(uts int, hostname string) error {
	own, err := unix.Open("/proc/thread-self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread() // and if it does not come back, it ends with this goroutine
		if err := unix.Setns(uts, unix.CLONE_NEWUTS); err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err := unix.Sethostname([]byte(hostname))
		back := unix.Setns(own, unix.CLONE_NEWUTS)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}

// rewrite replaces the text of a file that PID 1 has made. Nothing on the way may be a link, and nobody waits for who
// reads a FIFO. What is longer than the text is cut off behind it, so that the page there is is used again.
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
