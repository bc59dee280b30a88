// SPDX-License-Identifier: Apache-2.0

// Failures of the keeper and of PID 1 become errors that a caller can act on.

package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// StartError translates a keeper error for a session that could not start.
func StartError(id string, settings *policy.Settings, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	if errors.Is(err, client.ErrNoKeeper) || errors.Is(err, client.ErrKeeperGone) {
		return fault.Errorf(fault.Unavailable, "session %s cannot start now: %w", fault.Show(id), err).WithHint("try again: boxd is starting a new keeper")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Errorf(fault.Unavailable, "session %s did not start within a minute", fault.Show(id)).
			WithHint("try again; if it fails again, see boxctl doctor")
	}
	if errno, is := errors.AsType[syscall.Errno](err); is && isShortage(errno) {
		if err = errno; ok { // the context of the errno is only logged
			err = step
		}
		return fault.Errorf(fault.Unavailable, "session %s cannot start now: %w", fault.Show(id), err).
			WithHint("try again later; details are in the log of boxd: journalctl -u boxd")
	}
	if !ok {
		return fmt.Errorf("start session %q: %w", id, err)
	}
	if full := policy.WorkspacesFull(step); full != nil {
		return full
	}
	switch {
	case Unanswered(step):
		return NoAnswerError(step.Refused.Field, step)
	case step.Refused != nil && step.Step == isolation.StepMountSource:
		r := step.Refused
		if r.Allowed == isolation.NotRootsDirectory { // no key of box.toml can change it
			return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Denied).
				WithHint("mount it read-only (:ro, or --here=ro), or give it to a user with chown").
				By(fault.Denial{Layer: fault.LayerMount, Rule: "mounts.allow", Allowed: r.Allowed})
		}
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Denied).
			WithHint("allowed directories are listed in mounts.allow in box.toml").
			By(fault.Denial{Layer: fault.LayerMount, Rule: "mounts.allow", Allowed: r.Allowed, Setting: "mounts.allow with " + strconv.Quote(r.Value)})
	case step.Refused != nil && step.Step == isolation.StepWorkspace:
		return quotaError(step)
	case step.Refused != nil:
		return fault.Field(step.Refused.Field, step.Refused.Value, step.Refused.Allowed)
	case step.Step == isolation.StepMountSource:
		for i, m := range settings.Mounts {
			if isItem(m.Source, step) {
				f := fault.Field(fmt.Sprintf("mounts[%d].source", i), m.Source, "an existing directory that you can open")
				f.Err = fmt.Errorf("%w: %w", f.Err, step)
				return f
			}
		}
	case step.Step == isolation.StepMount && isPlaceError(step.Errno):
		for i, m := range settings.Mounts {
			if isItem(m.Target, step) {
				return fault.Field(fmt.Sprintf("mounts[%d].target", i), m.Target, "a directory, or a path where one can be created, without symbolic links ("+step.Errno.Error()+")")
			}
		}
	case step.Step == isolation.StepNetwork:
		return networkError(id, step)
	case step.Step == isolation.StepGroup && step.Refused == nil:
		return fault.Errorf(fault.Unavailable, "session %s cannot start: %s", fault.Show(id), step.Item).
			WithHint("check the unit that holds the boxes: systemctl status boxd-boxes.service")
	case step.Step == isolation.StepIDRange:
		return fault.Errorf(fault.Exhausted, "too many boxes on this host: no free id range (ids.count): %w", err).WithHint("remove sessions, or raise ids.count in box.toml").
			By(fault.Denial{Layer: fault.LayerLimit, Rule: "ids.count", Setting: "a larger ids.count"})
	}
	return fmt.Errorf("start session %q: %w", id, err)
}

// quotaError is the refusal of a host directory that cannot have the quota of the session.
func quotaError(step *isolation.StepError) error {
	r := step.Refused
	f := fault.Field(r.Field, r.Value, r.Allowed)
	switch step.Errno { //nolint:exhaustive // of a hundred
	case unix.EBUSY:
		return f.Of(fault.Conflict).WithHint("use the same quota, or end those sessions")
	case unix.EDQUOT:
		return f.Of(fault.Conflict).WithHint("remove files, or ask for a larger quota")
	case unix.EOPNOTSUPP:
		return f.Of(fault.Unsupported).WithHint("see \"Directories of the host\" in the guide to workspaces, and " + policy.QuotaRootsKey)
	}
	return f
}

