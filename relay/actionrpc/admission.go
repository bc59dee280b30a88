// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

func denied(text string) error { return wire.Refusef("BoxAdmissionError", "%s", text) }

// enforced refuses actions about grants if LangBot's own admission is not required.
func enforced(initConfig *InitConfig) error {
	if initConfig.Required {
		return nil
	}
	return denied("Sandbox admission enforcement is not enabled")
}

// unbroken refuses everything while the configuration of LangBot's admission is invalid.
func unbroken(initConfig *InitConfig) error {
	if initConfig.Broken == "" {
		return nil
	}
	return wire.Refusef("BoxReadinessError", "Invalid sandbox admission configuration: %s", initConfig.Broken)
}

// grant installs a grant. The sessions that it ends have ended before it comes into force.
func (s *Server) grant(ctx context.Context, c *call) (any, error) {
	initConfig := s.initConfig.Load()
	g, err := ReadGrant(c.Data)
	switch {
	case g.Instance != "" && g.Instance != c.conn.instance: // checked before all other errors
		return nil, wire.Refusef("PermissionError", "Sandbox admission grant does not match the trusted instance")
	case enforced(initConfig) != nil:
		return nil, enforced(initConfig)
	case unbroken(initConfig) != nil:
		return nil, unbroken(initConfig)
	case err != nil:
		return nil, err
	}
	key := FenceKey{Instance: g.Instance, Workspace: g.Workspace}
	namespace, limit := wire.Namespace(g.Instance, g.Workspace), int(initConfig.Limits.MaxAdmissionRecords)
	done, err := s.grants.Turn(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer done()
	have, drop, err := s.grants.Weigh(namespace, g, &initConfig.Policy, limit)
	if err != nil {
		return nil, err
	}
	if have != nil {
		return have.Receipt(), nil
	}
	_, entered, err := s.fence.Enter(ctx, key, g.Generation, limit)
	if err != nil {
		return nil, err
	}
	canonical := wire.Prefix(namespace, g.Generation) + Logical
	err = s.clear(context.WithoutCancel(ctx), func(id string) bool {
		of, _, _, ok := wire.SplitID(id)
		return ok && of == namespace && (drop == DropAll || id != canonical)
	})
	if err == nil {
		err = s.grants.Install(namespace, g, drop)
	} else {
		s.invalidate()
	}
	if stale := entered.Leave(); stale != nil {
		return nil, stale
	}
	return g.Receipt(), err
}

// clear ends sessions for a grant, a revocation or a sweep. It waits at most Patience for a session that does not end,
// since all others wait meanwhile.
func (s *Server) clear(ctx context.Context, which func(id string) bool) error {
	timeoutCtx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	err := s.endBoxes(timeoutCtx, which)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return wire.Refusef("BoxError", "sessions have not ended within %v", Patience)
	}
	return err
}

// invalidate makes the next sweep end the sessions that have not ended and are not admitted any more.
func (s *Server) invalidate() {
	s.invalid.Store(true)
	s.grants.Lookup()
}

// revoke withdraws a grant at once, without waiting for its turn, and ends what the grant has admitted.
func (s *Server) revoke(ctx context.Context, c *call) (any, error) {
	initConfig := s.initConfig.Load()
	v, err := ReadRevocation(c.Data)
	switch {
	case v.Instance != "" && v.Instance != c.conn.instance: // checked before all other errors
		return nil, wire.Refusef("PermissionError", "Sandbox admission revocation does not match the trusted instance")
	case enforced(initConfig) != nil:
		return nil, enforced(initConfig)
	case err != nil:
		return nil, err
	}
	namespace := wire.Namespace(v.Instance, v.Workspace)
	if err := s.grants.Revoke(namespace, v, int(initConfig.Limits.MaxAdmissionRecords)); err != nil {
		return nil, err
	}
	err = s.clear(context.WithoutCancel(ctx), func(id string) bool {
		of, _, _, ok := wire.SplitID(id)
		return ok && of == namespace
	})
	if err != nil {
		s.invalidate() // the rest is ended later; the revocation holds
		s.cfg.Log.Warn("sessions of a revoked LangBot grant have not ended yet", "error", err)
	}
	return map[string]any{"revoked": true, "workspace_uuid": v.Workspace, "entitlement_revision": v.Revision}, nil
}

// requireAdmission checks a call against the grant of its Workspace if LangBot's own admission is required: first that
// boxes meet its demands, then that there is a grant, then what the call is about.
func (s *Server) requireAdmission(ctx context.Context, c *call) error {
	initConfig := s.initConfig.Load()
	if !initConfig.Required {
		c.tenant.Still = func() error { // an INIT may come meanwhile
			if s.initConfig.Load().Required {
				return denied("Sandbox admission grant is missing")
			}
			return nil
		}
		return nil
	}
	pass, err := s.pass(ctx, initConfig, c.namespace, c.Context.Generation)
	if err != nil {
		return err
	}
	c.tenant.Admitted = &Admitted{Most: pass.Grant.MaxSessions, Namespace: c.namespace, Work: initConfig.Work, Soft: s.cfg.AllowSoftStorage}
	generation := c.Context.Generation
	namespace := c.namespace
	c.tenant.Still = func() error {
		now := s.initConfig.Load()
		if err := unbroken(now); err != nil {
			return err
		}
		return s.grants.Still(namespace, generation, &now.Policy, pass)
	}
	switch c.Action {
	case "box_exec", "box_create_session", "box_get_sessions":
		return nil // they do not choose the session
	case "box_start_managed_process":
		if pass.Grant.MaxProcesses <= 0 {
			return denied("Sandbox admission grant does not permit managed processes")
		}
	}
	if id, ok := wire.StringOf(c.Data["session_id"]); ok {
		if physical, err := wire.PhysicalID(c.tenant.Prefix, id); err == nil && physical != c.tenant.Prefix+Logical {
			return denied("Managed sandbox session_id is runtime-owned")
		}
	}
	return nil
}

