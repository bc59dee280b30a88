// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// adoptVersion adopts a box whose PID 1 speaks this version.
func adoptVersion(t *testing.T, version uint32) (*Box, *pid1, error) {
	t.Helper()
	box, peer := newTestBox(t)
	adopted := make(chan error)
	go func() { // ends once PID 1 has answered
		_, err := box.adopt(t.Context())
		adopted <- err
	}()
	if req := peer.nextRequest(); req.Adopt != isolation.BoxVersion {
		t.Errorf("heard %+v", req)
	}
	peer.send(&isolation.BoxReply{Adopted: &isolation.Adopted{Version: version, Next: 1}})
	return box, peer, <-adopted
}

// What PID 1 reports while a box is adopted is not overwritten by what it reported at first.
func TestAnAdoptedBoxMayBecomeQuietAtOnce(t *testing.T) {
	t.Parallel()
	for range 100 {
		box, peer := newTestBox(t)
		adopted := make(chan error)
		go func() { // ends once PID 1 has answered
			_, err := box.adopt(t.Context())
			adopted <- err
		}()
		peer.nextRequest()
		peer.send(&isolation.BoxReply{Adopted: &isolation.Adopted{Version: isolation.BoxVersion, Next: 1, LeftRunning: true}})
		peer.send(&isolation.BoxReply{Quiet: true})
		if err := <-adopted; err != nil {
			t.Fatal(err)
		}
		left, since := box.LeftRunning()
		for since.IsZero() { // PID 1's last message is on its way
			if !left {
				t.Fatal("an adopted box has nothing running although PID 1 has reported that it has")
			}
			runtime.Gosched()
			left, since = box.LeftRunning()
		}
		if left {
			t.Fatal("an adopted box has something running although PID 1 has reported that nothing is")
		}
	}
}

// A box of an earlier boxd is adopted, and its PID 1 gets no request with an option that it does not know: it would ignore the
// option, and create a missing directory, keep the streams apart, or keep the output in memory.
func TestAPID1OfAnEarlierVersionGetsNoUnknownOption(t *testing.T) {
	t.Parallel()
	existing := &isolation.Command{Argv: []string{"x"}, Dir: "/usr/x", ScriptArg: -1, Existing: true}
	merged := &isolation.Command{Argv: []string{"x"}, ScriptArg: -1, Merged: true}
	asRoot := &isolation.Command{Argv: []string{"x"}, ScriptArg: -1, Root: true}
	spooled := &isolation.Command{Argv: []string{"x"}, ScriptArg: -1, Durable: true, Spool: true}
	for _, c := range []struct {
		cmd   *isolation.Command
		since uint32
		step  isolation.Step
		item  string
	}{{existing, 2, isolation.StepDirectory, existing.Dir}, {merged, 3, isolation.StepStdio, isolation.ItemMerged}, {spooled, 4, isolation.StepStdio, isolation.ItemSpooled}, {asRoot, 5, isolation.StepUser, "root"}} {
		for version := uint32(1); version <= isolation.BoxVersion; version++ {
			box, peer, err := adoptVersion(t, version)
			if err != nil {
				t.Fatal(err)
			}
			p, err := box.Start(c.cmd, Files{})
			if err != nil {
				t.Fatal(err)
			}
			if version >= c.since {
				if req := peer.nextRequest(); req.Spawn == nil || req.Spawn.Existing != c.cmd.Existing || req.Spawn.Merged != c.cmd.Merged || req.Spawn.Spool != c.cmd.Spool || req.Spawn.Root != c.cmd.Root {
					t.Errorf("version %d heard %+v", version, req)
				}
				continue
			}
			select {
			case <-p.Exited():
			default:
				t.Errorf("version %d was asked for %+v", version, c.cmd)
				continue
			}
			_, err = p.Wait(t.Context())
			if step, ok := errors.AsType[*isolation.StepError](err); !ok || step.Step != c.step || step.Item != c.item || step.Errno != unix.EOPNOTSUPP {
				t.Errorf("version %d: %v", version, err)
			}
		}
	}
	for _, version := range []uint32{0, isolation.BoxVersion + 1} {
		if _, _, err := adoptVersion(t, version); err == nil {
			t.Errorf("a box of version %d is adopted", version)
		}
	}
}
