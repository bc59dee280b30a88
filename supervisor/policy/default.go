// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"

	"github.com/boxd-dev/boxd/isolation"
)

// defaultVariables returns the environment of programs where the operator sets none.
func defaultVariables() map[string]string {
	return VariablesOf(isolation.BoxUser, isolation.Home)
}

// VariablesOf returns the environment of programs of a user with that name and home directory, where the operator sets none.
func VariablesOf(user, home string) map[string]string {
	return map[string]string{
		"HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "LANG": "C.UTF-8",
		"PATH":                      home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PIP_BREAK_SYSTEM_PACKAGES": "1",
		"npm_config_prefix":         home + "/.local",
	}
}

// VariablesFor returns the configured environment for a user with that name and home: variables with their built-in value follow
// them, others stay as the operator set them.
func (c *Config) VariablesFor(user, home string) map[string]string {
	all := maps.Clone(c.Env)
	builtIn := defaultVariables()
	for name, value := range VariablesOf(user, home) {
		if old, ok := all[name]; ok && old == builtIn[name] {
			all[name] = value
		}
	}
	return all
}
