// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/supervisor/access"
)

// understood summarizes the configuration in a few lines: where boxd listens, the principals, whom each policy applies
// to, and how many boxes are allowed.
func (c *Config) understood() []string {
	listens := c.Daemon.Socket
	if c.Daemon.SocketGroup != "" {
		listens += " (group " + c.Daemon.SocketGroup + ")"
	}
	if c.Daemon.HTTP != "" {
		listens += ", http " + c.Daemon.HTTP
	}
	if c.Daemon.HTTPS != "" {
		listens += ", https " + c.Daemon.HTTPS
	}
	if c.LangBot.Listen != "" {
		listens += ", LangBot " + c.LangBot.Listen
	}
	if c.LangBot.Fleet {
		listens += ", LangBot for gateways"
	}
	if c.E2B.Listen != "" {
		listens += ", E2B " + c.E2B.Listen
	}
	if c.E2B.Fleet {
		listens += ", E2B for gateways"
	}
	if c.Fleet.Socket != "" {
		listens += ", gateways of the fleet " + c.Fleet.Socket + " as node " + c.Fleet.NodeName()
	}
	lines := []string{"listens on " + listens, fmt.Sprintf("users have the role %s unless a rule gives another (access.default_role)", c.Access.DefaultRole)}
	for _, name := range slices.Sorted(maps.Keys(c.Principals)) {
		lines = append(lines, "principals."+name+": "+ruleText(c.Principals[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		lines = append(lines, "policy."+name+": "+c.policyText(name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Fleet.Gateways)) {
		g := c.Fleet.Gateways[name]
		lines = append(lines, fmt.Sprintf("fleet.gateways.%s: speaks for %s, role %s at most", name, cmp.Or(strings.Join(g.Principals, ", "), "nobody"), g.Role))
	}
	if public := c.E2B.Public(); public != "" {
		lines = append(lines, "e2b: "+public+" need no token, only the id of the sandbox")
	}
	return append(lines, fmt.Sprintf("profiles: %s; default %s", strings.Join(slices.Sorted(maps.Keys(c.Profiles)), ", "), c.Sessions.DefaultProfile),
		fmt.Sprintf("boxes: at most %d, %d per owner", c.Sessions.Max, c.Sessions.MaxPerOwner))
}

func ruleText(r access.Rule) string {
	who := "callers with a token"
	if len(r.Certificates) > 0 {
		who = "callers with a token or the certificate " + strings.Join(r.Certificates, " or ")
	}
	switch {
	case r.User != "":
		who = "user " + r.User
	case r.UID != nil:
		who = "uid " + strconv.FormatUint(uint64(*r.UID), 10)
	case r.Group != "":
		who = "members of group " + r.Group
	case r.GID != nil:
		who = "members of gid " + strconv.FormatUint(uint64(*r.GID), 10)
	}
	if host := r.User != "" || r.UID != nil || r.Group != "" || r.GID != nil; host && len(r.Certificates) > 0 {
		who += ", and callers with the certificate " + strings.Join(r.Certificates, " or ")
	}
	return who + ", role " + r.Role.String()
}

// policyText says whom a policy applies to, and its limits for all boxes of an owner together.
func (c *Config) policyText(name string) string {
	p := c.Policies[name]
	var callers, limits []string
	for _, list := range []struct {
		what  string
		names []string
	}{{"principals", p.Principals}, {"groups", p.Groups}, {"roles", p.Roles}} {
		if len(list.names) > 0 {
			callers = append(callers, list.what+" "+strings.Join(list.names, ", "))
		}
	}
	if len(callers) == 0 {
		callers = []string{"everybody without another policy, except admins"}
	}
	if p.Sessions > 0 {
		limits = append(limits, fmt.Sprintf("%d boxes", p.Sessions))
	}
	if p.Memory > 0 {
		limits = append(limits, p.Memory.Short()+" of memory")
	}
	if p.CPUs > 0 {
		limits = append(limits, fmt.Sprintf("%g CPUs", p.CPUs))
	}
	if len(limits) == 0 {
		limits = []string{"no total limits"}
	}
	return "applies to " + strings.Join(callers, " and ") + "; " + strings.Join(limits, ", ")
}
