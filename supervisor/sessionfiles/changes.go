// SPDX-License-Identifier: Apache-2.0

// Changes that an execution has made to the workspace: files created, changed and removed, found by comparing the whole
// workspace before and after.

package sessionfiles

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// maxSnapshot bounds the memory that boxd uses for an execution while it runs, in bytes. Ten thousand files take about 100,000.
const maxSnapshot = 4 << 20

// ChangesRequest says which changes to report.
type ChangesRequest struct {
	Include, Exclude []string // globs, matched against paths relative to the workspace
	MaxSize          int64    // bytes of a listed file; 0: any size
	Limit            int      // of listed changes; all are counted
	Digest           bool     // list digests of files
}

// ChangesReport is what has changed in the workspace.
type ChangesReport struct {
	files.ChangesAnswer        // empty if Unknown is set
	Unknown             string // why the changes are not known
	// Exact means that nothing else of the session ran between the two scans, and nothing outside it can write to the
	// workspace: all changes are the execution's.
	Exact bool
}

// ChangesWatch is the state of a workspace before an execution.
type ChangesWatch struct {
	s        *session.Session
	req      *ChangesRequest
	before   session.Info
	snapshot []byte
	unread   int
	unknown  string
}

// programs is how many programs start between BeginChanges and End if nothing else does: two scans and the execution.
const programs = 3

// BeginChanges scans the workspace. If there is too much in it, the report will say so; any other error means that the
// execution should not begin. If nothing is asked, it returns nil and does not scan.
func BeginChanges(ctx context.Context, s *session.Session, req *ChangesRequest) (*ChangesWatch, error) {
	if req == nil {
		return nil, nil
	}
	w := &ChangesWatch{s: s, req: req, before: s.Info()}
	limits := &s.Config().Files
	a, data, err := Do(ctx, s, BoxUser, &files.Request{Snapshot: &files.Snapshot{
		Path: []byte(isolation.Workspace), Exclude: req.Exclude, Walk: limits.MaxEntries, Most: min(maxSnapshot, int64(limits.MaxContent)),
	}}, nil)
	if f, ok := errors.AsType[*Failure](err); ok && f.Kind == files.TooMany {
		w.unknown = f.Error()
		return w, nil
	}
	if err == nil && a.Snapshot == nil {
		err = files.ErrMalformed
	}
	if err != nil {
		return nil, err
	}
	w.snapshot, w.unread = data, a.Snapshot.Unread
	return w, nil
}

// End scans again after the execution, whose result counts even if this fails.
func (w *ChangesWatch) End(ctx context.Context) *ChangesReport {
	if w == nil {
		return nil
	}
	if w.unknown != "" {
		return &ChangesReport{Unknown: w.unknown}
	}
	limits := &w.s.Config().Files
	req := &files.Changes{
		Path: []byte(isolation.Workspace), Exclude: w.req.Exclude, Include: w.req.Include, Walk: limits.MaxEntries, Limit: w.req.Limit, MaxSize: w.req.MaxSize,
	}
	if w.req.Digest {
		req.Digest = int64(limits.MaxSearch)
	}
	a, _, err := Do(ctx, w.s, BoxUser, &files.Request{Changes: req}, w.snapshot)
	if err == nil && a.Changes == nil {
		err = files.ErrMalformed
	}
	if err != nil {
		return &ChangesReport{Unknown: err.Error()}
	}
	r := &ChangesReport{ChangesAnswer: *a.Changes, Exact: exact(&w.before, new(w.s.Info()))}
	r.Unread = max(r.Unread, w.unread)
	return r
}

// EndProcess is End of an execution with an id. If another request has begun that, the state before it is not known.
func (w *ChangesWatch) EndProcess(ctx context.Context, p *process.Process, mine bool) *ChangesReport {
	if w == nil {
		return nil
	}
	if !mine {
		return &ChangesReport{Unknown: "another request started this execution, perhaps without recording changes"}
	}
	if err := w.s.AwaitReleased(ctx, p); err != nil {
		return &ChangesReport{Unknown: err.Error()}
	}
	return w.End(ctx)
}

// exact reports whether nothing else can have written between before and after. What ran at before may have, even if it has
// ended since.
func exact(before, after *session.Info) bool {
	for _, i := range []*session.Info{before, after} {
		if i.Running > 0 || i.LeftRunning || i.Settings.Workspace != "" || slices.ContainsFunc(i.Settings.Mounts, isWork) {
			return false
		}
	}
	return after.Executions-before.Executions == programs
}

// isWork reports whether a mount makes the workspace a directory that others may write to.
func isWork(m policy.Mount) bool { return cmp.Or(m.Target, isolation.Workspace) == isolation.Workspace }
