// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// skill makes a skill with a file "text", which has that text.
func skill(t *testing.T, d *boxtest.Daemon, name, text string) {
	t.Helper()
	c := d.Client
	_, err := c.CreateSkill(t.Context(), &api.SkillRequest{Name: name, Description: "Does it."})
	if err == nil {
		err = rewriteSkill(t, d, name, text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// rewriteSkill changes the text of a skill, which creates another version.
func rewriteSkill(t *testing.T, d *boxtest.Daemon, name, text string) error {
	t.Helper()
	_, err := d.WriteSkillFile(t.Context(), name, &api.SkillFileWrite{Path: "text", Content: text})
	return err
}

// activate activates a skill in a session; isNew says whether the session must not have had a skill of that name.
func activate(t *testing.T, d *boxtest.Daemon, id, name string, isNew bool) api.SessionSkill {
	t.Helper()
	k, fresh, err := d.ActivateSkill(t.Context(), id, name)
	if err != nil || fresh != isNew {
		t.Fatalf("activate %s: new %v, %v", name, fresh, err)
	}
	return k
}

func deactivate(t *testing.T, d *boxtest.Daemon, id, name string, force bool) error {
	t.Helper()
	return d.DeactivateSkill(t.Context(), id, name, force)
}

// trees returns the skill versions on disk, of all users.
func trees(t *testing.T, d *boxtest.Daemon) int {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(d.State, "skills", "u-*", "trees", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A session has the skills it was created with, read-only, and no others; a missing skill is reported by name and is no failure.
// Nothing of a skill is in the workspace.
func TestASessionIsMadeWithSkills(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	skill(t, d, "one", "first")
	skill(t, d, "two", "second")
	req := api.SessionRequest{ID: "s", Skills: []string{"one", "gone", "create-skill", "one"}}
	s := d.NewSession(t, req)
	if len(s.Skills) != 3 || s.Skills[0].Name != "create-skill" || s.Skills[1].Name != "gone" || s.Skills[2].Name != "one" {
		t.Fatalf(`s.Skills = %+v, want len(s.Skills) == 3 and s.Skills[0].Name == "create-skill" and s.Skills[1].Name == "gone" and s.Skills[2].Name == "one"`,
			s.Skills)
	}
	if k := s.Skills[1]; !k.Missing || k.Target != "" || k.Digest != "" {
		t.Errorf(`missing: k = %+v, want k.Missing == true and k.Target == "" and k.Digest == ""`, k)
	}
	if k := s.Skills[2]; k.Missing || k.Target != "/skills/one" || !strings.HasPrefix(k.Digest, "sha256:") || !slices.Equal(k.Attributes, []string{"ro", "nosuid", "nodev", "nosymfollow"}) {
		t.Errorf("mounted: %+v", k)
	}
	if got := d.Sh(t, "s", "ls -A /skills /workspace; cat /skills/one/text; head -c3 /skills/create-skill/SKILL.md"); got != "/skills:\ncreate-skill\none\n\n/workspace:\nfirst---" {
		t.Errorf(`in the box: got %q, want "/skills:\ncreate-skill\none\n\n/workspace:\nfirst---"`, got)
	}
	if again, isNew, err := d.CreateSession(t.Context(), &req); err != nil || isNew || len(again.Skills) != 3 {
		t.Errorf("again: again = %+v, isNew = %v, err = %v, want no error and isNew == false and len(again.Skills) == 3",
			again, isNew, err)
	}
	req.Skills = []string{"two"}
	if _, _, err := d.CreateSession(t.Context(), &req); problemOf(t, err).Status != 409 || problemOf(t, err).Field != "skills" {
		t.Errorf(`with others: err = %v, want problemOf(t, err).Status == 409 and problemOf(t, err).Field == "skills"`,
			err)
	}
	d.NewSession(t, api.SessionRequest{ID: "none"})
	if got := d.Sh(t, "none", "ls -A /skills"); got != "" {
		t.Errorf(`a session without any has %q, want ""`, got)
	}
}

// A profile sets the skills of requests that name none, and can lock them.
func TestAProfileHasSkills(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.writer]\nskills = [\"one\", \"none\"]\n[profiles.strict]\nskills = [\"one\"]\nlocked = [\"skills\"]\n")
	skill(t, d, "one", "first")
	for id, want := range map[string]string{
		`"profile":"writer"`: "none, one", `"profile":"writer","skills":[]`: "", `"profile":"writer","skills":["create-skill"]`: "create-skill", `"profile":"strict"`: "one",
	} {
		a := d.Raw(t, "POST", "/v1/sessions", "{"+id+"}")
		var names []string
		for _, k := range decode[api.Session](t, a).Skills {
			names = append(names, k.Name)
		}
		if got := strings.Join(names, ", "); a.Code != 201 || got != want {
			t.Errorf("%s: got %q, a.Body = %s, want a.Code == 201 and got == %q", id, got, a.Body, want)
		}
	}
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{Profile: "strict", Skills: []string{"create-skill"}})
	if e := problemOf(t, err); e.Status != 403 || e.Field != "skills" {
		t.Errorf(`e.Problem = %+v, want e.Status == 403 and e.Field == "skills"`, e.Problem)
	}
}

// A preforked box gets the skills of its session too.
func TestAWarmBoxIsGivenSkills(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\nwarm = 1\n")
	skill(t, d, "one", "first")
	warm(t, d, 1)
	d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"one"}})
	if got := d.Sh(t, "s", "cat /skills/one/text"); got != "first" {
		t.Errorf(`in the box: got %q, want "first"`, got)
	}
	if !strings.Contains(d.Log(), "a pre-started box") {
		t.Error("the session did not get a pre-started box")
	}
}

