// SPDX-License-Identifier: Apache-2.0

// Package host has the routes about boxd and its host.
package host

import (
	"encoding/json"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/openapi"
	"github.com/boxd-dev/boxd/relay/route"
	"github.com/boxd-dev/boxd/relay/wire"
)

// Health answers whether boxd is alive.
func Health(c *route.Call) (any, error) {
	if err := c.Sup.Alive(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

// Ready answers whether boxd takes work.
func Ready(c *route.Call) (any, error) {
	if err := c.Sup.Ready(); err != nil {
		return nil, err
	}
	return api.Health{Status: "ok"}, nil
}

// Description is the API in a form that programs read.
func Description(*route.Call) (any, error) { return json.RawMessage(openapi.Document()), nil }

// Status tells how boxd is.
func Status(c *route.Call) (any, error) {
	o := c.Sup.Overview()
	return api.Status{
		Version: c.Version, StartedAt: c.Started, Sessions: o.Sessions, MaxSessions: o.MaxSessions,
		Processes: o.Processes, MaxProcesses: o.MaxProcesses, Running: o.Running, Executed: o.Executed,
		ControlGroups: o.ControlGroups, BestEffort: o.BestEffort, Unenforced: append([]string{}, o.Unenforced...),
		Enforced: wire.Enforced(o.Enforced), Degraded: append([]string{}, o.Degraded...),
	}, nil
}

// Configuration tells what is in force of box.toml.
func Configuration(c *route.Call) (any, error) {
	settings, err := c.Settings()
	return api.Configuration{Settings: settings}, err
}

// Profiles lists the profiles.
func Profiles(c *route.Call) (any, error) {
	all, usual := c.Sup.Profiles()
	list := api.ProfileList{Default: usual, Profiles: map[string]api.Profile{}}
	for name, p := range all {
		list.Profiles[name] = api.Profile(p)
	}
	return list, nil
}

// Doctor tells what this host can do.
func Doctor(c *route.Call) (any, error) {
	checks, err := c.Sup.Doctor(c.Context())
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
