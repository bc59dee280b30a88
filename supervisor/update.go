// SPDX-License-Identifier: Apache-2.0

// Limits and network rules of live sessions can be changed.

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

// updater changes one session, which its caller holds exclusively.
type updater struct {
	Boxes   *driver.Driver
	Session *session.Session
	Keep    func() error // writes the record of the session
	// Enforcement returns what would enforce the limits of a session with these settings.
	Enforcement func(context.Context, *policy.Settings) (map[string]policy.Mechanism, error)
}

// timeout bounds a change of rules. A change that has begun is not abandoned half done when its caller hangs up.
const timeout = time.Minute

// Apply changes what the kernel enforces for a session from now to next, completely or not at all. Afterwards next is in the
// session and its record.
func (c *updater) Apply(ctx context.Context, now, next *policy.Settings) error {
	if err := c.limit(ctx, now, next); err != nil {
		return err
	}
	err := c.rules(ctx, now, next)
	if err == nil {
		return nil
	}
	return errors.Join(err, c.limit(context.WithoutCancel(ctx), next, now))
}

// rules changes the network rules, if they differ, and the record in any case. The record is written before the kernel is
// changed: if that is interrupted, the box is given the rules again, see Reconcile.
func (c *updater) rules(ctx context.Context, now, next *policy.Settings) error {
	before, after := now.KeeperNetwork(), next.KeeperNetwork()
	if before.Equal(&after) && !now.Unsettled {
		next.Unsettled = false
		return c.set(next, now)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	c.Boxes.Refusals(ctx, c.Session.BoxKey()) // count refusals while the session still has the old rules
	unsettled := *next
	unsettled.Unsettled = true
	if err := c.set(&unsettled, now); err != nil {
		return err
	}
	err := c.Boxes.SetNetwork(ctx, c.Session.BoxKey(), &after)
	if err == nil {
		next.Unsettled = false
		_ = c.set(next, &unsettled) // if this fails, they are only set once more than needed
		return nil
	}
	back := *now
	if uerr := c.Boxes.SetNetwork(ctx, c.Session.BoxKey(), &before); uerr != nil {
		err = errors.Join(err, uerr)
		back.Unsettled = true // a later change, or the next boxd, sets them again
	}
	return errors.Join(refusal(c.Session.ID, err), c.set(&back, &back))
}

// set changes the settings of the session and writes its record. If that fails, it restores the old settings.
func (c *updater) set(next, before *policy.Settings) error {
	c.Session.Set(*next)
	err := c.Keep()
	if err != nil {
		c.Session.Set(*before)
	}
	return err
}

// refusal translates an error of a change of rules for the caller.
func refusal(id string, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case errors.Is(err, unix.ESRCH):
		return session.NotFoundError(id)
	case ok && errors.Is(err, unix.EPERM):
		return fault.Errorf(fault.Denied, "session %s cannot have these rules: %s", fault.Show(id), step.Item).
			WithHint("an operator can restart the keeper: it knows only the profiles that existed when it started").
			By(fault.Denial{Layer: fault.LayerNetwork, Rule: "blocked unless named", Setting: "a profile that names it, and a restart of the keeper"})
	}
	if _, known := errors.AsType[*fault.Error](err); known {
		return err
	}
	return fmt.Errorf("set the rules of session %q: %w", id, err)
}

// Reconcile finishes a change of rules that an earlier boxd had begun.
func (c *updater) Reconcile(ctx context.Context) error {
	now := c.Session.Current()
	if !now.Unsettled {
		return nil
	}
	next := now
	return c.rules(ctx, &now, &next)
}

// limit changes the limits that the kernel enforces. A limit that it does not enforce cannot be changed while programs run that
// were started under the old one.
func (c *updater) limit(ctx context.Context, now, next *policy.Settings) error {
	s := c.Session
	old, limits := policy.Groups(now), policy.Groups(next)
	work := policy.Work(next, s.Enforced())
	if !next.OwnDisk() { // the quota of a host directory stays as it is
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
