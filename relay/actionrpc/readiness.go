// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/boxes"
	"github.com/boxd-dev/boxd/relay/actionrpc/envelope"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// backend is what LangBot knows boxd as.
type backend struct {
	Name      *string `json:"name"`
	Available bool    `json:"available"`
	Details   any     `json:"details,omitempty"`
}

// readiness is LangBot's readiness object.
type readiness struct {
	Ready   bool            `json:"ready"`
	Mode    string          `json:"mode"`
	Backend backend         `json:"backend"`
	Checks  map[string]bool `json:"checks"`
	Unsafe  *bool           `json:"unsafe_soft_storage_limits,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// noGrants is why LangBot's own admission is never ready.
const noGrants = "this version of boxd has no sandbox admission grants"

// required is the backend that LangBot's own admission asks for by name.
const required = "nsjail"

// readiness says what is so. Nothing in it is true that was not found out.
func (s *Server) readiness() readiness {
	told := s.told.Load()
	available := s.boxes.Available()
	r := readiness{Ready: available, Mode: "standard", Backend: backend{Available: available}, Checks: map[string]bool{"backend_available": available}}
	if told.Ours() {
		r.Backend.Name = new(boxes.Backend)
	} else {
		r.Backend.Name = &told.Backend
	}
	if !told.Required {
		return r
	}
	kept := s.cfg.Sup.Overview().Enforced
	by := func(limit string, how ...policy.Mechanism) bool { return slices.Contains(how, kept[limit]) }
	r.Mode, r.Backend.Name, r.Unsafe, r.Error = "grant_enforced", new(required), new(false), noGrants
	r.Checks = map[string]bool{
		"configuration": false, "required_backend": told.Ours(), "workspace_mount": false, "backend_available": available,
		"cgroup_v2":           by(policy.LimitMemory, policy.MechanismGroup) && by(policy.LimitCPU, policy.MechanismGroup) && by(policy.LimitPids, policy.MechanismGroup),
		"namespace_isolation": available, "mount_isolation": available, "network_isolation": available,
		"hard_workspace_quota":     false, // LangBot's Workspaces are directories of the host
		"hard_skill_storage_quota": false, "bounded_ephemeral_storage": available, "inode_quota": false,
		"session_cap": true, "managed_process_cap": true,
	}
	if told.Broken != "" {
		r.Error = told.Broken
	}
	r.Ready, r.Backend.Available = false, false
	return r
}

// closed refuses what LangBot's own admission has to allow: there are no grants, so nothing is.
func (s *Server) closed() error {
	if broken := s.told.Load().Broken; broken != "" {
		return envelope.Errorf("BoxReadinessError", "Invalid sandbox admission configuration: %s", broken)
	}
	var failed []string
	for name, ok := range s.readiness().Checks {
		if !ok {
			failed = append(failed, name)
		}
	}
	slices.Sort(failed)
	return envelope.Errorf("BoxReadinessError", "Managed sandbox isolation is not ready (failed checks: %s)", strings.Join(failed, ", "))
}

// grant answers both actions about grants.
func (s *Server) grant(context.Context, *call) (any, error) {
	told := s.told.Load()
	switch {
	case !told.Required:
		return nil, envelope.Errorf("BoxAdmissionError", "Sandbox admission enforcement is not enabled")
	case told.Broken != "":
		return nil, envelope.Errorf("BoxReadinessError", "Invalid sandbox admission configuration: %s", told.Broken)
	}
	return nil, envelope.Errorf("BoxReadinessError", noGrants)
}

// probe is a name of a file that cloud LangBot wants to be read.
var probe = regexp.MustCompile(`^\.langbot-box-volume-probe-[a-f0-9]{32}$`)

// verify has a box read a file that cloud LangBot has put into its workspace, to know that both see one directory.
func (s *Server) verify(ctx context.Context, c *call) (any, error) {
	name, err := c.text("marker_name")
	work := s.told.Load().Work
	switch {
	case err != nil || !probe.MatchString(name):
		return nil, envelope.Errorf("BoxReadinessError", "Invalid Box shared Workspace probe basename")
	case work == "":
		return nil, envelope.Errorf("BoxReadinessError", "Managed sandbox admission requires box.local.default_workspace")
	}
	data, err := s.boxes.Probe(ctx, work, name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	return map[string]any{"marker_name": name, "sha256": hex.EncodeToString(sum[:]), "size": len(data)}, nil
}
