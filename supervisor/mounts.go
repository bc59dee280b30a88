// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// MountChanger changes the mounts of one session.
type MountChanger struct {
	Boxes       mounter
	Held        policy.EffectivePolicy // of the session's owner
	Session     *session.Session
	Keep        func() error // writes the record of the session
	MountPoints *mountPointCleanup
}

// mountTimeout bounds one change. A change that has begun is not abandoned half done when its caller hangs up.
const mountTimeout = time.Minute

// Add gives the session a mount, or returns the one it has if that is the same; isNew tells which. With replace, it replaces
// another mount on the target so that a program always finds one of the two.
func (c *MountChanger) Add(ctx context.Context, m policy.Mount, replace bool) (live policy.LiveMount, isNew bool, err error) {
	if m, err = c.allowed(ctx, m); err != nil {
		return live, false, err
	}
	err = c.exclusively(ctx, func(ctx context.Context) error {
		live, isNew, err = c.add(ctx, m, replace)
		return err
	})
	return live, isNew, err
}

// allowed checks a mount against all rules but those of the host itself, which the keeper checks.
func (c *MountChanger) allowed(ctx context.Context, m policy.Mount) (policy.Mount, error) {
	s := c.Session
	m, err := s.Profile().LiveMount(s.Current().Profile, m)
	if err == nil && !c.Held.AllowsMount(m.Source) {
		err = c.Held.MountDenied(0, m.Source)
	}
	if err == nil {
		err = resolveMounts(ctx, c.Boxes, &c.Held, c.Session.Caller().UID, []policy.Mount{m})
	}
	if err == nil {
		err = c.request(isolation.MountAdd, m).Validate()
	}
	return m, mountField(err)
}

// checkMountFree refuses a target at or above a mount the session was created with, or above a live one, and one mount more
// than a session can have. live must not change meanwhile.
func checkMountFree(mounts []policy.Mount, live []policy.LiveMount, target string) error {
	for _, m := range mounts {
		if isolation.Within(m.Target, target) {
			return fault.Field("target", target, "a path that is not at or above "+m.Target+", a mount the session was created with").Of(fault.Conflict)
		}
	}
	for _, m := range live {
		if m.Target != target && isolation.Within(m.Target, target) {
			return fault.Field("target", target, "a path that is not above the mount "+m.Target).Of(fault.Conflict).
				WithHint("unmount that one first: boxctl umount BOX %s", m.Target)
		}
	}
	if _, found := mountPosition(live, target); !found && len(mounts)+len(live) >= isolation.MaxMounts {
		return fault.Errorf(fault.Conflict, "the session has %d mounts, its limit", isolation.MaxMounts).
			WithHint("remove one first: boxctl umount BOX TARGET")
	}
	return nil
}

func (c *MountChanger) request(op isolation.MountOp, m policy.Mount) *isolation.ChangeMount {
	return &isolation.ChangeMount{
		Key: c.Session.BoxKey(), Op: op, Caller: c.Session.Caller(),
		Mount: isolation.Mount{Source: m.Source, Target: m.Target, Writable: m.Mode == policy.MountReadWrite, Owner: m.Owner, NoSymlinks: m.NoSymlinks},
	}
}

// exclusively calls do while the session lives and nothing else changes it.
func (c *MountChanger) exclusively(ctx context.Context, do func(context.Context) error) error {
	if err := c.Session.Await(ctx); err != nil {
		return err
	}
	return c.Session.Exclusive(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mountTimeout)
		defer cancel()
		if _, err := c.reconcile(ctx); err != nil {
			return err
		}
		return do(ctx)
	})
}

func (c *MountChanger) add(ctx context.Context, m policy.Mount, replace bool) (live policy.LiveMount, isNew bool, err error) {
	list := c.Session.Live()
	if err := checkMountFree(c.Session.Current().Mounts, list, m.Target); err != nil {
		return live, false, mountField(err)
	}
	i, found := mountPosition(list, m.Target)
	if found && list[i].Mount == m && !replace {
		return list[i], false, nil
	}
	if found && !replace {
		return live, false, fault.Errorf(fault.Conflict, "%s is already mounted on %s (%s)", list[i].Source, fault.Show(m.Target), list[i].Mode).
			WithHint("replace it with boxctl mount --replace, or remove it first")
	}
	if found && len(list[i].IDs) >= isolation.MaxStacked {
		return live, false, fault.Errorf(fault.Conflict, "the mount on %s was replaced %d times, and this kernel keeps every replaced mount", fault.Show(m.Target), isolation.MaxStacked-1).
			WithHint("unmount it, and mount again; Linux 6.5 and later have no such limit")
	}
	req := c.request(isolation.MountAdd, m)
	if found {
		req.Op, req.IDs = isolation.MountReplace, list[i].IDs
	}
	if err := c.enter(ctx, &m); err != nil {
		return live, false, err
	}
	defer c.only()
	change, err := c.begin(ctx, list, m)
	if err != nil {
		return live, false, err
	}
	done, err := c.Boxes.ChangeMount(ctx, req)
	if err != nil {
		finished, err := c.interrupted(ctx, &m, err)
		if !finished {
			return live, false, err
		}
		list = c.Session.Live()
		i, _ = mountPosition(list, m.Target)
		live = list[i]
	} else {
		live = policy.LiveMount{Mount: m, Since: time.Now(), Attrs: mountAttributes(done.Attrs), IDs: []uint64{done.ID}, Made: done.Made}
		if !found {
			list = slices.Insert(list, i, live)
		} else {
			live.Made = list[i].Made
			if done.Below {
				live.IDs = append(live.IDs, list[i].IDs...)
			}
			list[i] = live
		}
		if err := c.record(ctx, list, nil); err != nil {
			if found { // the old mount is gone; the next attempt replaces this one
				return live, false, err
			}
			c.Session.SetMounting(slices.Delete(list, i, i+1), change)
			_, serr := c.reconcile(ctx)
			return live, false, errors.Join(err, serr)
		}
	}
	c.Session.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "mount " + m.Target})
	return live, !found, nil
}

