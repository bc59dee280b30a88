// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Create finds or makes a session.
func (b *Boxes) Create(ctx context.Context, t Tenant, spec *boxSpec) (*sessionInfo, error) {
	physical, err := t.physical(spec.SessionID)
	if err != nil {
		return nil, err
	}
	s, snapshot, err := b.session(ctx, &t, physical, spec)
	if err != nil {
		return nil, err
	}
	return about(t, s.Info(), snapshot), nil
}

// about returns the info of a session.
func about(t Tenant, info session.Info, snapshot *specSnapshot) *sessionInfo {
	m := snapshot.Info(t.logical(info.ID))
	m.BackendName, m.BackendSessionID = Backend, policy.Key(info.Owner, info.ID)
	m.CreatedAt, m.LastUsedAt = wireTime(info.Created), wireTime(info.LastUsed)
	return m
}

// session finds the session of a physical id, or makes it. An existing session must match in the compared fields. Its
// read-only extra mounts are those of the last spec and change while it lives. If other mounts differ, it is replaced by
// another session, unless a process runs in it: then it is kept, with its mounts.
func (b *Boxes) session(ctx context.Context, t *Tenant, physical string, spec *boxSpec) (*session.Session, *specSnapshot, error) {
	requested := spec.keep()
	release, _, err := b.making.take(ctx, physical)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	for {
		if b.shuttingDown() {
			return nil, nil, wire.Refusef("BoxRuntimeUnavailableError", "Box runtime is shutting down")
		}
		owner, err := b.Owner()
		if err != nil {
			return nil, nil, err
		}
		s, err := b.Sup.Session(owner, physical)
		if refused := b.admit(t, err != nil); refused != nil {
			return nil, nil, refused
		}
		if err != nil {
			s, err := b.create(ctx, t, owner, physical, spec, requested)
			return s, requested, err
		}
		snapshot, err := b.reuse(ctx, s, requested)
		if snapshot != nil && err == nil {
			err = b.syncMounts(ctx, s, spec)
		}
		if snapshot != nil || err != nil {
			return s, snapshot, mountError(err, physical)
		}
	}
}

func (b *Boxes) shuttingDown() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closing
}

