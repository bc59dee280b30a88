// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/skills"
)

// Limit of bodies, in bytes: a content of 1 MiB may be longer as JSON.
const maxSkillBody = 8 << 20

const defaultSkillEntries = 200

// listSkills lists the caller's skills and the built-in ones.
func listSkills(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	list := api.SkillList{Skills: []api.Skill{}}
	for _, k := range c.Skills.List(owner.Name) {
		list.Skills = append(list.Skills, skill(&k))
	}
	return list, nil
}

// getSkill describes a skill.
func getSkill(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	k, err := c.Skills.Get(owner.Name, c.Path.Skill)
	if err != nil {
		return nil, err
	}
	return skill(&k), nil
}

// createSkill makes a skill of texts.
func createSkill(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.SkillRequest
	if err := c.decodeBody(&in, maxSkillBody); err != nil {
		return nil, err
	}
	k, err := c.Skills.Create(owner.Name, in.Name, &skills.Texts{
		DisplayName: &in.DisplayName, Description: &in.Description, Instructions: &in.Instructions, License: &in.License,
		Needs: &in.Compatibility, AllowedTools: &in.AllowedTools, Metadata: in.Metadata,
	}, skills.Strict)
	if err != nil {
		return nil, err
	}
	return Created{Body: skill(&k)}, nil
}

// changeSkill replaces texts of a skill.
func changeSkill(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.SkillChange
	if err := c.decodeBody(&in, maxSkillBody); err != nil {
		return nil, err
	}
	k, err := c.Skills.Update(owner.Name, c.Path.Skill, &skills.Texts{
		DisplayName: in.DisplayName, Description: in.Description, Instructions: in.Instructions, License: in.License,
		Needs: in.Compatibility, AllowedTools: in.AllowedTools, Metadata: in.Metadata,
	}, in.IfMatch, skills.Strict)
	if err != nil {
		return nil, err
	}
	return skill(&k), nil
}

// deleteSkill deletes a skill.
func deleteSkill(c *Call) (any, error) {
	owner, err := c.Owner()
	if err == nil {
		err = c.Skills.Delete(owner.Name, c.Path.Skill)
	}
	if err != nil {
		return nil, err
	}
	return noContent{}, nil
}

// indexSkills returns a skill index for a prompt.
func indexSkills(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.SkillIndexRequest
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	all := c.Skills.List(owner.Name)
	var out api.SkillIndex
	if in.Names != nil {
		installed := map[string]skills.Skill{}
		for _, k := range all {
			installed[k.Name] = k
		}
		all = nil
		for _, name := range in.Names {
			if k, ok := installed[name]; ok {
				all = append(all, k)
				delete(installed, name)
			} else {
				out.Missing = append(out.Missing, name)
			}
		}
	}
	out.Text = skills.Prompt(all, in.Location)
	return out, nil
}

// listSkillFiles lists a directory of a skill.
func listSkillFiles(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	hidden, err := queryFlag(query, "hidden")
	if err != nil {
		return nil, err
	}
	limit := defaultSkillEntries
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return nil, fault.Field("limit", text, fmt.Sprintf("1 to %d", skills.MaxListed))
		}
	}
	at := cmp.Or(query.Get("path"), ".")
	list, more, err := c.Skills.Files(owner.Name, c.Path.Skill, at, hidden, limit)
	if err != nil {
		return nil, err
	}
	out := api.SkillEntries{Path: at, Entries: []api.SkillEntry{}, Truncated: more}
	for _, e := range list {
		x := api.SkillEntry{Path: e.Path, Name: e.Name, Type: "file", Size: e.Size, Executable: e.Program}
		if e.Dir {
			x.Type = "directory"
		}
		out.Entries = append(out.Entries, x)
	}
	return out, nil
}

// readSkillFile returns a file of a skill.
func readSkillFile(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	f, err := c.Skills.ReadFile(owner.Name, c.Path.Skill, c.R.URL.Query().Get("path"))
	if err != nil {
		return nil, err
	}
	out := api.SkillFile{Path: f.Path, Content: string(f.Data), Encoding: "utf-8", Executable: f.Program, Digest: f.Digest}
	if !utf8.Valid(f.Data) {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(f.Data), "base64"
	}
	return out, nil
}

// writeSkillFile writes a file of a skill.
func writeSkillFile(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.SkillFileWrite
	if err := c.decodeBody(&in, maxSkillBody); err != nil {
		return nil, err
	}
	f := skills.File{Path: in.Path, Data: []byte(in.Content), Program: in.Executable}
	switch in.Encoding {
	case "", "utf-8":
	case "base64":
		if f.Data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, fault.Field("content", fault.Word("no base64"), "base64 (see encoding)")
		}
	default:
		return nil, fault.Field("encoding", in.Encoding, "utf-8 or base64")
	}
	k, err := c.Skills.WriteFile(owner.Name, c.Path.Skill, &f, in.IfMatch, skills.Strict)
	if err != nil {
		return nil, err
	}
	return skill(&k), nil
}

// removeSkillFile removes a file or directory of a skill.
func removeSkillFile(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	k, err := c.Skills.RemoveFile(owner.Name, c.Path.Skill, query.Get("path"), query.Get("if_match"))
	if err != nil {
		return nil, err
	}
	return skill(&k), nil
}

func skill(k *skills.Skill) api.Skill {
	return api.Skill{
		Name: k.Name, DisplayName: k.DisplayName, Description: k.Description, License: k.License, Compatibility: k.Needs, AllowedTools: k.AllowedTools,
		Metadata: k.Metadata, Instructions: k.Instructions, EntryFile: k.Entry, Digest: k.Digest, Origin: k.Origin, Bytes: k.Bytes, Entries: k.Entries,
		Python: k.Python, BuiltIn: k.BuiltIn, CreatedAt: k.Created.UTC(), UpdatedAt: k.Updated.UTC(), Advice: k.Advice,
	}
}
