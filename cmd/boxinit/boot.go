// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// Descriptors that PID 1 is started with, after 0, 1 and 2 on /dev/null.
const (
	controlFD = 3 // SEQPACKET socket, see isolation/box_protocol.go
	idLockFD  = 4 // holds the reservation of the id range for as long as the box lives
)

// boot runs PID 1 until the box ends and returns its exit status. It must be called on the main
// goroutine of a program that does nothing else.
func boot() int {
	// The thread that serves the box is the one that starts programs: they inherit its working
	// directory, capabilities and filter, so it must stay the same thread.
	runtime.LockOSThread()
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(idLockFD)
	setName("boxinit")
	_ = linux.ResetThreadTimerSlack() // cannot fail

	s, err := setUp(fdpass.NewBuffer(fdpass.MaxInline))
	reply := isolation.BoxReply{Ready: err == nil}
	if err != nil {
		reply.Failed = asStepError(err)
	}
	if fdpass.Send(controlFD, reply.Encode()) != nil || err != nil {
		return 1 // closing the socket tells the peer that the box is gone
	}
	return s.serve()
}

// setUp does the part that is the same for all boxes, waits for the cgroup and the configuration of this one,
// and does the rest.
func setUp(buf *fdpass.Buffer) (*server, error) {
	b := &box{}
	if err := runSteps(b.commonSteps()); err != nil {
		return nil, err
	}
	if err := b.receive(buf); err != nil {
		return nil, err
	}
	if err := runSteps(b.boxSteps()); err != nil {
		return nil, err
	}
	unix.Close(b.scratch)
	return newServer(b, buf)
}

func (b *box) receive(buf *fdpass.Buffer) error {
	req, files, err := receive(buf)
	if err == nil && req.UnshareCgroup {
		if err := unshareCgroup(); err != nil {
			return err
		}
		req, files, err = receive(buf)
	}
	b.group, b.listener = -1, -1
	takeLast := func(wanted bool) int {
		if !wanted || len(files) == 0 {
			return -1
		}
		fd := files[len(files)-1]
		files = files[:len(files)-1]
		return fd
	}
	if err != nil {
		return stepError(isolation.StepReceive, "setup", err)
	}
	if req.Setup != nil {
		b.listener = takeLast(req.Setup.Adoptable)
		b.group = takeLast(req.Setup.Grouped)
	}
	if req.Setup == nil || len(files) != len(req.Setup.Mounts) || req.Setup.Grouped != (b.group >= 0) || req.Setup.Adoptable != (b.listener >= 0) {
		return stepError(isolation.StepReceive, "setup", syscall.EPROTO)
	}
	b.setup, b.trees = req.Setup, files
	return nil
}

// receive returns the keeper's next request and its files.
func receive(buf *fdpass.Buffer) (*isolation.BoxRequest, []int, error) {
	body, files, err := fdpass.Recv(controlFD, buf, false)
	if err != nil {
		return nil, nil, err
	}
	req, err := isolation.DecodeBoxRequest(body)
	return req, files, err
}

// unshareCgroup makes a cgroup namespace whose root is the cgroup of the box, in which PID 1 is now; the keeper moves it to init
// afterwards. Programs see their paths below it, and nothing above. It is the namespace of this thread, which is the one that
// mounts and forks (cgroup_namespaces(7)).
func unshareCgroup() error {
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return stepError(isolation.StepGroup, "cgroup namespace: "+err.Error(), err)
	}
	reply := isolation.BoxReply{Unshared: true}
	if err := fdpass.Send(controlFD, reply.Encode()); err != nil {
		return stepError(isolation.StepGroup, "cgroup namespace: "+err.Error(), err)
	}
	return nil
}

// setName sets the name that ps shows on the host; the kernel took "4" from the path
// /proc/self/fd/4.
func setName(name string) {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return
	}
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(p)), 0, 0, 0)
	runtime.KeepAlive(p)
}

// stepError returns the error of a step; an error that is not an errno becomes EPROTO.
func stepError(step isolation.Step, item string, err error) *isolation.StepError {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		errno = syscall.EPROTO
	}
	return &isolation.StepError{Step: step, Item: item, Errno: errno}
}

func asStepError(err error) *isolation.StepError {
	if s, ok := errors.AsType[*isolation.StepError](err); ok {
		return s
	}
	return stepError(isolation.StepNone, "", err)
}