// reuse decides about an existing session. If it returns neither a result nor an error, that session has ended.
func (b *Boxes) reuse(ctx context.Context, s *session.Session, requested *specSnapshot) (*specSnapshot, error) {
	state, lost, err := s.State()
	switch {
	case err != nil: // its start has failed
		return nil, nil //nolint:nilerr // the next one may not
	case lost:
		return nil, b.Sup.End(ctx, s, session.EndLost)
	case state == session.StateStopped || state == session.StateStopping: // another client has stopped it
		_, err := b.Sup.Start(ctx, s, nil)
		return nil, err
	case s.Reason() != "" || state != session.StateReady:
		select {
		case <-s.Ended():
			return nil, nil
		case <-s.Started():
			if s.Reason() == "" {
				return nil, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		select {
		case <-s.Ended():
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	info := s.Info()
	snapshot, err := readLabels(info.Settings.Labels)
	if err != nil {
		return nil, wire.Refusef("BoxSessionConflictError", "Box session %s already exists: %v", s.ID, err)
	}
	if field, has, differs := snapshot.conflict(requested); differs {
		return nil, wire.Refusef("BoxSessionConflictError", "Box session %s already exists with %s=%s", s.ID, field, has)
	}
	if snapshot.Mounts != requested.Mounts {
		if info.Processes == 0 {
			return nil, b.Sup.End(ctx, s, session.EndDeleted)
		}
		b.Log.Warn("LangBot asks for other mounts; the session keeps its own while processes run in it", "session", s.ID)
	}
	return snapshot, s.Use()
}

// create makes a session, if there is room for another one.
func (b *Boxes) create(ctx context.Context, t *Tenant, owner access.Principal, physical string, spec *boxSpec, snapshot *specSnapshot) (*session.Session, error) {
	if !b.Init().Ours() {
		return nil, wire.Refusef("BoxBackendUnavailableError", "LangBot Box backend unavailable. Install and start Docker or nsjail before using exec.")
	}
	req, err := b.request(physical, spec, snapshot)
	if err != nil {
		return nil, err
	}
	release, err := b.reserve(physical)
	if err != nil {
		return nil, err
	}
	defer release()
	b.relaxQuota(t, req)
	b.homeOnDisk(req)
	if t.Admitted != nil {
		if err := b.prepare(ctx, owner, t.Admitted); err != nil {
			return nil, err
		}
	}
	s, _, err := b.Sup.Create(ctx, owner, req)
	if isMissing(err) && spec.HostPath != nil && spec.HostPathMode == modeReadWrite {
		if err := b.makeDirectory(ctx, owner, path.Clean(*spec.HostPath)); err != nil {
			return nil, mountError(err, physical)
		}
		s, _, err = b.Sup.Create(ctx, owner, req)
	}
	if err != nil {
		return nil, mountError(err, physical)
	}
	if err = b.bootstrap(ctx, s); err == nil {
		err = b.syncMounts(ctx, s, spec)
	}
	if err == nil { // its admission may have ended too early to end this session with it
		err = t.recheck()
	}
	if err != nil {
		return nil, mountError(errors.Join(err, b.Sup.End(context.WithoutCancel(ctx), s, session.EndUnclaimed)), physical)
	}
	return s, nil
}

// request returns the request for the supervisor.
func (b *Boxes) request(physical string, spec *boxSpec, snapshot *specSnapshot) (*policy.Request, error) {
	network := policy.NetworkOff
	if spec.Network == networkOn {
		network = policy.NetworkEgress
	}
	mib := func(n int64) quantity.Size { return quantity.Size(min(n, 1<<30)) * quantity.MiB }
	has, err := policy.ReadMachine()
	if err != nil {
		return nil, err
	}
	image, err := b.image(spec.Image)
	if err != nil {
		return nil, explain(err, physical)
	}
	req := &policy.Request{
		ID: physical, Profile: b.Profile, Image: image, Network: &network, Labels: snapshot.labels(), Env: map[string]string{"PYTHONUNBUFFERED": "1"}, // as LangBot's runtime
		// Limits above what the host has are no limits; so a profile of LangBot's works on every host.
		Patch: limits.Patch{
			CPUs: new(min(spec.CPUs, float64(has.CPUs))), Memory: new(min(mib(spec.MemoryMB), has.Memory)),
			Pids: new(int(max(min(spec.PidsLimit, int64(has.Pids)), isolation.MinPids))), // PID 1 of a box has threads of its own
			TTL:  new(quantity.Duration(ttl)),
		},
		// A writable root is not available; nor is it in LangBot's own runtime.
		ReadOnlyRoot: new(true),
	}
	if spec.HostPath == nil || spec.HostPathMode == modeReadWrite && path.Clean(spec.MountPath) == isolation.Workspace {
		maps.Copy(req.Env, caches())
	}
	if spec.WorkspaceQuotaMB > 0 {
		req.WorkspaceQuota = new(mib(spec.WorkspaceQuotaMB))
	}
	if spec.Persistent {
		req.TTL, req.MaxLifetime = new(quantity.Duration(0)), new(quantity.Duration(0))
	}
	if spec.HostPath != nil && spec.HostPathMode != modeNone {
		m, err := mountOf(mountSpec{HostPath: *spec.HostPath, MountPath: spec.MountPath, Mode: spec.HostPathMode})
		if err != nil {
			return nil, err
		}
		req.Mounts = append(req.Mounts, m)
	}
	for _, m := range spec.mounts(modeReadWrite) { // a living box cannot get these
		mount, err := mountOf(m)
		if err != nil {
			return nil, err
		}
		req.Mounts = append(req.Mounts, mount)
	}
	return req, nil
}

// homeOnDisk puts the home directory on disk if the kernel limits it there, by the quota of the session: what programs
// install there is larger than tmp, which is memory. A requested quota for a host directory that cannot have one is
// still refused, since a quota for the home is not what was requested.
func (b *Boxes) homeOnDisk(req *policy.Request) {
	profiles, _ := b.Sup.Profiles()
	p := profiles[b.Profile]
	quota := p.WorkspaceQuota
	if req.WorkspaceQuota != nil {
		quota = *req.WorkspaceQuota
		i := slices.IndexFunc(req.Mounts, func(m policy.Mount) bool { return m.Target == isolation.Workspace })
		if i >= 0 && (req.Mounts[i].Mode != policy.MountReadWrite || b.Sup.CanBound(req.Mounts[i].Source) != nil) {
			return
		}
	}
	if quota > 0 && b.Sup.BoundsOwnDisk() && !slices.Contains(p.Locked, "home_on_disk") {
		req.HomeOnDisk = new(true)
	}
}

// caches is where npx, uvx and pip keep their downloads: in the workspace, on disk and within its quota. The home
// directory may be memory, and too small for them.
func caches() map[string]string {
	const dir = isolation.Workspace + "/.cache"
	return map[string]string{"XDG_CACHE_HOME": dir, "npm_config_cache": dir + "/npm", "UV_CACHE_DIR": dir + "/uv", "PIP_CACHE_DIR": dir + "/pip"}
}

// mountOf converts a mount for the supervisor.
func mountOf(m mountSpec) (policy.Mount, error) {
	source := path.Clean(m.HostPath)
	if blockedPath(source) {
		return policy.Mount{}, wire.Refusef("BoxValidationError", "host_path %s is blocked for security", m.HostPath)
	}
	return policy.Mount{Source: source, Target: path.Clean(m.MountPath), Mode: m.Mode}, nil
}

// syncMounts gives a living session the read-only extra mounts of a spec, and removes all others. Files that are open
// there stay open.
func (b *Boxes) syncMounts(ctx context.Context, s *session.Session, spec *boxSpec) error {
	wanted := map[string]policy.Mount{}
	var order []string
	for _, m := range spec.mounts(modeReadOnly) {
		mount, err := mountOf(m)
		if err != nil {
			return err
		}
		if _, dup := wanted[mount.Target]; !dup {
			order = append(order, mount.Target)
		}
		wanted[mount.Target] = mount
	}
	change, has := b.Sup.Mounts(s), map[string]bool{}
	live := s.Live()
	slices.Reverse(live) // upper mounts go first
	for _, m := range live {
		w, ok := wanted[m.Target]
		switch {
		case !ok:
			if err := change.Remove(ctx, m.Target, true); err != nil {
				return err
			}
		case w.Source == m.Source && w.Mode == m.Mode:
			has[m.Target] = true
		}
	}
	for _, target := range order {
		if has[target] {
			continue
		}
		if _, _, err := change.Add(ctx, wanted[target], true); err != nil {
			return err
		}
	}
	return b.mountSkills(ctx, s, spec)
}

// reserve admits one more session, within LangBot's maximum.
func (b *Boxes) reserve(physical string) (release func(), err error) {
	limit := b.Init().Limits.MaxSessions
	b.mu.Lock()
	defer b.mu.Unlock()
	count := int64(len(b.reserved))
	for _, info := range b.list() {
		if _, counted := b.reserved[info.ID]; !counted {
			count++
		}
	}
	if count >= limit {
		return nil, wire.Refusef("BoxCapacityExceededError", "Box session capacity reached (%d)", limit)
	}
	b.reserved[physical] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.reserved, physical)
	}, nil
}

// isMissing reports whether a session failed to start because a directory to mount does not exist.
func isMissing(err error) bool {
	step, ok := errors.AsType[*isolation.StepError](err)
	return ok && step.Step == isolation.StepMountSource && errors.Is(step, unix.ENOENT)
}

// mountError translates an error; one about a directory tells an operator of LangBot what to configure.
func mountError(err error, physical string) error {
	if d := fault.DenialOf(err); d == nil || d.Layer != fault.LayerMount {
		return explain(err, physical)
	}
	return wire.Refusef("BoxValidationError", "%v (allowed directories are listed in mounts.allow in box.toml, for the user of langbot.principal; "+
		"give LangBot an absolute box.local.host_root, since a relative one is relative to LangBot's own directory)", err)
}

// deepest is how many nested directories are made at a time.
const deepest = 16

// makeDirectory makes a host directory and its parents: in a box, as a user who may write there. boxd itself may not.
func (b *Boxes) makeDirectory(ctx context.Context, owner access.Principal, dir string) error {
	above := dir
	for range deepest {
		above = path.Dir(above)
		req := &policy.Request{
			ID: "langbot-mkdir-" + policy.NewID(), Profile: b.Profile, Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), OneShot: true,
			Mounts: []policy.Mount{{Source: above, Target: isolation.Workspace, Mode: policy.MountReadWrite}},
		}
		b.dropQuota(req)
		s, _, err := b.Sup.Create(ctx, owner, req)
		if isMissing(err) && above != "/" {
			continue
		}
		if err != nil {
			return err
		}
		below := isolation.Workspace + "/" + strings.TrimPrefix(strings.TrimPrefix(dir, above), "/")
		r, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{"mkdir", "-p", "--", below}})
		err = errors.Join(err, b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot))
		if err == nil && (r.Status != session.StatusExited || r.ExitCode != 0) {
			err = fault.Field("host_path", dir, "a directory that can be created ("+strings.TrimSpace(string(r.Streams[1].Data))+")")
		}
		return err
	}
	return fault.Field("host_path", dir, fmt.Sprintf("a path of which at most %d directories are missing", deepest))
}

