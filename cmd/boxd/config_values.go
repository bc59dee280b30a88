// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// builtIn is the origin of an unset key.
const builtIn = "built-in"

// ConfigValue is an effective setting.
type ConfigValue struct {
	Key    string
	Text   string // as in box.toml
	Origin string // file and line, "variable NAME", or builtIn
}

// note records where keys were set.
func (c *Config) note(name, text string, meta toml.MetaData) {
	if c.Origins == nil {
		return // not needed
	}
	for _, key := range meta.Keys() {
		if meta.Type(key...) == "Hash" {
			continue // a table itself is not a setting
		}
		origin := name
		if !strings.HasPrefix(name, "variable ") {
			origin = name + ":" + strconv.Itoa(fault.LineOf(text, key...))
		}
		c.Origins[key.String()] = origin
	}
}

// Values returns every key with its value, sorted. Variables for programs ([env]) are named without their values.
func (c *Config) Values() ([]ConfigValue, error) {
	var text strings.Builder
	file := struct {
		*Config
		Profiles map[string]policy.Profile `toml:"profiles"`
		Policies map[string]policy.Policy  `toml:"policy"`
	}{c, c.Profiles, c.Policies}
	if err := toml.NewEncoder(&text).Encode(file); err != nil {
		return nil, fmt.Errorf("show the configuration: %w", err)
	}
	var tree map[string]any
	if _, err := toml.Decode(text.String(), &tree); err != nil {
		return nil, fmt.Errorf("show the configuration: %w", err)
	}
	var list []ConfigValue
	c.collect(nil, tree, &list)
	slices.SortFunc(list, func(a, b ConfigValue) int { return strings.Compare(a.Key, b.Key) })
	return list, nil
}

func (c *Config) collect(above toml.Key, table map[string]any, list *[]ConfigValue) {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		key := append(slices.Clone(above), name)
		if below, ok := table[name].(map[string]any); ok {
			c.collect(key, below, list)
			continue
		}
		v := ConfigValue{Key: key.String(), Text: literal(table[name]), Origin: builtIn}
		if origin, ok := c.Origins[v.Key]; ok {
			v.Origin = origin
		}
		if key[0] == "env" || key[0] == "profiles" && slices.Contains(key[1:len(key)-1], "env") {
			v.Text = "(not shown)"
		}
		*list = append(*list, v)
	}
}

// literal formats a value as in box.toml.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			parts[i] = literal(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case []map[string]any:
		parts := make([]string, len(v))
		for i, item := range v {
			parts[i] = literal(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, name+" = "+literal(v[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return fmt.Sprint(v)
	}
}
