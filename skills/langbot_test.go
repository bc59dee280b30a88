// SPDX-License-Identifier: Apache-2.0

package skills_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/skills"
)

func TestAllWorkspacesOfALangBotHaveOneBound(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	bound := func(c *skills.Config) { c.LangBotMax = 3 }
	s := open(t, state, bound)
	for i := range 3 {
		create(t, s, fmt.Sprintf("langbot/ws-%d", i), "one")
	}
	refused := func(owner, want string) {
		t.Helper()
		_, err := s.Create(owner, "more", texts("More.", "x"), skills.Loose)
		if d := fault.DenialOf(err); d == nil || d.Rule != want {
			t.Errorf("%s: %v, want %s", owner, err, want)
		}
		if _, err := os.Stat(filepath.Join(state, skills.Dir, skills.Key("langbot/ws-9"))); err == nil {
			t.Error("there is a directory of the Workspace that was refused")
		}
	}
	refused("langbot/ws-0", "skills.langbot_max")
	refused("langbot/ws-9", "skills.langbot_max")
	// Skills of others do not count and are not limited: another LangBot's, and those of the principal itself.
	create(t, s, "other/ws-0", "one")
	create(t, s, "langbot", "one")
	s = open(t, state, bound) // the next boxd knows whose skills they are
	refused("langbot/ws-9", "skills.langbot_max")
	if err := s.Delete("langbot/ws-1", "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(state, skills.Dir, skills.Key("langbot/ws-1"))); err == nil {
		t.Error("a Workspace that has no skill any more still has a directory")
	}
	create(t, s, "langbot/ws-9", "more")
	s = open(t, state, func(c *skills.Config) { c.LangBotMaxTotal = 1024 })
	big := string(make([]byte, 2048))
	if _, err := s.Create("langbot/ws-7", "big", texts("Big.", big), skills.Loose); fault.DenialOf(err) == nil || fault.DenialOf(err).Rule != "skills.langbot_max_total" {
		t.Errorf(`err = %v, want fault.DenialOf(err) != nil and fault.DenialOf(err).Rule == "skills.langbot_max_total"`,
			err)
	}
}

func TestADirectoryOfAWorkspaceStaysAsLongAsABoxHasItsSkill(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	s := open(t, state, nil)
	const owner = "langbot/ws-1"
	create(t, s, owner, "one")
	l, missing := s.Lease(owner, []string{"one"})
	if len(missing) > 0 {
		t.Fatal(missing)
	}
	if err := s.Delete(owner, "one"); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(state, skills.Dir, l.Skills[0].Tree)
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
	l.Release()
	if _, err := os.Stat(filepath.Join(state, skills.Dir, skills.Key(owner))); err == nil {
		t.Error("the unused directory was not removed")
	}
	create(t, s, owner, "one")
	if got := names(s.List(owner)); len(got) != 1 {
		t.Error(got)
	}
}

// Skills that cannot be read are not removed, and do not keep those of others from being swept.
func TestSkillsThatCannotBeReadStay(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	s := open(t, state, nil)
	const owner, half = "langbot/ws-1", "langbot/ws-2"
	create(t, s, owner, "one")
	create(t, s, ann, "other")
	dir := func(owner string, below ...string) string {
		return filepath.Join(append([]string{state, skills.Dir, skills.Key(owner)}, below...)...)
	}
	records, err := filepath.Glob(dir(owner, "names", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records = %v, err = %v, want no error and len(records) == 1", records, err)
	}
	good, err := os.ReadFile(records[0])
	if err == nil {
		err = os.WriteFile(records[0], []byte("{"), 0o600)
	}
	for _, d := range []string{dir(half), dir(ann, "trees", "left")} { // boxd died while it made the first
		if err == nil {
			err = os.Mkdir(d, 0o700)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, state, nil)
	if err := s.Sweep(); err != nil {
		t.Error(err)
	}
	if n, _ := trees(t, state, ann); n != 1 {
		t.Errorf("%d directories of the Workspace with a valid record", n)
	}
	create(t, s, half, "new")
	create(t, s, owner, "two")
	if err := s.Delete(owner, "two"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(records[0], good, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, state, nil)
	if _, err := s.Get(owner, "one"); err != nil {
		t.Errorf("with its record again: %v", err)
	}
	if got := names(s.List(half)); len(got) != 1 {
		t.Error(got)
	}
}
