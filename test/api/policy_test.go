// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// bounded is the policy of another caller.
const bounded = "[policy.ci]\nprincipals = [\"uid:4242\"]\nsessions = 1\ntotal_memory = \"100MiB\"\ntools = [\"files\"]\nprofiles = [\"default\"]\n" +
	"[policy.ci.ceilings]\nmemory = \"64MiB\"\n"

// policies tests what a policy limits, and plans of requests.
func (c *contract) policies() {
	const create, exec, run, start = "POST /v1/sessions", "POST /v1/sessions/{id}/exec", "POST /v1/exec", "PUT /v1/sessions/{id}/processes/{p}"
	plans := func(a request) (p api.Plan) {
		c.t.Helper()
		if c.reads(c.gets(200, a), &p); !p.DryRun {
			c.t.Errorf("%s: it is no plan", a.body)
		}
		return p
	}
	p := plans(request{route: create, body: `{"id":"s","dry_run":true,"memory":"128MiB","env":{"TOKEN":"secret"}}`, uid: boxtest.OtherUID})
	if p.Policy != "ci" || p.Exists || p.Refused != nil || p.Session.Memory.String() != "64MiB" || !slices.Equal(p.Session.Env, []string{"TOKEN"}) ||
		len(p.Clamped) != 1 || p.Clamped[0] != (api.Clamp{Field: "memory", Asked: "128MiB", Got: "64MiB", By: "policy.ci.ceilings.memory"}) {
		c.t.Errorf("p = %+v, p.Session = %+v", p, p.Session)
	}
	c.refused(404, "", request{route: "GET /v1/sessions/{id}", s: "s", uid: boxtest.OtherUID})
	var s api.Session
	c.reads(c.gets(201, request{route: create, body: `{"id":"s","memory":"128MiB"}`, uid: boxtest.OtherUID}), &s)
	if !slices.Equal(s.Clamped, p.Clamped) {
		c.t.Errorf("cut is %+v, and planned was %+v, want s.Clamped == p.Clamped", s.Clamped, p.Clamped)
	}
	c.gets(200, request{route: create, body: `{"id":"s","memory":"128MiB"}`, uid: boxtest.OtherUID}) // the same again
	if p := plans(request{route: create, body: `{"id":"s","dry_run":true}`, uid: boxtest.OtherUID}); !p.Exists || p.Refused != nil {
		c.t.Errorf("p = %+v, want p.Exists == true and p.Refused == nil", p)
	}
	if p := plans(request{route: create, body: `{"id":"s","dry_run":true,"pids":99}`, uid: boxtest.OtherUID}); p.Refused == nil || p.Refused.Status != 409 || p.Refused.Field != "pids" {
		c.t.Errorf(`p.Refused = %+v, want p.Refused != nil and p.Refused.Status == 409 and p.Refused.Field == "pids"`,
			p.Refused)
	}
	c.denied(429, "quota", "policy.ci.sessions", request{route: create, body: `{"id":"t"}`, uid: boxtest.OtherUID})
	if p := plans(request{route: create, body: `{"id":"t","dry_run":true}`, uid: boxtest.OtherUID}); p.Refused == nil || p.Refused.Denial == nil || p.Refused.Denial.Rule != "policy.ci.sessions" || p.Refused.Denial.Used != "1" {
		c.t.Errorf(`p.Refused = %+v, want p.Refused != nil and p.Refused.Denial != nil and p.Refused.Denial.Rule == "policy.ci.sessions" and p.Refused.Denial.Used == "1"`,
			p.Refused)
	}
	c.denied(403, "policy", "policy.ci.profiles", request{route: create, body: `{"id":"t","profile":"offline_readonly"}`, uid: boxtest.OtherUID})
	for _, a := range []request{{route: exec, s: "s", body: `{"argv":["true"]}`}, {route: run, body: `{"exec":{"argv":["true"]}}`}, {route: start, s: "s", p: "p", body: `{"argv":["true"]}`}} {
		a.uid = boxtest.OtherUID
		c.denied(403, "policy", "policy.ci.tools", a)
	}
	if p := plans(request{route: exec, s: "s", body: `{"argv":["true"],"dry_run":true}`, uid: boxtest.OtherUID}); p.Refused == nil || p.Refused.Denial == nil || p.Refused.Denial.Rule != "policy.ci.tools" {
		c.t.Errorf(`p.Refused = %+v, want p.Refused != nil and p.Refused.Denial != nil and p.Refused.Denial.Rule == "policy.ci.tools"`,
			p.Refused)
	}

	c.gets(201, request{route: create, body: `{"template":"per_chat","variables":{"launcher_type":"group","launcher_id":"7/ü"}}`})
	c.gets(200, request{route: create, body: `{"id":"group_7/ü"}`})
	c.refused(400, "variables.launcher_id", request{route: create, body: `{"template":"per_chat","variables":{"launcher_type":"group"}}`})
	c.refused(400, "id", request{route: create, body: `{"id":"x","variables":{"a":"b"}}`})
	c.refused(400, "dry_run", request{route: create, body: `{"dry_run":"yes"}`, odd: true})
	p = plans(request{route: exec, s: "group_7/ü", body: `{"command":"echo $A","dry_run":true,"env":{"A":"secret"},"timeout":"1h"}`})
	if p.Exec == nil || !slices.Equal(p.Exec.Argv, []string{"/bin/sh", "-c", "echo $A"}) || p.Exec.Timeout.String() != "2m" || !slices.Contains(p.Exec.Env, "A") || len(p.Clamped) != 1 || p.Policy != "" {
		c.t.Errorf("p = %+v, p.Exec = %+v", p, p.Exec)
	}
	if p := plans(request{route: run, body: `{"session":{"memory":"64MiB"},"exec":{"argv":["true"],"dry_run":true}}`}); p.Exec == nil || p.Session == nil || p.Session.ID != "" {
		c.t.Errorf(`p = %+v, want p.Exec != nil and p.Session != nil and p.Session.ID == ""`, p)
	}

	const usage = "GET /v1/usage"
	var list api.UsageList
	c.reads(c.gets(200, request{route: usage, uid: boxtest.OtherUID}), &list)
	if list.Policy != "ci" || len(list.Days) != 1 || list.Days[0].Principal != "uid:4242" || list.Days[0].Sessions != 1 || list.Days[0].Executions != 0 ||
		!slices.Contains(list.Holdings, api.Holding{Rule: "policy.ci.sessions", Used: 1, Allowed: 1}) {
		c.t.Errorf("list = %+v", list)
	}
	c.reads(c.gets(200, request{route: usage, query: "all=true&days=2"}), &list)
	if !slices.ContainsFunc(list.Days, func(d api.UsageDays) bool { return d.Principal == "uid:4242" }) {
		c.t.Errorf("everybody's: %+v", list)
	}
	c.refused(403, "all", request{route: usage, query: "all=true", uid: boxtest.OtherUID})
	c.refused(400, "all", request{route: usage, query: "all=maybe", odd: true})
	c.refused(400, "days", request{route: usage, query: "days=0", odd: true})

	const change = "PATCH /v1/sessions/{id}"
	c.gets(200, request{route: change, s: "s", body: `{"ttl":"1h"}`, uid: boxtest.OtherUID})
	tight := begin(c.t, c.seen, strings.NewReplacer("[policy.ci.ceilings]\nmemory = \"64MiB\"\n", "", "sessions = 1\n", "sessions = 2\n").Replace(bounded))
	tight.gets(201, request{route: create, body: `{"id":"s","memory":"48MiB"}`, uid: boxtest.OtherUID})
	tight.gets(201, request{route: create, body: `{"id":"t","memory":"48MiB"}`, uid: boxtest.OtherUID})
	tight.denied(429, "quota", "policy.ci.total_memory", request{route: change, s: "s", body: `{"memory":"64MiB"}`, uid: boxtest.OtherUID})
	tight.denied(403, "quota", "policy.ci.total_memory", request{route: change, s: "s", body: `{"memory":"128MiB"}`, uid: boxtest.OtherUID})
}

// denied checks that a refusal names the rule.
func (c *contract) denied(status int, layer, rule string, a request) {
	c.t.Helper()
	var p api.Problem
	c.reads(c.gets(status, a), &p)
	if d := p.Denial; d == nil || d.Layer != layer || d.Rule != rule || d.Setting == "" || status == 429 && (d.Used == "" || d.Allowed == "") {
		c.t.Errorf("%s %s: %+v, denial %+v", a.route, a.body, p, d)
	}
}
