// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/http"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// execSession runs a program in a session, and waits for it unless it has an id and is detached.
func execSession(c *Call) (any, error) {
	s, err := c.session() // before the body, which need not be read if there is no session
	if err != nil {
		return nil, err
	}
	var req api.ExecRequest
	if err := c.decodeBody(&req, MaxBody); err != nil {
		return nil, err
	}
	dry := req.DryRun
	req.DryRun = false
	exec, err := execRequestOf(&req)
	if err != nil {
		return nil, err
	}
	changes, err := changesRequest(&req)
	if err != nil {
		return nil, err
	}
	switch {
	case dry:
		return planAnswer(c.Context(), c.Log, c.Sup.PlanExec(s, exec)), nil
	case req.ID != "":
		return executeProcess(c, s, &req, exec, changes)
	case req.Detach:
		return nil, fault.Field("detach", "true", "false without an id")
	}
	return execute(c, s, &req, exec, changes)
}

// executeProcess runs a program that has an id, or joins the one of that id. The program continues when the
// caller goes.
func executeProcess(c *Call, s *session.Session, r *api.ExecRequest, exec *session.ExecRequest, changes *sessionfiles.ChangesRequest) (any, error) {
	if err := sessionfiles.PrepareOutputs(c.Context(), s, r.OutputVersion); err != nil {
		return nil, err
	}
	w, err := sessionfiles.BeginChanges(c.Context(), s, changes)
	if err != nil {
		return nil, err
	}
	ended := c.Sup.ExpectOutput(s, r.OutputVersion, r.ID)
	p, isNew, err := s.StartProcess(c.Context(), &session.ProcessRequest{ID: r.ID, Exec: *exec, StdinData: exec.Stdin})
	ended(err == nil && isNew, p)
	if err != nil {
		return nil, err
	}
	if r.Detach {
		return Answer{Status: http.StatusAccepted, Body: describeProcess(c, s, p)}, nil
	}
	result, err := s.ProcessResult(c.Context(), p)
	if err != nil {
		return nil, err
	}
	res := execAnswer(s.ID, result, r.Encoding)
	res.Changes = changesAnswer(w.EndProcess(c.Context(), p, isNew))
	return res, nil
}

// run makes a session, runs one program in it and always removes it.
func run(c *Call) (any, error) {
	var req api.OneShotRequest
	if err := c.decodeBody(&req, MaxBody); err != nil {
		return nil, err
	}
	dry := req.Exec.DryRun || req.Session.DryRun
	req.Exec.DryRun, req.Session.DryRun = false, false
	exec, err := oneShotRequest(&req.Exec)
	if err != nil {
		return nil, err
	}
	changes, err := changesRequest(&req.Exec)
	if err != nil {
		return nil, err
	}
	if dry {
		return planAnswer(c.Context(), c.Log, c.Sup.PlanOneShot(c.Context(), c.Caller, sessionRequestOf(&req.Session), exec)), nil
	}
	s, err := makeOneShot(c, &req.Session, exec)
	if err != nil {
		return nil, err
	}
	defer c.End(s, session.EndOneShot)
	return execute(c, s, &req.Exec, exec, changes)
}

// oneShotRequest returns the request for an execution that ends with its session.
func oneShotRequest(r *api.ExecRequest) (*session.ExecRequest, error) {
	switch {
	case r.ID != "":
		return nil, fault.Field("exec.id", r.ID, "left out").WithText("exec.id: not allowed for a one-shot execution")
	case r.Detach:
		return nil, fault.Field("exec.detach", "true", "false, as the execution ends with its session")
	}
	return execRequestOf(r)
}

// makeOneShot makes the session of a single execution. It must be new, since it will be removed.
func makeOneShot(c *Call, req *api.SessionRequest, exec *session.ExecRequest) (*session.Session, error) {
	if req.DryRun {
		return nil, fault.Field("session.dry_run", "true", "false in a stream")
	}
	exec.Usual = req.Image != nil
	if err := c.Sup.CheckExec(c.Caller, req.Profile, exec); err != nil {
		return nil, err
	}
	want := sessionRequestOf(req)
	want.OneShot = true
	s, isNew, err := c.Sup.Create(c.Context(), c.Caller, want)
	if err == nil && !isNew {
		err = fault.Errorf(fault.Conflict, "session %s already exists, and a one-shot execution would remove it", fault.Show(req.ID)).
			WithHint("run it in that session, or leave the id out")
	}
	return s, err
}

func execute(c *Call, s *session.Session, req *api.ExecRequest, exec *session.ExecRequest, changes *sessionfiles.ChangesRequest) (any, error) {
	if err := sessionfiles.PrepareOutputs(c.Context(), s, req.OutputVersion); err != nil {
		return nil, err
	}
	w, err := sessionfiles.BeginChanges(c.Context(), s, changes)
	if err != nil {
		return nil, err
	}
	ended := c.Sup.ExpectOutput(s, req.OutputVersion, "")
	result, err := s.Exec(c.Context(), exec)
	ended(err == nil, nil)
	if err != nil {
		return nil, err
	}
	r := execAnswer(s.ID, result, req.Encoding)
	r.Changes = changesAnswer(w.End(c.Context()))
	return r, nil
}
