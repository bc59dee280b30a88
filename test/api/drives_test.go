// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"strings"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// tarred returns an archive of a file with a content.
func tarred(content string) string {
	return string(boxtest.Tar(0o644, map[string]string{"dir/file": content}))
}

// drives tests everything that can be done with drives; some content comes from the session s, which also gets one.
func (c *contract) drives() {
	const all, one, fill, push = "/v1/drives", "/v1/drives/{drive}", "POST /v1/drives/{drive}/versions", "POST /v1/drives/{drive}/pushed"
	const name = "me/data"
	head := http.Header{"Content-Type": {"application/x-tar"}}
	var v api.DriveVersion
	c.reads(c.gets(201, request{route: fill, p: name, query: "if_version=0", body: tarred("1"), head: head}), &v)
	if v.Version != 1 || v.Bytes != 1 || v.Entries != 2 || !strings.HasPrefix(v.Digest, "sha256:") {
		c.t.Errorf(`v = %+v, want v.Version == 1 and v.Bytes == 1 and v.Entries == 2 and v.Digest starting with "sha256:"`,
			v)
	}
	c.gets(200, request{route: fill, p: name, body: tarred("1"), head: head})
	c.refused(409, "if_version", request{route: fill, p: name, query: "if_version=7", body: tarred("2"), head: head})
	c.refused(400, "archive", request{route: fill, p: name, body: "no archive", head: head})
	c.refused(400, "drive", request{route: fill, p: "../x", body: tarred("2"), head: head})
	c.refused(400, "into", request{route: fill, p: name, query: "into=../x", body: tarred("2"), head: head})
	c.refused(400, "add", request{route: fill, p: name, query: "add=maybe", body: tarred("2"), head: head, odd: true})
	c.refused(400, "output_version", request{route: fill, p: name, query: "output_version=v1", body: tarred("2"), head: head})
	c.refused(400, "path", request{route: fill, p: name, query: "session=s"})
	c.refused(404, "", request{route: fill, p: name, query: "session=none&path=x"})
	c.gets(200, request{route: "POST /v1/sessions/{id}/fs/write", s: "s", body: `{"path":"made/file","content":"x"}`})
	c.reads(c.gets(201, request{route: fill, p: name, query: "session=s&path=made&add=true"}), &v)
	if v.Version != 2 || v.Entries != 3 || v.Origin != "session s, made" {
		c.t.Errorf(`v = %+v, want v.Version == 2 and v.Entries == 3 and v.Origin == "session s, made"`, v)
	}
	var x api.DriveIndex
	c.reads(c.gets(200, request{route: "GET " + one + "/index", p: name, query: "version=2&prefix=d&offset=1&limit=1"}), &x)
	if len(x.Entries) != 1 || x.Entries[0].Path != "dir/file" || x.Next != 0 {
		c.t.Errorf(`x = %+v, want len(x.Entries) == 1 and x.Entries[0].Path == "dir/file" and x.Next == 0`, x)
	}
	c.refused(400, "limit", request{route: "GET " + one + "/index", p: name, query: "limit=1001", odd: true})
	var text api.DriveText
	c.reads(c.gets(200, request{route: "GET " + one + "/text", p: name}), &text)
	if !strings.Contains(text.Text, `location="/drives/me/data"`) {
		c.t.Errorf("text = %+v, want text.Text containing `location=\"/drives/me/data\"`", text)
	}
	c.refused(400, "bytes", request{route: "GET " + one + "/text", p: name, query: "bytes=1", odd: true})
	if a := c.gets(200, request{route: "GET " + one + "/archive", p: name, query: "version=1"}); !strings.Contains(string(a.Body), "dir/file") {
		c.t.Errorf(`a.Body = %q, want a.Body containing "dir/file"`, a.Body)
	}
	for _, rest := range []string{"/index", "/text", "/archive"} {
		c.refused(404, "version", request{route: "GET " + one + rest, p: name, query: "version=7"})
		c.refused(400, "version", request{route: "GET " + one + rest, p: name, query: "version=x", odd: true})
	}

	var d api.Drive
	c.reads(c.gets(200, request{route: "PATCH " + one, p: name, body: `{"keep_versions":5,"keep_age":"1h","push":true}`}), &d)
	if d.KeepVersions == nil || *d.KeepVersions != 5 || d.KeepAge == nil || !d.Push || len(d.Versions) != 2 {
		c.t.Errorf("d = %+v, want d.KeepVersions != nil and *d.KeepVersions == 5 and d.KeepAge != nil and d.Push == true and len(d.Versions) == 2",
			d)
	}
	c.refused(400, "keep_versions", request{route: "PATCH " + one, p: name, body: `{"keep_versions":-1}`})
	c.refused(404, "drive", request{route: "PATCH " + one, p: "me/none", body: `{"push":true}`})
	c.reads(c.gets(200, request{route: push, p: name, body: `{"version":1}`}), &d)
	if d.Versions[0].PushedAt.IsZero() || !d.Versions[1].PushedAt.IsZero() {
		c.t.Errorf("d = %+v, want not d.Versions[0].PushedAt.IsZero() and d.Versions[1].PushedAt.IsZero()", d)
	}
	c.refused(400, "version", request{route: push, p: name, body: `{"version":0}`})
	c.refused(404, "version", request{route: push, p: name, body: `{"version":7}`})
	var list api.DriveList
	c.reads(c.gets(200, request{route: "GET " + all}), &list)
	if len(list.Drives) != 1 {
		c.t.Errorf("list = %+v, want len(list.Drives) == 1", list)
	}
	c.refused(403, "owner", request{route: "GET " + all, query: "owner=uid%3A0", uid: boxtest.OtherUID})
	c.refused(404, "drive", request{route: "GET " + one, p: name, uid: boxtest.OtherUID})

	c.drivesOfSessions(name)
	c.refused(400, "version", request{route: "DELETE " + one, p: name, query: "version=x", odd: true})
	c.gets(204, request{route: "DELETE " + one, p: name, query: "version=1"})
	c.gets(200, request{route: "GET " + one, p: name})
	c.gets(204, request{route: "DELETE " + one, p: name})
	c.refused(404, "drive", request{route: "DELETE " + one, p: name})
}

