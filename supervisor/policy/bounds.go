// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Policy is a table [policy.NAME]: what some principals may have, whatever their profiles and requests say. A number of 0 is no
// limit. The zero Policy allows nothing; see NoPolicy.
type Policy struct {
	// Whom it applies to. No principal is named in two tables of a kind; see Config.PolicyOf.
	Principals []string `toml:"principals"` // as people write them, see Config.ResolvePrincipals
	Groups     []string `toml:"groups"`     // of the host, by name or number
	Roles      []string `toml:"roles"`
	GroupIDs   []uint32 `toml:"-"` // of Groups
	Names      []string `toml:"-"` // of Principals, their resolved names
	UIDs       []uint32 `toml:"-"` // of Principals that are users

	Profiles []string `toml:"profiles"` // Any: all
	Tools    []string `toml:"tools"`
	Networks []string `toml:"networks"`
	Secrets  []string `toml:"secrets"` // of tables [secrets.NAME]; Any: all
	Buckets  []string `toml:"buckets"` // of tables [buckets.NAME]; Any: all
	Mounts   []string `toml:"mounts"`  // roots, within mounts.allow; Any: all of that

	Sessions   int           `toml:"sessions"`   // at a time
	Processes  int           `toml:"processes"`  // running, of all sessions together
	Executions int           `toml:"executions"` // running, of all sessions together
	PerDay     int           `toml:"executions_per_day"`
	PerMinute  int           `toml:"executions_per_minute"`
	Burst      int           `toml:"burst"`        // executions at once, of those per minute; 0: PerMinute
	Memory     quantity.Size `toml:"total_memory"` // of all sessions together, reserved
	CPUs       float64       `toml:"total_cpus"`   // likewise

	Tenant Tenant `toml:"tenant"` // for each tenant of the principal

	Excess   string          `toml:"excess"` // what to do with a request above a ceiling
	Ceilings limits.Ceilings `toml:"ceilings"`

	Template string `toml:"session_template"` // "": that of [sessions]
	Force    bool   `toml:"force_template"`
}

// Tenant limits what each tenant of a principal may have. A label of a session names its tenant; sessions without it together
// form one tenant. 0 is no limit.
type Tenant struct {
	Label      string        `toml:"label"`        // its name; "": there are no tenants
	Sessions   int           `toml:"sessions"`     // at a time
	Processes  int           `toml:"processes"`    // running, of all its sessions together
	Executions int           `toml:"executions"`   // running, of all its sessions together
	Memory     quantity.Size `toml:"total_memory"` // of all its sessions together, reserved
	CPUs       float64       `toml:"total_cpus"`   // likewise
}

// Any stands for all, in Profiles and Mounts.
const Any = "*"

// HomeRoot in Mounts is the caller's home, as in mounts.allow.
const HomeRoot = "{home}"

// Values of Policy.Excess.
const (
	excessClamp  = "clamp"  // the request is reduced to the ceiling, and the answer says so
	excessRefuse = "refuse" // the request is refused
)

// Tools of Policy.Tools: what can be done in a session.
const (
	ToolExec      = "exec"
	ToolFiles     = "files"
	ToolProcesses = "processes"
	ToolSkills    = "skills"
	ToolNetwork   = "network"
	ToolPorts     = "ports"
	ToolRoot      = "root" // programs as root of the box, beside ToolExec and ToolProcesses
)

// tools lists all of them.
func tools() []string {
	return []string{ToolExec, ToolFiles, ToolProcesses, ToolSkills, ToolNetwork, ToolPorts, ToolRoot}
}

// defaultPolicyName names the table for all principals that no other table names, admins excepted.
const defaultPolicyName = "default"

// NoPolicy returns the built-in policy, the base of every table: it allows everything that profiles, limits and mounts.allow do.
func NoPolicy() Policy {
	return Policy{
		Principals: []string{}, Groups: []string{}, Roles: []string{},
		Profiles: []string{Any}, Tools: tools(), Networks: []string{NetworkOff, NetworkEgress, NetworkHost}, Secrets: []string{}, Buckets: []string{}, Mounts: []string{Any}, Excess: excessClamp,
	}
}

