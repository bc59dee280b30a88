// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Facts are what there is to tell.
type Facts struct {
	Box         api.PlannedSession
	Profile     api.Profile       // the times of executions; zero: not known
	Enforcement map[string]string // what keeps each limit, as in api.Plan
	Refused     *api.Problem      // why there would be no box now
	Named       string            // id of a box that stays; "" is one that ends with the connection
	Any         bool              // the caller's other sessions may be named
}

// network says what the network is, as seen from inside.
func (f *Facts) network() string {
	rules := f.Box.NetworkRules
	switch name := f.Box.Network; name {
	case "off":
		return "There is no network, only loopback: nothing can be downloaded or installed from elsewhere."
	case "egress":
		switch {
		case len(rules) == 0:
			return "There is one, but its rules let no connection through."
		case slices.Contains(rules, "0.0.0.0/0 tcp"):
			return "Programs can connect to the internet by TCP; nobody can connect to them from outside."
		}
		return fmt.Sprintf("Programs can connect to what these rules allow and to nothing else: %s.", strings.Join(rules, ", "))
	case "host":
		return "Programs share the network of the host: be careful what you connect to or listen on."
	default:
		return "The network is " + strconv.Quote(name) + "."
	}
}

// FactsOf are the facts of a session that is there.
func FactsOf(s *api.Session, p *api.Profile) *Facts {
	f := &Facts{Enforcement: s.Enforcement, Named: s.ID, Profile: *p, Box: api.PlannedSession{
		ID: s.ID, Profile: s.Profile, Network: s.Network, NetworkRules: s.NetworkRules, NetworkStrict: s.NetworkStrict, ReadOnlyRoot: s.ReadOnlyRoot,
		Limits: s.Limits, Mounts: s.Mounts,
	}}
	for i := range s.Skills {
		f.Box.Skills = append(f.Box.Skills, s.Skills[i].Name)
	}
	return f
}

// WriteInstructions says in a few lines what a box offers and forbids, for a model that is to work in it, one fact a line. All
// of it comes from what boxd says: the profile, what was asked of it, and what the policy has made of that.
func WriteInstructions(f *Facts) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if f.Named != "" {
		add("These tools work in the box %q, a sandbox on the user's machine. It stays when this connection ends, and others may use it.", f.Named)
	} else {
		add("These tools work in a box: a sandbox on the user's machine, made by the first call and removed with all that is in it when this connection ends.")
	}
	if f.Refused != nil {
		add("At this moment boxd would refuse to make it: %s", f.Refused.Detail)
	}
	add("Files: %s Relative paths begin at /workspace. The rest of the host's files is not there.", f.files())
	add("Network: %s", f.network())
	if len(f.Box.Skills) > 0 {
		add("Skills, instructions for tasks, are at /skills: %s. Read /skills/NAME/SKILL.md before such a task.", strings.Join(f.Box.Skills, ", "))
	}
	add("Limits: %s.", f.limits())
	if f.Profile.Timeout > 0 {
		add("A command ends after %v unless timeout_seconds says otherwise, at most %v. What it leaves running in the background is %s; process_start is for servers and other programs that stay.",
			f.Profile.Timeout, f.Profile.MaxTimeout, leftovers(f.Profile.Leftovers))
	}
	add("You are an ordinary user without root, sudo or capabilities. Long output is cut in the middle; its URI, given to box_read, shows the rest.")
	if f.Any {
		add("The argument session may name any session of the user's; without it a call is about the connection's own box.")
	} else {
		add("The argument session names a box that box_create has made here; without it a call is about the connection's own box.")
	}
	return strings.Join(lines, "\n") + "\n"
}

func leftovers(what string) string {
	if what == "kill" {
		return "killed"
	}
	return "left alone"
}

func (f *Facts) files() string {
	var places []string
	workspace := "/workspace"
	for i := range f.Box.Mounts {
		m := &f.Box.Mounts[i]
		mode := "read-only"
		switch m.Mode {
		case "rw":
			mode = "writable, and what changes there changes on the user's machine"
		case "none":
			continue
		}
		if m.Target == "/workspace" {
			workspace = ""
		}
		places = append(places, fmt.Sprintf("%s is a directory of the user's (%s)", m.Target, mode))
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
	text += fmt.Sprintf("/tmp and the home are writable, up to %v together", f.Box.Tmp)
	if f.Box.ReadOnlyRoot {
		text += "; all else is read-only"
	}
	return text + "."
}

func (f *Facts) limits() string {
	mark := func(name string) string {
		if f.Enforcement[name] == "none" {
			return " (which this host does not enforce)"
		}
		return ""
	}
	return fmt.Sprintf("%v of memory%s, %v processors%s, %d processes%s", f.Box.Memory, mark("memory"), f.Box.CPUs, mark("cpu"), f.Box.Pids, mark("pids"))
}
