// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// fill puts the values of variables into all texts of a server, in the spellings of the hosts that have one: ${NAME},
// ${NAME:-otherwise}, ${env:NAME}.
func (s *Server) fill(env func(string) (string, bool)) (err error) {
	put := func(text string) string {
		if err != nil {
			return ""
		}
		text, err = filled(text, env)
		return text
	}
	s.Command, s.Cwd = put(s.Command), put(s.Cwd)
	for i, arg := range s.Args {
		s.Args[i] = put(arg)
	}
	for name, value := range s.Env {
		s.Env[name] = put(value)
	}
	return err
}

// filled goes through a text once: what a variable has is not looked at again.
func filled(text string, env func(string) (string, bool)) (string, error) {
	var all strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "${")
		all.WriteString(before)
		if !found {
			break
		}
		inner, behind, closed := strings.Cut(after, "}")
		name, otherwise, may := strings.Cut(strings.TrimPrefix(inner, "env:"), ":-")
		if !closed || !isName(name) {
			return "", fault.Field("args", text, "text in which only ${NAME}, ${NAME:-default} and ${env:NAME} are expanded").Of(fault.Unsupported)
		}
		value, set := env(name)
		switch {
		case !set && !may:
			e := fault.Field("args", text, "text with variables that are set")
			e.Err = fmt.Errorf("args = %s: the variable %s is not set", fault.Show(text), name)
			return "", e.WithHint("set %s in env of the server: MCP clients pass on only a few of their own variables", name)
		case !set || may && value == "":
			value = otherwise
		}
		all.WriteString(value)
		rest = behind
	}
	if strings.ContainsRune(all.String(), 0) {
		return "", fault.Field("args", text, "text without NUL bytes")
	}
	return all.String(), nil
}

// isName reports whether variables are called that. Words that hosts fill in with something else are no such names.
func isName(s string) bool {
	switch s {
	case "", "workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator":
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) < 0
}
