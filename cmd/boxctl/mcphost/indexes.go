// SPDX-License-Identifier: Apache-2.0

package mcphost

import "strings"

// pipVariables are those of pip that say where packages are and how to get there. Others have paths of the host.
const pipVariables = " PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_RETRIES PIP_TIMEOUT PIP_DEFAULT_TIMEOUT PIP_PRE PIP_ONLY_BINARY PIP_NO_BINARY PIP_PREFER_BINARY "

// npmVariables are those of npm, in any case. It reads registries of scopes, such as npm_config_@mine:registry, too.
const npmVariables = " npm_config_registry npm_config_strict_ssl npm_config_proxy npm_config_https_proxy npm_config_noproxy npm_config_fetch_retries npm_config_fetch_timeout "

// Indexes are the variables of an environment, NAME=value, that say from where dependencies are installed, but for those
// that given has. Each is for the installers alone.
func Indexes(environ []string, given map[string]string) map[string]string {
	env := map[string]string{}
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		if isIndex(name) {
			env[name] = value
		}
	}
	for has := range given { // npm takes either case, and knows none of two
		for name := range env {
			if strings.EqualFold(has, name) {
				delete(env, name)
			}
		}
	}
	return env
}

func isIndex(name string) bool {
	if name == "" || strings.Contains(name, " ") {
		return false
	}
	npm := strings.ToLower(name)
	return strings.Contains(pipVariables, " "+name+" ") || strings.Contains(npmVariables, " "+npm+" ") ||
		strings.HasPrefix(npm, "npm_config_@") && strings.HasSuffix(npm, ":registry")
}
