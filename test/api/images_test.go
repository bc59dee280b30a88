// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"slices"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// root returns a tar archive of a root directory with one file.
func root(content string) string {
	return string(boxtest.Tar(0o644, map[string]string{"etc/issue": content}))
}

func tarHead() http.Header { return http.Header{"Content-Type": {"application/x-tar"}} }

// images tests everything that can be done with images.
func (c *contract) images() {
	const all, one, prune = "/v1/images", "/v1/images/{image}", "POST /v1/images/prune"
	var img api.Image
	c.reads(c.gets(201, request{route: "POST " + all, query: "name=mine%3A1&form=rootfs", body: root("one"), head: tarHead()}), &img)
	if img.Name != "mine:1" || img.Form != "rootfs" || img.Layers != 1 || img.Entries != 2 {
		c.t.Errorf(`img = %+v, want img.Name == "mine:1" and img.Form == "rootfs" and img.Layers == 1 and img.Entries == 2`,
			img)
	}
	c.refused(400, "name", request{route: "POST " + all, query: "name=host", body: root("x"), head: tarHead()})
	c.refused(400, "name", request{route: "POST " + all, body: root("x"), head: tarHead()})
	c.refused(400, "form", request{route: "POST " + all, query: "name=x&form=iso", body: root("x"), head: tarHead(), odd: true})
	c.refused(400, "body", request{route: "POST " + all, query: "name=x", body: "nonsense", head: tarHead()})
	c.refused(403, "role", request{route: "POST " + all, query: "name=x", body: root("x"), head: tarHead(), uid: boxtest.OtherUID})
	c.refused(403, "role", request{route: prune, uid: boxtest.OtherUID})
	c.refused(403, "role", request{route: "DELETE " + one, p: "mine:1", uid: boxtest.OtherUID})
	var list api.ImageList
	c.reads(c.gets(200, request{route: "GET " + all, uid: boxtest.OtherUID}), &list)
	if len(list.Images) != 1 || list.Images[0].Digest != img.Digest {
		c.t.Errorf("list = %+v, want len(list.Images) == 1 and list.Images[0].Digest == %v", list, img.Digest)
	}
	c.gets(200, request{route: "GET " + one, p: "mine:1"})
	c.gets(200, request{route: "GET " + one, p: img.Digest})
	c.refused(404, "image", request{route: "GET " + one, p: "other:1"})
	c.refused(404, "image", request{route: "DELETE " + one, p: "other:1"})
	c.refused(400, "image", request{route: "POST /v1/sessions", body: `{"id":"of-none","image":"other:1"}`})
	c.refused(400, "image", request{route: "POST /v1/sessions", body: `{"id":"of-none","image":"../etc"}`})
	var made api.Session
	c.reads(c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"of-mine","image":"mine:1","read_only_root":false}`}), &made)
	if made.Image != "mine:1" || made.ReadOnlyRoot {
		c.t.Errorf(`made = %+v, want made.Image == "mine:1" and made.ReadOnlyRoot == false`, made)
	}
	const fs = "POST /v1/sessions/{id}/fs/"
	c.gets(200, request{route: fs + "write", s: "of-mine", body: `{"path":"/etc/motd","content":"hello"}`})
	c.gets(200, request{route: fs + "remove", s: "of-mine", body: `{"path":"/etc/issue"}`})
	var diff api.Changes
	c.reads(c.gets(200, request{route: fs + "diff", s: "of-mine", body: `{"limit":5}`}), &diff)
	if diff.Counts != (api.ChangeCounts{Created: 1, Removed: 1}) || diff.Created[0].Path != "/etc/motd" || diff.Removed[0].Path != "/etc/issue" {
		c.t.Errorf(`diff = %+v, want diff.Counts == api.ChangeCounts{Created: 1, Removed: 1} and diff.Created[0].Path == "/etc/motd" and diff.Removed[0].Path == "/etc/issue"`,
			diff)
	}
	discard := fs + "discard"
	var done api.RootDiscarded
	c.reads(c.gets(200, request{route: discard, s: "of-mine", body: `{"paths":["/etc/motd"]}`}), &done)
	c.refused(400, "", request{route: discard, s: "of-mine", body: `{"paths":["etc"]}`})
	c.refused(404, "", request{route: discard, s: "none", body: `{}`})
	c.refused(409, "", request{route: discard, s: "s", body: `{}`})
	c.reads(c.gets(200, request{route: fs + "diff", s: "of-mine", body: `{}`}), &diff)
	if done.Removed != 1 || diff.Counts != (api.ChangeCounts{Removed: 1}) {
		c.t.Errorf("done = %+v, diff = %+v, want done.Removed == 1 and diff.Counts == api.ChangeCounts{Removed: 1}",
			done, diff)
	}
	c.gets(200, request{route: fs + "write", s: "of-mine", body: `{"path":"/etc/motd","content":"hello"}`})
	const commit = "POST /v1/sessions/{id}/commit"
	c.reads(c.gets(201, request{route: commit, s: "of-mine", body: `{"name":"mine:2","env":{"A":"b"},"cmd":["sh"],"working_dir":"/srv"}`}), &img)
	if img.Name != "mine:2" || img.Form != "commit" || img.Entries != 4 || img.Config.WorkingDir != "/srv" || !slices.Equal(img.Config.Env, []string{"A=b"}) || !slices.Equal(img.Config.Cmd, []string{"sh"}) {
		c.t.Errorf("img = %+v", img)
	}
	c.refused(400, "name", request{route: commit, s: "of-mine", body: `{"name":"host"}`})
	c.refused(400, "working_dir", request{route: commit, s: "of-mine", body: `{"name":"x","working_dir":"srv"}`})
	c.refused(400, "env", request{route: commit, s: "of-mine", body: `{"name":"x","env":{"":"b"}}`})
	c.refused(403, "role", request{route: commit, s: "of-mine", body: `{"name":"x"}`, uid: boxtest.OtherUID})
	c.refused(404, "", request{route: commit, s: "none", body: `{"name":"x"}`})
	c.refused(409, "", request{route: commit, s: "s", body: `{"name":"x"}`})
	c.gets(204, request{route: "DELETE " + one, p: "mine:2"})
	c.refused(400, "limit", request{route: fs + "diff", s: "of-mine", body: `{"limit":-1}`, odd: true})
	c.refused(404, "", request{route: fs + "diff", s: "none", body: `{}`})
	c.refused(409, "", request{route: fs + "diff", s: "s", body: `{}`})
	c.reads(c.gets(200, request{route: prune}), &list)
	if len(list.Images) != 0 {
		c.t.Errorf("pruned while a session has it: list = %+v, want len(list.Images) == 0", list)
	}
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "of-mine"})
	c.gets(201, request{route: "POST " + all, query: "name=other%3A1", body: root("two"), head: tarHead()})
	c.gets(204, request{route: "DELETE " + one, p: "other:1"})
	c.reads(c.gets(200, request{route: prune}), &list)
	if len(list.Images) != 1 || list.Images[0].Name != "mine:1" {
		c.t.Errorf("pruned %+v", list)
	}
}

// fewImages exceeds the limit of images by one.
func (c *contract) fewImages() {
	c.gets(201, request{route: "POST /v1/images", query: "name=a", body: root("a"), head: tarHead()})
	c.refused(429, "", request{route: "POST /v1/images", query: "name=b", body: root("b"), head: tarHead()})
	c.gets(201, request{route: "POST /v1/images", query: "name=a", body: root("c"), head: tarHead()})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "t"})
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"of-a","image":"a","read_only_root":false}`})
	c.refused(429, "", request{route: "POST /v1/sessions/{id}/commit", s: "of-a", body: `{"name":"b"}`})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "of-a"})
}
