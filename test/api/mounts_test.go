// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"path/filepath"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// mounts tests mounts of the running session s.
func (c *contract) mounts() {
	const list, add, remove = "GET /v1/sessions/{id}/mounts", "PUT /v1/sessions/{id}/mounts", "DELETE /v1/sessions/{id}/mounts"
	dir := filepath.Dir(c.MountSource(c.t, "one", 0))
	c.MountSource(c.t, "two", 0)
	body := func(text string) string { return strings.ReplaceAll(text, "%LENT%", dir) }
	one := body(`{"source":"%LENT%/one","target":"/mnt/one","mode":"ro","nosymfollow":true}`)
	var m api.SessionMount
	c.reads(c.gets(201, request{route: add, s: "s", body: one}), &m)
	if !m.Live || m.Target != "/mnt/one" || strings.Join(m.Attributes, ",") != "ro,nosuid,nodev,nosymfollow" {
		c.t.Errorf(`m = %+v, want m.Live == true and m.Target == "/mnt/one" and strings.Join(m.Attributes, ",") == "ro,nosuid,nodev,nosymfollow"`,
			m)
	}
	c.gets(200, request{route: add, s: "s", body: one})
	two := `{"source":"%LENT%/two","target":"/mnt/one","mode":"ro"`
	c.refused(409, "", request{route: add, s: "s", body: body(two + `}`)})
	c.gets(200, request{route: add, s: "s", body: body(two + `,"replace":true}`)})
	for text, field := range map[string]string{
		`{"source":"lent","target":"/mnt/x","mode":"ro"}`: "source", `{"source":"%LENT%/none","target":"/mnt/x","mode":"ro"}`: "source",
		`{"source":"%LENT%/one","target":"/usr/x","mode":"ro"}`: "target", `{"source":"%LENT%/one","target":"/workspace","mode":"ro"}`: "target",
		`{"source":"%LENT%/one","target":"/mnt/x","mode":"rw"}`: "mode", `{"source":"%LENT%/one","target":"/mnt/x","mode":"none"}`: "mode",
	} {
		c.refused(400, field, request{route: add, s: "s", body: body(text)})
	}
	c.refused(400, "colour", request{route: add, s: "s", body: `{"source":"/x","target":"/mnt/x","colour":"red"}`, odd: true})
	c.denied(403, "mount", "mounts.allow", request{route: add, s: "s", body: `{"source":"/etc","target":"/mnt/x","mode":"ro"}`})
	c.refused(404, "", request{route: add, s: "none", body: one})
	var all api.MountList
	c.reads(c.gets(200, request{route: list, s: "s"}), &all)
	if len(all.Mounts) != 1 || all.Mounts[0].Source != dir+"/two" {
		c.t.Errorf(`all = %+v, want len(all.Mounts) == 1 and all.Mounts[0].Source == dir + "/two"`, all)
	}
	c.refused(404, "", request{route: list, s: "none"})
	c.gets(201, request{route: "PUT /v1/sessions/{id}/processes/{p}", s: "s", p: "sits", body: `{"argv":["sleep","1000"],"cwd":"/mnt/one"}`})
	if p := c.refused(409, "", request{route: remove, s: "s", query: "target=/mnt/one"}); len(p.Users) != 1 || p.Users[0].PID == 0 || p.Users[0].Path != "/mnt/one" {
		c.t.Errorf("in use by %+v", p.Users)
	}
	c.refused(400, "force", request{route: remove, s: "s", query: "target=/mnt/one&force=maybe", odd: true})
	c.gets(204, request{route: remove, s: "s", query: "target=/mnt/one&force=true"})
	c.gets(204, request{route: "DELETE /v1/sessions/{id}/processes/{p}", s: "s", p: "sits"})
	c.refused(404, "", request{route: remove, s: "s", query: "target=/mnt/one"})
	c.refused(400, "target", request{route: remove, s: "s"})
	c.refused(400, "target_base64", request{route: remove, s: "s", query: "target_base64=***"})
}
