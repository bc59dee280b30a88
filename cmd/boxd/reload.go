// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/systemd"
)

// reloader applies changed configurations.
type reloader struct {
	load    func() (Config, error)
	apply   func(*Config) error
	started *Config // the configuration at startup
	log     *slog.Logger
	events  *events.Log

	mu    sync.Mutex
	force Config // the effective configuration: guarded by mu
}

func newReloader(load func() (Config, error), apply func(*Config) error, started *Config, log *slog.Logger, events *events.Log) *reloader {
	return &reloader{load: load, apply: apply, started: started, log: log, events: events, force: *started}
}

// settings returns the effective settings, key by key.
func (r *reloader) settings() ([]api.Setting, error) {
	r.mu.Lock()
	force := r.force
	r.mu.Unlock()
	values, err := force.Values()
	if err != nil {
		return nil, err
	}
	fixed, err := fixedSettings(r.started, &force)
	if err != nil {
		return nil, err
	}
	first, err := r.started.Values()
	if err != nil {
		return nil, err
	}
	list := make([]api.Setting, 0, len(values))
	for _, v := range values {
		if slices.Contains(fixed, v.Key) {
			i := slices.IndexFunc(first, func(o ConfigValue) bool { return o.Key == v.Key })
			if i < 0 {
				continue
			}
			v = first[i]
		}
		list = append(list, api.Setting{Key: v.Key, Value: v.Text, Origin: v.Origin})
	}
	return list, nil
}

// run reloads the configuration at every signal, until ctx ends.
func (r *reloader) run(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-hangups:
		case <-ctx.Done():
			return
		}
		err := systemd.Reloading()
		r.reload(ctx)
		if err == nil {
			err = systemd.Ready()
		}
		if err != nil {
			r.log.Warn("cannot notify the service manager of the reload", "error", err)
		}
	}
}

// reload applies a configuration: all of it or nothing. Living sessions keep their settings in any case.
func (r *reloader) reload(ctx context.Context) {
	next, err := r.load()
	if err == nil {
		err = r.apply(&next)
	}
	if err != nil {
		r.events.Add(ctx, events.Event{Type: events.ConfigRefused, Detail: err.Error()})
		return
	}
	r.events.Add(ctx, events.Event{Type: events.ConfigReloaded, Detail: next.Describe()})
	r.mu.Lock()
	r.force = next
	r.mu.Unlock()
	fixed, err := fixedSettings(r.started, &next)
	if err != nil || len(fixed) > 0 {
		r.log.Warn("changed keys take effect when boxd is restarted", "keys", strings.Join(fixed, ", "), "error", err)
	}
}