// record writes the mounts there are, and the change of them that has begun, unless the session is ending: then it has no record.
func (c *MountChanger) record(ctx context.Context, list []policy.LiveMount, change *policy.MountChange) error {
	c.Session.SetMounting(slices.Clone(list), change)
	c.only()
	if err := c.Session.Await(ctx); err != nil {
		return err
	}
	return c.Keep()
}

func mountPosition(list []policy.LiveMount, target string) (int, bool) {
	return slices.BinarySearchFunc(list, target, func(m policy.LiveMount, t string) int { return cmp.Compare(m.Target, t) })
}

func (c *MountChanger) removal(m *policy.LiveMount, force bool) *isolation.ChangeMount {
	req := c.request(isolation.MountRemove, policy.Mount{Target: m.Target})
	req.IDs, req.Made, req.Force = m.IDs, m.Made, force
	return req
}

// MountBusyError is the refusal to remove a mount that is in use.
type MountBusyError struct {
	Err   error
	Users []isolation.MountUser
}

func (b *MountBusyError) Error() string { return b.Err.Error() }

// Unwrap returns the refusal.
func (b *MountBusyError) Unwrap() error { return b.Err }

// Remove removes a mount from the session, and the directories created for it. One in use is refused with a MountBusyError,
// unless force is set: then open files stay open, and no others can be opened.
func (c *MountChanger) Remove(ctx context.Context, target string, force bool) error {
	return c.exclusively(ctx, func(ctx context.Context) error {
		list := c.Session.Live()
		i, found := mountPosition(list, target)
		if !found {
			return fault.Errorf(fault.NotFound, "no mount on %s was added to session %s", fault.Show(target), fault.Show(c.Session.ID)).
				WithHint("list mounts: boxctl mount BOX; mounts it was created with cannot be removed")
		}
		for _, m := range list {
			if m.Target != target && isolation.Within(m.Target, target) {
				return fault.Field("target", target, "a mount without another one below it; "+m.Target+" is").Of(fault.Conflict).WithHint("remove that one first")
			}
		}
		if _, err := c.begin(ctx, list, policy.Mount{Target: target}); err != nil {
			return err
		}
		m := list[i]
		done, err := c.take(ctx, c.removal(&m, force))
		switch {
		case err != nil:
			if finished, err := c.interrupted(ctx, &m.Mount, err); !finished {
				return err
			}
		case done.Busy:
			if err := c.record(ctx, list, nil); err != nil {
				return err
			}
			return mountInUse("mount on "+fault.Show(m.Target), done.Users)
		default:
			err := c.record(ctx, withoutMount(list, i), nil)
			if err == nil {
				err = c.sweep(ctx)
			}
			if err != nil {
				return err
			}
		}
		c.Session.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "umount " + target})
		return nil
	})
}

