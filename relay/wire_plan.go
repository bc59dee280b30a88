// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"log/slog"
	"strings"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// planAnswer describes the plan for a request.
func planAnswer(ctx context.Context, log *slog.Logger, p *supervisor.Plan) api.Plan {
	answer := api.Plan{DryRun: true, Policy: p.Policy, Exists: p.Exists}
	if p.Enforced != nil {
		answer.Enforcement = enforcedAnswer(p.Enforced)
	}
	if s := p.Settings; s != nil {
		answer.Session, answer.Clamped = planned(p.ID, s), clampsAnswer(s.Clamped)
	}
	if p.Exec != nil {
		answer.Exec = plannedExec(p.Exec)
		answer.Clamped = append(answer.Clamped, clampsAnswer(p.Exec.Clamped)...)
	}
	if p.Refused != nil {
		answer.Refused = problemAnswer(ctx, log, p.Refused)
	}
	return answer
}

func planned(id string, s *policy.Settings) *api.PlannedSession {
	p := &api.PlannedSession{
		ID: id, Profile: s.Profile, Image: s.Image, Network: s.Network, NetworkRules: s.NetworkRules, NetworkStrict: s.NetworkStrict,
		NetworkConnections: s.NetworkConnections, NetworkBandwidth: s.NetworkBandwidth, Secrets: s.Secrets, Push: s.Push, ReadOnlyRoot: s.ReadOnlyRoot, HomeOnDisk: s.HomeOnDisk, UserName: s.UserName(), Home: s.HomeDir(), Limits: s.Limits, Lifetime: s.Lifetime,
		Mounts: []api.Mount{}, Skills: s.Skills, Drives: s.Drives, Env: append([]string{}, s.EnvNames...),
	}
	for _, m := range s.Mounts {
		p.Mounts = appendMounts(p.Mounts, []policy.Mount{m})
	}
	return p
}

func plannedExec(spec *process.Spec) *api.PlannedExec {
	c := &spec.Command
	p := &api.PlannedExec{
		Argv: isolation.LimitedProgram(c.Argv), Cwd: c.Dir, Timeout: quantity.Duration(c.Timeout), OutputLimit: quantity.Size(c.Output.Head + c.Output.Tail),
		CPUs: float64(c.Limits.CPU) / cgroup.CPUPeriod, Memory: quantity.Size(c.Limits.Memory), Pids: int(c.Limits.Pids),
	}
	if spec.Answer != nil {
		p.OutputLimit, p.Spool = quantity.Size(spec.Answer.Head+spec.Answer.Tail), p.OutputLimit
	}
	for _, variable := range c.Env {
		name, _, _ := strings.Cut(variable, "=")
		p.Env = append(p.Env, name)
	}
	return p
}
