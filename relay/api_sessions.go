// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// listSessions answers with the sessions of the caller, of the owner that the query names, or of everybody.
func listSessions(c *Call) (any, error) {
	all := c.R.URL.Query().Get("all")
	everybody := all == "true"
	switch {
	case all != "" && all != "true" && all != "false":
		return nil, fault.Field("all", all, "true or false")
	case everybody && !c.Caller.Is(c.Others):
		return nil, fault.Field("all", "true", "false").Of(fault.Denied).WithText("permission denied: only operators can list everyone's boxes; you see your own")
	}
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	labels, _, err := pairs("label", query["label"], false)
	if err != nil {
		return nil, err
	}
	metadata, shown, err := pairs("metadata", query["metadata"], true)
	if err != nil {
		return nil, err
	}
	list := api.SessionList{Sessions: []api.Session{}}
	for _, info := range c.Sup.Sessions(owner, everybody) {
		if !policy.Has(info.Settings.Labels, labels) || !policy.Has(info.Settings.Metadata, metadata) {
			continue
		}
		s := sessionAnswer(info)
		if !shown {
			s.Metadata = nil
		}
		list.Sessions = append(list.Sessions, s)
	}
	return list, nil
}

// pairs reads what sessions of a list are to have: NAME=value, each time the query has it. With a flag it may be true or
// false too.
func pairs(field string, values []string, flag bool) (all map[string]string, on bool, err error) {
	all = map[string]string{}
	for _, text := range values {
		name, value, ok := strings.Cut(text, "=")
		before, twice := all[name]
		switch {
		case !ok && flag && (text == "true" || text == "false"):
			on = text == "true"
		case !ok && flag:
			return nil, false, fault.Field(field, text, "NAME=value, true or false")
		case !ok || name == "":
			return nil, false, fault.Field(field, text, "NAME=value")
		case twice && before != value:
			return nil, false, fault.Field(field, text, "one value of "+strconv.Quote(name))
		default:
			all[name] = value
		}
	}
	return all, on, nil
}

// createSession makes a session, or finds the one of that id.
func createSession(c *Call) (any, error) {
	var req api.SessionRequest
	if err := c.DecodeBody(&req, maxSessionBody); err != nil {
		return nil, err
	}
	want := sessionRequestOf(&req)
	if req.DryRun {
		return planAnswer(c.Context(), c.Log, c.Sup.PlanSession(c.Context(), c.Caller, want)), nil
	}
	s, isNew, err := c.Sup.Create(c.Context(), c.Caller, want)
	if err != nil {
		return nil, err
	}
	if !isNew {
		return sessionAnswer(s.Info()), nil
	}
	answer := Created{Body: sessionAnswer(s.Info())}
	if want.MadeUp { // nobody could use it who does not learn its id
		answer.Undo = func() { c.End(s, session.EndUnclaimed) }
	}
	return answer, nil
}

// getSession describes a session.
func getSession(c *Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	return detailedSession(c, s), nil
}

// detailedSession describes a session with what it uses.
func detailedSession(c *Call, s *session.Session) api.Session {
	answer := sessionAnswer(s.Info())
	if w := c.Sup.Work(c.Context(), s); w != nil {
		full := session.IsFull(*w)
		answer.Workspace = &api.Quota{Kind: "workspace", Used: quantity.Size(w.Used), Limit: quantity.Size(w.Limit), Files: w.Files, FilesLimit: w.FilesLimit, Hit: full}
	}
	if u := c.Sup.Traffic(c.Context(), s); u != nil {
		answer.Traffic = trafficAnswer(u)
	}
	u := s.Usage()
	if u == nil {
		return answer
	}
	answer.Usage = &api.SessionUsage{
		CPUMS: inMilliseconds(u.CPU), ThrottledMS: inMilliseconds(u.Throttled), Memory: quantity.Size(u.Memory), MemoryPeak: quantity.Size(u.MemoryPeak),
		Swap: quantity.Size(u.Swap), Pids: int(u.Pids), Read: quantity.Size(u.Read), Written: quantity.Size(u.Written), OOMKills: int(u.OOMKills),
		Pressure: api.Pressure{CPU: u.CPUPressure, Memory: u.MemoryPressure, IO: u.IOPressure},
	}
	return answer
}

// changeSession changes a living session, all of it or nothing.
func changeSession(c *Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	var r api.SessionChange
	if err := c.DecodeBody(&r, maxSessionBody); err != nil {
		return nil, err
	}
	err = c.Sup.Update(c.Context(), s, &policy.Request{Patch: r.Patch, Labels: r.Labels, Metadata: r.Metadata, NetworkRules: r.NetworkRules})
	if err != nil {
		return nil, err
	}
	return detailedSession(c, s), nil
}

// freezeSession stops every program of a session.
func freezeSession(c *Call) (any, error) { return setFrozen(c, true) }

// thawSession lets them go on.
func thawSession(c *Call) (any, error) { return setFrozen(c, false) }

func setFrozen(c *Call, on bool) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	if err := s.Freeze(c.Context(), on); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// stopSession ends the programs and the box of a session, which keeps what it has on disk.
func stopSession(c *Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	if s, err = c.Sup.Stop(c.Context(), s); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// startSession starts a stopped session again.
func startSession(c *Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	var in api.SessionStart
	if c.R.ContentLength != 0 { // it may be left out
		if err := c.DecodeBody(&in, maxSessionBody); err != nil {
			return nil, err
		}
	}
	if s, err = c.Sup.Start(c.Context(), s, (*time.Duration)(in.Wait)); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// renewSession begins the idle time of a session anew.
func renewSession(c *Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	if err := c.Sup.Renew(c.Context(), s); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// deleteSession ends a session.
func deleteSession(c *Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	return NoContent{}, c.Sup.End(c.Context(), s, session.EndDeleted)
}
