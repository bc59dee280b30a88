// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor"
)

// routes is the whole API. What viewers may see of their own, operators may see of all owners, and end; anything else on
// behalf of another owner takes an admin.
func routes(m *conversations) []Route {
	return slices.Concat(hostRoutes(), sessionRoutes(), []Route{
		line("POST /mcp", access.User, "profile session template variables", m.Serve),
		line("GET /mcp", access.User, "profile session template variables", m.Serve),
		line("DELETE /mcp", access.User, "profile session template variables", m.Serve),
	})
}

// hostRoutes are those of the host and of everything that outlives sessions.
func hostRoutes() []Route {
	return []Route{
		line("GET /healthz", unauthenticated, "", getHealth),
		line("GET /readyz", unauthenticated, "", getReady),
		line("GET /v1/openapi.json", unauthenticated, "", getDescription),
		line("GET /v1/status", access.Viewer, "", getStatus),
		line("GET /v1/profiles", access.Viewer, "", listProfiles),
		line("GET /v1/instructions", access.Viewer, "profile", plannedInstructions),
		line("GET /v1/config", access.Operator, "", getConfiguration),
		line("GET /v1/doctor", access.Viewer, "", getDoctor),
		line("GET /v1/grants", access.Admin, "", listGrants),
		line("POST /v1/grants", access.Admin, "", giveGrant),
		line("DELETE /v1/grants/{principal}", access.Admin, "", revokeGrant),
		line("POST /v1/drain", access.Admin, "", drain),
		line("DELETE /v1/drain", access.Admin, "", undrain),
		line("GET /metrics", access.Viewer, "", getMetrics),
		line("GET /v1/events", access.Viewer, "owner session type after follow", streamEvents),
		line("GET /v1/errors", access.Viewer, "owner", getErrors),
		line("GET /v1/audit", access.Operator, "n session principal request", getAudit),
		line("GET /v1/usage", access.Viewer, "days all owner", getUsage),
		line("GET /v1/skills", access.Viewer, "owner", listSkills),
		line("POST /v1/skills", access.User, "owner", createSkill),
		line("POST /v1/skills/index", access.Viewer, "owner", indexSkills),
		line("POST /v1/skills/preview", access.User, "owner url session path subdir select replace digest", previewSkills),
		line("POST /v1/skills/install", access.User, "owner url session path subdir select replace digest", installSkills),
		line("GET /v1/skills/{skill}", access.Viewer, "owner", getSkill),
		line("PATCH /v1/skills/{skill}", access.User, "owner", changeSkill),
		line("DELETE /v1/skills/{skill}", access.User, "owner", deleteSkill),
		line("GET /v1/skills/{skill}/files", access.Viewer, "owner path hidden limit", listSkillFiles),
		line("GET /v1/skills/{skill}/file", access.Viewer, "owner path", readSkillFile),
		line("PUT /v1/skills/{skill}/file", access.User, "owner", writeSkillFile),
		line("DELETE /v1/skills/{skill}/file", access.User, "owner path if_match", removeSkillFile),
		line("GET /v1/workspaces", access.Viewer, "owner", listWorkspaces),
		line("POST /v1/workspaces", access.User, "owner", createWorkspace),
		line("GET /v1/workspaces/{workspace}", access.Viewer, "owner", getWorkspace),
		line("PATCH /v1/workspaces/{workspace}", access.User, "owner", changeWorkspace),
		line("DELETE /v1/workspaces/{workspace}", access.User, "owner", deleteWorkspace),
		line("GET /v1/drives", access.Viewer, "owner", listDrives),
		line("GET /v1/drives/{drive}", access.Viewer, "owner", getDrive),
		line("PATCH /v1/drives/{drive}", access.User, "owner", changeDrive),
		line("DELETE /v1/drives/{drive}", access.User, "owner version", deleteDrive),
		line("POST /v1/drives/{drive}/versions", access.User, "owner session path output_version into add if_version as_version digest dry_run", fillDrive),
		line("POST /v1/drives/{drive}/pushed", access.User, "owner", drivePushed),
		line("GET /v1/drives/{drive}/index", access.Viewer, "owner version prefix offset limit", indexDrive),
		line("GET /v1/drives/{drive}/text", access.Viewer, "owner version bytes", driveText),
		line("GET /v1/drives/{drive}/archive", access.User, "owner version", archiveDrive),
		line("GET /v1/images", access.Viewer, "", listImages),
		line("POST /v1/images", access.Operator, "name form", importImage),
		line("POST /v1/images/prune", access.Operator, "", pruneImages),
		line("GET /v1/images/{image}", access.Viewer, "", getImage),
		line("DELETE /v1/images/{image}", access.Operator, "", deleteImage),
	}
}

