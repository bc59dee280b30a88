// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"io"
	base "path"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// staged unpacks the archive of a request and runs do on it.
func staged(c *Call, do func(st *skills.Stage, owner string, choice *skills.Choice) (any, error)) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	choice := &skills.Choice{Subdir: query.Get("subdir"), Digest: query.Get("digest")}
	if text := query.Get("select"); text != "" {
		choice.Paths = strings.Split(text, ",")
	}
	if choice.Replace, err = queryFlag(query, "replace"); err != nil {
		return nil, err
	}
	st, err := c.Skills.Stage(c.Context(), owner.Name)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if err := fill(c, owner, st, choice); err != nil {
		return nil, err
	}
	return do(st, owner.Name, choice)
}

// fill gets the archive from the source that the request names.
func fill(c *Call, owner access.Principal, st *skills.Stage, choice *skills.Choice) error {
	query := c.R.URL.Query()
	from, session := query.Get("url"), query.Get("session")
	switch {
	case from != "" && session != "":
		return fault.Field("session", session, "left out with url")
	case session != "":
		return fillFromSession(c, owner, st, choice, session, query.Get("path"))
	case query.Has("path"):
		return fault.Field("path", query.Get("path"), "left out without a session")
	case from == "":
		return st.Fill(conns.ArchiveBody(c.W, c.R), "")
	}
	hosts, err := c.Skills.Hosts()
	if err != nil {
		return err
	}
	a, err := skills.FindArchive(hosts, from)
	if err != nil {
		return err
	}
	choice.Origin, choice.AnyTop = from, a.Repository
	choice.Subdir = cmp.Or(choice.Subdir, a.Below)
	below := ""
	if a.Repository {
		below = strings.Trim(choice.Subdir, "/")
	}
	return skills.Fetch(c.Context(), hosts, a, func(r io.Reader) error { return st.Fill(r, below) })
}

// fillFromSession fills a stage with a directory of a session, which is packed inside its box.
func fillFromSession(c *Call, owner access.Principal, st *skills.Stage, choice *skills.Choice, id, path string) error {
	if path == "" {
		return fault.Field("path", fault.Word("missing"), "a directory of the session")
	}
	s, err := c.Sup.Session(owner, id)
	if err != nil {
		return err
	}
	choice.Origin, choice.Dir = "session "+id+", "+path, base.Base(path)
	return packed(c.Context(), s, path, func(r io.Reader) error { return st.Fill(r, "") })
}

// previewSkills returns what could be installed, and what is wrong with it.
func previewSkills(c *Call) (any, error) {
	return staged(c, func(st *skills.Stage, _ string, choice *skills.Choice) (any, error) {
		found, err := st.Candidates(choice)
		if err != nil {
			return nil, err
		}
		out := api.SkillCandidates{Candidates: []api.SkillCandidate{}}
		for _, x := range found {
			a := api.SkillCandidate{Path: cmp.Or(x.Path, "."), Skill: api.SkillDraft{
				Name: x.Skill.Name, Description: x.Skill.Description, Instructions: x.Skill.Instructions, Digest: x.Skill.Digest,
				Bytes: x.Skill.Bytes, Entries: x.Skill.Entries, Advice: x.Skill.Advice,
			}}
			for _, p := range x.Problems {
				a.Problems = append(a.Problems, api.SkillProblem{Key: p.Key, Text: p.Text})
			}
			out.Candidates = append(out.Candidates, a)
		}
		return out, nil
	})
}

// installSkills installs the chosen skills: all or none.
func installSkills(c *Call) (any, error) {
	return staged(c, func(st *skills.Stage, owner string, choice *skills.Choice) (any, error) {
		installed, err := st.Install(owner, choice)
		if err != nil {
			return nil, err
		}
		list := api.SkillList{Skills: []api.Skill{}}
		for _, k := range installed {
			k.Instructions = ""
			list.Skills = append(list.Skills, skill(&k))
		}
		return list, nil
	})
}
