// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// Exec runs a command in a session, which is made if there is none. One session never runs two commands at once. When
// ctx ends, so does the command.
func (b *Boxes) Exec(ctx context.Context, t Tenant, spec *boxSpec) (*executionResult, error) {
	if spec.Cmd == "" {
		return nil, wire.Refusef("BoxValidationError", "cmd must not be empty")
	}
	physical, err := t.physical(spec.SessionID)
	if err != nil {
		return nil, err
	}
	release, aborted, err := b.execs.take(ctx, physical)
	if err != nil {
		return nil, err
	}
	defer release()
	if aborted {
		return nil, errors.Join(t.recheck(), beingDeleted(physical))
	}
	s, _, err := b.session(ctx, &t, physical, spec)
	if err != nil {
		return nil, err
	}
	req, limit := command(s, spec)
	r, err := s.Exec(ctx, req)
	if err == nil && r.Status == session.StatusStartFailed {
		err = r.Failed
	}
	if err != nil {
		return nil, errors.Join(t.recheck(), explain(err, physical))
	}
	if r.Status == session.StatusCanceled || r.Status == session.StatusLost {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, errors.Join(t.recheck(), beingDeleted(physical))
	}
	m := &executionResult{SessionID: t.logical(physical), BackendName: Backend, Status: statusCompleted, DurationMS: r.Duration.Milliseconds()}
	m.Stdout, m.Stderr = text(&r.Streams[0], limit), text(&r.Streams[1], limit)
	if r.Status != session.StatusTimedOut {
		m.ExitCode = new(exitCode(r.ExitCode, r.Signal))
		return m, nil
	}
	m.Status = statusTimedOut
	if m.Stderr == "" {
		m.Stderr = fmt.Sprintf("Command timed out after %d seconds.", int64(r.Timeout/time.Second))
	}
	if s.Info().Processes == 0 { // processes would end with the session
		err = b.Sup.End(ctx, s, session.EndDeleted)
	}
	return m, explain(err, physical)
}

// maxSeconds keeps a timeout in the range of time.Duration; the profile limits it anyway.
const maxSeconds = 1 << 30

// command returns the request for the supervisor, and how many bytes of each stream are kept.
func command(s *session.Session, spec *boxSpec) (*session.ExecRequest, int) {
	limit := min(quantity.Size(maxOutput), s.Config().Exec.OutputLimit)
	cmd, dir := spec.Cmd, inSkill(spec, path.Clean(spec.Workdir))
	if !isolation.UnderRoots(dir) && !isolation.Within(dir, isolation.SkillsDir) { // boxd makes no directory there, but the shell can cd to it
		cmd, dir = "cd "+quoted(dir)+" && "+cmd, isolation.Workspace
	}
	return &session.ExecRequest{
		Command: &cmd, Env: spec.Env, Dir: dir, Timeout: new(quantity.Duration(time.Duration(min(spec.TimeoutSec, maxSeconds)) * time.Second)),
		OutputLimit: &limit, Beginning: true,
	}, int(limit)
}

// quoted quotes a word for the shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// text returns what LangBot gets of a stream: its beginning, without what follows.
func text(s *session.Stream, limit int) string {
	data := s.Data
	if s.Omitted > 0 {
		data = bytes.TrimSuffix(data, s.Mark())
	}
	return outputText(data, s.Total, limit)
}

// exitCode returns the exit code as a shell has it: 128 plus the number of the signal that ended a program.
func exitCode(code int, signal string) int {
	if n := unix.SignalNum(signal); signal != "" && n > 0 {
		return 128 + int(n)
	}
	return code
}
