// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// stdioDirect is the only value of the field stdio.
const stdioDirect = "direct"

// processRequestOf converts a request for a process of that id.
func processRequestOf(id string, r *api.ProcessRequest) (*session.ProcessRequest, error) {
	if err := checkTerminal("terminal.", r.Terminal); err != nil {
		return nil, err
	}
	if r.Stdio != "" && r.Stdio != stdioDirect {
		return nil, fault.Field("stdio", r.Stdio, stdioDirect+", or left out")
	}
	req := &session.ProcessRequest{
		ID: id, Managed: true, Direct: r.Stdio == stdioDirect, Terminal: terminalSize(r.Terminal), Stdin: r.Stdin, Output: r.Output, Labels: r.Labels, Lease: (*time.Duration)(r.Lease),
		Exec: session.ExecRequest{
			Argv: r.Argv, Command: r.Command, Code: r.Code, Language: r.Language, Env: r.Env, Dir: r.Cwd, Existing: r.CwdMustExist, Timeout: r.Timeout,
			Limits: policy.ProgramLimits{CPUs: r.CPUs, Memory: r.Memory, Pids: r.Pids}, Rlimits: r.Rlimits, MergeOutput: r.MergeOutput, Spool: r.Spool, User: r.User,
		},
	}
	if x := r.Restart; x != nil {
		req.Restart = &process.Restart{
			Policy: x.Policy, Delay: (*time.Duration)(x.Delay), MaxDelay: (*time.Duration)(x.MaxDelay), Limit: x.Limit, Window: (*time.Duration)(x.Window),
		}
	}
	if x := r.Ready; x != nil {
		req.Ready = &process.Ready{Line: x.Line, Port: x.Port, Command: x.Command, Timeout: (*time.Duration)(x.Timeout)}
	}
	if x := r.Stop; x != nil {
		req.Stop = &process.Stop{Signal: x.Signal, Grace: (*time.Duration)(x.Grace)}
	}
	return req, nil
}

// checkTerminal refuses a terminal without rows or columns; prefix precedes the field names.
func checkTerminal(prefix string, t *api.Terminal) error {
	switch {
	case t != nil && t.Rows == 0:
		return fault.Field(prefix+"rows", t.Rows, "1 to 65535")
	case t != nil && t.Cols == 0:
		return fault.Field(prefix+"cols", t.Cols, "1 to 65535")
	}
	return nil
}

// terminalSize returns the size of a terminal, nil without one.
func terminalSize(t *api.Terminal) *process.Size { return (*process.Size)(t) }

// processAnswer describes a process of a session, with a result if there is one.
func processAnswer(session string, i process.Info, result *api.ExecResult) api.Process {
	p := api.Process{
		ID: i.ID, Session: session, State: string(i.State), Ready: i.Ready, PID: i.PID, Starts: i.Starts, Argv: i.Argv, Cwd: i.Dir,
		Env: append([]string{}, i.EnvNames...), Stdin: i.Stdin, Readers: i.Readers, Writer: i.Writer, Terminal: (*api.Terminal)(i.Terminal),
		Restart: api.Restart{
			Policy: i.Restart.Policy, Delay: duration(i.Restart.Delay), MaxDelay: duration(i.Restart.MaxDelay), Limit: i.Restart.Limit, Window: duration(i.Restart.Window),
		},
		Stop: api.Stop{Signal: i.Stop.Signal, Grace: duration(i.Stop.Grace)}, Lease: duration(i.Lease), Labels: i.Labels,
		StartedAt: i.StartedAt, EndedAt: timePtr(i.EndedAt), NextStart: timePtr(i.NextStart), ExpiresAt: timePtr(i.ExpiresAt),
		Reason: i.Reason, Clamped: clampsAnswer(i.Clamped), Result: result,
	}
	if i.Spool > 0 {
		p.Spool = &i.Spool
	}
	if i.Timeout > 0 {
		p.Timeout = duration(&i.Timeout)
	}
	if i.Direct {
		p.Stdio = stdioDirect
	}
	for n, o := range i.Output {
		p.Output[n] = api.StreamState(o)
	}
	return p
}

func duration(d *time.Duration) *quantity.Duration { return (*quantity.Duration)(d) }

// timePtr returns a time, nil if it is zero.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// streamName returns "stdout" or "stderr".
func streamName(stream int) string { return [2]string{"stdout", "stderr"}[stream] }
