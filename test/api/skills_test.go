// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"strings"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// document returns a SKILL.md.
func document(name string) string {
	return "---\nname: " + name + "\ndescription: Does it.\n---\n\nbody\n"
}

// zipped returns an archive of skills.
func zipped(names ...string) string {
	files := map[string]string{}
	for _, name := range names {
		files["all/"+name+"/SKILL.md"] = document(name)
	}
	return string(boxtest.Zip(files))
}

// skills tests everything that can be done with skills; some come from the session s.
func (c *contract) skills() {
	const all, one, list, file = "/v1/skills", "/v1/skills/{skill}", "/v1/skills/{skill}/files", "/v1/skills/{skill}/file"
	var k api.Skill
	c.reads(c.gets(201, request{route: "POST " + all, body: `{"name":"make-report","description":"Makes reports.","instructions":"# Do\n","metadata":{"v":"1"}}`}), &k)
	if k.Name != "make-report" || k.EntryFile != "SKILL.md" || k.Metadata["v"] != "1" || k.Instructions != "# Do\n" {
		c.t.Errorf(`k = %+v, want k.Name == "make-report" and k.EntryFile == "SKILL.md" and k.Metadata["v"] == "1" and k.Instructions == "# Do\n"`,
			k)
	}
	c.refused(409, "name", request{route: "POST " + all, body: `{"name":"make-report","description":"x"}`})
	if p := c.refused(400, "name", request{route: "POST " + all, body: `{"name":"Make Report","description":""}`}); !strings.Contains(p.Detail, "description") {
		c.t.Errorf(`the detail lacks one of the faults: p.Detail = %s, want p.Detail containing "description"`,
			p.Detail)
	}
	c.refused(400, "colour", request{route: "POST " + all, body: `{"name":"a","description":"x","colour":"red"}`, odd: true})
	var there api.SkillList
	c.reads(c.gets(200, request{route: "GET " + all}), &there)
	if len(there.Skills) != 2 || there.Skills[0].Instructions != "" || !there.Skills[1].BuiltIn {
		c.t.Errorf(`there = %+v, want len(there.Skills) == 2 and there.Skills[0].Instructions == "" and there.Skills[1].BuiltIn == true`,
			there)
	}
	c.refused(403, "owner", request{route: "GET " + all, query: "owner=uid%3A0", uid: boxtest.OtherUID})
	c.reads(c.gets(200, request{route: "GET " + all, uid: boxtest.OtherUID}), &there)
	if len(there.Skills) != 1 {
		c.t.Errorf("another caller has %+v, want len(there.Skills) == 1", there)
	}
	c.gets(200, request{route: "GET " + one, p: "make-report"})
	c.refused(404, "skill", request{route: "GET " + one, p: "make-report", uid: boxtest.OtherUID})
	var text api.SkillIndex
	c.reads(c.gets(200, request{route: "POST " + all + "/index", body: `{"names":["make-report","gone"],"location":"/skills"}`}), &text)
	if !strings.Contains(text.Text, "<location>/skills/make-report/SKILL.md</location>") || len(text.Missing) != 1 {
		c.t.Errorf(`text = %+v, want text.Text containing "<location>/skills/make-report/SKILL.md</location>" and len(text.Missing) == 1`,
			text)
	}
	c.refused(400, "names", request{route: "POST " + all + "/index", body: `{"names":1}`, odd: true})

	c.gets(200, request{route: "PATCH " + one, p: "make-report", body: `{"description":"Makes better reports.","if_match":"` + k.Digest + `"}`})
	c.refused(409, "if_match", request{route: "PATCH " + one, p: "make-report", body: `{"license":"MIT","if_match":"` + k.Digest + `"}`})
	c.refused(400, "compatibility", request{route: "PATCH " + one, p: "make-report", body: `{"compatibility":"` + strings.Repeat("x", 501) + `"}`})
	c.refused(403, "skill", request{route: "PATCH " + one, p: "create-skill", body: `{"license":"MIT"}`})
	c.refused(404, "skill", request{route: "PATCH " + one, p: "none", body: `{"license":"MIT"}`})

	c.gets(200, request{route: "PUT " + file, p: "make-report", body: `{"path":"scripts/run","content":"aGk=","encoding":"base64","executable":true}`})
	c.refused(400, "path", request{route: "PUT " + file, p: "make-report", body: `{"path":"../x","content":""}`})
	c.refused(400, "encoding", request{route: "PUT " + file, p: "make-report", body: `{"path":"x","content":"","encoding":"latin1"}`, odd: true})
	c.refused(403, "skill", request{route: "PUT " + file, p: "create-skill", body: `{"path":"x","content":""}`})
	c.refused(404, "skill", request{route: "PUT " + file, p: "none", body: `{"path":"x","content":""}`})
	c.refused(409, "path", request{route: "PUT " + file, p: "make-report", body: `{"path":"scripts","content":""}`})
	c.gets(200, request{route: "GET " + list, p: "make-report", query: "path=scripts&hidden=true&limit=1"})
	c.refused(400, "limit", request{route: "GET " + list, p: "make-report", query: "limit=0"})
	c.refused(404, "path", request{route: "GET " + list, p: "make-report", query: "path=none"})
	var f api.SkillFile
	c.reads(c.gets(200, request{route: "GET " + file, p: "make-report", query: "path=scripts/run"}), &f)
	if f.Content != "hi" || !f.Executable {
		c.t.Errorf(`f = %+v, want f.Content == "hi" and f.Executable == true`, f)
	}
	c.refused(400, "path", request{route: "GET " + file, p: "make-report", query: "path=/etc/passwd"})
	c.refused(404, "path", request{route: "GET " + file, p: "make-report", query: "path=none"})
	c.refused(409, "if_match", request{route: "DELETE " + file, p: "make-report", query: "path=scripts&if_match=sha256:0"})
	c.gets(200, request{route: "DELETE " + file, p: "make-report", query: "path=scripts"})
	c.refused(400, "path", request{route: "DELETE " + file, p: "make-report", query: "path=SKILL.md"})
	c.refused(403, "skill", request{route: "DELETE " + file, p: "create-skill", query: "path=x"})
	c.refused(404, "path", request{route: "DELETE " + file, p: "make-report", query: "path=none"})

	c.activation()
	c.imports()
	c.gets(204, request{route: "DELETE " + one, p: "make-report"})
	c.refused(404, "skill", request{route: "DELETE " + one, p: "make-report"})
	c.refused(403, "skill", request{route: "DELETE " + one, p: "create-skill"})
}