// EffectivePolicy is the policy of one principal, with the name of its table, "" if it has none.
type EffectivePolicy struct {
	Policy
	Name string
	Home string // of the principal, where Mounts has HomeRoot; "": it has none
	// Of is the tenant of the session in question; nil: none.
	Of *string
}

// For returns the policy for a session with these labels, with its tenant if there are tenants.
func (h EffectivePolicy) For(labels map[string]string) EffectivePolicy {
	if h.Tenant.Label != "" {
		h.Of = new(labels[h.Tenant.Label])
	}
	return h
}

// Tenants returns the policy of the tenant in question, nil if there is none.
func (h *EffectivePolicy) Tenants() *EffectivePolicy {
	if h.Of == nil {
		return nil
	}
	t := &h.Tenant
	return &EffectivePolicy{Name: h.Name + ".tenant", Policy: Policy{Sessions: t.Sessions, Processes: t.Processes, Executions: t.Executions, Memory: t.Memory, CPUs: t.CPUs}}
}

// SameTenant refuses labels that would move a session to another tenant, whose accounts it is not in.
func (h *EffectivePolicy) SameTenant(was, is map[string]string) error {
	label := h.Tenant.Label
	if label == "" || was[label] == is[label] {
		return nil
	}
	return fault.Field("labels", is[label], fmt.Sprintf("%s = %q, as the session was created with", label, was[label])).Of(fault.Denied).WithText("labels: %s cannot change from %q: it names the tenant of the session", label, was[label]).
		By(fault.Denial{Layer: fault.LayerPolicy, Rule: h.Rule("tenant.label"), Setting: "a new session"})
}

// Rule returns the full name of a key of the table.
func (h *EffectivePolicy) Rule(key string) string { return "policy." + h.Name + "." + key }

// PolicyOf returns the policy of a principal: from the table that names it or its user; else its group, the first by name if
// there are several; else its role; else "default", which does not apply to admins. Without any it is unlimited.
func (c *Config) PolicyOf(principal access.Principal) EffectivePolicy {
	for _, names := range []func(*Policy) bool{
		func(b *Policy) bool { return principal.UID != access.NoUser && slices.Contains(b.UIDs, principal.UID) },
		func(b *Policy) bool {
			return slices.Contains(b.Principals, principal.Name) || slices.Contains(b.Names, principal.Name)
		},
		func(b *Policy) bool {
			return slices.ContainsFunc(b.GroupIDs, func(gid uint32) bool { return gid == principal.GID || slices.Contains(principal.Groups, gid) })
		},
		func(b *Policy) bool { return slices.Contains(b.Roles, principal.Role.String()) },
	} {
		for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
			if b := c.Policies[name]; names(&b) {
				return EffectivePolicy{Policy: b, Name: name}
			}
		}
	}
	if b, ok := c.Policies[defaultPolicyName]; ok && !principal.Is(access.Admin) {
		return EffectivePolicy{Policy: b, Name: defaultPolicyName}
	}
	return EffectivePolicy{Policy: NoPolicy()}
}

// May refuses a tool that the policy does not list.
func (h *EffectivePolicy) May(tool string) error {
	if slices.Contains(h.Tools, tool) {
		return nil
	}
	layer := fault.LayerPolicy
	if tool == ToolNetwork {
		layer = fault.LayerNetwork
	}
	list := cmp.Or(strings.Join(h.Tools, ", "), "none")
	return fault.Errorf(fault.Denied, "permission denied: you may not use %s (%s allows %s)", tool, h.Rule("tools"), list).
		WithHint("the operator's policy says so").
		By(fault.Denial{Layer: layer, Rule: h.Rule("tools"), Allowed: list, Setting: fmt.Sprintf("%s with %q", h.Rule("tools"), tool)})
}

