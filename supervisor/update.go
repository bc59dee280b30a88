// SPDX-License-Identifier: Apache-2.0

// Live sessions can be given other limits and network rules.

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Updater changes one session. Its caller has it for itself.
type Updater struct {
	Boxes   *driver.Driver
	Session *session.Session
	Keep    func() error // writes the record of the session
	// Enforcement is what would keep the limits of a session with these settings.
	Enforcement func(context.Context, *policy.Settings) (map[string]policy.Mechanism, error)
}

// patience bounds a change of rules. What has begun is not left half done because its caller has gone.
const patience = time.Minute

// Apply changes what the kernel keeps of a session from now to next, all of it or nothing. The session has next then,
// and so has its record.
func (c *Updater) Apply(ctx context.Context, now, next *policy.Settings) error {
	if err := c.limit(ctx, now, next); err != nil {
		return err
	}
	err := c.rules(ctx, now, next)
	if err == nil {
		return nil
	}
	return errors.Join(err, c.limit(context.WithoutCancel(ctx), next, now))
}

// rules changes the rules of the network, if they are others, and the record in any case. That is before the kernel
// in such a change: whoever finds it there half done gives the box the rules once more, see Settle.
func (c *Updater) rules(ctx context.Context, now, next *policy.Settings) error {
	before, after := now.KeeperNetwork(), next.KeeperNetwork()
	if before.Equal(&after) && !now.Unsettled {
		next.Unsettled = false
		return c.set(next, now)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	c.Boxes.Refusals(ctx, c.Session.BoxKey()) // while the session has what has refused it
	begun := *next
	begun.Unsettled = true
	if err := c.set(&begun, now); err != nil {
		return err
	}
	err := c.Boxes.SetNetwork(ctx, c.Session.BoxKey(), &after)
	if err == nil {
		next.Unsettled = false
		_ = c.set(next, &begun) // or the record has them, and they are settled once more than they have to be
		return nil
	}
	back := *now
	if uerr := c.Boxes.SetNetwork(ctx, c.Session.BoxKey(), &before); uerr != nil {
		err = errors.Join(err, uerr)
		back.Unsettled = true // some change after this one, or the next boxd, settles it
	}
	return errors.Join(refusal(c.Session.ID, err), c.set(&back, &back))
}

// set gives the session settings and writes its record. Without a record it has those of before.
func (c *Updater) set(next, before *policy.Settings) error {
	c.Session.Set(*next)
	err := c.Keep()
	if err != nil {
		c.Session.Set(*before)
	}
	return err
}

// refusal is an error of a change of rules in the words of who has asked for it.
func refusal(id string, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case errors.Is(err, unix.ESRCH):
		return session.NotFoundError(id)
	case ok && errors.Is(err, unix.EPERM):
		return fault.Errorf(fault.Denied, "session %s cannot have these rules: %s", fault.Show(id), step.Item).
			WithHint("create a new session: the keeper knows only the profiles that existed when it started").
			By(fault.Denial{Layer: fault.LayerNetwork, Rule: "blocked unless named", Setting: "a profile that names it, and a restart of the keeper"})
	}
	if _, known := errors.AsType[*fault.Error](err); known {
		return err
	}
	return fmt.Errorf("set the rules of session %q: %w", id, err)
}

// Reconcile ends a change of rules that an earlier boxd had begun.
func (c *Updater) Reconcile(ctx context.Context) error {
	now := c.Session.Current()
	if !now.Unsettled {
		return nil
	}
	next := now
	return c.rules(ctx, &now, &next)
}

// limit changes what the kernel keeps. What it does not keep cannot be changed while programs run that have started
// under the old limit.
func (c *Updater) limit(ctx context.Context, now, next *policy.Settings) error {
	s := c.Session
	old, limits := policy.Groups(now), policy.Groups(next)
	work := policy.Work(next, s.Enforced())
	if !next.OwnDisk() { // that of a directory of the host stays as it is
		work = isolation.Quota{}
	}
	if old == limits && (!next.OwnDisk() || work == policy.Work(now, s.Enforced())) && (now.WorkspaceQuota == next.WorkspaceQuota || work.Bytes > 0) {
		return nil
	}
	by, err := c.Enforcement(ctx, next)
	if err != nil {
		return err
	}
	if old != limits && !s.Grouped() || !maps.Equal(by, s.Enforced()) {
		return fault.Errorf(fault.Unsupported, "cannot change the limits of session %s: the kernel does not enforce all of them", fault.Show(s.ID)).
			WithHint("create a new session with these limits")
	}
	err = c.Boxes.SetLimits(ctx, s.BoxKey(), &limits, work)
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case err == nil:
		return nil
	case ok && step.Refused != nil:
		r := step.Refused
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Conflict).WithHint("end some of its programs or remove some of its files first")
	case errors.Is(err, unix.ESRCH):
		return session.NotFoundError(s.ID)
	}
	return fmt.Errorf("set the limits of session %q: %w", s.ID, err)
}