func sessionRoutes() []Route {
	return []Route{
		line("POST /v1/exec", access.User, "", run),
		line("GET /v1/exec/stream", access.User, "", runStream),
		line("GET /v1/sessions", access.Viewer, "after all label limit metadata owner usage", listSessions).repeating("label metadata"),
		line("POST /v1/sessions", access.User, "", createSession),
		line("GET /v1/sessions/{id}", access.Viewer, "owner", getSession),
		line("PATCH /v1/sessions/{id}", access.User, "owner", changeSession),
		ends("DELETE /v1/sessions/{id}", deleteSession),
		line("GET /v1/sessions/{id}/usage/history", access.Viewer, "owner after", getUsageHistory),
		line("GET /v1/sessions/{id}/instructions", access.Viewer, "owner", getInstructions),
		line("POST /v1/sessions/{id}/keep", access.User, "owner", keepWorkspace),
		ends("POST /v1/sessions/{id}/stop", stopSession),
		line("POST /v1/sessions/{id}/start", access.User, "owner", startSession),
		line("GET /v1/sessions/{id}/definition", access.User, "owner with_workspace", getDefinition),
		line("GET /v1/sessions/{id}/snapshots", access.Viewer, "owner", listSnapshots),
		line("POST /v1/sessions/{id}/snapshots", access.User, "owner", createSnapshot),
		line("POST /v1/sessions/{id}/snapshots/{snapshot}/restore", access.User, "owner", restoreSnapshot),
		line("DELETE /v1/sessions/{id}/snapshots/{snapshot}", access.User, "owner", deleteSnapshot),
		line("POST /v1/sessions/{id}/freeze", access.User, "owner", freezeSession),
		line("POST /v1/sessions/{id}/thaw", access.User, "owner", thawSession),
		line("POST /v1/sessions/{id}/renew", access.User, "owner", renewSession),
		line("POST /v1/sessions/{id}/exec", access.User, "owner", execSession),
		line("GET /v1/sessions/{id}/exec/stream", access.User, "owner", execStream),
		line("GET /v1/sessions/{id}/mounts", access.Viewer, "owner", listMounts),
		line("PUT /v1/sessions/{id}/mounts", access.User, "owner", addMount),
		line("DELETE /v1/sessions/{id}/mounts", access.User, "owner target target_base64 force", removeMount),
		line("PUT /v1/sessions/{id}/skills/{skill}", access.User, "owner", activateSkill),
		line("DELETE /v1/sessions/{id}/skills/{skill}", access.User, "owner force", deactivateSkill),
		line("POST /v1/sessions/{id}/skills/{skill}/environment", access.User, "owner", skillEnvironment),
		line("PUT /v1/sessions/{id}/drives/{drive}", access.User, "owner version", switchDrive),
		line("DELETE /v1/sessions/{id}/drives/{drive}", access.User, "owner force", detachDrive),
		line("POST /v1/sessions/{id}/fs/read", access.User, "owner", readFile),
		line("POST /v1/sessions/{id}/fs/write", access.User, "owner", writeFile),
		line("POST /v1/sessions/{id}/fs/edit", access.User, "owner", editFile),
		line("POST /v1/sessions/{id}/fs/glob", access.User, "owner", globFiles),
		line("POST /v1/sessions/{id}/fs/grep", access.User, "owner", grepFiles),
		line("POST /v1/sessions/{id}/fs/list", access.User, "owner", listFiles),
		line("POST /v1/sessions/{id}/fs/stat", access.User, "owner", statFile),
		line("POST /v1/sessions/{id}/fs/diff", access.User, "owner", diffFiles),
		line("POST /v1/sessions/{id}/fs/discard", access.User, "owner", discardOutputs),
		line("POST /v1/sessions/{id}/fs/move", access.User, "owner", moveFile),
		line("POST /v1/sessions/{id}/fs/remove", access.User, "owner", removeFile),
		line("POST /v1/sessions/{id}/fs/chmod", access.User, "owner", chmodFile),
		line("POST /v1/sessions/{id}/fs/mkdir", access.User, "owner", makeDirectory),
		line("GET /v1/sessions/{id}/fs/watch", access.User, "owner path path_base64 recursive entries", watchFiles),
		line("GET /v1/sessions/{id}/file", access.User, "owner path path_base64", sendFile),
		line("PUT /v1/sessions/{id}/file", access.User, "owner path path_base64 no_parents permissions xattrs_prefix xattrs", takeFile),
		line("POST /v1/sessions/{id}/commit", access.Operator, "owner", commitImage),
		line("GET /v1/sessions/{id}/archive", access.User, "owner path path_base64 leave_out no_hard_links", downloadFile),
		line("POST /v1/sessions/{id}/archive", access.User, "owner", collectOutputs),
		line("PUT /v1/sessions/{id}/archive", access.User, "owner path path_base64 overwrite case_twins outward_links", uploadFile),
		line("GET /v1/sessions/{id}/processes", access.Viewer, "owner", listProcesses),
		line("PUT /v1/sessions/{id}/processes/{p}", access.User, "owner", startProcess),
		line("GET /v1/sessions/{id}/processes/{p}", access.Viewer, "owner wait", getProcess),
		ends("DELETE /v1/sessions/{id}/processes/{p}", deleteProcess),
		ends("POST /v1/sessions/{id}/processes/{p}/stop", stopProcess),
		line("POST /v1/sessions/{id}/processes/{p}/signal", access.User, "owner", signalProcess),
		line("POST /v1/sessions/{id}/processes/{p}/resize", access.User, "owner", resizeProcess),
		line("POST /v1/sessions/{id}/processes/{p}/renew", access.User, "owner", renewProcess),
		line("GET /v1/sessions/{id}/processes/{p}/logs", access.Viewer, "owner follow stdout stderr tail lines since stream format timestamps", sendLogs),
		line("GET /v1/sessions/{id}/processes/{p}/stream", access.User, "owner", streamProcess),
		line("GET /v1/sessions/{id}/processes/{p}/stdio", access.User, "owner", stdioProcess),
		line("GET /v1/sessions/{id}/ports/{port}/stream", access.User, "owner", streamPort),
		line(previewRoute, access.User, "owner", makePreview),
	}
}

