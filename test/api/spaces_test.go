// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"slices"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// spaces tests named workspaces.
func (c *contract) spaces() {
	const all, one = "/v1/workspaces", "/v1/workspaces/{workspace}"
	var w api.Workspace
	c.reads(c.gets(201, request{route: "POST " + all, body: `{"name":"project","quota":"8MiB","inodes":1000}`}), &w)
	if w.Name != "project" || w.Owner != "uid:0" || w.Quota != 8<<20 || w.Inodes != 1000 || len(w.Sessions) != 0 {
		c.t.Errorf(`w = %+v, want w.Name == "project" and w.Owner == "uid:0" and w.Quota == 8 << 20 and w.Inodes == 1000 and len(w.Sessions) == 0`,
			w)
	}
	c.refused(409, "name", request{route: "POST " + all, body: `{"name":"project"}`})
	c.refused(400, "name", request{route: "POST " + all, body: `{"name":"../project"}`})
	c.refused(400, "quota", request{route: "POST " + all, body: `{"name":"other","quota":"1KiB"}`})
	c.refused(400, "inodes", request{route: "POST " + all, body: `{"name":"other","inodes":1}`})
	c.refused(400, "colour", request{route: "POST " + all, body: `{"name":"other","colour":"red"}`, odd: true})
	var s api.Session
	c.reads(c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"lent","workspace":"project"}`}), &s)
	if s.WorkspaceName != "project" || s.WorkspaceQuota != 8<<20 {
		c.t.Errorf(`s = %+v, want s.WorkspaceName == "project" and s.WorkspaceQuota == 8 << 20`, s)
	}
	c.refused(404, "workspace", request{route: "POST /v1/sessions", body: `{"id":"other","workspace":"none"}`})
	c.refused(409, "name", request{route: "DELETE " + one, p: "project"})
	c.reads(c.gets(200, request{route: "GET " + one, p: "project"}), &w)
	if !slices.Equal(w.Sessions, []string{"lent"}) {
		c.t.Errorf(`w = %+v, want w.Sessions == []string{"lent"}`, w)
	}
	c.reads(c.gets(200, request{route: "PATCH " + one, p: "project", body: `{"quota":"16MiB"}`}), &w)
	if w.Quota != 16<<20 || w.Inodes != 1000 || !slices.Equal(w.Sessions, []string{"lent"}) {
		c.t.Errorf(`w = %+v, want w.Quota == 16 << 20 and w.Inodes == 1000 and w.Sessions == []string{"lent"}`, w)
	}
	c.refused(400, "quota", request{route: "PATCH " + one, p: "project", body: `{"quota":"0"}`})
	c.refused(400, "quota", request{route: "PATCH " + one, p: "project", body: `{"quota":"1KiB"}`})
	c.refused(400, "inodes", request{route: "PATCH " + one, p: "project", body: `{"inodes":1}`})
	c.refused(404, "name", request{route: "PATCH " + one, p: "project", body: `{"quota":"1GiB"}`, uid: boxtest.OtherUID})
	c.gets(201, request{route: "POST " + all, body: `{"name":"unbounded","quota":"0"}`})
	c.refused(409, "quota", request{route: "PATCH " + one, p: "unbounded", body: `{"quota":"16MiB"}`})
	c.gets(204, request{route: "DELETE " + one, p: "unbounded"})
	c.refused(404, "name", request{route: "GET " + one, p: "project", uid: boxtest.OtherUID})
	c.refused(403, "owner", request{route: "GET " + all, query: "owner=uid%3A0", uid: boxtest.OtherUID})
	var list api.WorkspaceList
	c.reads(c.gets(200, request{route: "GET " + all}), &list)
	if len(list.Workspaces) != 1 {
		c.t.Errorf("list = %+v, want len(list.Workspaces) == 1", list)
	}
	const keep = "POST /v1/sessions/{id}/keep"
	c.refused(409, "workspace", request{route: keep, s: "lent", body: `{"workspace":"more"}`})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "lent"})
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"own"}`})
	c.refused(409, "name", request{route: keep, s: "own", body: `{"workspace":"project"}`})
	c.refused(400, "workspace", request{route: keep, s: "own", body: `{"workspace":"../project"}`})
	c.refused(404, "", request{route: keep, s: "own", body: `{"workspace":"kept"}`, uid: boxtest.OtherUID})
	c.reads(c.gets(201, request{route: keep, s: "own", body: `{"workspace":"kept"}`}), &w)
	if w.Name != "kept" || w.Owner != "uid:0" || len(w.Sessions) != 0 {
		c.t.Errorf(`w = %+v, want w.Name == "kept" and w.Owner == "uid:0" and len(w.Sessions) == 0`, w)
	}
	c.refused(404, "", request{route: keep, s: "own", body: `{"workspace":"kept"}`})
	c.gets(204, request{route: "DELETE " + one, p: "kept"})
	c.gets(204, request{route: "DELETE " + one, p: "project"})
	c.refused(404, "name", request{route: "DELETE " + one, p: "project"})
}

// fewSpaces exceeds the limit of workspaces.
func (c *contract) fewSpaces() {
	c.refused(429, "", request{route: "POST /v1/workspaces", body: `{"name":"project"}`})
	c.refused(429, "", request{route: "POST /v1/sessions/{id}/keep", s: "t", body: `{"workspace":"project"}`})
}