// python adds the name python, which LangBot uses, to a box whose image has only python3.
const python = `command -v python >/dev/null || { p=$(command -v python3) && mkdir -p "$HOME/.local/bin" && ln -sf "$p" "$HOME/.local/bin/python"; } || :`

// bootstrap puts what LangBot expects into a new session.
func (b *Boxes) bootstrap(ctx context.Context, s *session.Session) error {
	r, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{"/bin/sh", "-c", python}, Dir: s.Home()})
	if err == nil && r.Status != session.StatusExited {
		b.Log.Debug("a session of LangBot has no python", "session", s.ID, "status", r.Status)
	}
	return err
}

// Get describes a session with its processes.
func (b *Boxes) Get(ctx context.Context, t Tenant, logical string) (*sessionInfo, error) {
	physical, err := t.physical(logical)
	if err != nil {
		return nil, err
	}
	s, err := b.find(physical)
	if err != nil {
		return nil, err
	}
	info := s.Info()
	snapshot, err := readLabels(info.Settings.Labels)
	if err != nil {
		return nil, notFound(physical)
	}
	m := about(t, info, snapshot)
	for _, p := range b.known(s) {
		if m.Processes == nil {
			m.Processes = map[string]*processInfo{}
		}
		m.Processes[p.Spec().ID] = b.process(ctx, t, s, p)
	}
	m.Default = m.Processes[wire.DefaultProcess]
	return m, nil
}

// List describes the sessions of a tenant.
func (b *Boxes) List(t Tenant) []*sessionInfo {
	list := []*sessionInfo{}
	for _, info := range b.list() {
		snapshot, err := readLabels(info.Settings.Labels)
		if err != nil || !strings.HasPrefix(info.ID, t.Prefix) || info.State != session.StateReady {
			continue
		}
		list = append(list, about(t, info, snapshot))
	}
	return list
}

// Delete ends a session, whatever runs in it.
func (b *Boxes) Delete(ctx context.Context, t Tenant, logical string) error {
	physical, err := t.physical(logical)
	if err != nil {
		return err
	}
	s, err := b.find(physical)
	if err != nil {
		return err
	}
	b.execs.cutOff(physical)
	return explain(b.Sup.End(ctx, s, session.EndDeleted), physical)
}
