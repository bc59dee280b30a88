// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/supervisor"
)

// getHealth reports whether boxd is alive.
func getHealth(c *Call) (any, error) {
	if err := c.Sup.Alive(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

// getReady reports whether boxd accepts work.
func getReady(c *Call) (any, error) {
	if err := c.Sup.Ready(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

// getDescription returns the API description in machine-readable form.
func getDescription(*Call) (any, error) { return json.RawMessage(openAPI()), nil }

// getStatus returns the state of boxd.
func getStatus(c *Call) (any, error) {
	o := c.Sup.Overview()
	if err := c.Audit.State().Trouble; err != nil {
		o.Degraded = append(o.Degraded, "the audit log cannot be written: "+err.Error())
		if o.State == supervisor.ConditionOK {
			o.State = supervisor.ConditionDegraded
		}
	}
	if o.Degraded = append(o.Degraded, c.Waived...); len(c.Waived) > 0 && o.State == supervisor.ConditionOK {
		o.State = supervisor.ConditionDegraded
	}
	return api.Status{
		State: string(o.State), Off: o.Off, Queue: queue(c), Warm: warm(o),
		Version: c.Version, StartedAt: c.Started, Sessions: o.Sessions, MaxSessions: o.MaxSessions, Stopped: o.Stopped,
		Processes: o.Processes, MaxProcesses: o.MaxProcesses, Running: o.Running, Executed: o.Executed,
		ControlGroups: o.ControlGroups, BestEffort: o.BestEffort, Unenforced: append([]string{}, o.Unenforced...),
		Enforced: enforcedAnswer(o.Enforced), Degraded: append([]string{}, o.Degraded...),
	}, nil
}

// getConfiguration returns the effective settings of box.toml.
func getConfiguration(c *Call) (any, error) {
	settings, err := c.Settings()
	return api.Configuration{Settings: settings}, err
}

// queue describes the wait queue. A caller does not see what others wait for, only how many are before it.
func queue(c *Call) api.Queue {
	limits := c.Sup.Queue()
	starts, executions := c.Sup.Waiting()
	q := api.Queue{Waiting: len(starts), Executions: len(executions), Length: limits.Length, Wait: quantity.Duration(limits.Wait), Places: []api.Place{}}
	for _, p := range starts {
		if p.Caller == c.Caller.Name || c.Caller.Is(access.Admin) {
			q.Places = append(q.Places, api.Place{ID: p.What, Owner: p.Caller, Position: p.Position, Reason: string(p.Reason), Since: p.Since})
		}
	}
	return q
}

func warm(o supervisor.Overview) []api.Warm {
	list := []api.Warm{}
	for _, w := range o.Warm {
		list = append(list, api.Warm(w))
	}
	return list
}

// drain makes boxd refuse new sessions.
func drain(c *Call) (any, error) {
	var r api.DrainRequest
	if c.R.ContentLength != 0 {
		if err := c.decodeBody(&r, maxSmallBody); err != nil {
			return nil, err
		}
	}
	d, err := c.Sup.Drain(c.Caller, r.Reason)
	if err != nil {
		return nil, err
	}
	return api.Drain(d), nil
}

// undrain makes boxd accept them again.
func undrain(c *Call) (any, error) { return noContent{}, c.Sup.Undrain(c.Caller) }

// listProfiles lists the profiles.
func listProfiles(c *Call) (any, error) {
	all, def := c.Sup.Profiles()
	list := api.ProfileList{Default: def, Profiles: map[string]api.Profile{}}
	for name, p := range all {
		list.Profiles[name] = api.Profile(p)
	}
	return list, nil
}

// getDoctor returns what this host supports.
func getDoctor(c *Call) (any, error) {
	checks, err := c.Sup.Doctor(c.Context())
	if err != nil {
		return nil, err
	}
	for _, what := range c.Waived {
		checks = append(checks, isolation.Check{Name: "waived", Level: isolation.CheckWarn, Detail: what, Hint: "remove the key from box.toml to enforce it"})
	}
	d := api.Doctor{OK: true, Checks: make([]api.Check, len(checks))}
	levels := map[isolation.CheckLevel]string{isolation.CheckOK: "ok", isolation.CheckWarn: "warn", isolation.CheckFail: "fail"}
	for i, check := range checks {
		d.OK = d.OK && check.Level != isolation.CheckFail
		d.Checks[i] = api.Check{Name: check.Name, Level: levels[check.Level], Detail: check.Detail, Hint: check.Hint}
	}
	return d, nil
}
