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

// SetSkills gives a living session exactly these skills of somebody who is not its owner, each in the version of now, and
// leaves its others alone. One that is not there is named among the skills of the session and nothing else; one that it
// is to lose and that is in use stays until the next time. A session that can do without its skills does not fail for
// them: only that they cannot be changed at all is an error. It reports whether there was something to do.
func (d *Attachments) SetSkills(ctx context.Context, s *session.Session, of string, names []string) (changed bool, err error) {
	if d.current(s, of, names) {
		return false, nil
	}
	return true, d.exclusively(ctx, s, func(ctx context.Context) error {
		for _, k := range s.Skills() {
			if k.Of != of || slices.Contains(names, k.Name) {
				continue
			}
			if err := d.deactivate(ctx, s, k.Name, false); err != nil && fault.KindOf(err) != fault.Conflict {
				return err
			}
		}
		for _, name := range names {
			if err := d.have(ctx, s, of, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// current reports whether a session has what it is to have, so that nothing is to be done.
func (d *Attachments) current(s *session.Session, of string, names []string) bool {
	list, count := s.Skills(), 0
	for _, k := range list {
		if k.Of != of {
			continue
		}
		count++
		now, l := d.lease(s, of, k.Name)
		if l != nil {
			l.Release()
		}
		if !slices.Contains(names, k.Name) || now.Missing != k.Missing || now.Tree != k.Tree {
			return false
		}
	}
	return count == len(names)
}

// have gives a session one skill.
func (d *Attachments) have(ctx context.Context, s *session.Session, of, name string) error {
	list := s.Skills()
	i, found := attachPosition(list, name)
	if found && list[i].Of != of {
		d.log.Warn("a session already has a skill of that name", "session", s.ID, "skill", name)
		return nil
	}
	_, _, err := d.activate(ctx, s, of, name)
	if found && fault.KindOf(err) == fault.Conflict { // the kernel keeps no more versions on each other
		if err = d.deactivate(ctx, s, name, true); err == nil {
			_, _, err = d.activate(ctx, s, of, name)
		}
	}
	switch kind := fault.KindOf(err); {
	case kind == fault.NotFound, errors.Is(err, errVanished):
		return d.miss(ctx, s, of, name)
	case kind == fault.Conflict, isStep(err): // it is about this one alone
		d.log.Warn("cannot give a session a skill", "session", s.ID, "skill", name, "error", err)
		return nil
	default:
		return err
	}
}

// isStep reports whether the keeper could not do something that it was asked to.
func isStep(err error) bool {
	_, is := errors.AsType[*isolation.StepError](err)
	return is
}

// miss names a skill that a session was to have, and takes away what it had of that name.
func (d *Attachments) miss(ctx context.Context, s *session.Session, of, name string) error {
	if list := s.Skills(); slices.ContainsFunc(list, func(k policy.ActiveSkill) bool { return k.Name == name && !k.Missing }) {
		if err := d.deactivate(ctx, s, name, false); err != nil {
			if fault.KindOf(err) == fault.Conflict { // in use: what is open of it goes on
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
	s.SetSkills(slices.Insert(list, i, policy.ActiveSkill{Name: name, Since: time.Now(), Of: of, Missing: true}))
	return d.keep(s)
}