// mountInUse returns a MountBusyError: the refusal to remove something that is in use.
func mountInUse(what string, users []isolation.MountUser) error {
	var texts []string
	for _, u := range users {
		if u.PID == 0 {
			texts = append(texts, "a mount on "+fault.Show(u.Path))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s (%d, %s %s)", fault.Show(u.Program), u.PID, u.How, fault.Show(u.Path)))
	}
	by := cmp.Or(strings.Join(texts, ", "), "something that had it open for a moment")
	return &MountBusyError{Users: users, Err: fault.Errorf(fault.Conflict, "the %s is in use by %s", what, by).
		WithHint("end what uses it, or unmount with --force (files that are open stay open)")}
}

// failure translates a keeper error of a change.
func (c *MountChanger) failure(m *policy.Mount, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case errors.Is(err, client.ErrNoKeeper), errors.Is(err, client.ErrKeeperGone):
		return fault.Errorf(fault.Unavailable, "cannot change the mounts of session %s now: %w", fault.Show(c.Session.ID), err).
			WithHint("try again: boxd is starting a new keeper")
	case ok && session.Unanswered(step):
		return mountField(session.NoAnswerError(step.Refused.Field, step))
	case ok && step.Refused != nil && step.Step == isolation.StepMountSource:
		r := step.Refused
		return fault.Field("source", r.Value, r.Allowed).Of(fault.Denied).
			WithHint("allowed directories are listed in mounts.allow in box.toml").
			By(fault.Denial{Layer: fault.LayerMount, Rule: "mounts.allow", Allowed: r.Allowed, Setting: "mounts.allow with " + strconv.Quote(r.Value)})
	case ok && step.Refused != nil:
		return mountField(step.Refused)
	case ok && step.Step == isolation.StepMountSource:
		f := fault.Field("source", m.Source, "an existing directory that the owner of the session can open")
		f.Err = fmt.Errorf("%w: %w", f.Err, step)
		return f
	case errors.Is(err, unix.ESRCH):
		return session.NotFoundError(c.Session.ID)
	case errors.Is(err, unix.ESTALE):
		return fault.Errorf(fault.Conflict, "a program in the box moved %s while it was being mounted; nothing was changed", fault.Show(m.Target)).
			WithHint("stop the program that moves it, or use another target")
	case errors.Is(err, unix.EEXIST):
		return fault.Field("target", m.Target, "a path on which nothing is mounted").Of(fault.Conflict)
	case errors.Is(err, unix.ENOTEMPTY):
		top, _, _ := strings.Cut(m.Target[1:], "/")
		return fault.Field("target", m.Target, "an existing directory, as the image has other files in /"+top+", which a new one would hide").
			WithHint("use another target, such as /mnt/NAME, or give the mount to the box when it is created")
	case ok && isPlaceStep(step):
		return fault.Field("target", m.Target, "a directory, or a path where the box user can create one, without symbolic links ("+step.Errno.Error()+")")
	}
	return fmt.Errorf("mount of session %q: %w", c.Session.ID, err)
}

// isPlaceStep reports whether a change has failed because of what is at its target.
func isPlaceStep(step *isolation.StepError) bool {
	return slices.Contains([]error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENAMETOOLONG, unix.EDQUOT, unix.ENOSPC}, error(step.Errno))
}

// mountField names the field of a refusal as in a request for a single mount.
func mountField(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		f.Field = strings.TrimPrefix(f.Field, "mounts[0].")
		return err
	}
	if r, ok := errors.AsType[*isolation.Refusal](err); ok {
		return fault.Field(strings.TrimPrefix(r.Field, "mounts[0]."), r.Value, r.Allowed)
	}
	return err
}

// mountAttributes returns the mount(8) names of ST_ flags.
func mountAttributes(flags uint64) []string {
	list := []string{"rw"}
	if flags&unix.ST_RDONLY != 0 {
		list[0] = "ro"
	}
	for _, a := range []struct {
		flag uint64
		name string
	}{{unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}, {0x2000, "nosymfollow"}} {
		if flags&a.flag != 0 {
			list = append(list, a.name)
		}
	}
	return list
}

// effectivePolicy is the policy of a principal, with its home directory if the policy refers to that.
func effectivePolicy(cfg *policy.Config, principal access.Principal) policy.EffectivePolicy {
	effective := cfg.PolicyOf(principal)
	if slices.Contains(effective.Mounts, policy.HomeRoot) {
		if u, err := user.LookupId(strconv.FormatUint(uint64(principal.UID), 10)); err == nil && u.HomeDir != "/" {
			effective.Home = filepath.Clean(u.HomeDir)
		}
	}
	return effective
}

// resolveMounts refuses sources from which symbolic links lead out of the allowed directories. Missing ones are left to the
// keeper, which also checks mounts.allow against what it has finally opened. The keeper follows the links too: their filesystem
// may not answer.
func resolveMounts(ctx context.Context, boxes mounter, effective *policy.EffectivePolicy, uid uint32, mounts []policy.Mount) error {
	if slices.Contains(effective.Mounts, policy.Any) {
		return nil
	}
	for i, m := range mounts {
		if !isolation.CleanAbsolute(m.Source) {
			continue // refused elsewhere for that
		}
		at, err := boxes.ChangeMount(ctx, &isolation.ChangeMount{Op: isolation.MountFollow, Caller: isolation.Caller{UID: uid}, Mount: isolation.Mount{Source: m.Source}})
		step, answered := errors.AsType[*isolation.StepError](err)
		switch {
		case err == nil && !effective.AllowsMount(at.Made):
			return effective.MountDenied(i, m.Source)
		case answered && session.Unanswered(step):
			return session.NoAnswerError("mounts["+strconv.Itoa(i)+"].source", step)
		case answered && step.Step == isolation.StepMountSource && (step.Errno == unix.ENOENT || step.Errno == unix.ENOTDIR):
			continue // the keeper refuses it
		case answered && step.Step == isolation.StepMountSource: // its target is unknown, even if the owner could resolve it
			return effective.MountDenied(i, m.Source)
		case err != nil:
			return fault.Errorf(fault.Unavailable, "cannot resolve %s now: %w", fault.Show(m.Source), err).WithHint("try again")
		}
	}
	return nil
}
