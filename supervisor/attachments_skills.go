// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// SetSkills gives a living session exactly the named skills of an owner other than its own, in their current versions, and
// leaves its other skills alone. A missing skill is only listed as such; one to be removed that is in use stays until the next
// call. A session must not fail for skills it can do without: it is an error only if they cannot be changed at all. It reports
// whether anything had to be changed.
func (d *Attachments) SetSkills(ctx context.Context, s *session.Session, owner string, names []string) (changed bool, err error) {
	if d.current(s, owner, names) {
		return false, nil
	}
	return true, d.withChangeLock(ctx, s, func(ctx context.Context) error {
		for _, k := range s.Skills() {
			if k.Of != owner || slices.Contains(names, k.Name) {
				continue
			}
			if err := d.deactivate(ctx, s, k.Name, false); err != nil && fault.KindOf(err) != fault.Conflict {
				return err
			}
		}
		for _, name := range names {
			if err := d.attachSkill(ctx, s, owner, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// current reports whether a session already has these skills in their current versions.
func (d *Attachments) current(s *session.Session, owner string, names []string) bool {
	list, count := s.Skills(), 0
	for _, k := range list {
		if k.Of != owner {
			continue
		}
		count++
		now, l := d.lease(s, owner, k.Name)
		if l != nil {
			l.Release()
		}
		if !slices.Contains(names, k.Name) || now.Missing != k.Missing || now.Tree != k.Tree {
			return false
		}
	}
	return count == len(names)
}

// attachSkill gives a session one skill.
func (d *Attachments) attachSkill(ctx context.Context, s *session.Session, owner, name string) error {
	list := s.Skills()
	i, found := attachPosition(list, name)
	if found && list[i].Of != owner {
		d.log.Warn("a session already has a skill of that name", "session", s.ID, "skill", name)
		return nil
	}
	_, _, err := d.activate(ctx, s, owner, name)
	if found && fault.KindOf(err) == fault.Conflict { // the kernel cannot stack more versions
		if err = d.deactivate(ctx, s, name, true); err == nil {
			_, _, err = d.activate(ctx, s, owner, name)
		}
	}
	switch kind := fault.KindOf(err); {
	case kind == fault.NotFound, errors.Is(err, errVanished):
		return d.markMissing(ctx, s, owner, name)
	case kind == fault.Conflict, isStep(err): // it concerns only this skill
		d.log.Warn("cannot give a session a skill", "session", s.ID, "skill", name, "error", err)
		return nil
	default:
		return err
	}
}

// isStep reports whether the keeper failed at a step of a request.
func isStep(err error) bool {
	_, is := errors.AsType[*isolation.StepError](err)
	return is
}

// markMissing lists a skill of a session as missing, and removes the one of that name that it had.
func (d *Attachments) markMissing(ctx context.Context, s *session.Session, owner, name string) error {
	if list := s.Skills(); slices.ContainsFunc(list, func(k policy.ActiveSkill) bool { return k.Name == name && !k.Missing }) {
		if err := d.deactivate(ctx, s, name, false); err != nil {
			if fault.KindOf(err) == fault.Conflict { // in use: its open files stay open
				return nil
			}
			return err
		}
	}
	list := s.Skills()
	i, found := attachPosition(list, name)
	if found {
		return nil
	}
	d.log.Warn("a session is missing a skill that does not exist", "session", s.ID, "skill", name)
	s.SetSkills(slices.Insert(list, i, policy.ActiveSkill{Name: name, Since: time.Now(), Of: owner, Missing: true}))
	return d.keep(s)
}
