// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whatever another Workspace has looks missing to this one: every action on a session, a process or a skill gives the same
// answer, whatever else is in the request.
func TestT58WhatAnotherWorkspaceHasIsMissing(t *testing.T) {
	t.Parallel()
	b := start(t)
	c, other := b.dial(t), b.dial(t)
	other.workspace = "w2"
	other.gets("box_create_session", `{"session_id":"there","cmd":""}`, nil)
	other.run("there", "echo secret > file")
	other.gets("box_start_managed_process", `{"session_id":"there","spec":{"process_id":"p","command":"sleep","args":["100000"]}}`, nil)
	other.gets("box_create_skill", `{"skill":{"name":"there","instructions":"of w2"}}`, nil)
	tried := 0
	var elapsed [2][]time.Duration
	for action, data := range map[string]string{
		"box_get_session":          `{"session_id":"ID"}`,
		"box_delete_session":       `{"session_id":"ID"}`,
		"box_get_managed_process":  `{"session_id":"ID","process_id":"p"}`,
		"box_stop_managed_process": `{"session_id":"ID","process_id":"p"}`,
		"box_get_skill":            `{"name":"ID"}`,
		"box_update_skill":         `{"name":"ID","skill":{"name":"ID","instructions":"mine"}}`,
		"box_delete_skill":         `{"name":"ID"}`,
		"box_list_skill_files":     `{"name":"ID","path":"."}`,
		"box_read_skill_file":      `{"name":"ID","path":"SKILL.md"}`,
		"box_write_skill_file":     `{"name":"ID","path":"SKILL.md","content":"x"}`,
	} {
		for _, more := range []string{"", `,"nonsense":1`, `,"workspace_uuid":"w2"`} {
			var got [2]string
			for i, id := range []string{"there", "gone"} {
				start := time.Now()
				r := c.ask(action, strings.ReplaceAll(strings.TrimSuffix(data, "}")+more+"}", "ID", id))
				elapsed[i] = append(elapsed[i], time.Since(start))
				if *r.Code == 0 && strings.Contains(string(r.Data), "secret") {
					t.Errorf(`%s of another Workspace: r.Data = %s, want *r.Code != 0 or r.Data without "secret"`,
						action, r.Data)
				}
				text := fmt.Sprint(*r.Code, r.Message, string(r.Data))
				got[i] = strings.ReplaceAll(text, id, "ID")
			}
			if got[0] != got[1] {
				t.Errorf("%s: the answer about a foreign Workspace is %q, about a missing one %q, want got[0] == got[1]",
					action, got[0], got[1])
			}
			tried++
		}
	}
	for i := range elapsed {
		slices.Sort(elapsed[i])
	}
	t.Logf("median of %d answers: about a foreign Workspace %v, about a missing one %v", tried, elapsed[0][tried/2], elapsed[1][tried/2])
	if r := other.run("there", "cat file"); r["stdout"] != "secret" {
		t.Errorf(`after %d requests its file has %v, want r["stdout"] == "secret"`, tried, r)
	}
	var p map[string]any
	other.gets("box_get_managed_process", `{"session_id":"there","process_id":"p"}`, &p)
	if p["status"] != "running" {
		t.Errorf(`its process is %v, want p["status"] == "running"`, p)
	}
	if ids := c.sessions(); len(ids) != 0 {
		t.Errorf("this Workspace has %q, want len(ids) == 0", ids)
	}
}