// Skills can be added and removed while a program runs, which sees that at once; a read-only workspace does not matter. A skill
// in use is removed only with force.
func TestSkillsComeAndGo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	work := d.NamedMountSource(t, "work", 0)
	skill(t, d, "one", "first")
	skill(t, d, "two", "second")
	d.NewSession(t, api.SessionRequest{ID: "s", Mounts: []api.Mount{{Source: work, Target: "/workspace", Mode: "ro"}}})
	process(t, d, "s", "sits", &api.ProcessRequest{Argv: []string{"sh", "-c", "until cd /skills/one; do sleep 0.1; done; touch /tmp/in; while ! [ -e /skills/two/text ]; do sleep 0.1; done; touch /tmp/seen; exec sleep 10000"}})
	if k := activate(t, d, "s", "one", true); k.Target != "/skills/one" || !slices.Contains(k.Attributes, "ro") {
		t.Errorf(`k = %+v, want k.Target == "/skills/one" and k.Attributes containing "ro"`, k)
	}
	activate(t, d, "s", "one", false)
	if got := d.Sh(t, "s", "ls /skills"); got != "one\n" {
		t.Errorf(`not activated and there: got %q, want "one\n"`, got)
	}
	activate(t, d, "s", "two", true)
	boxtest.Eventually(t, "the program sees both", func() bool { return strings.Contains(d.Sh(t, "s", "ls /tmp"), "seen") })
	err := deactivate(t, d, "s", "one", false)
	if users := client.MountUsersOf(err); problemOf(t, err).Status != 409 || len(users) == 0 || users[0].Path != "/skills/one" {
		t.Errorf(`in use: err = %v, users = %+v, want problemOf(t, err).Status == 409 and len(users) != 0 and users[0].Path == "/skills/one"`,
			err, users)
	}
	if err := deactivate(t, d, "s", "one", true); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "ls /skills; cat /skills/two/text; ls -A /workspace"); got != "two\nsecondname\n" {
		t.Errorf(`left is %q, want "two\nsecondname\n"`, got)
	}
	if e := problemOf(t, deactivate(t, d, "s", "one", false)); e.Status != 404 || e.Field != "skill" {
		t.Errorf(`twice: e.Problem = %+v, want e.Status == 404 and e.Field == "skill"`, e.Problem)
	}
	if err := deactivate(t, d, "s", "two", false); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "ls -A /skills; grep -c ' /skills/' /proc/self/mountinfo || true"); got != "0\n" {
		t.Errorf(`left is %q, want "0\n"`, got)
	}
	if _, _, err := d.ActivateSkill(t.Context(), "s", "none"); problemOf(t, err).Status != 404 {
		t.Errorf("a missing skill: err = %v, want problemOf(t, err).Status == 404", err)
	}
}

