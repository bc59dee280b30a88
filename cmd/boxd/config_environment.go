// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// variablePrefix begins the name of every variable that sets a key: BOXD__SESSIONS__MAX is sessions.max.
const variablePrefix = "BOXD__"

// decodeEnvironment puts the settings of an environment on top of what is there, in order of their names.
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

// decodeVariable sets one key. A value is read as one of TOML, and as the text it is where it is none that the key
// takes: 7, true and ["a"] need no quotes, and neither does 512MiB.
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

// within reports whether a document sets nothing but a key: a value may not bring lines of its own.
func within(meta toml.MetaData, key toml.Key) bool {
	for _, k := range meta.Keys() {
		if n := min(len(k), len(key)); !slices.Equal(k[:n], key[:n]) {
			return false
		}
	}
	return true
}

// keyOf is the key that a variable sets. All are in lower case, but for the variables of programs, whose names are
// the operator's.
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

// assignment is a line of TOML; every part of the key is quoted, whatever is in it.
func assignment(key toml.Key, value string) string {
	quoted := make([]string, len(key))
	for i, part := range key {
		quoted[i] = quote(part)
	}
	return strings.Join(quoted, ".") + " = " + value + "\n"
}

// quote makes a basic string of TOML of any text.
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
