// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/systemd"
)

// reloader puts a configuration that has been changed in force.
type reloader struct {
	load    func() (config, error)
	apply   func(policy.Config) error
	started *config // what boxd has started with
	log     *slog.Logger
}

// run reads the configuration again whenever it is told to, until ctx ends.
func (r *reloader) run(ctx context.Context, told <-chan os.Signal) {
	for {
		select {
		case <-told:
		case <-ctx.Done():
			return
		}
		err := systemd.Reloading()
		r.reload()
		if err == nil {
			err = systemd.Ready()
		}
		if err != nil {
			r.log.Warn("reload", "error", err)
		}
	}
}

// reload is all or nothing. Living sessions keep what they have, whatever comes of it.
func (r *reloader) reload() {
	next, err := r.load()
	if err == nil {
		err = r.apply(next.Config)
	}
	if err != nil {
		r.log.Error("the configuration is not in order; the one before stays in force", "error", err)
		return
	}
	r.log.Info("configuration read again, for new sessions", "configuration", next.describe())
	late, err := fixedKeys(r.started, &next)
	if err != nil || len(late) > 0 {
		r.log.Warn("these keys have changed, and take effect when boxd is restarted", "keys", strings.Join(late, ", "), "error", err)
	}
}

// fixedKeys are the keys that differ and that boxd, or its keeper, reads at the start alone: all but those
// of the policy.
func fixedKeys(before, after *config) ([]string, error) {
	var tables [2]map[string]map[string]any
	for i, c := range []config{*before, *after} {
		c.Config = policy.Config{}
		var text strings.Builder
		if err := toml.NewEncoder(&text).Encode(c); err != nil {
			return nil, fmt.Errorf("compare configurations: %w", err)
		}
		if _, err := toml.Decode(text.String(), &tables[i]); err != nil {
			return nil, fmt.Errorf("compare configurations: %w", err)
		}
	}
	var list []string
	for table, keys := range tables[0] {
		other := tables[1][table]
		for _, key := range slices.Compact(slices.Sorted(maps.Keys(joined(keys, other)))) {
			if !reflect.DeepEqual(keys[key], other[key]) {
				list = append(list, table+"."+key)
			}
		}
	}
	slices.Sort(list)
	return list, nil
}

// joined has the keys of both: an empty list is left out where a table is written.
func joined(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
