// SPDX-License-Identifier: Apache-2.0

// This file is the part of the Go client about skills.

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

// Skills asks a boxd about skills: those of the caller, or of the owner that the client names.
type Skills struct{ *Client }

// path is that of a request; name is of a skill, "" where it is of none.
func (c Skills) path(name, rest string, query url.Values) string {
	p := "/v1/skills"
	if name != "" {
		p += "/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
	}
	if query == nil {
		query = url.Values{}
	}
	if c.Owner != "" {
		query.Set("owner", c.Owner)
	}
	if p += rest; len(query) > 0 {
		p += "?" + query.Encode()
	}
	return p
}

// askSkills makes a request and reads its answer.
func askSkills[Out any](ctx context.Context, c Skills, method, path string, in any) (out Out, err error) {
	_, err = c.Ask(ctx, method, path, in, &out)
	return out, err
}

// List lists all skills, the newest first, without their instructions.
func (c Skills) List(ctx context.Context) ([]api.Skill, error) {
	list, err := askSkills[api.SkillList](ctx, c, http.MethodGet, c.path("", "", nil), nil)
	return list.Skills, err
}

// Get describes a skill.
func (c Skills) Get(ctx context.Context, name string) (api.Skill, error) {
	if name == "" {
		return api.Skill{}, ErrNoID
	}
	return askSkills[api.Skill](ctx, c, http.MethodGet, c.path(name, "", nil), nil)
}

// Create makes a skill of texts.
func (c Skills) Create(ctx context.Context, req *api.SkillRequest) (api.Skill, error) {
	return askSkills[api.Skill](ctx, c, http.MethodPost, c.path("", "", nil), req)
}

// Change gives a skill other texts.
func (c Skills) Change(ctx context.Context, name string, req *api.SkillChange) (api.Skill, error) {
	return askSkills[api.Skill](ctx, c, http.MethodPatch, c.path(name, "", nil), req)
}

// Delete deletes a skill.
func (c Skills) Delete(ctx context.Context, name string) error {
	if name == "" {
		return ErrNoID
	}
	_, err := c.Ask(ctx, http.MethodDelete, c.path(name, "", nil), nil, nil)
	return err
}

// Index is a text for a prompt.
func (c Skills) Index(ctx context.Context, req *api.SkillIndexRequest) (api.SkillIndex, error) {
	return askSkills[api.SkillIndex](ctx, c, http.MethodPost, c.path("", "/index", nil), req)
}

// Files lists a directory of a skill; limit 0 is the usual one.
func (c Skills) Files(ctx context.Context, name, path string, hidden bool, limit int) (api.SkillEntries, error) {
	query := url.Values{"path": {path}, "hidden": {strconv.FormatBool(hidden)}}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return askSkills[api.SkillEntries](ctx, c, http.MethodGet, c.path(name, "/files", query), nil)
}

// ReadFile returns a file of a skill.
func (c Skills) ReadFile(ctx context.Context, name, path string) (api.SkillFile, error) {
	return askSkills[api.SkillFile](ctx, c, http.MethodGet, c.path(name, "/file", url.Values{"path": {path}}), nil)
}

// WriteFile makes a content that of a file of a skill.
func (c Skills) WriteFile(ctx context.Context, name string, req *api.SkillFileWrite) (api.Skill, error) {
	return askSkills[api.Skill](ctx, c, http.MethodPut, c.path(name, "/file", nil), req)
}

// RemoveFile removes a file or directory of a skill. ifMatch is the digest that it must have, "" any.
func (c Skills) RemoveFile(ctx context.Context, name, path, ifMatch string) (api.Skill, error) {
	query := url.Values{"path": {path}}
	if ifMatch != "" {
		query.Set("if_match", ifMatch)
	}
	return askSkills[api.Skill](ctx, c, http.MethodDelete, c.path(name, "/file", query), nil)
}

// Import says where skills come from and which of them are meant.
type Import struct {
	Archive       io.Reader // zip, or tar that may be compressed by gzip; nil: one of the others
	URL           string    // of an archive, or of a page at GitHub, GitLab or Gitea
	Session, Path string    // a directory of a session
	Subdir        string    // where in it to look
	Select        []string  // paths of those that are meant; none: the only one there is
	Replace       bool      // skills of the same names
	Digest        string    // that the skill must have; "": any
}

func (i *Import) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"url": i.URL, "session": i.Session, "path": i.Path, "subdir": i.Subdir, "select": strings.Join(i.Select, ","), "digest": i.Digest,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if i.Replace {
		q.Set("replace", "true")
	}
	return q
}

// Preview tells what could be installed, and what is wrong with it.
func (c Skills) Preview(ctx context.Context, from *Import) ([]api.SkillCandidate, error) {
	list, err := askSkills[api.SkillCandidates](ctx, c, http.MethodPost, c.path("", "/preview", from.query()), body(from))
	return list.Candidates, err
}

// Install makes skills of what is chosen: all of it or nothing.
func (c Skills) Install(ctx context.Context, from *Import) ([]api.Skill, error) {
	list, err := askSkills[api.SkillList](ctx, c, http.MethodPost, c.path("", "/install", from.query()), body(from))
	return list.Skills, err
}

func body(from *Import) any {
	if from.Archive == nil {
		return nil
	}
	return from.Archive
}

// Activate gives a session a skill, as it is now; isNew is false if it had one of that name.
func (c Skills) Activate(ctx context.Context, session, name string) (k api.SessionSkill, isNew bool, err error) {
	status, err := c.About(ctx, http.MethodPut, session, active(name), nil, &k)
	return k, status == http.StatusCreated, err
}

// Deactivate takes a skill from a session. One in use is refused, and mounts.UsersOf tells who uses it; with force, what
// is open of it stays open.
func (c Skills) Deactivate(ctx context.Context, session, name string, force bool) error {
	path := active(name)
	if force {
		path += "?force=true"
	}
	_, err := c.About(ctx, http.MethodDelete, session, path, nil, nil)
	return err
}

// Environment makes the virtual environment of a skill that a session has, unless it is there: programs of the session
// find it at its path. nil asks for nothing more.
func (c Skills) Environment(ctx context.Context, session, name string, req *api.SkillEnvironmentRequest) (e api.SkillEnvironment, err error) {
	if req == nil {
		req = &api.SkillEnvironmentRequest{}
	}
	_, err = c.About(ctx, http.MethodPost, session, active(name)+"/environment", req, &e)
	return e, err
}

func active(name string) string {
	return "/skills/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}