// refuse returns the refusal of a field's value by a list of the table.
func (h *EffectivePolicy) refuse(layer fault.Layer, field, value, key string, list []string) error {
	allowed := cmp.Or(fault.OneOf(list...), "none")
	denied := fault.Field(field, value, allowed)
	if len(list) == 0 {
		denied = denied.WithText("%s = %s: %s allows none", field, fault.Show(value), h.Rule(key))
	}
	return denied.Of(fault.Denied).WithHint("ask the operator, or see what you may do: boxctl usage").
		By(fault.Denial{Layer: layer, Rule: h.Rule(key), Allowed: allowed, Setting: fmt.Sprintf("%s with %q", h.Rule(key), value)})
}

// MayHave reports whether a secret is allowed. Without a table all are.
func (h *EffectivePolicy) MayHave(name string) bool {
	return h.Name == "" || secretAllowed(h.Secrets, name)
}

// AllowsMount reports whether a path is at or below one of the roots of Mounts.
func (h *EffectivePolicy) AllowsMount(source string) bool {
	for _, root := range h.Mounts {
		if root == Any {
			return true
		}
		if root == HomeRoot {
			if root = h.Home; root == "" {
				continue
			}
		}
		if below, err := filepath.Rel(root, source); err == nil && filepath.IsLocal(below) {
			return true
		}
	}
	return false
}

// MountDenied returns the refusal of a mount that AllowsMount does not allow.
func (h *EffectivePolicy) MountDenied(i int, source string) error {
	return h.refuse(fault.LayerMount, fmt.Sprintf("mounts[%d].source", i), source, "mounts", h.Mounts)
}

// ResolvePrincipals resolves the principals that the tables name: resolve maps a name as written to the principal and its uid,
// NoUser if it is no host user. unmatched lists what matches no principal; err is for a principal named in two tables, where it
// would be unclear which applies.
func (c *Config) ResolvePrincipals(resolve func(written string) (name string, uid uint32, ok bool)) (unmatched, err error) {
	seen := map[string]string{}
	var none, twice []error
	for _, table := range slices.Sorted(maps.Keys(c.Policies)) {
		b := c.Policies[table]
		b.Names, b.UIDs = nil, nil
		for _, written := range b.Principals {
			name, uid, ok := resolve(written)
			if !ok {
				none = append(none, fmt.Errorf("policy.%s.principals = %q: must be the name of a table [principals.NAME], uid:N, or a user of this host", table, written))
				continue
			}
			if other, ok := seen[name]; ok {
				twice = append(twice, inTwo(table, "principals", written, other))
			}
			seen[name] = table
			b.Names = append(b.Names, name)
			if uid != access.NoUser {
				b.UIDs = append(b.UIDs, uid)
			}
		}
		c.Policies[table] = b
	}
	return errors.Join(none...), errors.Join(twice...)
}

func inTwo(table, key, principal, other string) error {
	return fmt.Errorf("policy.%s.%s = %q: must be in one table only, and is also in policy.%s", table, key, principal, other)
}

// named refuses roles that are in two tables, and tables that apply to no one.
func (c *Config) named() (errs []error) {
	seen := map[string]string{}
	for _, table := range slices.Sorted(maps.Keys(c.Policies)) {
		b := c.Policies[table]
		if table != defaultPolicyName && len(b.Principals)+len(b.Groups)+len(b.Roles) == 0 {
			errs = append(errs, fmt.Errorf("policy.%s: must have principals, groups or roles; it applies to nobody", table))
		}
		for _, role := range b.Roles {
			if other, ok := seen[role]; ok {
				errs = append(errs, inTwo(table, "roles", role, other))
			}
			seen[role] = table
		}
	}
	return errs
}

