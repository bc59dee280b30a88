// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// skills returns a route that names no skill.
func (c *Client) skills(rest string, query url.Values) target {
	return c.owned(target{path: "/v1/skills" + rest}, query)
}

func (c *Client) skill(name, rest string, query url.Values) target {
	return c.owned(about("/v1/skills", name, rest), query)
}

// Skills lists all skills of the caller, the newest first, without their instructions.
func (c *Client) Skills(ctx context.Context) ([]api.Skill, error) {
	list, err := request[api.SkillList](ctx, c, http.MethodGet, c.skills("", nil), nil)
	return list.Skills, err
}

// Skill describes a skill.
func (c *Client) Skill(ctx context.Context, name string) (api.Skill, error) {
	return request[api.Skill](ctx, c, http.MethodGet, c.skill(name, "", nil), nil)
}

// CreateSkill makes a skill of texts.
func (c *Client) CreateSkill(ctx context.Context, req *api.SkillRequest) (api.Skill, error) {
	return request[api.Skill](ctx, c, http.MethodPost, c.skills("", nil), req)
}

// ChangeSkill replaces texts of a skill.
func (c *Client) ChangeSkill(ctx context.Context, name string, req *api.SkillChange) (api.Skill, error) {
	return request[api.Skill](ctx, c, http.MethodPatch, c.skill(name, "", nil), req)
}

// DeleteSkill deletes a skill.
func (c *Client) DeleteSkill(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, c.skill(name, "", nil), nil, nil)
	return err
}

// SkillIndex returns a skill index for a prompt.
func (c *Client) SkillIndex(ctx context.Context, req *api.SkillIndexRequest) (api.SkillIndex, error) {
	return request[api.SkillIndex](ctx, c, http.MethodPost, c.skills("/index", nil), req)
}

// SkillFiles lists a directory of a skill; limit 0 means the default.
func (c *Client) SkillFiles(ctx context.Context, name, path string, hidden bool, limit int) (api.SkillEntries, error) {
	query := url.Values{"path": {path}, "hidden": {strconv.FormatBool(hidden)}}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return request[api.SkillEntries](ctx, c, http.MethodGet, c.skill(name, "/files", query), nil)
}

// ReadSkillFile returns a file of a skill.
func (c *Client) ReadSkillFile(ctx context.Context, name, path string) (api.SkillFile, error) {
	return request[api.SkillFile](ctx, c, http.MethodGet, c.skill(name, "/file", url.Values{"path": {path}}), nil)
}

// WriteSkillFile writes a file of a skill.
func (c *Client) WriteSkillFile(ctx context.Context, name string, req *api.SkillFileWrite) (api.Skill, error) {
	return request[api.Skill](ctx, c, http.MethodPut, c.skill(name, "/file", nil), req)
}

// RemoveSkillFile removes a file or directory of a skill. ifMatch is the digest that it must have, "" for any.
func (c *Client) RemoveSkillFile(ctx context.Context, name, path, ifMatch string) (api.Skill, error) {
	query := queryOf("if_match", ifMatch)
	query.Set("path", path)
	return request[api.Skill](ctx, c, http.MethodDelete, c.skill(name, "/file", query), nil)
}

// SkillImport is a source of skills, and the selection of them.
type SkillImport struct {
	Archive       io.Reader // zip, or tar, optionally with gzip; nil: another source
	URL           string    // of an archive, or of a page at GitHub, GitLab or Gitea
	Session, Path string    // a directory of a session
	Subdir        string    // where to look in it
	Select        []string  // paths of the chosen skills; none: the only one there is
	Replace       bool      // existing skills of the same names
	Digest        string    // that the skill must have; "": any
}

func (i *SkillImport) query() url.Values {
	return queryOf("url", i.URL, "session", i.Session, "path", i.Path, "subdir", i.Subdir, "select", strings.Join(i.Select, ","),
		"digest", i.Digest, "replace", yes(i.Replace))
}

// PreviewSkills returns what could be installed, and what is wrong with it.
func (c *Client) PreviewSkills(ctx context.Context, from *SkillImport) ([]api.SkillCandidate, error) {
	list, err := request[api.SkillCandidates](ctx, c, http.MethodPost, c.skills("/preview", from.query()), archiveBody(from.Archive))
	return list.Candidates, err
}

// InstallSkills installs the chosen skills: all or none.
func (c *Client) InstallSkills(ctx context.Context, from *SkillImport) ([]api.Skill, error) {
	list, err := request[api.SkillList](ctx, c, http.MethodPost, c.skills("/install", from.query()), archiveBody(from.Archive))
	return list.Skills, err
}

// ActivateSkill adds the current version of a skill to a session; isNew is false if it had one of that name.
func (c *Client) ActivateSkill(ctx context.Context, session, name string) (k api.SessionSkill, isNew bool, err error) {
	return requestNew[api.SessionSkill](ctx, c, http.MethodPut, c.session(session, "/skills/"+segment(name), nil), nil)
}

// DeactivateSkill removes a skill from a session. One in use is refused, and MountUsersOf lists its users; with force,
// files that are open in it stay open.
func (c *Client) DeactivateSkill(ctx context.Context, session, name string, force bool) error {
	return c.unmount(ctx, session, "/skills/"+segment(name), queryOf("force", yes(force)))
}

// MakeSkillEnvironment makes the virtual environment of a skill of a session, unless it exists: programs of the session
// find it at its path. A nil request means the defaults.
func (c *Client) MakeSkillEnvironment(ctx context.Context, session, name string, req *api.SkillEnvironmentRequest) (api.SkillEnvironment, error) {
	if req == nil {
		req = &api.SkillEnvironmentRequest{}
	}
	to := c.session(session, "/skills/"+segment(name)+"/environment", nil)
	return request[api.SkillEnvironment](ctx, c, http.MethodPost, to, req)
}
