// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Facts are what the instructions are made from.
type Facts struct {
	Box         api.PlannedSession
	Profile     api.Profile       // the timeouts of executions; zero: unknown
	Enforcement map[string]string // what enforces each limit, as in api.Plan
	Refused     *api.Problem      // why no box could be made now
	Named       string            // id of a permanent box; "": it ends with the connection
	Any         bool              // the caller's other sessions may be used
}

// network describes the network as seen from inside.
func (f *Facts) network() string {
	rules := f.Box.NetworkRules
	switch name := f.Box.Network; name {
	case "off":
		return "no network, only loopback. Nothing can be downloaded."
	case "egress":
		switch {
		case len(rules) == 0:
			return "the rules allow no connections."
		case slices.Contains(rules, "0.0.0.0/0 tcp"):
			return "programs can open TCP connections to the internet; incoming connections are not possible."
		}
		return fmt.Sprintf("programs can connect only to: %s.", strings.Join(rules, ", "))
	case "host":
		return "programs use the network of the host, including its loopback services. Be careful."
	default:
		return strconv.Quote(name) + "."
	}
}

// FactsOf returns the facts of an existing session.
func FactsOf(s *api.Session, p *api.Profile) *Facts {
	f := &Facts{Enforcement: s.Enforcement, Named: s.ID, Profile: *p, Box: api.PlannedSession{
		ID: s.ID, Profile: s.Profile, Network: s.Network, NetworkRules: s.NetworkRules, NetworkStrict: s.NetworkStrict, ReadOnlyRoot: s.ReadOnlyRoot, HomeOnDisk: s.HomeOnDisk,
		Limits: s.Limits, Mounts: s.Mounts,
	}}
	for i := range s.Skills {
		f.Box.Skills = append(f.Box.Skills, s.Skills[i].Name)
	}
	return f
}

// WriteInstructions returns for a model that works in a box what the box offers and forbids, one fact a line. All of it
// comes from boxd: the profile, the request, and the result of the policy.
func WriteInstructions(f *Facts) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if f.Named != "" {
		add("These tools work in the box %q, a sandbox on the user's machine. It is kept when this connection ends, and other clients may use it.", f.Named)
	} else {
		add("These tools work in a box, a sandbox on the user's machine. The first call creates it; it is deleted with all its files when this connection ends.")
	}
	if f.Refused != nil {
		add("At the moment boxd refuses to create it: %s", f.Refused.Detail)
	}
	add("Files: %s Paths are relative to /workspace. Other files of the host are not visible.", f.files())
	add("Network: %s", f.network())
	if len(f.Box.Skills) > 0 {
		add("Skills (instructions for tasks) in /skills: %s. Read /skills/NAME/SKILL.md before a task that a skill is for.", strings.Join(f.Box.Skills, ", "))
	}
	add("Limits: %s.", f.limits())
	if f.Profile.Timeout > 0 {
		add("Timeout of a command: %v; timeout_seconds sets another, at most %v. Background processes that it leaves are %s; start servers and other long-running programs with process_start.",
			f.Profile.Timeout, f.Profile.MaxTimeout, leftovers(f.Profile.Leftovers))
	}
	if f.Box.ReadOnlyRoot {
		add("Commands run as an ordinary user without root, sudo or capabilities.")
	} else {
		add("Commands run as an ordinary user without sudo; user \"root\" runs one as root of the box, for example to install packages, where its policy allows that.")
	}
	add("Long output is truncated in the middle; pass its URI to box_read to read the rest.")
	if f.Any {
		add("session can be the id of any box of the user (default: the box of this connection).")
	} else {
		add("session is the id of a box from box_create (default: the box of this connection).")
	}
	return strings.Join(lines, "\n") + "\n"
}

func leftovers(what string) string {
	if what == "kill" {
		return "killed"
	}
	return "kept"
}

func (f *Facts) files() string {
	var places []string
	workspace := "/workspace"
	for i := range f.Box.Mounts {
		m := &f.Box.Mounts[i]
		mode := "read-only"
		switch m.Mode {
		case "rw":
			mode = "writable; changes affect the user's machine"
		case "none":
			continue
		}
		if m.Target == "/workspace" {
			workspace = ""
		}
		places = append(places, fmt.Sprintf("%s is a directory of the user (%s)", m.Target, mode))
	}
	text := ""
	switch {
	case workspace == "":
	case f.Box.WorkspaceQuota > 0:
		text = fmt.Sprintf("/workspace is writable, up to %v; ", f.Box.WorkspaceQuota)
	default:
		text = "/workspace is writable; "
	}
	if len(places) > 0 {
		text += strings.Join(places, ", ") + "; "
	}
	if f.Box.HomeOnDisk {
		text += fmt.Sprintf("/tmp is writable, up to %v, and so is the home directory", f.Box.Tmp)
	} else {
		text += fmt.Sprintf("/tmp and the home directory are writable, up to %v together", f.Box.Tmp)
	}
	if f.Box.ReadOnlyRoot {
		text += "; everything else is read-only"
	}
	return text + "."
}

func (f *Facts) limits() string {
	mark := func(name string) string {
		if f.Enforcement[name] == "none" {
			return " (not enforced on this host)"
		}
		return ""
	}
	return fmt.Sprintf("%v memory%s, %v CPUs%s, %d processes%s", f.Box.Memory, mark("memory"), f.Box.CPUs, mark("cpu"), f.Box.Pids, mark("pids"))
}