// validate reports every invalid key.
func (b *Policy) validate(c *Config) error {
	var errs []error
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("%s = %v: must be %s", key, value, allowed))
	}
	list := func(key string, values, allowed []string) {
		for _, v := range values {
			if !slices.Contains(allowed, v) {
				bad(key, fmt.Sprintf("%q", v), fault.OneOf(allowed...))
			}
		}
	}
	list("roles", b.Roles, []string{access.Viewer.String(), access.User.String(), access.Operator.String(), access.Admin.String()})
	list("profiles", b.Profiles, append(slices.Sorted(maps.Keys(c.Profiles)), Any))
	list("tools", b.Tools, tools())
	list("networks", b.Networks, []string{NetworkOff, NetworkEgress, NetworkHost})
	list("secrets", b.Secrets, append(slices.Sorted(maps.Keys(c.Secrets)), Any))
	list("buckets", b.Buckets, append(slices.Sorted(maps.Keys(c.Buckets)), Any))
	list("excess", []string{b.Excess}, []string{excessClamp, excessRefuse})
	for _, root := range b.Mounts {
		if root != Any && root != HomeRoot && !isolation.CleanAbsolute(root) {
			bad("mounts", fmt.Sprintf("%q", root), fault.OneOf(Any, HomeRoot, "an absolute path without . or .."))
		}
	}
	for key, n := range map[string]int{
		"sessions": b.Sessions, "processes": b.Processes, "executions": b.Executions, "executions_per_day": b.PerDay, "executions_per_minute": b.PerMinute, "burst": b.Burst,
	} {
		if n < 0 || n > maxCount {
			bad(key, n, fmt.Sprintf("0 to %d", maxCount))
		}
	}
	b.validateTotals(bad)
	if err := validTemplate(b.Template); err != nil {
		bad("session_template", fmt.Sprintf("%q", b.Template), err.Error())
	}
	if b.Force && b.Template == "" && c.Sessions.Template == "" {
		bad("force_template", b.Force, "false without a session_template")
	}
	if err := validateCeilings(&b.Ceilings); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// validateTotals checks the limits on all sessions together.
func (b *Policy) validateTotals(bad func(key string, value any, allowed string)) {
	for _, t := range []struct {
		prefix string
		cpus   float64
		memory quantity.Size
	}{{"", b.CPUs, b.Memory}, {"tenant.", b.Tenant.CPUs, b.Tenant.Memory}} {
		if !(t.cpus >= 0 && t.cpus <= maxCPUs*maxCount) {
			bad(t.prefix+"total_cpus", t.cpus, "0 or more")
		}
		if t.memory > maxSize {
			bad(t.prefix+"total_memory", t.memory, fmt.Sprintf("at most %v", quantity.Size(maxSize)))
		}
	}
	t := &b.Tenant
	for _, n := range []struct {
		key   string
		value int
	}{{"sessions", t.Sessions}, {"processes", t.Processes}, {"executions", t.Executions}} {
		if n.value < 0 || n.value > maxCount {
			bad("tenant."+n.key, n.value, fmt.Sprintf("0 to %d", maxCount))
		}
	}
	if bounded := (*t != Tenant{Label: t.Label}); bounded && t.Label == "" {
		bad("tenant.label", `""`, "the name of the label that names the tenant")
	}
}

// maxCount is more than any realistic count.
const maxCount = 1 << 30

// validateCeilings checks that the largest session within the ceilings still has what a session must have.
func validateCeilings(c *limits.Ceilings) error {
	p := DefaultProfile()
	s := Settings{Image: p.Image, Network: p.Network, Limits: p.Limits}
	for _, l := range limitTable() {
		l.raise(&s, c)
	}
	if err := cmp.Or(s.validate(), (NetworkCaps{Connections: c.NetworkConnections, Bandwidth: c.NetworkBandwidth}).Check()); err != nil {
		return fmt.Errorf("ceilings: %w", err)
	}
	if c.Timeout > longestTimeout {
		return fmt.Errorf("ceilings.timeout = %v: must be at most %v", c.Timeout, longestTimeout)
	}
	return nil
}
