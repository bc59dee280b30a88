// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// If this process has no descriptors left for the programs of a box, adopting it fails, but the box does not count as lost.
func TestABoxIsNotLostWhenItsAdoptionLacksDescriptors(t *testing.T) { //nolint:paralleltest // all of the process lacks room
	box, peer := newTestBox(t)
	fds := make([]int, 4)
	for i := range fds {
		fds[i] = memory(t, "")
		defer unix.Close(fds[i])
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	adopted := make(chan error)
	go func() { // ends once PID 1 has answered
		_, err := box.adopt(t.Context())
		adopted <- err
	}()
	if req := peer.nextRequest(); req.Adopt == 0 {
		t.Fatalf("heard %+v", req)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	peer.send(&isolation.BoxReply{ID: 1, Program: &isolation.ProgramState{PID: 2}}, fds...)
	err := <-adopted
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrBoxLost) {
		t.Errorf("%v", err)
	}
}
