// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// skillArchive returns an archive with skills of these names, whose instructions are a text.
func skillArchive(text string, names ...string) *bytes.Reader {
	files := map[string]string{}
	for _, name := range names {
		files[name+"/SKILL.md"] = skillText(name, text)
	}
	return bytes.NewReader(boxtest.Tar(0o644, files))
}

func skillText(name, text string) string {
	return "---\nname: " + name + "\ndescription: Says something. Use it to test.\n---\n" + text + "\n"
}

// A skill that is installed at the gateway is sent to each node that gets a session with it: when the session is created, moved, or
// gets the skill later. A skill that was changed on a node is not replaced, and no other owner gets it.
func TestASkillOfTheFleetIsWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	h := &house{t: t, dir: boxtest.TempDir(t), skills: "size = \"64MiB\"\nowner_size = \"1MiB\""}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	h.fill(2)
	c := h.client()
	installs := func(text string, replace bool, names ...string) ([]api.Skill, error) {
		from := &client.SkillImport{Archive: skillArchive(text, names...), Replace: replace}
		if len(names) > 1 {
			from.Select = names
		}
		return c.InstallSkills(t.Context(), from)
	}
	if made, err := installs("one", false, "report", "other"); err != nil || len(made) != 2 {
		t.Fatalf("made = %+v, err = %v, want no error and len(made) == 2", made, err)
	}
	make := func(id, node string, want int, words string, skills ...string) {
		t.Helper()
		var p api.Problem
		code := h.get("POST", "/v1/sessions", map[string]any{"id": id, "skills": skills, "wait": waitFor(want), "placement": map[string]any{"node": node}}, &p)
		if code != want || !strings.Contains(p.Detail, words) {
			t.Errorf("%s on %s: %d %+v, want %d and %q", id, node, code, p, want, words)
		}
	}
	says := func(id, skill, want string) {
		t.Helper()
		line := "tail -n 1 /skills/" + skill + "/SKILL.md"
		if r, err := c.Exec(t.Context(), id, &api.ExecRequest{Command: &line}); err != nil || r.Stdout != want+"\n" {
			t.Errorf(`%s in %s: r = %+v, err = %v, want no error and r.Stdout == want + "\n"`, skill, id, r, err)
		}
	}
	make("a", "n1", http.StatusCreated, "", "report")
	says("a", "report", "one")
	if m, p, code := h.moves("a", api.FleetMove{Node: "n2"}); code != http.StatusOK {
		t.Fatalf("m = %+v, p = %+v, code = %d, want code == 200", m, p, code)
	}
	says("a", "report", "one")
	if _, _, err := c.ActivateSkill(t.Context(), "a", "other"); err != nil {
		t.Errorf("a skill that is added later: %v", err)
	}
	says("a", "other", "one")
	line := "tail -n 1 /skills/report/SKILL.md"
	if r, err := c.Run(t.Context(), &api.OneShotRequest{Session: api.SessionRequest{Skills: []string{"report"}}, Exec: api.ExecRequest{Command: &line}}); err != nil || r.Stdout != "one\n" {
		t.Errorf(`without a session: r = %+v, err = %v, want no error and r.Stdout == "one\n"`, r, err)
	}

	// Another version, of one of the two.
	if _, err := installs("two", false, "report"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf(`err = %v, want an error containing "already"`, err)
	}
	if _, err := installs("two", true, "report"); err != nil {
		t.Fatal(err)
	}
	make("b", "n2", http.StatusCreated, "", "report", "other")
	says("b", "report", "two")
	says("b", "other", "one")
	if k, err := c.Skill(t.Context(), "report"); err != nil || !strings.Contains(k.Instructions, "two") {
		t.Errorf(`k = %+v, err = %v, want no error and k.Instructions containing "two"`, k, err)
	}
	if list, err := c.Skills(t.Context()); err != nil || len(list) != 2 || list[0].Instructions != "" {
		t.Errorf(`list = %+v, err = %v, want no error and len(list) == 2 and list[0].Instructions == ""`, list, err)
	}

	// A skill that is changed on a node belongs to its owner there.
	boxd := h.on("n1").boxd
	boxd.Owner = "ci"
	if _, err := boxd.ChangeSkill(t.Context(), "report", &api.SkillChange{Instructions: new("mine")}); err != nil {
		t.Fatal(err)
	}
	if _, p, code := h.moves("b", api.FleetMove{Node: "n1"}); code != http.StatusConflict || !strings.Contains(p.Detail, `its skill "report" is another one`) {
		t.Errorf("code = %d, p = %+v, want code == 409 and p.Detail containing `its skill \"report\" is another one`",
			code, p)
	}
	make("c", "n1", http.StatusTooManyRequests, `its skill "report" is another one`, "report")
	make("d", "n1", http.StatusCreated, "", "other")

	// Others, and bad input.
	var others api.SkillList
	if code := h.as(h.user, "GET", "/v1/skills", nil, &others); code != http.StatusOK || len(others.Skills) != 0 {
		t.Errorf("code = %d, others = %+v, want code == 200 and len(others.Skills) == 0", code, others)
	}
	h.refuses(h.user, "GET", "/v1/skills/report", nil, http.StatusNotFound, "no skill")
	h.refuses(h.user, "DELETE", "/v1/skills/report?owner=ci", nil, http.StatusForbidden, "to use boxes of")
	h.refuses(h.viewer, "DELETE", "/v1/skills/report", nil, http.StatusForbidden, "needs the user role")
	h.refuses(h.token, "POST", "/v1/skills/install?url=https://example.org/x.zip", nil, http.StatusBadRequest, "url")
	h.refuses(h.token, "PATCH", "/v1/skills/report", map[string]any{}, http.StatusNotImplemented, "Boxd-Node")
	if _, err := c.InstallSkills(t.Context(), &client.SkillImport{Archive: strings.NewReader("no archive")}); err == nil {
		t.Error("no error for a skill that is no archive")
	}
	two := boxtest.Tar(0o644, map[string]string{"a/report/SKILL.md": skillText("report", "a"), "b/report/SKILL.md": skillText("report", "b")})
	for words, paths := range map[string][]string{"several skills": {"a/report", "b/report"}, "paths of skills": {"a/report", "none"}} {
		if _, err := c.InstallSkills(t.Context(), &client.SkillImport{Archive: bytes.NewReader(two), Select: paths, Replace: true}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: err = %v, want an error containing %q", paths, err, words)
		}
	}
	if _, err := installs(strings.Repeat("x", 1<<20), false, "large"); err == nil || !strings.Contains(err.Error(), "more than 1MiB") {
		t.Errorf(`err = %v, want an error containing "more than 1MiB"`, err)
	}

	// The archive with both stays until the second is removed.
	js := h.buckets()
	stored := func() uint64 {
		t.Helper()
		stream, err := js.Stream(t.Context(), "boxd_skills_archives")
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Msgs
	}
	before := stored()
	if err := c.DeleteSkill(t.Context(), "report"); err != nil {
		t.Error(err)
	}
	if after := stored(); before != 2 || after != 1 {
		t.Errorf("%d archives, then %d", before, after)
	}
	if err := c.DeleteSkill(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	if err := c.DeleteSkill(t.Context(), "other"); !errors.Is(err, client.NotFound) {
		t.Errorf("err = %v, want err is client.NotFound", err)
	}
	if after := stored(); after != 0 {
		t.Errorf("%d archives are left", after)
	}

	// A new version of the skill replaces the previous one on nodes.
	if _, err := installs("three", false, "report"); err != nil {
		t.Fatal(err)
	}
	make("e", "n2", http.StatusCreated, "", "report")
	says("e", "report", "three")
	says("b", "report", "two") // what is mounted stays
}
