// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/egress"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// namesSocket is the name of boxnames.socket's socket in the runtime directory.
const namesSocket = "names.sock"

// openBoxes opens the driver, with name resolution for boxes. supervising is to be set to the supervisor that gets their denials.
func openBoxes(ctx context.Context, cfg *Config, keeper *client.Keeper, seen *notes) (boxes *driver.Driver, supervising *atomic.Pointer[supervisor.Supervisor], stop func()) {
	boxes, stop = driver.Direct(keeper), func() {}
	if cfg.Groups.Driver == driverSystemd {
		var scopes driver.DialScopes
		scopes, stop = openScopes(ctx, cfg, keeper.Program, seen.log)
		boxes = driver.Scoped(keeper, scopes, seen.log)
	}
	supervising = &atomic.Pointer[supervisor.Supervisor]{}
	boxes.Resolve(namesProgram(cfg), cfg.resolvers(), func(d *egress.Denied) { //nolint:contextcheck // it ends with StopResolving
		if v := supervising.Load(); v != nil {
			tellDenied(context.WithoutCancel(ctx), v, seen.Events, d)
		}
	}, seen.log)
	boxes.Watch(func(key string, r driver.Refused, name egress.Name) { //nolint:contextcheck // the same
		if v := supervising.Load(); v != nil {
			emitFor(context.WithoutCancel(ctx), v, seen.Events, key, func(i *session.Info) string {
				return r.Text(i.Settings.NetworkRules, name, i.Settings.NetworkStrict)
			})
		}
	}, func(key string, packets uint64) {
		if v := supervising.Load(); v != nil {
			emitFor(context.WithoutCancel(ctx), v, seen.Events, key, func(i *session.Info) string { return crowded(i, packets) })
		}
	})
	closeScopes := stop
	return boxes, supervising, func() { boxes.StopResolving(); closeScopes() }
}

// namesProgram returns how to connect to boxnames: by the socket of its unit, or, if boxd also starts its keeper, to its own.
func namesProgram(cfg *Config) func(context.Context) (*fdpass.Conn, error) {
	if cfg.Daemon.Keeper == keeperExternal {
		return driver.DialUnit(filepath.Join(cfg.Daemon.RuntimeDir, namesSocket))
	}
	return func(ctx context.Context) (*fdpass.Conn, error) {
		own, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find boxnames: %w", err)
		}
		return driver.ChildResolver(filepath.Join(filepath.Dir(own), "boxnames"), os.Stderr)(ctx)
	}
}

// tellDenied makes an event of a denial of a box.
func tellDenied(ctx context.Context, v *supervisor.Supervisor, log *events.Log, d *egress.Denied) {
	detail := "the name " + d.Asked + " is allowed by no rule"
	if len(d.Addresses) > 0 {
		var list []string
		for _, a := range d.Addresses {
			list = append(list, a.String())
		}
		detail = "the name " + d.Asked + " leads to " + strings.Join(list, ", ") + ", not public"
	}
	if text, ok := describeDenied(d); ok {
		detail = text
	}
	if d.Setting != "" {
		detail += "; network_rules with " + d.Setting + " would allow it"
	}
	emitFor(ctx, v, log, d.Key, func(*session.Info) string { return detail })
}

// describeDenied describes a connection that the proxy has denied.
func describeDenied(d *egress.Denied) (text string, ok bool) {
	if d.Port == 0 || len(d.Addresses) != 1 {
		return "", false
	}
	text = fmt.Sprintf("a connection to %s port %d", d.Addresses[0], d.Port)
	switch d.Reason {
	case string(egress.NotThere):
		return text + " for " + d.Asked + " is allowed by no rule", true
	case string(egress.Astray):
		return text + " for " + d.Asked + ", which did not resolve to it", true
	case string(egress.Unspoken):
		return text + " for " + d.Asked + " requires HTTP/2, but hosts of secrets are served with HTTP/1.1 only; a client that offers http/1.1 would be allowed", true
	}
	if d.Asked != "" {
		text += " for " + d.Asked
	}
	return text + " has no host name (SNI, HTTP Host)", true
}

// crowded says that a session has reached its connection limit.
func crowded(i *session.Info, packets uint64) string {
	c := driver.Crowded{Packets: packets, Most: i.Settings.NetworkConnections, Profile: i.Settings.Profile}
	for _, clamp := range i.Settings.Clamped {
		if clamp.Field == policy.FieldConnections {
			c.By = clamp.By
		}
	}
	return c.Text()
}

// emitFor makes an event for the session of a box.
func emitFor(ctx context.Context, v *supervisor.Supervisor, log *events.Log, key string, detail func(*session.Info) string) {
	for _, i := range v.Sessions(access.Principal{}, true) {
		if i.Box == key {
			log.Add(ctx, events.Event{Type: events.Denied, Session: i.ID, Owner: i.Owner, Reason: string(fault.LayerNetwork), Detail: detail(&i)})
		}
	}
}
