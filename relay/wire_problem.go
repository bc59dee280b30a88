// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Parts of every problem response.
const (
	problemMedia = "application/problem+json"
	RetryAfter   = "1" // seconds, if a retry may succeed
)

// statusOf is the only place that maps kinds of faults to HTTP statuses.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Denied:
		return http.StatusForbidden
	case fault.Exhausted:
		return http.StatusTooManyRequests
	case fault.Unsupported:
		return http.StatusNotImplemented
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.Internal:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// problemAnswer makes the response body of an error. Internal errors are logged and not shown; the step at which a box
// failed to start is shown.
func problemAnswer(ctx context.Context, log *slog.Logger, err error) *api.Problem {
	kind := fault.KindOf(err)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		kind, err = fault.Unavailable, fault.Errorf(fault.Unavailable, "the request was canceled").WithHint("send it again: the connection was closed, or boxd stops")
	}
	p := RefusalProblem(err)
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case ok:
		p.Failure = startFailure(step)
		if kind == fault.Internal {
			p.Title, p.Hint = "the box could not start", "boxctl doctor examines the host"
		}
	case kind == fault.Internal:
		log.ErrorContext(ctx, "request failed", "error", err)
		p.Detail, p.Hint = "boxd failed; its log has the reason", "journalctl -u boxd"
	}
	return p
}

// RefusalProblem returns the problem for a refusal, from the error alone.
func RefusalProblem(err error) *api.Problem {
	kind := fault.KindOf(err)
	p := &api.Problem{
		Type: api.ProblemType + kind.String(), Title: titles()[kind], Status: statusOf(kind), Detail: err.Error(),
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		p.Field, p.Value, p.Allowed, p.Hint = f.Field, f.Value, f.Allowed, f.Hint
	}
	if f, ok := errors.AsType[*sessionfiles.Failure](err); ok {
		p.File = fileFailure(f)
	}
	if b, ok := errors.AsType[*supervisor.MountBusyError](err); ok {
		for _, u := range b.Users {
			p.Users = append(p.Users, api.MountUser{PID: u.PID, Program: u.Program, How: u.How, Path: u.Path})
		}
	}
	if d := fault.DenialOf(err); d != nil {
		p.Denial = &api.Denial{
			Layer: string(d.Layer), Rule: d.Rule, Used: d.Used, Allowed: d.Allowed, Setting: d.Setting,
			RetryAfter: int64((d.After + time.Second - 1) / time.Second),
		}
	}
	return p
}

// later returns Retry-After for a problem: when the rule that refused will allow a request again, if it knows.
func later(p *api.Problem) string {
	if p.Denial != nil && p.Denial.RetryAfter > 0 {
		return strconv.FormatInt(p.Denial.RetryAfter, 10)
	}
	return RetryAfter
}

func titles() map[fault.Kind]string {
	return map[fault.Kind]string{
		fault.Internal: "internal error", fault.Invalid: "invalid request", fault.NotFound: "not found",
		fault.Conflict: "conflict", fault.Denied: "not allowed", fault.Exhausted: "limit reached",
		fault.Unsupported: "not supported here", fault.Unavailable: "not available",
		fault.Unauthenticated: "authentication failed",
	}
}

// newPID1 is the hint if PID 1 of a box, which has the version of the boxd that started it, does not support a request.
const newPID1 = "stop the box and start it again: boxctl stop BOX, boxctl start BOX"

func startFailure(s *isolation.StepError) *api.StartFailure {
	f := &api.StartFailure{Step: s.Step.String(), Item: s.Item, Text: s.Error()}
	if s.Refused == nil {
		f.Errno = unix.ErrnoName(s.Errno)
	}
	if s.Step == isolation.StepStdio && s.Item == isolation.ItemMerged && s.Errno == unix.EOPNOTSUPP {
		f.Text = fault.Field("merge_output", true, "left out in a box of an earlier version of boxd").Error()
		f.Hint = newPID1
		return f
	}
	if s.Step == isolation.StepStdio && s.Item == isolation.ItemSpooled && s.Errno == unix.EOPNOTSUPP {
		f.Text = fault.Field("spool", fault.Word("given"), "left out in a box of an earlier version of boxd").Error()
		f.Hint = newPID1
		return f
	}
	if s.Step == isolation.StepUser {
		f.Text = fault.Field("user", session.RootUser, "left out, since this host lets the box have no root: "+s.Errno.Error()).Error()
		if s.Errno == unix.EOPNOTSUPP {
			f.Text, f.Hint = fault.Field("user", session.RootUser, "left out in a box of an earlier version of boxd").Error(), newPID1
		}
		return f
	}
	if s.Step == isolation.StepStdio && s.Item == isolation.ItemSpool {
		f.Text = "cannot store output in /workspace (spool): " + s.Errno.Error()
		f.Hint = "free space there, or leave out spool"
		if s.Errno == output.NoSpool {
			f.Text = "cannot store output in /workspace (spool): its filesystem is not a local one, such as ext4, xfs or btrfs"
			f.Hint = "leave out spool"
		}
		return f
	}
	if s.Step != isolation.StepDirectory {
		return f
	}
	switch s.Errno { //nolint:exhaustive // of a hundred
	case unix.EACCES:
		f.Hint = "its mode does not let the program's user enter it: boxctl fs chmod ID 755 " + s.Item + ", or run with cwd /"
	case unix.ENOENT, unix.ENOTDIR, unix.EROFS, unix.ELOOP:
		f.Text = fault.Field("cwd", s.Item, "an existing directory ("+s.Errno.Error()+")").Error()
		f.Hint = "see what is there: boxctl fs ls ID " + path.Dir(s.Item)
	case unix.EOPNOTSUPP:
		f.Text = fault.Field("cwd", s.Item, "given without cwd_must_exist in a box of an earlier version of boxd").Error()
		f.Hint = newPID1
	}
	return f
}
