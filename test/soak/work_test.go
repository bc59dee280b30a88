// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// most is a caller's maximum number of sessions.
const most = 4

// work does a random operation.
func (c *caller) work() {
	ids := slices.Sorted(maps.Keys(c.own))
	if len(ids) == 0 {
		c.create()
		return
	}
	id := ids[c.rng.IntN(len(ids))]
	switch n := c.rng.IntN(100); {
	case n < 18 && len(ids) < most:
		c.create()
	case n < 30:
		c.remove(id)
	case n < 50:
		c.crowd(id, 1+c.rng.IntN(3))
	case n < 62:
		c.unnamed(id)
	case n < 67:
		c.oneShot()
	case n < 77:
		c.process(id)
	case n < 83:
		c.endProcess(id)
	case n < 91:
		c.write(id)
	case n < 96:
		c.look(id)
	default:
		a, _ := c.ask(http.MethodPost, "/v1/sessions/"+id+"/renew", nil, true, 0, 0)
		c.must("renew", a)
	}
}

func (c *caller) create() {
	name := c.next()
	wait := []string{"0s", "200ms", "2s"}[c.rng.IntN(3)]
	req := map[string]any{"id": name, "wait": wait, "profile": []string{"default", "cold"}[c.rng.IntN(2)]}
	want := name
	if c.rng.IntN(3) == 0 {
		delete(req, "id")
		req["template"], req["variables"] = "chat.{chat}", map[string]string{"chat": name}
		want = "chat." + name
	}
	a, ok := c.ask(http.MethodPost, "/v1/sessions", req, true, 0, 1)
	if c.must("create", a); !ok {
		return
	}
	var s api.Session
	if err := json.Unmarshal(a.body, &s); err != nil || s.ID != want {
		c.t.Errorf("create %s: a.body = %s, err = %v, want no error and s.ID == want", want, a.body, err)
		return
	}
	c.own[s.ID] = &box{}
}

func (c *caller) remove(id string) {
	a, ok := c.ask(http.MethodDelete, "/v1/sessions/"+id, nil, true, 0, 0)
	if c.must("delete", a, http.StatusNotFound); ok || a.status == http.StatusNotFound { // deleted by a boxd that was killed
		delete(c.own, id)
	}
}

// crowd runs executions with ids concurrently, some of which may be queued. Each is requested until it is answered, and runs
// once.
func (c *caller) crowd(id string, n int) {
	names := make([]string, n)
	for i := range names {
		names[i] = c.next()
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, name := range names {
		each := *c // with ids of its own
		each.id, each.n = name, 0
		wg.Go(func() {
			req := api.ExecRequest{ID: name, Command: new(fmt.Sprintf("echo %s >> /workspace/ran; sleep 0.0%d; echo %s", name, i*2, name))}
			a, ok := each.ask(http.MethodPost, "/v1/sessions/"+id+"/exec", &req, true, 1, 0)
			if each.must("exec", a); !ok {
				return
			}
			var r api.ExecResult
			if err := json.Unmarshal(a.body, &r); err != nil || r.Status != "exited" || r.Stdout != name+"\n" {
				c.t.Errorf(`exec %s: a.body = %s, err = %v, want no error and r.Status == "exited" and r.Stdout == name + "\n"`,
					name, a.body, err)
			}
			mu.Lock()
			c.own[id].ran++
			mu.Unlock()
		})
	}
	wg.Wait()
}

// unnamed makes an execution without an id, so that its result cannot be requested again.
func (c *caller) unnamed(id string) {
	want, argv := "exited", []string{"echo", "here"}
	if c.rng.IntN(4) == 0 {
		want, argv = "start_failed", []string{"/nowhere"}
	}
	a, ok := c.ask(http.MethodPost, "/v1/sessions/"+id+"/exec", &api.ExecRequest{Argv: argv}, false, 1, 0)
	if c.must("exec", a); !ok {
		return
	}
	var r api.ExecResult
	if err := json.Unmarshal(a.body, &r); err != nil || r.Status != want && !canceled(a, r) {
		c.t.Errorf("exec of %q: a.body = %s, err = %v, want no error and (r.Status == want or canceled(a, r))",
			argv, a.body, err)
	}
}

// canceled reports whether a boxd that shut down has ended an execution without an id.
func canceled(a answer, r api.ExecResult) bool { return a.shaken && r.Status == "canceled" }

func (c *caller) oneShot() {
	req := api.OneShotRequest{Exec: api.ExecRequest{Argv: []string{"true"}}}
	req.Session.Wait = new(quantity.Duration)
	a, ok := c.ask(http.MethodPost, "/v1/exec", &req, false, 1, 1)
	if c.must("one shot", a); !ok {
		return
	}
	var r api.ExecResult
	if err := json.Unmarshal(a.body, &r); err != nil || r.Status != "exited" && !canceled(a, r) {
		c.t.Errorf(`one shot: a.body = %s, err = %v, want no error and (r.Status == "exited" or canceled(a, r))`,
			a.body, err)
	}
}

func (c *caller) process(id string) {
	name := c.next()
	a, ok := c.ask(http.MethodPut, "/v1/sessions/"+id+"/processes/"+name, &api.ProcessRequest{Argv: []string{"sleep", "100000"}}, true, 1, 0)
	if c.must("process", a); ok {
		c.own[id].processes = append(c.own[id].processes, name)
	}
}

func (c *caller) endProcess(id string) {
	b := c.own[id]
	if len(b.processes) == 0 {
		return
	}
	a, ok := c.ask(http.MethodDelete, "/v1/sessions/"+id+"/processes/"+b.processes[0], nil, true, 0, 0)
	if c.must("delete a process", a, http.StatusNotFound); ok || a.status == http.StatusNotFound {
		b.processes = b.processes[1:]
	}
}

func (c *caller) write(id string) {
	text := c.next()
	a, ok := c.ask(http.MethodPost, "/v1/sessions/"+id+"/fs/write", &api.FileWrite{Path: "file", Content: text}, true, 1, 0)
	c.must("write", a)
	if c.own[id].file = ""; ok {
		c.own[id].file = text
	}
}

// look reads the result of the last write, and checks how many executions have left a line.
func (c *caller) look(id string) {
	b := c.own[id]
	if b.file != "" {
		a, ok := c.ask(http.MethodPost, "/v1/sessions/"+id+"/fs/read", &api.FileRead{Path: "file"}, true, 1, 0)
		c.must("read", a)
		var f api.FileContent
		if err := json.Unmarshal(a.body, &f); ok && (err != nil || f.Content != b.file) {
			c.t.Errorf("the file in %s is %s, %v, want %q", id, a.body, err, b.file)
		}
	}
	name := c.next()
	req := api.ExecRequest{ID: name, Command: new("touch /workspace/ran; sort -u /workspace/ran | wc -l; wc -l < /workspace/ran")}
	a, ok := c.ask(http.MethodPost, "/v1/sessions/"+id+"/exec", &req, true, 1, 0)
	if c.must("look", a); !ok {
		return
	}
	var r api.ExecResult
	if err := json.Unmarshal(a.body, &r); err != nil || r.Stdout != fmt.Sprintf("%d\n%d\n", b.ran, b.ran) {
		c.t.Errorf("of %d executions in %s there have run %s, %v", b.ran, id, a.body, err)
	}
}
