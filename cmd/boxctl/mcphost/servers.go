// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// MaxFile bounds the file, in bytes.
const MaxFile = 1 << 20

// Server is a server on standard input and output: what is run for it.
type Server struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
}

// entry is one as it is in the file.
type entry struct {
	Server
	Type string `json:"type"`
	URL  string `json:"url"`

	EnvFile string `json:"envFile"`
}

// file is all of it. Hosts differ in the key: "mcpServers" for most, "servers" for some.
type file struct {
	MCPServers map[string]entry `json:"mcpServers"`
	Servers    map[string]entry `json:"servers"`
}

// FindServer returns the server of a name, with the values of variables that it mentions; env tells them, and whether they are
// set. An error is a *fault.Error that says what was expected.
func FindServer(data []byte, name string, env func(string) (string, bool)) (*Server, error) {
	if len(data) > MaxFile {
		return nil, fault.Field("from", fmt.Sprintf("%d bytes", len(data)), fmt.Sprintf("at most %d", MaxFile))
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fault.Errorf(fault.Invalid, "the list of servers must be JSON like {\"mcpServers\": {\"NAME\": {\"command\": …}}}: %w", err).WithHint("JSON has no comments: remove them")
	}
	all := f.MCPServers
	if len(all) == 0 {
		all = f.Servers
	}
	e, ok := all[name]
	if !ok {
		names := slices.Sorted(maps.Keys(all))
		return nil, fault.Field("name", name, "a server of the file: "+strings.Join(names, ", ")).Of(fault.NotFound)
	}
	if e.URL != "" || e.Type != "" && e.Type != "stdio" {
		return nil, fault.Field("type", e.Type, "stdio: boxes run only servers on standard input and output").Of(fault.Unsupported)
	}
	if e.Command == "" {
		return nil, fault.Field("command", fault.Word("missing"), "a program")
	}
	if e.EnvFile != "" { // without its secrets a server fails in ways that are hard to understand
		f := fault.Field("envFile", e.EnvFile, "absent").Of(fault.Unsupported)
		f.Err = errors.New("envFile is not supported")
		return nil, f.WithHint("set the variables in env")
	}
	if err := e.fill(env); err != nil {
		return nil, err
	}
	if e.Command == "" {
		return nil, fault.Field("command", fault.Word("missing"), "a program")
	}
	return &e.Server, nil
}
