// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// startError turns the keeper's word into something a caller can act on.
func startError(s *Session, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Errorf(fault.Unavailable, "session %s did not start within %v", fault.Show(s.ID), startPatience)
	}
	if errors.Is(err, client.ErrKeeperGone) || errors.Is(err, client.ErrNoKeeper) {
		return fault.Errorf(fault.Unavailable, "session %s cannot start now: %w", fault.Show(s.ID), err).WithHint("try again later; the log of boxd has more")
	}
	if errno, is := errors.AsType[syscall.Errno](err); is && isShortage(errno) {
		if err = errno; ok { // what else is around the reason is for the log
			err = step
		}
		return fault.Errorf(fault.Unavailable, "session %s cannot start now: %w", fault.Show(s.ID), err).
			WithHint("try again later; the host is short of something, and the log of boxd has more")
	}
	if !ok {
		return fmt.Errorf("start session %q: %w", s.ID, err)
	}
	switch {
	case step.Refused != nil && step.Step == isolation.StepMountSource:
		r := step.Refused
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Denied)
	case step.Refused != nil:
		return fault.Field(step.Refused.Field, step.Refused.Value, step.Refused.Allowed)
	case step.Step == isolation.StepMountSource:
		for i, m := range s.Settings.Mounts {
			if isItem(m.Source, step) {
				f := fault.Field(fmt.Sprintf("mounts[%d].source", i), m.Source, "an existing directory you may open")
				f.Err = fmt.Errorf("%w: %w", f.Err, step)
				return f
			}
		}
	case step.Step == isolation.StepMount && isPlaceError(step.Errno):
		for i, m := range s.Settings.Mounts {
			if isItem(m.Target, step) {
				return fault.Field(fmt.Sprintf("mounts[%d].target", i), m.Target, "a directory, or a path where one can be made, without links ("+step.Errno.Error()+")")
			}
		}
	case step.Step == isolation.StepGroup && step.Refused == nil:
		return fault.Errorf(fault.Unavailable, "session %s cannot start: %s", fault.Show(s.ID), step.Item).
			WithHint("is the unit that holds the boxes running? systemctl status boxd-boxes.service tells; boxctl doctor examines the host")
	case step.Step == isolation.StepIDRange:
		return fault.Errorf(fault.Exhausted, "no free id range: %w", err).WithHint("ids.count bounds the living boxes of the host")
	}
	return fmt.Errorf("start session %q: %w", s.ID, err)
}

// isShortage reports whether the host lacks something that it may have again later.
func isShortage(errno syscall.Errno) bool {
	return slices.Contains([]syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.ENOMEM, unix.EAGAIN}, errno)
}

// isItem reports whether a step has failed about a text, of which it names the beginning.
func isItem(text string, step *isolation.StepError) bool {
	return text[:min(len(text), isolation.MaxItem)] == step.Item
}

// isPlaceError reports whether a mount has failed because of what is at its target already, in another
// mount of the same session.
func isPlaceError(errno syscall.Errno) bool {
	return slices.Contains([]syscall.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.EROFS, unix.ENAMETOOLONG}, errno)
}