// drivesOfSessions adds a drive to a session, and removes it.
func (c *contract) drivesOfSessions(name string) {
	const add, remove, one = "PUT /v1/sessions/{id}/drives/{drive}", "DELETE /v1/sessions/{id}/drives/{drive}", "/v1/drives/{drive}"
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"driven"}`})
	c.refused(404, "drive", request{route: remove, s: "driven", p: name})
	var k api.SessionDrive
	c.reads(c.gets(201, request{route: add, s: "driven", p: name, query: "version=1"}), &k)
	if k.Target != "/drives/me/data" || k.Version != 1 || strings.Join(k.Attributes, ",") != "ro,nosuid,nodev,nosymfollow" {
		c.t.Errorf(`k = %+v, want k.Target == "/drives/me/data" and k.Version == 1 and strings.Join(k.Attributes, ",") == "ro,nosuid,nodev,nosymfollow"`,
			k)
	}
	c.refused(400, "version", request{route: add, s: "driven", p: name, query: "version=x", odd: true})
	c.refused(404, "drive", request{route: add, s: "driven", p: "me/none"})
	c.gets(201, request{route: "PUT /v1/sessions/{id}/processes/{p}", s: "driven", p: "sits", body: `{"argv":["sleep","1000"],"cwd":"/drives/me/data"}`})
	c.refused(409, "", request{route: remove, s: "driven", p: name})
	c.reads(c.gets(200, request{route: add, s: "driven", p: name}), &k)
	if k.Version != 2 || k.Earlier != 1 {
		c.t.Errorf("k = %+v, want k.Version == 2 and k.Earlier == 1", k)
	}
	c.refused(400, "force", request{route: remove, s: "driven", p: name, query: "force=maybe", odd: true})
	c.gets(204, request{route: remove, s: "driven", p: name, query: "force=true"})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}/processes/{p}", s: "driven", p: "sits"})
	c.refused(409, "drive", request{route: "DELETE " + one, p: name})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "driven"})
	var s api.Session
	c.reads(c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"reads","drives":["me/data@2"]}`}), &s)
	if len(s.Drives) != 1 || s.Drives[0].Version != 2 {
		c.t.Errorf("s.Drives = %+v, want len(s.Drives) == 1 and s.Drives[0].Version == 2", s.Drives)
	}
	c.refused(404, "drive", request{route: "POST /v1/sessions", body: `{"id":"other","drives":["me/none"]}`})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "reads"})
}

// fewDrives exceeds the limit of drives.
func (c *contract) fewDrives() {
	c.refused(429, "drive", request{route: "POST /v1/drives/{drive}/versions", p: "me/data", body: tarred("1"), head: http.Header{"Content-Type": {"application/x-tar"}}})
}