// activation adds the skill make-report to the running session s, and removes it.
func (c *contract) activation() {
	const add, remove = "PUT /v1/sessions/{id}/skills/{skill}", "DELETE /v1/sessions/{id}/skills/{skill}"
	c.refused(404, "skill", request{route: remove, s: "s", p: "make-report"})
	var k api.SessionSkill
	c.reads(c.gets(201, request{route: add, s: "s", p: "make-report"}), &k)
	if k.Target != "/skills/make-report" || strings.Join(k.Attributes, ",") != "ro,nosuid,nodev,nosymfollow" || k.Missing {
		c.t.Errorf(`k = %+v, want k.Target == "/skills/make-report" and strings.Join(k.Attributes, ",") == "ro,nosuid,nodev,nosymfollow" and k.Missing == false`,
			k)
	}
	c.gets(200, request{route: add, s: "s", p: "make-report"})
	c.refused(404, "skill", request{route: add, s: "s", p: "none"})
	c.refused(404, "", request{route: add, s: "none", p: "make-report"})
	const environment = "POST /v1/sessions/{id}/skills/{skill}/environment"
	c.refused(404, "skill", request{route: environment, s: "s", p: "none", body: `{}`})
	c.refused(400, "timeout", request{route: environment, s: "s", p: "make-report", body: `{"timeout":"0s"}`})
	c.refused(409, "skill", request{route: environment, s: "s", p: "make-report", body: `{}`})
	c.gets(200, request{route: "PUT /v1/skills/{skill}/file", p: "make-report", body: `{"path":"requirements.txt","content":"# none"}`})
	c.gets(200, request{route: add, s: "s", p: "make-report"})
	c.gets(201, request{route: environment, s: "s", p: "make-report", body: `{"env":{"PIP_NO_INDEX":"1"},"timeout":"1m"}`})
	c.gets(200, request{route: environment, s: "s", p: "make-report", body: `{}`})
	c.gets(201, request{route: "PUT /v1/sessions/{id}/processes/{p}", s: "s", p: "sits", body: `{"argv":["sleep","1000"],"cwd":"/skills/make-report"}`})
	if p := c.refused(409, "", request{route: remove, s: "s", p: "make-report"}); len(p.Users) != 1 || p.Users[0].Path != "/skills/make-report" {
		c.t.Errorf("in use by %+v", p.Users)
	}
	c.refused(400, "force", request{route: remove, s: "s", p: "make-report", query: "force=maybe", odd: true})
	c.gets(204, request{route: remove, s: "s", p: "make-report", query: "force=true"})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}/processes/{p}", s: "s", p: "sits"})
	c.refused(404, "skill", request{route: remove, s: "s", p: "make-report"})
}

