// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// action is one action of the protocol.
type action struct {
	host    bool // is about LangBot itself, not about a Workspace
	sandbox bool // needs what LangBot's admission may refuse
	skill   bool // is about data that a Workspace has across all its generations
	alters  bool // is recorded
	ends    bool // only ends something
	do      func(ctx context.Context, c *call) (any, error)
}

// table returns all actions.
func (s *Server) table() map[string]action {
	t := map[string]action{
		"__ping":                             {do: func(context.Context, *call) (any, error) { return struct{}{}, nil }},
		"box_health":                         {do: s.health},
		"box_get_backend_info":               {do: func(ctx context.Context, _ *call) (any, error) { return s.backend(ctx), nil }},
		"box_init":                           {alters: true, do: s.init},
		"box_shutdown":                       {alters: true, ends: true, do: s.shutdown},
		"box_verify_shared_workspace":        {do: s.verify},
		"box_upsert_sandbox_admission_grant": {alters: true, do: s.grant},
		"box_revoke_sandbox_admission_grant": {alters: true, ends: true, do: s.revoke},
		"__file_chunk":                       {do: s.upload},
		"box_status":                         {do: s.status},
		"box_exec":                           {sandbox: true, alters: true, do: s.exec},
		"box_create_session":                 {sandbox: true, alters: true, do: s.create},
		"box_get_session":                    {sandbox: true, do: s.get},
		"box_get_sessions":                   {sandbox: true, do: s.list},
		"box_delete_session":                 {sandbox: true, alters: true, ends: true, do: s.remove},
		"box_start_managed_process":          {sandbox: true, alters: true, do: s.start},
		"box_get_managed_process":            {sandbox: true, do: s.process},
		"box_stop_managed_process":           {sandbox: true, alters: true, ends: true, do: s.stop},
	}
	for name, a := range t {
		if do := a.do; a.sandbox {
			a.do = func(ctx context.Context, c *call) (any, error) {
				if err := s.requireAdmission(ctx, c); err != nil {
					return nil, err
				}
				return do(ctx, c)
			}
			t[name] = a
		}
	}
	k := &Skills{Store: s.cfg.Skills, Boxes: s.boxes}
	if s.cfg.Taken != "" {
		k.Earlier = &Earlier{Dir: s.cfg.Taken, Log: s.cfg.Log}
	}
	for name, a := range map[string]struct {
		alters, ends bool
		do           func(context.Context, *SkillRequest) (any, error)
	}{
		"list_skills": {do: k.List}, "get_skill": {do: k.Get}, "create_skill": {alters: true, do: k.Create}, "update_skill": {alters: true, do: k.Update},
		"delete_skill": {alters: true, ends: true, do: k.Delete}, "scan_skill_directory": {do: k.Scan}, "list_skill_files": {do: k.Files},
		"read_skill_file": {do: k.ReadFile}, "write_skill_file": {alters: true, do: k.writeFile}, "preview_skill_zip": {do: k.preview},
		"install_skill_zip": {alters: true, do: k.install},
	} {
		t["box_"+name] = action{alters: a.alters, ends: a.ends, do: func(ctx context.Context, c *call) (any, error) {
			return a.do(ctx, &SkillRequest{
				Data: c.Data, Principal: s.cfg.Principal, Namespace: c.namespace, Work: s.initConfig.Load().Work, Old: s.initConfig.Load().Skills, Files: c.conn.files,
			})
		}}
	}
	for name, a := range t {
		known, _ := wire.ActionOf(name)
		a.host, a.skill = known.Host, known.Skill
		t[name] = a
	}
	return t
}

// upload takes one piece of a file.
func (s *Server) upload(_ context.Context, c *call) (any, error) {
	return struct{}{}, c.conn.files.Put(c.Data, s.initConfig.Load().Limits.MaxRPCFileBytes)
}

// text returns a required key of the payload.
func (c *call) text(name string) (string, error) {
	raw, given := c.Data[name]
	if !given {
		return "", wire.Refusef("KeyError", "'%s'", name)
	}
	s, ok := wire.StringOf(raw)
	if !ok {
		return "", wire.Refusef("BoxValidationError", "%s must be a string", name)
	}
	return s, nil
}

// processID returns the session id and the process id of the payload, or the default process id if it has none.
func (c *call) processID() (session, process string, err error) {
	if session, err = c.text("session_id"); err != nil || wire.IsNull(c.Data["process_id"]) {
		return session, wire.DefaultProcess, err
	}
	process, err = c.text("process_id")
	return session, process, err
}

// backend answers what LangBot asks before it offers any tool.
func (s *Server) backend(ctx context.Context) any {
	r := s.readiness(ctx, false)
	if r.Mode == standard {
		return r.Backend
	}
	return map[string]any{"name": r.Backend.Name, "available": r.Ready, "readiness": r}
}

func (s *Server) health(ctx context.Context, _ *call) (any, error) {
	r := s.readiness(ctx, false)
	switch {
	case r.Mode == standard:
		return r.Backend, nil
	case r.Ready:
		return r, nil
	}
	return nil, wire.Refusef("BoxReadinessError", "managed sandbox isolation is not ready")
}

