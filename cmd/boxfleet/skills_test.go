// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

func skillOf(owner, name, digest string) *storedSkill {
	return &storedSkill{Skill: api.Skill{Name: name, Digest: digest, UpdatedAt: time.Now()}, Owner: owner, Archive: archived{ID: name + digest, Size: 10}}
}

// The gateway remembers all digests that nodes may have of a skill, once each, also after its removal: a version on a node is
// replaced if its digest is one of them.
func TestVersionsOfASkill(t *testing.T) {
	t.Parallel()
	k := skillOf("ci", "x", "d3")
	k.Before = []string{"d2", "d3", "d1"}
	if got := k.versions(); !slices.Equal(got, []string{"d3", "d2", "d1"}) {
		t.Errorf(`got %v, want []string{"d3", "d2", "d1"}`, got)
	}
	gone := &storedSkill{Before: k.versions(), Gone: true}
	if got := gone.versions(); !slices.Equal(got, []string{"d3", "d2", "d1"}) {
		t.Errorf(`a removed skill: got %v, want []string{"d3", "d2", "d1"}`, got)
	}
	k.Before = nil
	for i := range 2 * maxVersions {
		k.Before = append(k.Before, fmt.Sprint(i))
	}
	if got := k.versions(); len(got) != maxVersions || got[0] != "d3" {
		t.Errorf(`len(got) = %d, got[:2] = %v, want len(got) == maxVersions and got[0] == "d3"`, len(got), got[:2])
	}
}

// Skills count against the limit of their owner, without those that they replace; of two uploads that replace the same skill, the
// first wins.
func TestFleetSkillsAreWithinTheOwnersQuota(t *testing.T) {
	t.Parallel()
	g := aGateway(startServer(t), &clock{})
	g.cfg.Skills, g.cfg.OwnerSkills = 1<<20, 25
	s, err := g.openSkills(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put := func(k *storedSkill, replace string) error {
		t.Helper()
		if err := s.fits(t.Context(), &upload{s: s.archiveStore, owner: k.Owner}, []*storedSkill{k}, replace); err != nil {
			return err
		}
		return s.putSkill(t.Context(), k)
	}
	for _, k := range []*storedSkill{skillOf("ci", "a", "1"), skillOf("ci", "b", "1"), skillOf("other", "a", "1")} {
		if err := put(k, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(skillOf("ci", "a", "2"), ""); fault.KindOf(err) != fault.Conflict {
		t.Errorf("one of that name: err = %v, want a fault.Conflict error", err)
	}
	if err := put(skillOf("ci", "c", "1"), "true"); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("too much: err = %v, want a fault.Exhausted error", err)
	}
	if err := put(skillOf("ci", "a", "2"), "true"); err != nil {
		t.Errorf("in the place of another: %v", err)
	}
	one, other := skillOf("ci", "b", "2"), skillOf("ci", "b", "3")
	for _, k := range []*storedSkill{one, other} {
		if err := s.fits(t.Context(), &upload{s: s.archiveStore, owner: "ci"}, []*storedSkill{k}, "true"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.putSkill(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if err := s.putSkill(t.Context(), other); fault.KindOf(err) != fault.Conflict {
		t.Errorf("the second of two: err = %v, want a fault.Conflict error", err)
	}
	if k, err := s.skill(t.Context(), "ci", "b"); err != nil || k.Digest != "2" || !slices.Equal(k.Before, []string{"1"}) {
		t.Errorf(`k = %+v, err = %v, want no error and k.Digest == "2" and k.Before == []string{"1"}`, k, err)
	}
}

// An owner has as many records of removed skills as of others: of more, the oldest goes, and none of another owner.
func TestRecordsOfRemovedSkillsAreBounded(t *testing.T) {
	t.Parallel()
	g := aGateway(startServer(t), &clock{})
	g.cfg.Skills, g.cfg.OwnerSkills = 1<<20, 1<<20
	s, err := g.openSkills(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []*storedSkill // the newest first
	for i := range maxSkills {
		k := &storedSkill{Skill: api.Skill{Name: fmt.Sprint("s", i)}, Owner: "ci", Gone: true}
		if i == maxSkills-1 {
			if err := s.write(t.Context(), k, 0); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, k, skillOf("other", fmt.Sprint("s", i), "1"))
	}
	if err := s.forgetOldest(t.Context(), "other", slices.Clone(all)); err != nil {
		t.Fatal(err)
	}
	if err := s.forgetOldest(t.Context(), "ci", slices.Clone(all[2:])); err != nil { // one less
		t.Fatal(err)
	}
	last := fmt.Sprint("s", maxSkills-1)
	if k, err := s.record(t.Context(), "ci", last); err != nil || k == nil {
		t.Fatalf("k = %+v, err = %v, want no error and k != nil", k, err)
	}
	if err := s.forgetOldest(t.Context(), "ci", slices.Clone(all)); err != nil {
		t.Fatal(err)
	}
	if k, err := s.record(t.Context(), "ci", last); err != nil || k != nil {
		t.Errorf("k = %+v, err = %v, want no error and k == nil", k, err)
	}
}
