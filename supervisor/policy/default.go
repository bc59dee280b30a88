// SPDX-License-Identifier: Apache-2.0

package policy

// DefaultVariables is the environment of programs where the operator says nothing.
func DefaultVariables() map[string]string {
	return map[string]string{
		"HOME": "/home/box", "USER": "box", "LOGNAME": "box", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
		"PATH":                      "/home/box/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PIP_BREAK_SYSTEM_PACKAGES": "1",
		"npm_config_prefix":         "/home/box/.local",
	}
}