func (s *Server) init(ctx context.Context, c *call) (any, error) {
	s.initMu.Lock()
	defer s.initMu.Unlock()
	next, err := s.initConfig.Load().Merge(c.Data)
	if next == nil {
		return nil, err
	}
	s.initConfig.Store(next) // also if the INIT is refused: what it says about the admission holds
	s.invalid.Store(true)
	s.grants.Lookup()
	if err := errors.Join(err, s.cfg.Marker.Set(next.Required)); err != nil {
		return nil, err
	}
	if next.Work != "" {
		if err := s.boxes.makeWork(ctx, next.Work); err != nil { // readiness reports this if it lasts
			s.cfg.Log.Warn("cannot create LangBot's default workspace", "directory", next.Work, "error", err)
		}
	}
	return map[string]any{"initialized": true}, nil
}

func (s *Server) shutdown(ctx context.Context, _ *call) (any, error) {
	return struct{}{}, s.boxes.Shutdown(ctx)
}

func (s *Server) status(ctx context.Context, c *call) (any, error) {
	sessions, processes := s.boxes.Status(c.tenant)
	return map[string]any{
		"backend": s.backend(ctx), "active_sessions": sessions, "managed_processes": processes, "session_ttl_sec": int(ttl.Seconds()), "limits": s.initConfig.Load().Limits,
	}, nil
}

// spec reads a BoxSpec.
func (s *Server) spec(c *call) (*boxSpec, error) {
	spec, err := readSpec(c.Data)
	if err != nil {
		return nil, err
	}
	if c.tenant.Admitted != nil {
		return s.admitted(c, spec, &s.initConfig.Load().Policy)
	}
	return spec, takeSkillMounts(spec, s.cfg.Principal, c.namespace)
}

func (s *Server) exec(ctx context.Context, c *call) (any, error) {
	spec, err := s.spec(c)
	if err != nil {
		return nil, err
	}
	return s.boxes.Exec(ctx, c.tenant, spec)
}

func (s *Server) create(ctx context.Context, c *call) (any, error) {
	spec, err := s.spec(c)
	if err != nil {
		return nil, err
	}
	return s.boxes.Create(ctx, c.tenant, spec)
}

func (s *Server) get(ctx context.Context, c *call) (any, error) {
	id, err := c.text("session_id")
	if err != nil {
		return nil, err
	}
	return s.boxes.Get(ctx, c.tenant, id)
}

func (s *Server) list(_ context.Context, c *call) (any, error) {
	return map[string]any{"sessions": s.boxes.List(c.tenant)}, nil
}

func (s *Server) remove(ctx context.Context, c *call) (any, error) {
	id, err := c.text("session_id")
	if err != nil {
		return nil, err
	}
	return map[string]any{"deleted": id}, s.boxes.Delete(ctx, c.tenant, id)
}

func (s *Server) start(ctx context.Context, c *call) (any, error) {
	id, err := c.text("session_id")
	if err != nil {
		return nil, err
	}
	raw, given := c.Data["spec"]
	if !given {
		return nil, wire.Refusef("KeyError", "'spec'")
	}
	spec, err := readProcess(raw)
	if err != nil {
		return nil, err
	}
	return s.boxes.Start(ctx, c.tenant, id, spec)
}

func (s *Server) process(ctx context.Context, c *call) (any, error) {
	id, p, err := c.processID()
	if err != nil {
		return nil, err
	}
	return s.boxes.Process(ctx, c.tenant, id, p)
}

func (s *Server) stop(ctx context.Context, c *call) (any, error) {
	id, p, err := c.processID()
	if err != nil {
		return nil, err
	}
	return map[string]any{"stopped": p}, s.boxes.Stop(ctx, c.tenant, id, p)
}

// named returns the session and process that a request names, for its record.
func (c *call) named() (session, process string) {
	id, _ := wire.StringOf(c.Data["session_id"])
	if physical, err := wire.PhysicalID(c.tenant.Prefix, id); err == nil && c.tenant.Prefix != "" {
		session = physical
	}
	process, _ = wire.StringOf(c.Data["process_id"])
	if spec, ok := wire.ObjectOf(c.Data["spec"]); ok {
		process, _ = wire.StringOf(spec["process_id"])
	}
	return session, process
}

// changes returns what else a request of a Workspace names, for its record.
func (c *call) changes(a *action) []string {
	if !a.skill {
		return nil
	}
	name, _ := wire.StringOf(c.Data["name"])
	if in, ok := wire.ObjectOf(c.Data["skill"]); ok && name == "" {
		name, _ = wire.StringOf(in["name"])
	}
	return []string{"workspace=" + c.namespace, "skill=" + name}
}

// argv returns the command of a request and the names of its environment variables, for its record.
func (c *call) argv() (argv, env []string) {
	names := func(raw json.RawMessage) (list []string) {
		object, _ := wire.ObjectOf(raw)
		for name := range object {
			list = append(list, name)
		}
		return list
	}
	if spec, ok := wire.ObjectOf(c.Data["spec"]); ok {
		command, _ := wire.StringOf(spec["command"])
		var args []string
		_ = json.Unmarshal(spec["args"], &args) // if this fails, the request is refused
		return append([]string{command}, args...), names(spec["env"])
	}
	if cmd, ok := wire.StringOf(c.Data["cmd"]); ok && strings.TrimSpace(cmd) != "" {
		return []string{cmd}, names(c.Data["env"])
	}
	return nil, nil
}