func line(pattern string, role access.Role, query string, handle func(*Call) (any, error)) Route {
	method, path, _ := strings.Cut(pattern, " ")
	r := Route{Pattern: pattern, method: method, path: strings.Split(path, "/"), Role: role, Others: access.Admin, Query: query, Handle: handle}
	if role == access.Viewer {
		r.Others = access.Operator
	}
	return r
}

// repeating allows query parameters to be repeated.
func (r Route) repeating(names string) Route {
	r.Repeats = names
	return r
}

// ends is the line of a route that ends something.
func ends(pattern string, handle func(*Call) (any, error)) Route {
	r := line(pattern, access.User, "owner", handle)
	r.Others = access.Operator
	return r
}

// Patterns lists the patterns of all routes, for tests and documents.
func Patterns() []string {
	var list []string
	for _, r := range routes(nil) {
		list = append(list, r.Pattern)
	}
	return list
}

// find returns the route of a request, and the ids in its path. ServeMux does not fit: it redirects from paths that it
// considers unclean, and takes an id that is a slash for the end of the path.
func (s *Server) find(r *http.Request) (Route, Path) {
	segments := strings.Split(r.URL.EscapedPath(), "/")
	var methods []string // that the path has
	for i := range s.routes {
		rt := &s.routes[i]
		if len(rt.path) != len(segments) {
			continue
		}
		p, ok := match(rt.path, segments)
		if !ok {
			continue
		}
		if rt.method == r.Method || rt.method == http.MethodGet && r.Method == http.MethodHead {
			return *rt, p
		}
		methods = append(methods, rt.method)
	}
	if methods != nil {
		return Route{Role: unauthenticated, Handle: func(*Call) (any, error) { return nil, wrongMethod(r.Method, methods) }}, Path{}
	}
	return Route{Role: unauthenticated, Handle: noRoute}, Path{}
}

// match reads the ids from a path that has as many segments as the pattern.
func match(pattern, segments []string) (p Path, ok bool) {
	for i, want := range pattern {
		var id *string
		switch want {
		case "{id}":
			id = &p.Session
		case "{p}":
			id = &p.Process
		case "{port}":
			id = &p.Port
		case "{skill}":
			id = &p.Skill
		case "{workspace}":
			id = &p.Workspace
		case "{snapshot}":
			id = &p.Snapshot
		case "{drive}":
			id = &p.Drive
		case "{image}":
			id = &p.Image
		case "{principal}":
			id = &p.Principal
		case segments[i]:
		default:
			return p, false
		}
		if id != nil {
			text, err := url.PathUnescape(segments[i])
			if err != nil {
				return p, false
			}
			*id = text
		}
	}
	return p, true
}