// pass admits a Workspace, or returns why it is refused.
func (s *Server) pass(ctx context.Context, initConfig *InitConfig, namespace string, generation int64) (*Pass, error) {
	if err := unbroken(initConfig); err != nil {
		return nil, err
	}
	if r := s.readiness(ctx, false); !r.Ready {
		return nil, wire.Refusef("BoxReadinessError", "Managed sandbox isolation is not ready (failed checks: %s)", strings.Join(r.failed(), ", "))
	}
	return s.grants.Admit(namespace, generation, &initConfig.Policy)
}

// admittedSpec returns the spec that every admitted session has, whatever the request asks for.
func admittedSpec(p *Policy) *boxSpec {
	return &boxSpec{
		SessionID: Logical, Workdir: workspacePath, Network: networkOff, Image: defaultImage, TimeoutSec: p.MaxTimeoutSec,
		SpecFields: SpecFields{HostPathMode: modeReadWrite, MountPath: workspacePath, Persistent: true, CPUs: p.CPUs, MemoryMB: p.MemoryMB, PidsLimit: p.PidsLimit, ReadOnlyRootfs: p.ReadOnlyRootfs, WorkspaceQuotaMB: p.WorkspaceQuotaMB},
	}
}

// admitted turns a spec into the one that an admitted Workspace may have: it refuses what the Workspace must not ask
// for, and overwrites what the Workspace does not decide.
func (s *Server) admitted(c *call, spec *boxSpec, p *Policy) (*boxSpec, error) {
	home := c.tenant.Admitted.home()
	switch {
	case c.tenant.Admitted.Work == "":
		return nil, wire.Refusef("BoxReadinessError", "Managed sandbox admission requires box.local.default_workspace")
	case spec.Network != networkOff:
		return nil, denied("Managed sandbox network access is disabled")
	case len(spec.ExtraMounts) > 0:
		return nil, denied("Managed sandbox additional host mounts are disabled")
	case spec.MountPath != workspacePath:
		return nil, denied("Managed sandbox mount_path is runtime-owned")
	case !isolation.Within(path.Clean(spec.Workdir), workspacePath):
		return nil, denied("Managed sandbox workdir must stay under /workspace")
	case spec.HostPath != nil && path.Clean(*spec.HostPath) != home:
		return nil, denied("Managed sandbox host_path is runtime-owned")
	}
	n := admittedSpec(p)
	n.Cmd, n.Env, n.Workdir, n.HostPath, n.TimeoutSec = spec.Cmd, spec.Env, spec.Workdir, &home, min(spec.TimeoutSec, p.MaxTimeoutSec)
	n.SkillName = spec.SkillName
	if !takeNamedSkills(n, s.cfg.Skills, s.cfg.Principal, c.namespace) {
		return nil, denied("Managed sandbox skill is unavailable in this Workspace")
	}
	return n, nil
}

// Longest and shortest interval between sweeps, which check all sessions against the grants.
const (
	sweepEvery = 30 * time.Second
	sweepLeast = 250 * time.Millisecond
)

// sweeps ends what no grant admits, as soon as a grant has expired, until ctx ends. Calls are refused even before that.
func (s *Server) sweeps(ctx context.Context) {
	var last time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.grants.Changed():
		case <-timer.C:
		}
		some, next := s.grants.Expire()
		if initConfig := s.initConfig.Load(); initConfig.Required && (some || time.Since(last) >= sweepEvery || s.invalid.Swap(false)) {
			last = time.Now()
			if !s.sweep(ctx, initConfig) {
				s.invalid.Store(true)
				next = time.Second
			}
		}
		if next == 0 || next > sweepEvery {
			next = sweepEvery
		}
		timer.Reset(max(next, sweepLeast))
	}
}

// sweep ends every session of LangBot that no grant admits, and reports whether all of them have ended.
func (s *Server) sweep(ctx context.Context, initConfig *InitConfig) bool {
	err := s.clear(ctx, func(id string) bool {
		namespace, generation, logical, ok := wire.SplitID(id)
		if !ok {
			return false
		}
		_, refused := s.grants.Admit(namespace, generation, &initConfig.Policy)
		if refused == nil && logical == Logical {
			return false
		}
		s.cfg.Log.Info("session of LangBot ends: no grant allows it", "session", id)
		return true
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Warn("sessions of LangBot that no grant allows have not ended yet", "error", err)
	}
	return err == nil
}
