// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// settleTimeout bounds an attempt to determine the outcome of a change. If it is not known then, the next change determines it
// first.
const settleTimeout = 15 * time.Second

// begin writes down which change follows, and what there is before it, so that its outcome can be determined after a crash.
func (c *MountChanger) begin(ctx context.Context, list []policy.LiveMount, m policy.Mount) (*policy.MountChange, error) {
	now, err := c.list(ctx, m.Target)
	if err != nil {
		return nil, c.failure(&m, err)
	}
	change := &policy.MountChange{Mount: m, Known: now.IDs}
	if _, found := mountPosition(list, m.Target); !found {
		change.Missing = now.Made
	}
	if err := c.record(ctx, list, change); err != nil {
		c.Session.SetMounting(list, nil)
		return nil, err
	}
	return change, nil
}

func (c *MountChanger) list(ctx context.Context, target string) (*isolation.Mounted, error) {
	return c.Boxes.ChangeMount(ctx, c.request(isolation.MountLook, policy.Mount{Target: target}))
}

// interrupted handles a change that has failed with unknown outcome: it may have been finished all the same.
func (c *MountChanger) interrupted(ctx context.Context, m *policy.Mount, err error) (finished bool, _ error) {
	step, answered := errors.AsType[*isolation.StepError](err)
	if answered && !session.Unanswered(step) && step.Step != isolation.StepSetup { // what was created is removed by then, unless a step was given up
		list, change := c.Session.Mounting()
		reported := *change
		reported.Missing = ""
		c.Session.SetMounting(list, &reported)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if finished, serr := c.reconcile(ctx); finished && serr == nil {
		return true, nil
	}
	return false, c.failure(m, err)
}

// Reconcile determines the outcome of a change that was interrupted, whichever process did that: an addition that was not
// confirmed is undone, any other change that was begun is finished. Afterwards the list is what is mounted.
func (c *MountChanger) Reconcile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return c.Session.Exclusive(func() error {
		_, err := c.reconcile(ctx)
		return err
	})
}

func (c *MountChanger) reconcile(ctx context.Context) (finished bool, err error) {
	list, change := c.Session.Mounting()
	if change == nil {
		return false, nil
	}
	now, err := c.list(ctx, change.Target)
	if err != nil {
		return false, c.failure(&change.Mount, err)
	}
	fresh := slices.DeleteFunc(slices.Clone(now.IDs), func(id uint64) bool { return slices.Contains(change.Known, id) })
	if len(fresh) > 1 { // one change makes one mount
		return false, fault.Errorf(fault.Unavailable, "cannot change the mounts of session %s now: an interrupted change left them in an unknown state", fault.Show(c.Session.ID)).
			WithHint("try again; if it fails again, remove the session")
	}
	i, found := mountPosition(list, change.Target)
	switch {
	case !found && change.Source != "":
		err = c.undo(ctx, change, fresh)
	case !found:
	case change.Source == "" || len(fresh) == 0:
		list, finished, err = c.finishRemoval(ctx, list, i, now.IDs)
		finished = finished && change.Source == ""
	default:
		list[i], err = c.finishReplacing(ctx, change, &list[i], fresh[0], now.IDs)
		finished = err == nil
	}
	if err != nil {
		return false, c.failure(&change.Mount, err)
	}
	if err := c.record(ctx, list, nil); err != nil {
		return finished, err
	}
	return finished, c.sweep(ctx)
}

// undo removes a mount that was added, wherever it is now, and what was created for it.
func (c *MountChanger) undo(ctx context.Context, change *policy.MountChange, fresh []uint64) error {
	if len(fresh) == 0 && change.Missing == "" {
		return nil
	}
	_, err := c.take(ctx, c.removal(&policy.LiveMount{Mount: change.Mount, IDs: fresh, Made: change.Missing}, true))
	return err
}

// finishRemoval removes the rest of a mount that is partly gone. A complete one stays.
func (c *MountChanger) finishRemoval(ctx context.Context, list []policy.LiveMount, i int, now []uint64) (_ []policy.LiveMount, removed bool, err error) {
	m := list[i]
	left := slices.DeleteFunc(slices.Clone(m.IDs), func(id uint64) bool { return !slices.Contains(now, id) })
	if len(left) == len(m.IDs) {
		return list, false, nil
	}
	req := c.removal(&m, true)
	req.IDs = left
	if _, err := c.take(ctx, req); err != nil {
		return nil, false, err
	}
	return withoutMount(list, i), true, nil
}

// finishReplacing detaches what is left of the old mount on top of the new one, and returns the mount that is there then.
func (c *MountChanger) finishReplacing(ctx context.Context, change *policy.MountChange, old *policy.LiveMount, id uint64, now []uint64) (live policy.LiveMount, err error) {
	live = policy.LiveMount{Mount: change.Mount, Since: time.Now(), IDs: []uint64{id}, Made: old.Made}
	var above []uint64
	for _, o := range old.IDs {
		switch at := slices.Index(now, o); {
		case at < 0:
		case at < slices.Index(now, id):
			above = append(above, o)
		default:
			live.IDs = append(live.IDs, o)
		}
	}
	if len(above) > 0 {
		req := c.removal(old, true)
		req.IDs, req.Made = above, ""
		if _, err := c.Boxes.ChangeMount(ctx, req); err != nil {
			return live, err
		}
	}
	mounted, err := c.list(ctx, change.Target)
	if err != nil {
		return live, err
	}
	if mounted.ID != id { // a program in the box has moved it; every mount has these
		mounted.Attrs = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV
	}
	live.Attrs = mountAttributes(mounted.Attrs)
	return live, nil
}

// withoutMount returns a list without mount i. If another one needs the directories created for that, they count as created for
// the other from then on.
func withoutMount(list []policy.LiveMount, i int) []policy.LiveMount {
	created := list[i].Made
	list = slices.Delete(list, i, i+1)
	next := slices.IndexFunc(list, func(o policy.LiveMount) bool { return created != "" && isolation.Within(o.Target, created) })
	if next >= 0 {
		list[next].Made = created // which removes them with it
	}
	return list
}