// dialects serves requests of the API, and those of E2B's and LangBot's protocols that gateways forward. Without a handler for the
// latter, the API refuses them, as they have no caller identity for it.
func (s *Server) dialects(w http.ResponseWriter, r *http.Request) {
	from, _ := caller(r.Context())
	viaGateway := from.fleet && r.Header.Get(access.HeaderGateway) != ""
	switch langBot := access.IsLangBot(r.Header.Values(access.HeaderGateway)); {
	case viaGateway && langBot && s.cfg.LangBot != nil:
		s.cfg.LangBot.ServeHTTP(w, r)
	case viaGateway && !langBot && s.cfg.E2B != nil:
		s.cfg.E2B.ServeHTTP(w, r)
	default:
		s.ServeHTTP(w, r)
	}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	named := nameRequest(w, r)
	from, known := caller(r.Context())
	if r.TLS != nil { // connections of boxd to itself have those of the peer
		from.peer.Certificates = access.Shown(r.TLS)
	}
	if err := OneLength(w, r); err != nil {
		c := &Call{Deps: s.common, W: w, R: r}
		c.Fail(trace.With(r.Context(), named), err)
		return
	}
	if access.IsPreviewHost(r.Host) { // such a host name is never for the API
		showPreview(s.common, w, r.WithContext(trace.With(r.Context(), named)))
		return
	}
	rt, ids := s.find(r)
	if from.fleet && rt.Pattern != "" {
		w.Header().Set(api.RouteHeader, rt.Pattern)
	}
	c := &Call{Deps: s.common, W: w, R: r, Limits: from.limits, Socket: socketOf(r.Context()), Within: from.within, pid: from.peer.PID, Path: ids, Others: rt.Others}
	pass, err := s.admit(&from, known, nil, r, &rt)
	c.Caller, c.Token = pass.Principal, pass.Token
	if from.fleet {
		from.pass = &pass
	}
	c.Dial = s.dialAs(&from)
	left := beginAccessLog(c, &rt, named) //nolint:contextcheck // the call has its request, and that its context
	defer left.End()                      //nolint:contextcheck // the same
	r = c.R
	if err == nil {
		err = conns.Identify(r.Context(), pass.Name)
	}
	if err == nil {
		err = left.Admit()
	}
	if err != nil {
		c.Fail(r.Context(), err)
		return
	}
	if from.self == nil {
		ctx, release := s.gate.Watch(c.R.Context(), &pass, func() (time.Time, error) { return s.recheck(&pass, &from, r, &rt) })
		defer release()
		c.R = c.R.WithContext(ctx) //nolint:contextcheck // it is that of the request
	}
	if c.Limits == nil { // known by its token
		var release func()
		c.Limits, release = s.callers.Share(pass.Name)
		defer release()
	}
	body, err := answered(&rt, c)
	if ended := context.Cause(c.Context()); fault.KindOf(ended) != fault.Internal && (err != nil || body != nil) { //nolint:contextcheck // it makes none
		if created, ok := body.(Created); ok && created.Undo != nil {
			created.Undo()
		}
		err = ended // the caller lost its permission, whatever the handler returned
	}
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound && r.Context().Err() != nil:
		c.Fail(r.Context(), supervisor.Stopping()) // what is handed over to the next boxd will exist again
	case err != nil:
		c.Fail(r.Context(), err)
	case body != nil:
		c.Reply(body) //nolint:contextcheck // it has that of the request
	}
}

// answered is answer for a request without a body where none is expected: net/http would wait for it when the response begins.
func answered(rt *Route, c *Call) (any, error) {
	if (c.R.Method == http.MethodGet || c.R.Method == http.MethodHead) && c.R.ContentLength != 0 {
		c.W.Header().Set("Connection", "close") // net/http does not wait for it then
		return nil, fault.Field("body", fault.Word("given"), "left out with the method "+c.R.Method)
	}
	return answer(rt, c)
}

