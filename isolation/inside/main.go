// SPDX-License-Identifier: Apache-2.0

// Package inside is PID 1 of a box: it makes the box from within, then starts and ends programs in it.
package inside

import (
	"errors"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// Descriptors PID 1 is started with, after 0, 1 and 2 on /dev/null.
const (
	controlFD = 3 // SEQPACKET socket, see isolation/box_protocol.go
	idLockFD  = 4 // holds the reservation of the id range for as long as the box lives
)

// The heap of PID 1 is a few hundred KiB. Collecting by growth would cost threads and memory in
// every box; the limit alone keeps it bounded.
const memoryLimit = 8 << 20

// defaultSlack is the kernel's own timer slack, in nanoseconds (PR_SET_TIMERSLACK(2const)).
const defaultSlack = 50_000

// Main runs PID 1 until the box ends and returns its exit status. It must be called on the main
// goroutine of a program that does nothing else.
func Main() int {
	// The thread that serves the box is the one that starts programs: they inherit its working
	// directory, capabilities and filter, so it must stay the same thread.
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, defaultSlack, 0, 0, 0) // the zygote has set that of the other threads
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(idLockFD)
	setName("boxinit")

	buf := fdpass.NewBuffer(fdpass.MaxInline)
	box, err := receiveSetup(buf)
	if err == nil {
		err = box.make()
	}
	if err != nil {
		reply := isolation.BoxReply{Failed: asStepError(err)}
		_ = fdpass.Send(controlFD, reply.Encode()) // if even this fails the peer sees the end
		return 1
	}
	s, err := newServer(box, buf)
	if err != nil {
		reply := isolation.BoxReply{Failed: asStepError(err)}
		_ = fdpass.Send(controlFD, reply.Encode())
		return 1
	}
	ready := isolation.BoxReply{Ready: true}
	if fdpass.Send(controlFD, ready.Encode()) != nil {
		return 1
	}
	return s.serve()
}

func receiveSetup(buf *fdpass.Buffer) (*box, error) {
	body, files, err := fdpass.Recv(controlFD, buf, false)
	if err != nil {
		return nil, stepError(isolation.StepReceive, "setup", err)
	}
	req, err := isolation.DecodeBoxRequest(body)
	if err != nil || req.Setup == nil || len(files) != len(req.Setup.Mounts) {
		return nil, stepError(isolation.StepReceive, "setup", syscall.EPROTO)
	}
	return &box{setup: req.Setup, trees: files}, nil
}

// setName sets what ps shows on the host; the kernel took "4" from the path /proc/self/fd/4.
func setName(name string) {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return
	}
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(p)), 0, 0, 0)
	runtime.KeepAlive(p)
}

// stepError makes the error of a step; whatever is not the kernel's word is EPROTO.
func stepError(step isolation.Step, item string, err error) *isolation.StepError {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EPROTO
	}
	return &isolation.StepError{Step: step, Item: item, Errno: errno}
}

func asStepError(err error) *isolation.StepError {
	var s *isolation.StepError
	if errors.As(err, &s) {
		return s
	}
	return stepError(isolation.StepNone, "", err)
}
