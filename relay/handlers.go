// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func health(*call) (any, error) { return api.Health{Status: "ok"}, nil }

func ready(c *call) (any, error) {
	if err := c.server.sup.Ready(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

func status(c *call) (any, error) {
	o := c.server.sup.Overview()
	return api.Status{
		Version: c.server.cfg.Version, StartedAt: c.server.started, Sessions: o.Sessions, MaxSessions: o.MaxSessions,
		Running: o.Running, Executed: o.Executed, ControlGroups: o.ControlGroups, BestEffort: o.BestEffort, Unenforced: append([]string{}, o.Unenforced...),
	}, nil
}

func profiles(c *call) (any, error) {
	list := api.ProfileList{Default: c.server.cfg.DefaultProfile, Profiles: map[string]api.Profile{}}
	for name, p := range c.server.sup.Profiles() {
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
	case everybody && !c.who.Admin:
		return nil, fault.Field("all", "true", "left out: only root sees the sessions of others").Of(fault.Denied)
	}
	list := api.SessionList{Sessions: []api.Session{}}
	for _, info := range c.server.sup.Sessions(c.who, everybody) {
		list.Sessions = append(list.Sessions, sessionOf(info))
	}
	return list, nil
}

func createSession(c *call) (any, error) {
	var req api.SessionRequest
	if err := c.decodeBody(&req, maxSessionBody); err != nil {
		return nil, err
	}
	s, isNew, err := c.server.sup.Create(c.context(), c.who, sessionRequest(&req))
	if err != nil {
		return nil, err
	}
	if !isNew {
		return sessionOf(s.Info()), nil
	}
	answer := created{body: sessionOf(s.Info())}
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
	answer := sessionOf(s.Info())
	if w := c.server.sup.Work(s); w != nil {
		full := supervisor.IsFull(*w)
		answer.Workspace = &api.Quota{Kind: "workspace", Used: quantity.Size(w.Used), Limit: quantity.Size(w.Limit), Files: w.Files, FilesLimit: w.FilesLimit, Hit: full}
	}
	u := s.Usage()
	if u == nil {
		return answer
	}
	answer.Usage = &api.SessionUsage{
		CPUMS: milliseconds(u.CPU), ThrottledMS: milliseconds(u.Throttled), Memory: quantity.Size(u.Memory), MemoryPeak: quantity.Size(u.MemoryPeak),
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
	return sessionOf(s.Info()), nil
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
	exec, err := execRequest(&req)
	if err != nil {
		return nil, err
	}
	return c.execute(s, exec, req.Encoding)
}

// oneShot makes a session, runs one thing in it and removes it, whatever happens.
func oneShot(c *call) (any, error) {
	var req api.OneShotRequest
	if err := c.decodeBody(&req, maxBody); err != nil {
		return nil, err
	}
	exec, err := execRequest(&req.Exec)
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

// makeOneShot makes the session of a single execution. It must be new, since it will be removed.
func (c *call) makeOneShot(req *api.SessionRequest, exec *supervisor.ExecRequest) (*supervisor.Session, error) {
	if err := c.server.sup.CheckExec(req.Profile, exec); err != nil {
		return nil, err
	}
	s, isNew, err := c.server.sup.Create(c.context(), c.who, sessionRequest(req))
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
	return execResult(s, result, encoding), nil
}

// Encodings of input and output in JSON.
const (
	encodingUTF8   = "utf-8"
	encodingBase64 = "base64"
)

func sessionRequest(r *api.SessionRequest) *policy.Request {
	req := &policy.Request{
		ID: r.ID, Profile: r.Profile, Image: r.Image, Network: r.Network, ReadOnlyRoot: r.ReadOnlyRoot, CPUs: r.CPUs,
		Memory: r.Memory, MemoryHigh: r.MemoryHigh, Swap: r.Swap, OOM: r.OOM, Pids: r.Pids, CPUWeight: r.CPUWeight, IOWeight: r.IOWeight,
		IORead: r.IORead, IOWrite: r.IOWrite, Tmp: r.Tmp, WorkspaceQuota: r.WorkspaceQuota, WorkspaceInodes: r.WorkspaceInodes, TTL: r.TTL, MaxLifetime: r.MaxLifetime,
		Env: r.Env, Labels: r.Labels,
	}
	for _, m := range r.Mounts {
		req.Mounts = append(req.Mounts, policy.Mount(m))
	}
	return req
}

// stateFrozen is shown instead of ready.
const stateFrozen = "frozen"

func sessionOf(i supervisor.Info) api.Session {
	s := api.Session{
		ID: i.ID, Owner: i.Owner, OwnerUID: i.OwnerUID, State: string(i.State), Hostname: i.Hostname,
		Profile: i.Settings.Profile, Image: i.Settings.Image, Network: i.Settings.Network, ReadOnlyRoot: i.Settings.ReadOnlyRoot,
		CPUs: i.Settings.CPUs, Memory: i.Settings.Memory, MemoryHigh: i.Settings.MemoryHigh, Swap: i.Settings.Swap, OOM: i.Settings.OOM,
		Pids: i.Settings.Pids, CPUWeight: i.Settings.CPUWeight, IOWeight: i.Settings.IOWeight, IORead: i.Settings.IORead, IOWrite: i.Settings.IOWrite, Tmp: i.Settings.Tmp,
		WorkspaceQuota: i.Settings.WorkspaceQuota, WorkspaceInodes: i.Settings.WorkspaceInodes, TTL: i.Settings.TTL, MaxLifetime: i.Settings.MaxLifetime,
		Mounts: []api.Mount{}, Env: append([]string{}, i.Settings.EnvNames...), Labels: i.Settings.Labels, Enforcement: map[string]string{},
		CreatedAt: i.Created, LastUsedAt: i.LastUsed, Running: i.Running, Executions: i.Executions, PID: i.PID, IDBase: i.IDBase, Group: i.Group,
	}
	if i.Frozen && i.State == supervisor.StateReady {
		s.State = stateFrozen
	}
	for _, m := range i.Settings.Mounts {
		s.Mounts = append(s.Mounts, api.Mount(m))
	}
	for limit, by := range i.Enforced {
		s.Enforcement[limit] = string(by)
	}
	if !i.Expires.IsZero() {
		s.ExpiresAt = &i.Expires
	}
	return s
}

func execRequest(r *api.ExecRequest) (*supervisor.ExecRequest, error) {
	for field, value := range map[string]string{"encoding": r.Encoding, "stdin_encoding": r.StdinEncoding} {
		if value != "" && value != encodingUTF8 && value != encodingBase64 {
			return nil, fault.Field(field, value, encodingUTF8+", "+encodingBase64)
		}
	}
	req := &supervisor.ExecRequest{
		Argv: r.Argv, Command: r.Command, Code: r.Code, Language: r.Language, Env: r.Env, Dir: r.Cwd,
		Stdin: []byte(r.Stdin), Timeout: r.Timeout, OutputLimit: r.OutputLimit,
		Limits: policy.ProgramLimits{CPUs: r.CPUs, Memory: r.Memory, Pids: r.Pids},
	}
	if r.StdinEncoding == encodingBase64 {
		var err error
		if req.Stdin, err = base64.StdEncoding.DecodeString(r.Stdin); err != nil {
			return nil, fault.Field("stdin", somethingElse, "base64, as stdin_encoding says")
		}
	}
	return req, nil
}

func execResult(s *supervisor.Session, r *supervisor.Result, encoding string) api.ExecResult {
	res := api.ExecResult{
		Session: s.ID, Status: string(r.Status), Signal: r.Signal,
		DurationMS: milliseconds(r.Duration), Timeout: quantity.Duration(r.Timeout), LeftoversKilled: r.Leftovers,
		Usage:   api.Usage{UserMS: milliseconds(r.UserTime), SystemMS: milliseconds(r.SysTime), MaxRSS: r.MaxRSS},
		Clamped: clamped(r.Clamped),
	}
	if r.Grouped {
		res.Usage.MemoryPeak, res.Usage.PidsPeak, res.Usage.Read, res.Usage.Written = r.MemoryPeak, r.PidsPeak, r.Read, r.Written
	}
	if o := r.OOM; o != nil {
		res.OOM = &api.OOM{Kills: o.Kills, Limit: o.Limit, Of: "session", Peak: r.MemoryPeak, Names: o.Victims}
		if o.Own {
			res.OOM.Of = "execution"
		}
	}
	for _, f := range r.Full {
		res.Quota = append(res.Quota, api.Quota{Kind: f.Kind, Used: f.Used, Limit: f.Limit, Files: f.Files, FilesLimit: f.FilesLimit, Hit: true})
	}
	if r.Status == supervisor.StatusExited {
		res.ExitCode = &r.ExitCode
	}
	if r.Failed != nil {
		res.Failure = startFailure(r.Failed)
	}
	for i, text := range []*string{&res.Stdout, &res.Stderr} {
		res.Output[i] = api.Total{Bytes: r.Streams[i].Total, Omitted: r.Streams[i].Omitted}
		*text = encode(r.Streams[i].Data, encoding)
	}
	return res
}

func encode(data []byte, encoding string) string {
	if encoding == encodingBase64 {
		return base64.StdEncoding.EncodeToString(data)
	}
	return strings.ToValidUTF8(string(data), "�")
}

func clamped(list []policy.Clamp) []api.Clamp {
	var out []api.Clamp
	for _, c := range list {
		out = append(out, api.Clamp(c))
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// exitText is for logs.
func exitText(r *supervisor.Result) string {
	if r.Status == supervisor.StatusExited {
		return fmt.Sprintf("exited %d", r.ExitCode)
	}
	return string(r.Status)
}