// admit is the only place that decides whether a caller may use a route; before is the pass that the request has already.
func (s *Server) admit(from *peerAddr, known bool, before *access.Pass, r *http.Request, rt *Route) (access.Pass, error) {
	if !known {
		return access.Pass{}, fault.Errorf(fault.Denied, "permission denied: this route is not open to this connection").WithHint("use the Unix socket of boxd")
	}
	pass, err := s.identify(from, before, r)
	switch {
	case err != nil || rt.Role == unauthenticated:
		return pass, err
	case pass.Anonymous():
		return pass, s.gate.Unknown()
	case !pass.Allows(rt.Pattern):
		return pass, fault.Errorf(fault.Denied, "permission denied: the token %s does not allow this route", fault.Show(pass.Token)).
			WithHint("the operator can add the route to the token in the tokens file")
	case !pass.Is(rt.Role):
		return pass, tooLow(&pass, rt.Role)
	}
	return pass, nil
}

// identify returns who makes a request.
func (s *Server) identify(from *peerAddr, before *access.Pass, r *http.Request) (access.Pass, error) {
	switch {
	case from.self != nil:
		return access.Pass{Principal: *from.self}, nil
	case from.within && from.pass != nil:
		return s.gate.ReassertedPass(from.pass)
	case from.fleet && before != nil:
		return s.gate.ReassertedPass(before)
	case from.fleet:
		return s.gate.IdentifyAsserted(r.Header.Values("Authorization"), r.Method, r.RequestURI)
	}
	switch {
	case from.peer.Local || from.within:
	case from.peer.TLS:
		if err := access.SameOrigin(r.Header.Values("Origin"), r.Host); err != nil {
			return access.Pass{}, err
		}
	default:
		if err := access.FromHere(r.Header.Values("Origin"), r.Host); err != nil {
			return access.Pass{}, err
		}
	}
	return s.gate.Identify(&from.peer, r.Header.Values("Authorization"))
}

// tooLow refuses a route to a caller, which may know its own role.
func tooLow(pass *access.Pass, needed access.Role) error {
	role := needed.String()
	f := fault.Field("role", pass.Role.String(), role+" or more").Of(fault.Denied)
	if needed == 0 || needed > access.Admin {
		role = "none"
		f = f.WithText("permission denied: this route is closed")
	} else {
		f = f.WithText("permission denied: this needs the %s role, you have %q (%s)", role, pass.Role, pass.Rule).
			WithHint("an admin can run: boxctl grant %s %s --until 1h", pass.Name, role)
	}
	return f.By(fault.Denial{Layer: fault.LayerPolicy, Rule: pass.Rule, Used: pass.Role.String(), Allowed: role, Setting: "role in [principals.NAME] of box.toml, or boxctl grant"})
}

// recheck checks whether an admitted call may continue.
func (s *Server) recheck(pass *access.Pass, from *peerAddr, r *http.Request, rt *Route) (time.Time, error) {
	now, err := s.admit(from, true, pass, r, rt)
	if err == nil && now.Name != pass.Name {
		err = fault.Errorf(fault.Denied, "permission denied: you are no longer %s", pass.Name).WithHint("try again: the configuration of boxd has changed")
	}
	return now.Until, err
}

// unknownQuery refuses a query parameter that the route does not have, or that is repeated.
func unknownQuery(name string, known []string, times int) error {
	f := fault.Field("query", name, cmp.Or(strings.Join(known, ", "), "nothing")+", each once")
	switch {
	case len(known) == 0:
		return f.WithText("this route takes no query parameters")
	case times > 1:
		return f.WithText("query parameter %s is given %d times", fault.Show(name), times)
	}
	return f.WithText("unknown query parameter %s (known: %s)", fault.Show(name), strings.Join(known, ", "))
}

// answer calls the handler, unless the query has anything that would be silently ignored.
func answer(rt *Route, c *Call) (any, error) {
	if c.R.URL.RawQuery == "" {
		return rt.Handle(c)
	}
	query, err := url.ParseQuery(c.R.URL.RawQuery)
	if err != nil {
		return nil, fault.Field("query", c.R.URL.RawQuery, "name=value, percent-encoded")
	}
	for name, values := range query {
		if known := strings.Fields(rt.Query); !slices.Contains(known, name) || len(values) != 1 && !slices.Contains(strings.Fields(rt.Repeats), name) {
			return nil, unknownQuery(name, known, len(values))
		}
	}
	return rt.Handle(c)
}

func noRoute(c *Call) (any, error) {
	return nil, fault.Errorf(fault.NotFound, "no route %s %s", c.R.Method, fault.Show(c.R.URL.Path)).
		WithHint("see /v1/openapi.json; an id in a path is one percent-encoded segment")
}
