// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
)

// maxSpaceName bounds the name of a workspace, in bytes.
const maxSpaceName = 64

// maxSpaces bounds sessions.max_workspaces.
const maxSpaces = 10_000

// WorkspacesFull is the refusal of a workspace because the host has as many as it may have, nil if err is another error.
func WorkspacesFull(err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	if !ok || step.Refused == nil || step.Refused.Field != isolation.FieldWorkspaces {
		return nil
	}
	return fault.Errorf(fault.Exhausted, "this host has as many workspaces as it may have: %s (workspaces.max)", step.Refused.Allowed).
		WithHint("remove stopped boxes, named workspaces or images, or raise workspaces.max in box.toml").
		By(fault.Denial{Layer: fault.LayerLimit, Rule: "workspaces.max", Allowed: step.Refused.Allowed, Setting: "a larger workspaces.max"})
}

// ValidSpaceName refuses an invalid name of a workspace.
func ValidSpaceName(field, name string) error {
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if name == "" || len(name) > maxSpaceName || strings.Trim(name, chars) != "" || strings.ContainsAny(name[:1], ".-") {
		return fault.Field(field, name, fmt.Sprintf("1 to %d of a-z, A-Z, 0-9, ., _ and -, the first a letter, a digit or _", maxSpaceName))
	}
	return nil
}

// SpaceKey names a workspace on the host. It is never a session's key, as names of principals have no NUL.
func SpaceKey(owner, name string) string { return Key("workspace\x00"+owner, name) }

// quotaFor refuses a quota for a workspace that is a host directory, or that has its own.
func (s *Settings) quotaFor(req *Request) error {
	if s.Workspace != "" {
		return s.checkWorkspace(req)
	}
	if s.OwnDisk() || slices.Contains(s.Bounded, isolation.Workspace) || req.WorkspaceQuota == nil || *req.WorkspaceQuota == 0 {
		return nil
	}
	return fault.Field("workspace_quota", *req.WorkspaceQuota, "0 for a directory of the host").Of(fault.Unsupported).WithText("workspace_quota: a host directory as the workspace has no quota").
		WithHint("leave the mount out, or mount a directory below one of " + QuotaRootsKey)
}

// checkWorkspace refuses what cannot be combined with a named workspace.
func (s *Settings) checkWorkspace(req *Request) error {
	if err := ValidSpaceName("workspace", s.Workspace); err != nil {
		return err
	}
	for field, given := range map[string]bool{"workspace_quota": req.WorkspaceQuota != nil, "workspace_inodes": req.WorkspaceInodes != nil} {
		if given && !s.OwnDir() { // with OwnDir the quota is for the changes to its root and its home
			return fault.Field(field, fault.Word("given"), "left out with a named workspace").WithText("%s: workspace %s has its own quota, which all its sessions share", field, fault.Show(s.Workspace)).
				WithHint("set its quota: boxctl workspaces set %s --quota SIZE", s.Workspace)
		}
	}
	if !s.ManagedWork() {
		return fault.Field("workspace", s.Workspace, "left out with a mount on "+isolation.Workspace).WithText("a workspace and a mount on %s cannot be combined", isolation.Workspace).WithHint("leave one of them out")
	}
	return nil
}

// SpaceQuota returns the quota of a new workspace: what is requested (nil: not), or the usual quota of the principal's sessions,
// within the policy. 0 bytes are no quota.
func (c *Config) SpaceQuota(effective *EffectivePolicy, requested *quantity.Size, inodes *int) (quantity.Size, int, error) {
	name := c.Sessions.DefaultProfile
	if len(effective.Profiles) > 0 && !slices.Contains(effective.Profiles, Any) && !slices.Contains(effective.Profiles, name) {
		name = effective.Profiles[0] // the principal may not use the default one
	}
	p, m := c.Profiles[name], merger{profile: name, locked: c.Profiles[name].Locked}
	size, files := pick(&m, "workspace_quota", p.WorkspaceQuota, requested), pick(&m, "workspace_inodes", p.WorkspaceInodes, inodes)
	switch {
	case m.err != nil:
		return 0, 0, m.err
	case size != 0 && (size < minQuota || size > maxSize):
		return 0, 0, fault.Field("quota", size, fmt.Sprintf("0, or %v to %v", minQuota, maxSize))
	case size != 0 && (files < minInodes || files > maxInodes):
		return 0, 0, fault.Field("inodes", files, fmt.Sprintf("%d to %d", minInodes, maxInodes))
	}
	t := cutter{policy: effective}
	size = ceiling(&t, "workspace_quota", size, effective.Ceilings.WorkspaceQuota, requested != nil, true)
	files = ceiling(&t, "workspace_inodes", cmp.Or(files, minInodes), effective.Ceilings.WorkspaceInodes, inodes != nil, false)
	if size == 0 {
		files = 0
	}
	return size, files, t.err
}

// KeptWork returns what enforces a workspace's quota here, or an error if nothing does and the operator has not accepted that.
func (c *Config) KeptWork(host Host) (Mechanism, error) {
	switch {
	case host.Quota != "":
		return Mechanism(host.Quota), nil
	case slices.Contains(c.Limits.BestEffort, LimitWorkspace):
		return MechanismNone, nil
	}
	return "", unenforced(LimitWorkspace, host)
}

// Input is a named workspace that a session has read-only.
type Input struct {
	Workspace string `json:"workspace"`
	Target    string `json:"target"`
}

// inputs validates the requested inputs and gives each a target, which is neither in the workspace nor in a host directory, where
// a mount point would be left behind.
func (s *Settings) inputs(requested []Input) ([]Input, error) {
	if len(requested) > isolation.MaxLent || len(requested) > 0 && len(requested)+len(s.Mounts) > isolation.MaxMounts {
		return nil, fault.Field("inputs", len(requested), fmt.Sprintf("at most %d, and with mounts at most %d", isolation.MaxLent, isolation.MaxMounts))
	}
	list := slices.Clone(requested)
	for i := range list {
		in, field := &list[i], fmt.Sprintf("inputs[%d].", i)
		if err := ValidSpaceName(field+"workspace", in.Workspace); err != nil {
			return nil, err
		}
		in.Target = cmp.Or(in.Target, "/mnt/"+in.Workspace)
		own := slices.Contains([]string{isolation.Workspace, isolation.Home, "/tmp"}, in.Target)
		if own || isolation.Within(in.Target, isolation.Workspace) {
			return nil, fault.Field(field+"target", in.Target, "a path outside /workspace, and neither /home/box nor /tmp")
		}
		if !isolation.CleanAbsolute(in.Target) || isolation.Reserved(in.Target) {
			return nil, fault.Field(field+"target", in.Target, isolation.Targets)
		}
		exists := slices.ContainsFunc(list[:i], func(o Input) bool { return o.Target == in.Target })
		if exists || slices.ContainsFunc(s.Mounts, func(m Mount) bool { return isolation.Within(in.Target, m.Target) }) {
			return nil, fault.Field(field+"target", in.Target, "a path that is not at or below another mount")
		}
	}
	return list, nil
}

// Lends returns the names of the workspaces that a session uses.
func (s *Settings) Lends() []string {
	var names []string
	if s.Workspace != "" {
		names = append(names, s.Workspace)
	}
	for _, in := range s.Inputs {
		names = append(names, in.Workspace)
	}
	return names
}
