// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/boxes"
	"github.com/boxd-dev/boxd/relay/actionrpc/envelope"
	"github.com/boxd-dev/boxd/relay/actionrpc/lax"
	"github.com/boxd-dev/boxd/relay/actionrpc/model"
)

// action is one of the protocol.
type action struct {
	host    bool // it is about LangBot, not about a Workspace
	sandbox bool // it needs what LangBot's admission may refuse
	alters  bool // it has a record
	ends    bool // it only ends something
	do      func(ctx context.Context, c *call) (any, error)
}

// table is all actions there are.
func (s *Server) table() map[string]action {
	t := map[string]action{
		"__ping":                             {host: true, do: func(context.Context, *call) (any, error) { return struct{}{}, nil }},
		"box_health":                         {host: true, do: s.health},
		"box_get_backend_info":               {host: true, do: func(context.Context, *call) (any, error) { return s.backend(), nil }},
		"box_init":                           {host: true, alters: true, do: s.init},
		"box_shutdown":                       {host: true, alters: true, ends: true, do: s.shutdown},
		"box_verify_shared_workspace":        {host: true, do: s.verify},
		"box_upsert_sandbox_admission_grant": {host: true, alters: true, do: s.grant},
		"box_revoke_sandbox_admission_grant": {host: true, alters: true, ends: true, do: s.grant},
		"__file_chunk":                       {host: true, do: s.upload},
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
	for _, name := range []string{
		"create_skill", "update_skill", "delete_skill", "scan_skill_directory", "list_skill_files", "read_skill_file", "write_skill_file",
	} {
		t["box_"+name] = action{do: noSkills}
	}
	t["box_preview_skill_zip"], t["box_install_skill_zip"] = action{do: noZips}, action{do: noZips}
	t["box_list_skills"] = action{do: func(context.Context, *call) (any, error) { return map[string]any{"skills": []any{}}, nil }}
	t["box_get_skill"] = action{do: func(_ context.Context, c *call) (any, error) {
		if _, err := c.text("name"); err != nil {
			return nil, err
		}
		return map[string]any{"skill": nil}, nil
	}}
	return t
}

// noSkills refuses what there is no store for: every failure of these actions has this class.
func noSkills(context.Context, *call) (any, error) {
	return nil, envelope.Errorf("BoxValidationError", "this version of boxd has no skill store for LangBot")
}

// noZips uses up what was uploaded, and refuses it.
func noZips(ctx context.Context, c *call) (any, error) {
	name, err := c.text("file_key")
	if err != nil {
		return nil, envelope.Errorf("BoxValidationError", "'file_key'")
	}
	f, ok := c.conn.files.Take(name)
	if !ok {
		return nil, envelope.Errorf("BoxValidationError", "there is no uploaded file of that key")
	}
	f.Close()
	return noSkills(ctx, c)
}

// upload takes a piece of a file.
func (s *Server) upload(_ context.Context, c *call) (any, error) {
	return struct{}{}, c.conn.files.Put(c.Data, s.told.Load().Limits.MaxRPCFileBytes)
}

// text is a key of the payload that has to be there.
func (c *call) text(name string) (string, error) {
	raw, given := c.Data[name]
	if !given {
		return "", envelope.Errorf("KeyError", "'%s'", name)
	}
	s, ok := lax.String(raw)
	if !ok {
		return "", envelope.Errorf("BoxValidationError", "%s must be a string", name)
	}
	return s, nil
}

// processID is that of the payload, or the one that is meant where it is left out.
func (c *call) processID() (string, error) {
	if lax.Null(c.Data["process_id"]) {
		return model.DefaultProcess, nil
	}
	return c.text("process_id")
}

// backend is what LangBot asks before it offers any tool.
func (s *Server) backend() any {
	if s.told.Load().Required {
		r := s.readiness()
		return map[string]any{"name": r.Backend.Name, "available": r.Ready, "readiness": r}
	}
	return s.readiness().Backend
}

func (s *Server) health(context.Context, *call) (any, error) {
	if !s.told.Load().Required {
		return s.backend(), nil
	}
	if r := s.readiness(); r.Ready {
		return r, nil
	}
	return nil, envelope.Errorf("BoxReadinessError", "managed sandbox isolation is not ready")
}

func (s *Server) init(_ context.Context, c *call) (any, error) {
	s.telling.Lock()
	defer s.telling.Unlock()
	next, err := s.told.Load().Merge(c.Data)
	if err != nil {
		return nil, err
	}
	s.told.Store(next)
	return map[string]any{"initialized": true}, nil
}

func (s *Server) shutdown(ctx context.Context, _ *call) (any, error) {
	return struct{}{}, s.boxes.Shutdown(ctx)
}

func (s *Server) status(_ context.Context, c *call) (any, error) {
	sessions, processes := s.boxes.Status(c.tenant)
	return map[string]any{
		"backend": s.backend(), "active_sessions": sessions, "managed_processes": processes, "session_ttl_sec": int(boxes.TTL.Seconds()), "limits": s.told.Load().Limits,
	}, nil
}

func (s *Server) exec(ctx context.Context, c *call) (any, error) {
	spec, err := model.ReadSpec(c.Data)
	if err != nil {
		return nil, err
	}
	return s.boxes.Exec(ctx, c.tenant, spec)
}

func (s *Server) create(ctx context.Context, c *call) (any, error) {
	spec, err := model.ReadSpec(c.Data)
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
		return nil, envelope.Errorf("KeyError", "'spec'")
	}
	spec, err := model.ReadProcess(raw)
	if err != nil {
		return nil, err
	}
	return s.boxes.Start(ctx, c.tenant, id, spec)
}

func (s *Server) process(ctx context.Context, c *call) (any, error) {
	id, err := c.text("session_id")
	if err != nil {
		return nil, err
	}
	p, err := c.processID()
	if err != nil {
		return nil, err
	}
	return s.boxes.Process(ctx, c.tenant, id, p)
}

func (s *Server) stop(ctx context.Context, c *call) (any, error) {
	id, err := c.text("session_id")
	if err != nil {
		return nil, err
	}
	p, err := c.processID()
	if err != nil {
		return nil, err
	}
	return map[string]any{"stopped": p}, s.boxes.Stop(ctx, c.tenant, id, p)
}

// asked is the session and process that a request names, for its record.
func (c *call) asked() (session, process string) {
	id, _ := lax.String(c.Data["session_id"])
	if physical, err := model.Physical(c.tenant.Prefix, id); err == nil && c.tenant.Prefix != "" {
		session = physical
	}
	process, _ = lax.String(c.Data["process_id"])
	if spec, ok := lax.Object(c.Data["spec"]); ok {
		process, _ = lax.String(spec["process_id"])
	}
	return session, process
}

// argv is the command that a request has, for its record, and the names of its environment.
func (c *call) argv() (argv, env []string) {
	names := func(raw json.RawMessage) (list []string) {
		object, _ := lax.Object(raw)
		for name := range object {
			list = append(list, name)
		}
		return list
	}
	if spec, ok := lax.Object(c.Data["spec"]); ok {
		command, _ := lax.String(spec["command"])
		var args []string
		_ = json.Unmarshal(spec["args"], &args) // or it is refused
		return append([]string{command}, args...), names(spec["env"])
	}
	if cmd, ok := lax.String(c.Data["cmd"]); ok && strings.TrimSpace(cmd) != "" {
		return []string{cmd}, names(c.Data["env"])
	}
	return nil, nil
}
