// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// variablePrefix is the prefix of all variables that set keys: BOXD__SESSIONS__MAX is sessions.max.
const variablePrefix = "BOXD__"

// decodeEnvironment applies the settings of an environment, sorted by name.
func (c *Config) decodeEnvironment(environ []string) error {
	var list []string
	for _, v := range environ {
		if strings.HasPrefix(v, variablePrefix) {
			list = append(list, v)
		}
	}
	slices.Sort(list)
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		if err := c.decodeVariable(name, value); err != nil {
			return err
		}
	}
	return nil
}

// decodeVariable sets one key. A value is parsed as TOML, or taken as a string if it is no TOML value that the key
// accepts: 7, true and ["a"] need no quotes, and neither does 512MiB.
func (c *Config) decodeVariable(name, value string) error {
	key, err := keyOf(name)
	if err != nil {
		return err
	}
	origin := "variable " + name
	var any map[string]any
	literal := assignment(key, value)
	meta, err := toml.Decode(literal, &any)
	if err != nil || !within(meta, key) {
		return c.decode(origin, assignment(key, quote(value)))
	}
	if err = c.decode(origin, literal); err != nil {
		if c.decode(origin, assignment(key, quote(value))) == nil {
			return nil
		}
	}
	return err
}

// within reports whether a document sets only this key: a value must not add lines of its own.
func within(meta toml.MetaData, key toml.Key) bool {
	for _, k := range meta.Keys() {
		if n := min(len(k), len(key)); !slices.Equal(k[:n], key[:n]) {
			return false
		}
	}
	return true
}

// keyOf returns the key that a variable sets, in lower case, except for the variables of programs, whose names the
// operator chooses.
func keyOf(name string) (toml.Key, error) {
	parts := strings.Split(strings.TrimPrefix(name, variablePrefix), "__")
	if len(parts) < 2 || slices.Contains(parts, "") {
		return nil, fmt.Errorf("variable %s: must be %sTABLE__KEY, as %sSESSIONS__MAX", name, variablePrefix, variablePrefix)
	}
	for i, p := range parts {
		if i == 0 || !strings.EqualFold(parts[0], "env") {
			parts[i] = strings.ToLower(p)
		}
	}
	return parts, nil
}

// assignment returns a line of TOML; every part of the key is quoted, so that it may contain anything.
func assignment(key toml.Key, value string) string {
	quoted := make([]string, len(key))
	for i, part := range key {
		quoted[i] = quote(part)
	}
	return strings.Join(quoted, ".") + " = " + value + "\n"
}

// quote makes a TOML basic string of any text.
func quote(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&out, "\\u%04x", r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}