// imports imports skills from an archive and from the session s.
func (c *contract) imports() {
	const preview, install = "POST /v1/skills/preview", "POST /v1/skills/install"
	head := http.Header{"Content-Type": {"application/octet-stream"}}
	body := zipped("one", "two")
	var found api.SkillCandidates
	c.reads(c.gets(200, request{route: preview, body: body, head: head}), &found)
	if len(found.Candidates) != 2 || found.Candidates[0].Path != "one" || len(found.Candidates[0].Problems) != 0 {
		c.t.Errorf(`found = %+v, want len(found.Candidates) == 2 and found.Candidates[0].Path == "one" and len(found.Candidates[0].Problems) == 0`,
			found)
	}
	for _, route := range []string{preview, install} {
		c.refused(400, "archive", request{route: route, body: "no archive", head: head})
		c.refused(400, "replace", request{route: route, query: "replace=maybe", body: body, head: head, odd: true})
		c.refused(403, "url", request{route: route, query: "url=https%3A%2F%2Fgithub.com%2Fo%2Fr"})
		c.refused(404, "", request{route: route, query: "session=none&path=x"})
	}
	c.refused(400, "select", request{route: install, body: body, head: head})
	c.gets(200, request{route: install, query: "select=one,two&subdir=/", body: body, head: head})
	c.refused(409, "name", request{route: install, query: "select=one", body: body, head: head})
	c.gets(200, request{route: install, query: "select=one&replace=true&digest=" + found.Candidates[0].Skill.Digest, body: body, head: head})

	c.gets(200, request{route: "POST /v1/sessions/{id}/fs/write", s: "s", body: `{"path":"skills/mine/SKILL.md","content":"---\nname: mine\ndescription: Mine.\n---\n"}`})
	c.reads(c.gets(200, request{route: preview, query: "session=s&path=skills/mine"}), &found)
	if len(found.Candidates) != 1 || found.Candidates[0].Skill.Name != "mine" || len(found.Candidates[0].Problems) != 0 {
		c.t.Errorf(`found = %+v, want len(found.Candidates) == 1 and found.Candidates[0].Skill.Name == "mine" and len(found.Candidates[0].Problems) == 0`,
			found)
	}
	var made api.SkillList
	c.reads(c.gets(200, request{route: install, query: "session=s&path=/workspace/skills/mine"}), &made)
	if len(made.Skills) != 1 || made.Skills[0].Origin != "session s, /workspace/skills/mine" {
		c.t.Errorf(`made = %+v, want len(made.Skills) == 1 and made.Skills[0].Origin == "session s, /workspace/skills/mine"`,
			made)
	}
	c.gets(200, request{route: "POST /v1/sessions/{id}/fs/write", s: "s", body: `{"path":"skills/other/SKILL.md","content":"---\nname: mine\ndescription: Mine.\n---\n"}`})
	c.refused(400, "name", request{route: install, query: "session=s&path=skills/other"})
	for _, name := range []string{"one", "two", "mine"} {
		c.gets(204, request{route: "DELETE /v1/skills/{skill}", p: name})
	}
}

// fewSkills exceeds the limit of skills.
func (c *contract) fewSkills() {
	c.gets(201, request{route: "POST /v1/skills", body: `{"name":"a","description":"x"}`})
	if p := c.refused(429, "skill", request{route: "POST /v1/skills", body: `{"name":"b","description":"x"}`}); p.Denial == nil || p.Denial.Rule != "skills.max" {
		c.t.Errorf(`p = %+v, want p.Denial != nil and p.Denial.Rule == "skills.max"`, p)
	}
}
