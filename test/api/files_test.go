// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"archive/tar"
	"bytes"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

// files tests all file operations, in the session s.
func (c *contract) files() {
	const fs = "POST /v1/sessions/{id}/fs/"
	for _, name := range []string{"f", "dir/g"} {
		c.gets(200, request{route: fs + "write", s: "s", body: `{"path":"` + name + `","content":"one\ntwo\n","permissions":"0600"}`})
	}
	c.gets(200, request{route: fs + "read", s: "s", body: `{"path":"f","digest":true}`})
	c.gets(200, request{route: fs + "read", s: "s", body: `{"path_base64":"Zg==","byte_offset":2,"encoding":"base64"}`})
	c.gets(200, request{route: fs + "edit", s: "s", body: `{"path":"f","edits":[{"old":"two","new":"2"},{"old":"\n","new":";","all":true}]}`})
	c.gets(200, request{route: fs + "glob", s: "s", body: `{"pattern":"**/g"}`})
	c.gets(200, request{route: fs + "grep", s: "s", body: `{"pattern":"t.o","include":["g"],"before":1,"after":1}`})
	c.gets(200, request{route: fs + "list", s: "s", body: `{"depth":2}`})
	c.gets(200, request{route: fs + "stat", s: "s", body: `{"path":"f"}`})
	c.gets(200, request{route: fs + "move", s: "s", body: `{"from":"f","to":"h"}`})
	c.gets(200, request{route: fs + "move", s: "s", body: `{"from":"h","to":"f"}`})
	c.gets(200, request{route: fs + "remove", s: "s", body: `{"path":"h","missing_ok":true}`})
	c.gets(200, request{route: fs + "chmod", s: "s", body: `{"path":"f","mode":"640"}`})
	c.gets(200, request{route: fs + "write", s: "s", body: `{"path":"attributed","content":"","xattrs_prefix":"user.app."}`})
	c.gets(200, request{route: fs + "stat", s: "s", body: `{"path":"/etc/mtab","no_follow":true,"xattrs":true}`})
	c.gets(200, request{route: fs + "mkdir", s: "s", body: `{"path":"made/dir","mode":"0700"}`})
	c.gets(200, request{route: fs + "mkdir", s: "s", body: `{"path_base64":"bWFkZQ==","exist_ok":true}`})
	for verb, bodies := range map[string]struct{ wrong, field, missing, conflict string }{
		"read":   {`{"path":"f","max_bytes":-1}`, "max_bytes", `{"path":"none"}`, `{"path":"dir"}`},
		"write":  {`{"path":"f","content":"","mode":"twice"}`, "mode", `{"path":"none/x","content":"","no_parents":true}`, `{"path":"dir","content":""}`},
		"edit":   {`{"path":"f","edits":[]}`, "edits", `{"path":"none","edits":[{"old":"a","new":"b"}]}`, `{"path":"f","edits":[{"old":"absent","new":"b"}]}`},
		"glob":   {`{"pattern":"["}`, "pattern", `{"pattern":"*","path":"none"}`, `{"pattern":"*","path":"f"}`},
		"grep":   {`{"pattern":"("}`, "pattern", `{"pattern":"x","path":"none"}`, `{"pattern":"x","path":"f/x"}`},
		"list":   {`{"limit":-1}`, "limit", `{"path":"none"}`, `{"path":"f"}`},
		"stat":   {`{"path":"f","path_base64":"Zg=="}`, "path_base64", `{"path":"none"}`, `{"path":"f/x"}`},
		"move":   {`{"from":"f"}`, "to", `{"from":"none","to":"x"}`, `{"from":"f","to":"dir/g"}`},
		"remove": {`{}`, "path", `{"path":"none"}`, `{"path":"dir"}`},
		"mkdir":  {`{"path":"x","mode":"7777"}`, "mode", `{"path":"none/x","no_parents":true}`, `{"path":"dir"}`},
		"chmod":  {`{"path":"f","mode":"rwx"}`, "mode", `{"path":"none","mode":"755"}`, `{"path":"f/x","mode":"755"}`},
	} {
		c.refused(400, bodies.field, request{route: fs + verb, s: "s", body: bodies.wrong})
		c.refused(400, "colour", request{route: fs + verb, s: "s", body: `{"colour":"red"}`, odd: true})
		c.refused(404, "", request{route: fs + verb, s: "s", body: bodies.missing})
		c.refused(404, "", request{route: fs + verb, s: "none", body: bodies.missing})
		conflict := ""
		if verb == "edit" {
			conflict = "edits[0].old"
		}
		if p := c.refused(409, conflict, request{route: fs + verb, s: "s", body: bodies.conflict}); p.File == nil || p.File.Kind == "" {
			c.t.Errorf("%s: the problem %+v lacks the reason about the file", verb, p)
		}
	}
	c.archives()
	c.file()
	c.watched()
}