// A session keeps its version of a skill, even if the skill is changed or removed; activated again it gets the current one, and a
// version that no session uses is deleted from disk.
func TestASessionKeepsItsVersionOfASkill(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	skill(t, d, "one", "first")
	d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"one"}})
	d.NewSession(t, api.SessionRequest{ID: "other", Skills: []string{"one"}})
	read := func(id string) string { return d.Sh(t, id, "cat /skills/one/text") }
	if err := rewriteSkill(t, d, "one", "second"); err != nil {
		t.Fatal(err)
	}
	if got := read("s"); got != "first" {
		t.Errorf(`after a change: got %q, want "first"`, got)
	}
	activate(t, d, "s", "one", false)
	if got := read("s") + read("other"); got != "secondfirst" || trees(t, d) != 2 {
		t.Errorf("activated again: %q, %d trees", got, trees(t, d))
	}
	if err := d.DeleteSkill(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if got := read("s") + read("other"); got != "secondfirst" {
		t.Errorf(`after its end: got %q, want "secondfirst"`, got)
	}
	if err := deactivate(t, d, "s", "one", false); err != nil || trees(t, d) != 1 {
		t.Errorf("%v, %d trees", err, trees(t, d))
	}
	if err := d.DeleteSession(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no version of the skill is left", func() bool { return trees(t, d) == 0 })
}

// Versions that sessions use are kept by the next boxd too, and recognized by the next keeper; all others are removed.
func TestSkillsOfSessionsOutliveBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	skill(t, d, "one", "first")
	skill(t, d, "two", "second")
	d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"one", "gone"}})
	d.NewSession(t, api.SessionRequest{ID: "other"})
	activate(t, d, "other", "two", true)
	c := d.Client
	for _, name := range []string{"one", "two"} {
		if err := c.DeleteSkill(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	before := trees(t, d)
	d.Kill()
	d.Restart()
	if after := trees(t, d); before != 2 || after != 2 {
		t.Errorf("%d trees, then %d", before, after)
	}
	s, err := d.Session(t.Context(), "s")
	if err != nil || len(s.Skills) != 2 || !s.Skills[0].Missing || s.Skills[1].Target != "/skills/one" {
		t.Fatalf(`s.Skills = %+v, err = %v, want no error and len(s.Skills) == 2 and s.Skills[0].Missing == true and s.Skills[1].Target == "/skills/one"`,
			s.Skills, err)
	}
	if got := d.Sh(t, "s", "cat /skills/one/text") + d.Sh(t, "other", "cat /skills/two/text; grep -c ' /skills/' /proc/self/mountinfo"); got != "firstsecond1\n" {
		t.Errorf(`found %q, want "firstsecond1\n"`, got)
	}
	if err := syscall.Kill(d.Keeper(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "another keeper unmounts the skill", func() bool { return deactivate(t, d, "s", "one", false) == nil })
	if got := d.Sh(t, "s", "ls -A /skills"); got != "" || trees(t, d) != 1 {
		t.Errorf("left is %q, %d trees", got, trees(t, d))
	}
	if err := d.DeleteSession(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no other version of a skill is left", func() bool { return trees(t, d) == 0 })
}

// If a boxd dies after it has recorded that a session is to have a skill, and before that is mounted, the next boxd mounts it.
func TestWhatTheRecordHasIsMounted(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	skill(t, d, "one", "first")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Kill()
	list, err := filepath.Glob(filepath.Join(d.State, "sessions", "*.json"))
	there, terr := filepath.Glob(filepath.Join(d.State, "skills", "u-*", "trees", "*"))
	if err != nil || terr != nil || len(list) != 1 || len(there) != 1 {
		t.Fatalf("list = %q, err = %v; there = %q, terr = %v, want no error and no error and len(list) == 1 and len(there) == 1",
			list, err, there, terr)
	}
	data, err := os.ReadFile(list[0])
	if err != nil {
		t.Fatal(err)
	}
	record := map[string]any{}
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	tree := strings.TrimPrefix(there[0], filepath.Join(d.State, "skills")+"/")
	record["skills"] = []any{map[string]any{"name": "one", "since": "2026-11-22T00:00:00Z", "digest": "sha256:0", "tree": tree}}
	if data, err = json.Marshal(record); err == nil {
		err = os.WriteFile(list[0], data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if got := d.Sh(t, "s", "cat /skills/one/text"); got != "first" {
		t.Errorf(`in the box: got %q, want "first"`, got)
	}
	if err := deactivate(t, d, "s", "one", false); err != nil {
		t.Error(err)
	}
}

// No user has access to the skills of others, neither by name nor by path.
func TestSkillsOfOthersAreNotThere(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	skill(t, d, "one", "first")
	here, err := filepath.Glob(filepath.Join(d.State, "skills", "u-*", "trees", "*"))
	if err != nil || len(here) != 1 {
		t.Fatalf("here = %v, err = %v, want no error and len(here) == 1", here, err)
	}
	tree := strings.TrimPrefix(here[0], filepath.Join(d.State, "skills")+"/")
	names, err := json.Marshal([]string{"one", "../one", "../../" + tree, tree, here[0], "."})
	if err != nil {
		t.Fatal(err)
	}
	theirs := d.AsUser(t, boxtest.OtherUID,
		boxtest.Request("POST", "/v1/sessions", `{"id":"s1","skills":`+string(names)+`}`),
		boxtest.Request("PUT", "/v1/sessions/s1/skills/one", ""),
		boxtest.Request("PUT", "/v1/sessions/s1/skills/..%2Fone", ""),
		boxtest.Request("PUT", "/v1/sessions/s1/skills/"+url.PathEscape(tree), ""),
		boxtest.Request("PUT", "/v1/sessions/s1/skills/create-skill", ""),
		boxtest.Request("POST", "/v1/sessions/s1/exec", `{"command":"ls -A /skills"}`))
	s := decode[api.Session](t, theirs[0])
	if theirs[0].Code != 201 || len(s.Skills) != 6 || slices.ContainsFunc(s.Skills, func(k api.SessionSkill) bool { return !k.Missing }) {
		t.Errorf("theirs[0].Body = %s", theirs[0].Body)
	}
	for _, a := range theirs[1:4] {
		if a.Code != 404 {
			t.Errorf("%d: a.Body = %s, want a.Code == 404", a.Code, a.Body)
		}
	}
	if r := decode[api.ExecResult](t, theirs[5]); theirs[4].Code != 201 || r.Stdout != "create-skill\n" {
		t.Errorf(`theirs[4].Body = %s, r = %s, want theirs[4].Code == 201 and r.Stdout == "create-skill\n"`,
			theirs[4].Body, boxtest.Show(r))
	}
}
