// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"

	"github.com/boxd-dev/boxd/isolation"
)

// DefaultVariables is the environment of programs where the operator says nothing.
func DefaultVariables() map[string]string {
	return variablesOf(isolation.BoxUser, isolation.Home)
}

// variablesOf is the same for a user of another name and home.
func variablesOf(user, home string) map[string]string {
	return map[string]string{
		"HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "LANG": "C.UTF-8",
		"PATH":                      home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PIP_BREAK_SYSTEM_PACKAGES": "1",
		"npm_config_prefix":         home + "/.local",
	}
}

// VariablesFor is the configured environment of programs whose user has that name and home: what the operator has
// left as it is built in follows them, and what he has set otherwise stays.
func (c *Config) VariablesFor(user, home string) map[string]string {
	all := maps.Clone(c.Env)
	builtIn := DefaultVariables()
	for name, value := range variablesOf(user, home) {
		if old, ok := all[name]; ok && old == builtIn[name] {
			all[name] = value
		}
	}
	return all
}