// file tests streaming a single file.
func (c *contract) file() {
	const get, put = "GET /v1/sessions/{id}/file", "PUT /v1/sessions/{id}/file"
	head := http.Header{"Content-Type": {"application/octet-stream"}}
	var w api.FileWritten
	c.reads(c.gets(200, request{route: put, s: "s", query: "path=streamed&permissions=0600&xattrs_prefix=user.app.", body: "0123456789", head: head}), &w)
	if w.File.Size != 10 || w.File.Mode != "0600" || !w.Created {
		c.t.Errorf(`w = %+v, want w.File.Size == 10 and w.File.Mode == "0600" and w.Created == true`, w)
	}
	if got := c.gets(200, request{route: get, s: "s", query: "path_base64=c3RyZWFtZWQ="}); string(got.Body) != "0123456789" {
		c.t.Errorf(`got.Body = %q, want got.Body == "0123456789"`, got.Body)
	}
	tag := c.gets(200, request{route: get, s: "s", query: "path=streamed"}).Header.Get("ETag")
	c.gets(304, request{route: get, s: "s", query: "path=streamed", head: http.Header{"If-None-Match": {tag}}})
	c.gets(412, request{route: get, s: "s", query: "path=streamed", head: http.Header{"If-Match": {`"other"`}}})
	if got := c.gets(206, request{route: get, s: "s", query: "path=streamed", head: http.Header{"Range": {"bytes=3-4"}}}); string(got.Body) != "34" {
		c.t.Errorf(`got.Body = %q, want got.Body == "34"`, got.Body)
	}
	c.refused(400, "path", request{route: get, s: "s"})
	c.refused(404, "", request{route: get, s: "s", query: "path=none"})
	c.refused(404, "", request{route: get, s: "none", query: "path=f"})
	c.refused(409, "", request{route: get, s: "s", query: "path=dir"})
	c.refused(400, "path", request{route: put, s: "s", body: "x", head: head})
	c.refused(400, "permissions", request{route: put, s: "s", query: "path=x&permissions=rw", body: "x", head: head})
	c.refused(400, "xattrs", request{route: put, s: "s", query: "path=x&xattrs_prefix=user.&xattrs=none", body: "x", head: head})
	c.refused(400, "no_parents", request{route: put, s: "s", query: "path=x&no_parents=maybe", body: "x", head: head, odd: true})
	c.refused(404, "", request{route: put, s: "s", query: "path=none/x&no_parents=true", body: "x", head: head})
	c.refused(404, "", request{route: put, s: "none", query: "path=x", body: "x", head: head})
	c.refused(409, "", request{route: put, s: "s", query: "path=dir", body: "x", head: head})
}

