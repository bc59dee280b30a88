// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// fixedSettings returns the changed keys that boxd or its keeper reads only at startup: all but those of policy and
// access.
func fixedSettings(before, after *Config) ([]string, error) {
	var tables [2]map[string]map[string]any
	for i, c := range []Config{*before, *after} {
		c.Config, c.Access, c.Principals, c.Fleet.Gateways = policy.Config{}, access.Config{}, nil, nil
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

// joined returns the keys of both tables: an empty list is omitted from an encoded table.
func joined(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
