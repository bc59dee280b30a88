// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestStartErrorsSayWhoCanHelp(t *testing.T) {
	t.Parallel()
	settings := &policy.Settings{Mounts: []policy.Mount{{Source: "/a"}, {Source: "/b"}}}
	for _, tc := range []struct {
		name  string
		err   error
		kind  fault.Kind
		field string
	}{
		{"a source that is not there", &isolation.StepError{Step: isolation.StepMountSource, Item: "/b", Errno: 2}, fault.Invalid, "mounts[1].source"},
		{"a source that is not allowed", &isolation.StepError{Step: isolation.StepMountSource, Item: "/b", Refused: &isolation.Refusal{Field: "mounts[1].source", Value: "/b", Allowed: "x"}}, fault.Denied, "mounts[1].source"},
		{"a target that is not allowed", &isolation.StepError{Step: isolation.StepValidate, Refused: &isolation.Refusal{Field: "mounts[0].target", Value: "/etc", Allowed: "x"}}, fault.Invalid, "mounts[0].target"},
		{"no descriptors for a source", &isolation.StepError{Step: isolation.StepMountSource, Item: "/b", Errno: syscall.EMFILE}, fault.Unavailable, ""},
		{"no memory for the lock of an id range", &isolation.StepError{Step: isolation.StepIDRange, Errno: syscall.ENOLCK}, fault.Unavailable, ""},
		{"no memory for a message", fmt.Errorf("clone: %w", syscall.ENOBUFS), fault.Unavailable, ""},
		{"no memory", &isolation.StepError{Step: isolation.StepClone, Errno: syscall.ENOMEM}, fault.Unavailable, ""},
		{"no processes", &isolation.StepError{Step: isolation.StepClone, Errno: syscall.EAGAIN}, fault.Unavailable, ""},
		{"no disk for the workspace", &isolation.StepError{Step: isolation.StepWorkspace, Errno: syscall.ENOSPC}, fault.Unavailable, ""},
		{"no disk for the record", &fs.PathError{Op: "write", Path: "/secret/dir", Err: syscall.ENOSPC}, fault.Unavailable, ""},
		{"no files on the host", fmt.Errorf("x: %w", syscall.ENFILE), fault.Unavailable, ""},
		{"no ids", &isolation.StepError{Step: isolation.StepIDRange, Errno: 87}, fault.Exhausted, ""},
		{"a step inside", &isolation.StepError{Step: isolation.StepSeccomp, Errno: 22}, fault.Internal, ""},
		{"something else", errors.New("x"), fault.Internal, ""},
	} {
		err := StartError("s", settings, tc.err)
		f, _ := errors.AsType[*fault.Error](err)
		if fault.KindOf(err) != tc.kind || f != nil && f.Field != tc.field || f == nil && tc.field != "" {
			t.Errorf("%s: %v: %v", tc.name, fault.KindOf(err), err)
		}
		// The error of the failed step is kept apart from what is allowed, and no path of boxd's own is shown.
		step, failed := errors.AsType[*isolation.StepError](tc.err)
		if failed && step.Refused == nil && !errors.Is(err, step) || fault.KindOf(err) != fault.Internal && strings.Contains(err.Error(), "/secret") {
			t.Errorf("%s: %v", tc.name, err)
		}
		if f != nil && failed && strings.Contains(f.Allowed, step.Errno.Error()) {
			t.Errorf("%s: allowed is %s", tc.name, f.Allowed)
		}
	}
}

func TestTransientErrorsAreRecognized(t *testing.T) {
	for _, err := range []error{
		client.ErrKeeperGone, fmt.Errorf("adopt: %w", client.ErrNoKeeper), &isolation.StepError{Step: isolation.StepSetup, Item: "descriptors", Errno: unix.EMFILE},
	} {
		if !Transient(err) {
			t.Errorf("%v is not passing", err)
		}
	}
	for _, err := range []error{nil, client.ErrBoxLost, errors.New("the record is wrong"), &isolation.StepError{Step: isolation.StepReceive, Errno: unix.ETIMEDOUT}} {
		if Transient(err) {
			t.Errorf("%v is passing", err)
		}
	}
}