// watched tests watches of a directory.
func (c *contract) watched() {
	const watch = "GET /v1/sessions/{id}/fs/watch"
	c.refused(400, "recursive", request{route: watch, s: "s", query: "recursive=very", odd: true})
	c.refused(400, "path_base64", request{route: watch, s: "s", query: "path_base64=***"})
	c.refused(404, "", request{route: watch, s: "none"})
	c.refused(404, "", request{route: watch, s: "s", query: "path=none"})
	c.refused(409, "", request{route: watch, s: "s", query: "path=f"})
	// A program creates and removes a directory: a watch ends with the directory, if that existed when the watch began.
	const comes = "PUT /v1/sessions/{id}/processes/{p}"
	c.gets(201, request{route: comes, s: "s", p: "comes-and-goes", body: `{"command":"while :; do mkdir -p w; echo x >w/f; rm w/f; sleep 0.1; rm -r w; done"}`})
	for {
		got := c.exchange(c.request(request{route: watch, s: "s", query: "path=w&recursive=true&entries=true"}), 0)
		if got.Code == http.StatusNotFound {
			continue
		}
		if got.Code != http.StatusOK || c.lines("FileEvent", got.Body) < 2 || got.Header.Get("Content-Type") != "application/x-ndjson" {
			c.t.Errorf(`got.Code = %d, got.Header = %v, got.Body = %s, want got.Code == 200 and c.lines("FileEvent", got.Body) >= 2 and got.Header.Get("Content-Type") == "application/x-ndjson"`,
				got.Code, got.Header, got.Body)
		}
		break
	}
	c.seen[watch+" 200"] = true
	c.gets(204, request{route: "DELETE /v1/sessions/{id}/processes/{p}", s: "s", p: "comes-and-goes"})
}

func (c *contract) archives() {
	const get, put = "GET /v1/sessions/{id}/archive", "PUT /v1/sessions/{id}/archive"
	head := http.Header{"Content-Type": {"application/octet-stream"}}
	got := c.gets(200, request{route: get, s: "s", query: "path=dir"})
	if _, err := tar.NewReader(bytes.NewReader(got.Body)).Next(); err != nil || got.Header.Get("Content-Type") != "application/x-tar" {
		c.t.Errorf(`an archive of %s: err = %v, want no error and got.Header.Get("Content-Type") == "application/x-tar"`,
			got.Header.Get("Content-Type"), err)
	}
	c.refused(400, "path_base64", request{route: get, s: "s", query: "path_base64=***"})
	c.refused(404, "", request{route: get, s: "s", query: "path=none"})
	c.refused(404, "", request{route: get, s: "none"})
	c.refused(409, "", request{route: get, s: "s", query: "path=f/x"})
	c.refused(400, "leave_out", request{route: get, s: "s", query: "path=f&leave_out=some", odd: true})
	c.gets(200, request{route: get, s: "s", query: "path=dir&leave_out=true"})
	const some = "POST /v1/sessions/{id}/archive"
	got = c.gets(200, request{route: some, s: "s", body: `{"paths":["dir/g"],"paths_base64":["Zg=="]}`})
	if h, err := tar.NewReader(bytes.NewReader(got.Body)).Next(); err != nil || h.Name != "dir/g" || got.Header.Get("Content-Type") != "application/x-tar" {
		c.t.Errorf(`an archive of %s: h = %v, err = %v, want no error and h.Name == "dir/g" and got.Header.Get("Content-Type") == "application/x-tar"`,
			got.Header.Get("Content-Type"), h, err)
	}
	c.refused(400, "paths", request{route: some, s: "s", body: `{}`})
	c.refused(400, "", request{route: some, s: "s", body: `{"paths":["../f"]}`})
	c.refused(400, "paths_base64[0]", request{route: some, s: "s", body: `{"paths_base64":["***"]}`})
	c.refused(404, "", request{route: some, s: "s", body: `{"paths":["f","none"]}`})
	c.refused(404, "", request{route: some, s: "none", body: `{"paths":["f"]}`})
	c.refused(409, "", request{route: some, s: "s", body: `{"path":"f","paths":["x"]}`})
	got = c.gets(200, request{route: get, s: "s", query: "path=dir"})
	body := string(got.Body)
	c.gets(200, request{route: put, s: "s", query: "path=other&case_twins=false", body: body, head: head})
	c.gets(200, request{route: put, s: "s", query: "path=other&overwrite=true&outward_links=true", body: body, head: head})
	c.refused(409, "", request{route: put, s: "s", query: "path=other", body: body, head: head})
	c.refused(400, "", request{route: put, s: "s", query: "path=other", body: "no archive of any kind, but a text", head: head})
	c.refused(400, "overwrite", request{route: put, s: "s", query: "overwrite=maybe", body: body, head: head, odd: true})
	c.refused(404, "", request{route: put, s: "none", body: body, head: head})
}
