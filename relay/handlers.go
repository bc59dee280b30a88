// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/openapi"
	"github.com/boxd-dev/boxd/relay/wire"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func health(c *call) (any, error) {
	if err := c.server.sup.Alive(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

func ready(c *call) (any, error) {
	if err := c.server.sup.Ready(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

// description is the API in a form that programs read.
func description(*call) (any, error) { return json.RawMessage(openapi.Document()), nil }

func status(c *call) (any, error) {
	o := c.server.sup.Overview()
	return api.Status{
		Version: c.server.cfg.Version, StartedAt: c.server.started, Sessions: o.Sessions, MaxSessions: o.MaxSessions,
		Processes: o.Processes, MaxProcesses: o.MaxProcesses, Running: o.Running, Executed: o.Executed,
		ControlGroups: o.ControlGroups, BestEffort: o.BestEffort, Unenforced: append([]string{}, o.Unenforced...),
		Enforced: wire.Enforced(o.Enforced), Degraded: append([]string{}, o.Degraded...),
	}, nil
}

func profiles(c *call) (any, error) {
	all, usual := c.server.sup.Profiles()
	list := api.ProfileList{Default: usual, Profiles: map[string]api.Profile{}}
	for name, p := range all {
		list.Profiles[name] = api.Profile(p)
	}
	return list, nil
}

func doctor(c *call) (any, error) {
	checks, err := c.server.sup.Doctor(c.context())
	if err != nil {
		return nil, err
	}
	d := api.Doctor{OK: true, Checks: make([]api.Check, len(checks))}
	levels := map[isolation.CheckLevel]string{isolation.CheckOK: "ok", isolation.CheckWarn: "warn", isolation.CheckFail: "fail"}
	for i, check := range checks {
		d.OK = d.OK && check.Level != isolation.CheckFail
		d.Checks[i] = api.Check{Name: check.Name, Level: levels[check.Level], Detail: check.Detail, Hint: check.Hint}
	}
	return d, nil
}

func listSessions(c *call) (any, error) {
	all := c.r.URL.Query().Get("all")
	everybody := all == "true"
	switch {
	case all != "" && all != "true" && all != "false":
		return nil, fault.Field("all", all, "true, false")
	case everybody && !c.who.Is(access.Admin):
		return nil, fault.Field("all", "true", "left out: only root sees the sessions of others").Of(fault.Denied)
	}
	list := api.SessionList{Sessions: []api.Session{}}
	for _, info := range c.server.sup.Sessions(c.who, everybody) {
		list.Sessions = append(list.Sessions, wire.Session(info))
	}
	return list, nil
}

func createSession(c *call) (any, error) {
	var req api.SessionRequest
	if err := c.decodeBody(&req, maxSessionBody); err != nil {
		return nil, err
	}
	s, isNew, err := c.server.sup.Create(c.context(), c.who, wire.SessionRequest(&req))
	if err != nil {
		return nil, err
	}
	if !isNew {
		return wire.Session(s.Info()), nil
	}
	answer := created{body: wire.Session(s.Info())}
	if req.ID == "" { // nobody could use it who does not learn its id
		answer.undo = func() { c.server.end(s, supervisor.EndUnclaimed) }
	}
	return answer, nil
}

func getSession(c *call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return c.detailed(s), nil
}

// detailed describes a session with what it uses.
func (c *call) detailed(s *supervisor.Session) api.Session {
	answer := wire.Session(s.Info())
	if w := c.server.sup.Work(s); w != nil {
		full := supervisor.IsFull(*w)
		answer.Workspace = &api.Quota{Kind: "workspace", Used: quantity.Size(w.Used), Limit: quantity.Size(w.Limit), Files: w.Files, FilesLimit: w.FilesLimit, Hit: full}
	}
	u := s.Usage()
	if u == nil {
		return answer
	}
	answer.Usage = &api.SessionUsage{
		CPUMS: wire.Milliseconds(u.CPU), ThrottledMS: wire.Milliseconds(u.Throttled), Memory: quantity.Size(u.Memory), MemoryPeak: quantity.Size(u.MemoryPeak),
		Swap: quantity.Size(u.Swap), Pids: int(u.Pids), Read: quantity.Size(u.Read), Written: quantity.Size(u.Written), OOMKills: int(u.OOMKills),
		Pressure: api.Pressure{CPU: u.CPUPressure, Memory: u.MemoryPressure, IO: u.IOPressure},
	}
	return answer
}

func changeSession(c *call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var r api.SessionChange
	if err := c.decodeBody(&r, maxSessionBody); err != nil {
		return nil, err
	}
	err = c.server.sup.Update(c.context(), s, &policy.Request{
		CPUs: r.CPUs, Memory: r.Memory, MemoryHigh: r.MemoryHigh, Swap: r.Swap, OOM: r.OOM, Pids: r.Pids, CPUWeight: r.CPUWeight,
		IOWeight: r.IOWeight, IORead: r.IORead, IOWrite: r.IOWrite, WorkspaceQuota: r.WorkspaceQuota, WorkspaceInodes: r.WorkspaceInodes, TTL: r.TTL,
		MaxLifetime: r.MaxLifetime, Labels: r.Labels,
	})
	if err != nil {
		return nil, err
	}
	return c.detailed(s), nil
}

func freeze(c *call) (any, error) { return c.setFrozen(true) }

func thaw(c *call) (any, error) { return c.setFrozen(false) }

func (c *call) setFrozen(on bool) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if err := c.server.sup.Freeze(c.context(), s, on); err != nil {
		return nil, err
	}
	return wire.Session(s.Info()), nil
}

func deleteSession(c *call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return noContent{}, c.server.sup.End(c.context(), s, supervisor.EndDeleted)
}

func execute(c *call) (any, error) {
	s, err := c.session() // before the body: what is for no session need not be read
	if err != nil {
		return nil, err
	}
	var req api.ExecRequest
	if err := c.decodeBody(&req, maxBody); err != nil {
		return nil, err
	}
	exec, err := wire.ExecRequest(&req)
	if err != nil {
		return nil, err
	}
	switch {
	case req.ID != "":
		return c.executeProcess(s, &req, exec)
	case req.Detach:
		return nil, fault.Field("detach", "true", "given with an id: without one nobody could find it again")
	}
	return c.execute(s, exec, req.Encoding)
}

// executeProcess runs a program that has an id, or joins the one of that id. Whoever has asked for it may
// go: it goes on.
func (c *call) executeProcess(s *supervisor.Session, r *api.ExecRequest, exec *supervisor.ExecRequest) (any, error) {
	p, _, err := c.server.sup.StartProcess(c.context(), s, &supervisor.ProcessRequest{ID: r.ID, Exec: *exec, StdinData: exec.Stdin})
	if err != nil {
		return nil, err
	}
	if r.Detach {
		return answer{http.StatusAccepted, c.describe(s, p)}, nil
	}
	result, err := c.server.sup.ProcessResult(c.context(), s, p)
	if err != nil {
		return nil, err
	}
	return wire.ExecResult(s.ID, result, r.Encoding), nil
}

// oneShot makes a session, runs one thing in it and removes it, whatever happens.
func oneShot(c *call) (any, error) {
	var req api.OneShotRequest
	if err := c.decodeBody(&req, maxBody); err != nil {
		return nil, err
	}
	exec, err := oneShotRequest(&req.Exec)
	if err != nil {
		return nil, err
	}
	s, err := c.makeOneShot(&req.Session, exec)
	if err != nil {
		return nil, err
	}
	defer c.server.end(s, supervisor.EndOneShot)
	return c.execute(s, exec, req.Exec.Encoding)
}

// oneShotRequest is the request of an execution that ends with its session.
func oneShotRequest(r *api.ExecRequest) (*supervisor.ExecRequest, error) {
	switch {
	case r.ID != "":
		return nil, fault.Field("exec.id", r.ID, "left out: nobody can come back to an execution that ends with its session")
	case r.Detach:
		return nil, fault.Field("exec.detach", "true", "left out: the execution ends with its session")
	}
	return wire.ExecRequest(r)
}

// makeOneShot makes the session of a single execution. It must be new, since it will be removed.
func (c *call) makeOneShot(req *api.SessionRequest, exec *supervisor.ExecRequest) (*supervisor.Session, error) {
	if err := c.server.sup.CheckExec(req.Profile, exec); err != nil {
		return nil, err
	}
	s, isNew, err := c.server.sup.Create(c.context(), c.who, wire.SessionRequest(req))
	if err == nil && !isNew {
		err = fault.Errorf(fault.Conflict, "session %s exists, and one execution alone would remove it", fault.Show(req.ID)).
			WithHint("run it in that session, or leave the id out")
	}
	return s, err
}

// endPatience is how long an answer waits for the end of a box; the end goes on after it.
const endPatience = 10 * time.Second

// end ends a session that nobody is going to end who knows of it.
func (s *Server) end(session *supervisor.Session, reason supervisor.EndReason) {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	_ = s.sup.End(ctx, session, reason) // it goes on ending, and logs what resists
}

func (c *call) execute(s *supervisor.Session, req *supervisor.ExecRequest, encoding string) (any, error) {
	result, err := c.server.sup.Exec(c.context(), s, req)
	if err != nil {
		return nil, err
	}
	return wire.ExecResult(s.ID, result, encoding), nil
}
