// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/audit"
)

// auditWhat returns what a body asks for, for the audit log: commands and names. It has no values of environment variables,
// no input, and no output of programs.
func auditWhat(body any) *audit.What {
	switch r := body.(type) {
	case *api.ExecRequest:
		return commandWhat(r.Argv, r.Command, r.Code, r.Language, r.Env)
	case *api.ProcessRequest:
		return commandWhat(r.Argv, r.Command, r.Code, r.Language, r.Env)
	case *api.SessionRequest:
		return sessionWhat(r, &audit.What{})
	case *api.OneShotRequest:
		return sessionWhat(&r.Session, commandWhat(r.Exec.Argv, r.Exec.Command, r.Exec.Code, r.Exec.Language, r.Exec.Env))
	case *api.StreamStart:
		w := commandWhat(r.Exec.Argv, r.Exec.Command, r.Exec.Code, r.Exec.Language, r.Exec.Env)
		if r.Session != nil {
			w = sessionWhat(r.Session, w)
		}
		return w
	case *api.GrantRequest:
		return &audit.What{Changes: []string{"principal=" + r.Principal, "role=" + r.Role, "for=" + r.For.String()}}
	case *api.MountRequest:
		return &audit.What{Mounts: []string{r.Source + ":" + r.Target + ":" + r.Mode}, Changes: fields(r)}
	case *api.ImageCommit:
		return &audit.What{Env: names(r.Env), Changes: slices.DeleteFunc(append(fields(r), "name="+r.Name), func(name string) bool { return name == "name" || name == "env" })}
	case *api.SignalRequest:
		return &audit.What{Changes: []string{"signal=" + r.Signal}}
	case *api.SessionChange:
		return &audit.What{Changes: requestedChanges(r)}
	case nil:
		return nil
	}
	return &audit.What{Changes: fields(body)}
}

// commandWhat describes a command. A shell command or code is an argument after its interpreter.
func commandWhat(argv []string, command, code *string, language string, env map[string]string) *audit.What {
	w := &audit.What{Argv: argv, Env: names(env)}
	switch {
	case command != nil:
		w.Argv = []string{"sh", "-c", *command}
	case code != nil:
		w.Argv = []string{"(" + language + ")", *code}
	}
	return w
}

// sessionWhat adds the requested properties of a session.
func sessionWhat(r *api.SessionRequest, w *audit.What) *audit.What {
	w.Profile = r.Profile
	for _, m := range r.Mounts {
		w.Mounts = append(w.Mounts, m.Source+":"+m.Target+":"+m.Mode)
	}
	w.Env = append(w.Env, names(r.Env)...)
	w.Changes = slices.DeleteFunc(fields(r), func(name string) bool {
		return slices.Contains([]string{"id", "profile", "mounts", "env"}, name)
	})
	return w
}

// requestedChanges returns the requested changes of a session with their values; of labels only the names.
func requestedChanges(r *api.SessionChange) []string {
	copied := *r
	copied.Labels, copied.Metadata = nil, nil
	data, err := json.Marshal(&copied)
	var byName map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &byName) != nil {
		return nil
	}
	var list []string
	for name, value := range byName {
		list = append(list, name+"="+string(value))
	}
	for _, name := range names(r.Labels) {
		list = append(list, "labels."+name)
	}
	if r.Metadata != nil {
		list = append(list, "metadata")
	}
	slices.Sort(list)
	return list
}

func names(env map[string]string) []string { return slices.Sorted(maps.Keys(env)) }

// fields returns the names of the fields that a body has.
func fields(body any) []string {
	data, err := json.Marshal(body)
	if err != nil {
		return nil
	}
	var byName map[string]json.RawMessage
	if json.Unmarshal(data, &byName) != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(byName))
}