// Unanswered reports whether a filesystem that the caller has named did not respond in time.
func Unanswered(step *isolation.StepError) bool {
	return step.Refused != nil && step.Errno == unix.ETIMEDOUT
}

// NoAnswerError is the refusal of a directory, named by a field, whose filesystem did not respond in time.
func NoAnswerError(field string, step *isolation.StepError) error {
	f := fault.Field(field, step.Refused.Value, step.Refused.Allowed).Of(fault.Unavailable).
		WithHint("check that its server is up; boxd waits as long as mounts.patience in box.toml says")
	f.Err = fmt.Errorf("%w: %w", f.Err, step.Errno)
	return f
}

// networkError is the refusal of a session that cannot have its network here, with the keeper's reason.
func networkError(id string, step *isolation.StepError) error {
	kind := fault.Unavailable
	switch step.Errno { //nolint:exhaustive // of a hundred
	case unix.EUSERS:
		kind = fault.Exhausted
	case unix.EOPNOTSUPP, unix.ENETDOWN, unix.EADDRINUSE, unix.EADDRNOTAVAIL:
		kind = fault.Unsupported
	case unix.EPERM:
		kind = fault.Denied
	}
	f := fault.Errorf(kind, "session %s cannot have a network: %s", fault.Show(id), step.Item).
		WithHint("see boxctl doctor, or use network = \"off\"").
		By(fault.Denial{Layer: fault.LayerNetwork, Rule: "network", Allowed: policy.NetworkOff})
	f.Field, f.Value = "network", policy.NetworkEgress
	return f
}

// isShortage reports a lack of something that the host may have again later. ENOLCK and ENOBUFS mean lack of memory too, for a
// lock (flock(2)) and for a message (unix(7)).
func isShortage(errno syscall.Errno) bool {
	return slices.Contains([]syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.ENOMEM, unix.EAGAIN, unix.ENOLCK, unix.ENOBUFS}, errno)
}

// isItem reports whether a step failed for a text, the beginning of which is the step's item.
func isItem(text string, step *isolation.StepError) bool {
	return text[:min(len(text), isolation.MaxItem)] == step.Item
}

// isPlaceError reports whether a mount failed because of what is already at its target, in another mount of the same session.
func isPlaceError(errno syscall.Errno) bool {
	return slices.Contains([]syscall.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.EROFS, unix.ENAMETOOLONG}, errno)
}

// limitError is the refusal of a program because the session has reached a limit, nil for other causes. pids is the process
// limit of the cgroup, 0 if there is none.
func limitError(id string, pids int, step *isolation.StepError) error {
	switch {
	case step.Step == isolation.StepFreeze:
		return frozenError(id)
	case pids > 0 && step.Step == isolation.StepExec && errors.Is(step, unix.EAGAIN):
		return fault.Errorf(fault.Exhausted, "session %s has %d processes, its limit (pids)", fault.Show(id), pids).
			WithHint("end some of them, or raise the limit with boxctl set").
			By(fault.Denial{Layer: fault.LayerLimit, Rule: "pids", Used: strconv.Itoa(pids), Allowed: strconv.Itoa(pids), Setting: "more pids for the session"})
	case step.Step == isolation.StepGroup && errors.Is(step, unix.EAGAIN):
		return fault.Errorf(fault.Exhausted, "session %s has %d programs, its limit", fault.Show(id), cgroup.MaxGroups).
			WithHint("end some that still run in the background: boxctl ps BOX")
	}
	return nil
}

// frozenError is the refusal of a program in a frozen session.
func frozenError(id string) error {
	return fault.Errorf(fault.Conflict, "session %s is frozen", fault.Show(id)).WithHint("resume it: boxctl thaw BOX")
}

// Transient reports whether the keeper, or this process, failed for lack of something that may be available later: a keeper,
// descriptors, memory. The request is not to blame.
func Transient(err error) bool {
	causes := []error{client.ErrNoKeeper, client.ErrKeeperGone, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ETOOMANYREFS}
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}
