// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// adoptAs adopts a box whose PID 1 speaks a version.
func adoptAs(t *testing.T, version uint32) (*Box, *pid1, error) {
	t.Helper()
	box, peer := standin(t)
	adopted := make(chan error)
	go func() { // ends once PID 1 has answered
		_, err := box.adopt(t.Context())
		adopted <- err
	}()
	if req := peer.hear(); req.Adopt != isolation.BoxVersion {
		t.Errorf("heard %+v", req)
	}
	peer.send(&isolation.BoxReply{Adopted: &isolation.Adopted{Version: version, Next: 1}})
	return box, peer, <-adopted
}

// A box that an earlier boxd has made is adopted, and hears nothing that its PID 1 does not know: it would make a directory that
// has to be there.
func TestAPID1OfAnEarlierVersionHearsWhatItKnows(t *testing.T) {
	t.Parallel()
	cmd := &isolation.Command{Argv: []string{"x"}, Dir: "/usr/x", ScriptArg: -1, Existing: true}
	box, _, err := adoptAs(t, 1)
	if err != nil {
		t.Fatal(err)
	}
	refused, err := box.Start(cmd, Files{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = refused.Wait(t.Context())
	if step, ok := errors.AsType[*isolation.StepError](err); !ok || step.Step != isolation.StepDirectory || step.Item != cmd.Dir || step.Errno != unix.EOPNOTSUPP {
		t.Errorf("%v", err)
	}
	box, peer, err := adoptAs(t, isolation.BoxVersion)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Start(cmd, Files{}); err != nil {
		t.Fatal(err)
	}
	if req := peer.hear(); req.Spawn == nil || !req.Spawn.Existing {
		t.Errorf("heard %+v", req)
	}
	for _, version := range []uint32{0, isolation.BoxVersion + 1} {
		if _, _, err := adoptAs(t, version); err == nil {
			t.Errorf("a box of version %d is adopted", version)
		}
	}
}
