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

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/access/gate"
	keys "github.com/boxd-dev/boxd/access/previews"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/drives"
	"github.com/boxd-dev/boxd/relay/files"
	"github.com/boxd-dev/boxd/relay/grants"
	"github.com/boxd-dev/boxd/relay/host"
	"github.com/boxd-dev/boxd/relay/images"
	"github.com/boxd-dev/boxd/relay/load"
	"github.com/boxd-dev/boxd/relay/logs"
	"github.com/boxd-dev/boxd/relay/mcp"
	"github.com/boxd-dev/boxd/relay/mounts"
	"github.com/boxd-dev/boxd/relay/ports"
	"github.com/boxd-dev/boxd/relay/previews"
	"github.com/boxd-dev/boxd/relay/processes"
	"github.com/boxd-dev/boxd/relay/route"
	"github.com/boxd-dev/boxd/relay/seeing"
	"github.com/boxd-dev/boxd/relay/sessions"
	"github.com/boxd-dev/boxd/relay/skills"
	"github.com/boxd-dev/boxd/relay/spaces"
	"github.com/boxd-dev/boxd/relay/trail"
	"github.com/boxd-dev/boxd/supervisor"
)

// routes is the whole API. What viewers may see of their own, operators may see of anybody, and end it; for all
// else in somebody's name it takes an admin.
func routes(m *mcp.Conversations) []route.Route {
	return slices.Concat(hostRoutes(), sessionRoutes(), []route.Route{
		line("POST /mcp", access.User, "profile session template variables", m.Serve),
		line("GET /mcp", access.User, "profile session template variables", m.Serve),
		line("DELETE /mcp", access.User, "profile session template variables", m.Serve),
	})
}

// hostRoutes are those of the host and of what outlives sessions.
func hostRoutes() []route.Route {
	return []route.Route{
		line("GET /healthz", route.Anyone, "", host.Health),
		line("GET /readyz", route.Anyone, "", host.Ready),
		line("GET /v1/openapi.json", route.Anyone, "", host.Description),
		line("GET /v1/status", access.Viewer, "", host.Status),
		line("GET /v1/profiles", access.Viewer, "", host.Profiles),
		line("GET /v1/instructions", access.Viewer, "profile", sessions.PlannedInstructions),
		line("GET /v1/config", access.Operator, "", host.Configuration),
		line("GET /v1/doctor", access.Viewer, "", host.Doctor),
		line("GET /v1/grants", access.Admin, "", grants.List),
		line("POST /v1/grants", access.Admin, "", grants.Give),
		line("DELETE /v1/grants/{principal}", access.Admin, "", grants.Revoke),
		line("POST /v1/drain", access.Admin, "", host.Drain),
		line("DELETE /v1/drain", access.Admin, "", host.Undrain),
		line("GET /metrics", access.Viewer, "", seeing.Metrics),
		line("GET /v1/events", access.Viewer, "owner session type after follow", seeing.Events),
		line("GET /v1/errors", access.Viewer, "owner", seeing.Errors),
		line("GET /v1/audit", access.Operator, "n session principal request", seeing.Audit),
		line("GET /v1/usage", access.Viewer, "days all owner", host.Usage),
		line("GET /v1/skills", access.Viewer, "owner", skills.List),
		line("POST /v1/skills", access.User, "owner", skills.Create),
		line("POST /v1/skills/index", access.Viewer, "owner", skills.Index),
		line("POST /v1/skills/preview", access.User, "owner url session path subdir select replace digest", skills.Preview),
		line("POST /v1/skills/install", access.User, "owner url session path subdir select replace digest", skills.Install),
		line("GET /v1/skills/{skill}", access.Viewer, "owner", skills.Get),
		line("PATCH /v1/skills/{skill}", access.User, "owner", skills.Change),
		line("DELETE /v1/skills/{skill}", access.User, "owner", skills.Delete),
		line("GET /v1/skills/{skill}/files", access.Viewer, "owner path hidden limit", skills.Files),
		line("GET /v1/skills/{skill}/file", access.Viewer, "owner path", skills.ReadFile),
		line("PUT /v1/skills/{skill}/file", access.User, "owner", skills.WriteFile),
		line("DELETE /v1/skills/{skill}/file", access.User, "owner path if_match", skills.RemoveFile),
		line("GET /v1/workspaces", access.Viewer, "owner", spaces.List),
		line("POST /v1/workspaces", access.User, "owner", spaces.Create),
		line("GET /v1/workspaces/{workspace}", access.Viewer, "owner", spaces.Get),
		line("PATCH /v1/workspaces/{workspace}", access.User, "owner", spaces.Change),
		line("DELETE /v1/workspaces/{workspace}", access.User, "owner", spaces.Delete),
		line("GET /v1/drives", access.Viewer, "owner", drives.List),
		line("GET /v1/drives/{drive}", access.Viewer, "owner", drives.Get),
		line("PATCH /v1/drives/{drive}", access.User, "owner", drives.Change),
		line("DELETE /v1/drives/{drive}", access.User, "owner version", drives.Delete),
		line("POST /v1/drives/{drive}/versions", access.User, "owner session path output_version into add if_version", drives.Fill),
		line("POST /v1/drives/{drive}/pushed", access.User, "owner", drives.Pushed),
		line("GET /v1/drives/{drive}/index", access.Viewer, "owner version prefix offset limit", drives.Index),
		line("GET /v1/drives/{drive}/text", access.Viewer, "owner version bytes", drives.Text),
		line("GET /v1/drives/{drive}/archive", access.User, "owner version", drives.Archive),
		line("GET /v1/images", access.Viewer, "", images.List),
		line("POST /v1/images", access.Operator, "name form", images.Import),
		line("POST /v1/images/prune", access.Operator, "", images.Prune),
		line("GET /v1/images/{image}", access.Viewer, "", images.Get),
		line("DELETE /v1/images/{image}", access.Operator, "", images.Delete),
	}
}

func sessionRoutes() []route.Route {
	return []route.Route{
		line("POST /v1/exec", access.User, "", sessions.OneShot),
		line("GET /v1/exec/stream", access.User, "", sessions.OneShotStream),
		line("GET /v1/sessions", access.Viewer, "all", sessions.List),
		line("POST /v1/sessions", access.User, "", sessions.Create),
		line("GET /v1/sessions/{id}", access.Viewer, "owner", sessions.Get),
		line("PATCH /v1/sessions/{id}", access.User, "owner", sessions.Change),
		ends("DELETE /v1/sessions/{id}", access.User, "owner", sessions.Delete),
		line("GET /v1/sessions/{id}/instructions", access.Viewer, "owner", sessions.Instructions),
		line("POST /v1/sessions/{id}/keep", access.User, "owner", spaces.Keep),
		line("POST /v1/sessions/{id}/freeze", access.User, "owner", sessions.Freeze),
		line("POST /v1/sessions/{id}/thaw", access.User, "owner", sessions.Thaw),
		line("POST /v1/sessions/{id}/renew", access.User, "owner", sessions.Renew),
		line("POST /v1/sessions/{id}/exec", access.User, "owner", sessions.Exec),
		line("GET /v1/sessions/{id}/exec/stream", access.User, "owner", sessions.ExecStream),
		line("GET /v1/sessions/{id}/mounts", access.Viewer, "owner", mounts.List),
		line("PUT /v1/sessions/{id}/mounts", access.User, "owner", mounts.Add),
		line("DELETE /v1/sessions/{id}/mounts", access.User, "owner target force", mounts.Remove),
		line("PUT /v1/sessions/{id}/skills/{skill}", access.User, "owner", skills.Activate),
		line("DELETE /v1/sessions/{id}/skills/{skill}", access.User, "owner force", skills.Deactivate),
		line("POST /v1/sessions/{id}/skills/{skill}/environment", access.User, "owner", skills.Environment),
		line("PUT /v1/sessions/{id}/drives/{drive}", access.User, "owner version", drives.Switch),
		line("DELETE /v1/sessions/{id}/drives/{drive}", access.User, "owner force", drives.Detach),
		line("POST /v1/sessions/{id}/fs/read", access.User, "owner", files.Read),
		line("POST /v1/sessions/{id}/fs/write", access.User, "owner", files.Write),
		line("POST /v1/sessions/{id}/fs/edit", access.User, "owner", files.Edit),
		line("POST /v1/sessions/{id}/fs/glob", access.User, "owner", files.Glob),
		line("POST /v1/sessions/{id}/fs/grep", access.User, "owner", files.Grep),
		line("POST /v1/sessions/{id}/fs/list", access.User, "owner", files.List),
		line("POST /v1/sessions/{id}/fs/stat", access.User, "owner", files.Stat),
		line("POST /v1/sessions/{id}/fs/diff", access.User, "owner", files.Diff),
		line("POST /v1/sessions/{id}/fs/discard", access.User, "owner", files.Discard),
		line("POST /v1/sessions/{id}/fs/move", access.User, "owner", files.Move),
		line("POST /v1/sessions/{id}/fs/remove", access.User, "owner", files.Remove),
		line("POST /v1/sessions/{id}/fs/chmod", access.User, "owner", files.Chmod),
		line("POST /v1/sessions/{id}/commit", access.Operator, "owner", images.Commit),
		line("GET /v1/sessions/{id}/archive", access.User, "owner path path_base64 leave_out", files.Download),
		line("POST /v1/sessions/{id}/archive", access.User, "owner", files.Collect),
		line("PUT /v1/sessions/{id}/archive", access.User, "owner path path_base64 overwrite case_twins outward_links", files.Upload),
		line("GET /v1/sessions/{id}/processes", access.Viewer, "owner", processes.List),
		line("PUT /v1/sessions/{id}/processes/{p}", access.User, "owner", processes.Start),
		line("GET /v1/sessions/{id}/processes/{p}", access.Viewer, "owner wait", processes.Get),
		ends("DELETE /v1/sessions/{id}/processes/{p}", access.User, "owner", processes.Delete),
		ends("POST /v1/sessions/{id}/processes/{p}/stop", access.User, "owner", processes.Stop),
		line("POST /v1/sessions/{id}/processes/{p}/signal", access.User, "owner", processes.Signal),
		line("POST /v1/sessions/{id}/processes/{p}/resize", access.User, "owner", processes.Resize),
		line("POST /v1/sessions/{id}/processes/{p}/renew", access.User, "owner", processes.Renew),
		line("GET /v1/sessions/{id}/processes/{p}/logs", access.Viewer, "owner follow stdout stderr tail lines stream format timestamps", logs.Send),
		line("GET /v1/sessions/{id}/processes/{p}/stream", access.User, "owner", processes.Stream),
		line("GET /v1/sessions/{id}/processes/{p}/stdio", access.User, "owner", processes.Stdio),
		line("GET /v1/sessions/{id}/ports/{port}/stream", access.User, "owner", ports.Stream),
		line(previews.Route, access.User, "owner", previews.Make),
	}
}

func line(pattern string, role access.Role, query string, handle func(*route.Call) (any, error)) route.Route {
	r := route.Route{Pattern: pattern, Role: role, Others: access.Admin, Query: query, Handle: handle}
	if role == access.Viewer {
		r.Others = access.Operator
	}
	return r
}

// ends is the line of a route by which something ends.
func ends(pattern string, role access.Role, query string, handle func(*route.Call) (any, error)) route.Route {
	r := line(pattern, role, query, handle)
	r.Others = access.Operator
	return r
}

// Patterns lists the routes, for who has to try or describe every one of them.
func Patterns() []string {
	var list []string
	for _, r := range routes(nil) {
		list = append(list, r.Pattern)
	}
	return list
}

// find returns the route of a request, and the ids in its path. ServeMux will not do: it redirects from
// paths that look unclean to it, and takes an id that is a slash for the end of the path.
func (s *Server) find(r *http.Request) (route.Route, route.Path) {
	asked := strings.Split(r.URL.EscapedPath(), "/")
	var methods []string // that the path has
	for _, rt := range s.routes {
		method, pattern, _ := strings.Cut(rt.Pattern, " ")
		p, ok := match(pattern, asked)
		if !ok {
			continue
		}
		if method == r.Method || method == http.MethodGet && r.Method == http.MethodHead {
			return rt, p
		}
		methods = append(methods, method)
	}
	if methods != nil {
		return route.Route{Role: route.Anyone, Handle: func(*route.Call) (any, error) { return nil, route.WrongMethod(r.Method, methods) }}, route.Path{}
	}
	return route.Route{Role: route.Anyone, Handle: noRoute}, route.Path{}
}

func match(pattern string, asked []string) (p route.Path, ok bool) {
	if strings.Count(pattern, "/") != len(asked)-1 {
		return p, false
	}
	i := 0
	for want := range strings.SplitSeq(pattern, "/") {
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
		case "{drive}":
			id = &p.Drive
		case "{image}":
			id = &p.Image
		case "{principal}":
			id = &p.Principal
		case asked[i]:
		default:
			return p, false
		}
		if id != nil {
			text, err := url.PathUnescape(asked[i])
			if err != nil {
				return p, false
			}
			*id = text
		}
		i++
	}
	return p, true
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = trail.Name(w, r)
	from, known := caller(r.Context())
	if len(r.TransferEncoding) > 0 && from.head != nil && from.head.twoLengths() {
		w.Header().Set("Connection", "close") // what follows is not to be believed
		c := &route.Call{Common: s.common, W: w, R: r}
		c.Fail(r.Context(), fault.Field("Content-Length", fault.Word("given"), "left out beside Transfer-Encoding"))
		return
	}
	if keys.IsHost(r.Host) { // which is never for the API
		previews.Show(s.common, w, r)
		return
	}
	rt, ids := s.find(r)
	c := &route.Call{Common: s.common, W: w, R: r, Load: from.load, Socket: socketOf(r.Context()), Within: from.within, Dial: s.dialAs(&from), Path: ids, Others: rt.Others}
	pass, err := s.admit(&from, known, r, &rt)
	c.Who, c.Token = pass.Principal, pass.Token
	left := trail.Begin(c, &rt)
	defer left.End()
	if err == nil {
		err = load.Known(r.Context(), pass.Name)
	}
	if err == nil {
		err = left.Admit()
	}
	if err != nil {
		c.Fail(r.Context(), err)
		return
	}
	if from.self == nil {
		ctx, leave := s.gate.Watch(c.R.Context(), &pass, func() (time.Time, error) { return s.still(&pass, &from, r, &rt) })
		defer leave()
		c.R = c.R.WithContext(ctx) //nolint:contextcheck // it is that of the request
	}
	if c.Load == nil { // known by its token
		var leave func()
		c.Load, leave = s.callers.Share(pass.Name)
		defer leave()
	}
	body, err := answer(&rt, c)
	if ended := context.Cause(c.Context()); fault.KindOf(ended) != fault.Internal && (err != nil || body != nil) { //nolint:contextcheck // it makes none
		if made, ok := body.(route.Created); ok && made.Undo != nil {
			made.Undo()
		}
		err = ended // who may not any more, and no wonder what became of it
	}
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound && r.Context().Err() != nil:
		c.Fail(r.Context(), supervisor.Stopping()) // what is left to the next boxd is not there any more, but it will be again
	case err != nil:
		c.Fail(r.Context(), err)
	case body != nil:
		c.Reply(body) //nolint:contextcheck // it has that of the request
	}
}

// admit is the one place where a caller's right to a route is decided.
func (s *Server) admit(from *peerAddr, known bool, r *http.Request, rt *route.Route) (gate.Pass, error) {
	if !known {
		return gate.Pass{}, fault.Errorf(fault.Denied, "this caller may not do that").WithHint("it is for the users of boxd, over its socket")
	}
	pass, err := s.identify(from, r)
	switch {
	case err != nil || rt.Role == route.Anyone:
		return pass, err
	case pass.Nobody():
		return pass, s.gate.Unknown()
	case !pass.Allows(rt.Pattern):
		return pass, fault.Errorf(fault.Denied, "the token %s is not for that", fault.Show(pass.Token)).
			WithHint("the routes of a token are those in the file of tokens, which is the operator's")
	case !pass.Is(rt.Role):
		return pass, tooLow(&pass, rt.Role)
	}
	return pass, nil
}

// identify tells who makes a request.
func (s *Server) identify(from *peerAddr, r *http.Request) (gate.Pass, error) {
	if from.self != nil {
		return gate.Pass{Principal: *from.self}, nil
	}
	if !from.peer.Local && !from.within {
		if err := route.FromHere(r); err != nil {
			return gate.Pass{}, err
		}
	}
	return s.gate.Identify(&from.peer, r.Header.Values("Authorization"))
}

// tooLow refuses a route to a caller, who may know of itself.
func tooLow(pass *gate.Pass, needed access.Role) error {
	role := needed.String()
	if needed == 0 || needed > access.Admin {
		role = "none: it is closed"
	}
	return fault.Field("role", pass.Role.String(), role+" or more").Of(fault.Denied).
		WithHint("you are %s, with that role by %s; box.toml gives roles ([principals.NAME], access.default_role), and 'boxctl grant' for a time", pass.Name, pass.Rule).
		By(fault.Denial{Layer: fault.LayerPolicy, Rule: pass.Rule, Used: pass.Role.String(), Allowed: role, Setting: "role in [principals.NAME] of box.toml, or boxctl grant"})
}

// still asks whether a call may go on that was let in with a pass.
func (s *Server) still(pass *gate.Pass, from *peerAddr, r *http.Request, rt *route.Route) (time.Time, error) {
	now, err := s.admit(from, true, r, rt)
	if err == nil && now.Name != pass.Name {
		err = fault.Errorf(fault.Denied, "who was %s is not any more", pass.Name).WithHint("the configuration of boxd has changed; ask again")
	}
	return now.Until, err
}

// answer calls the handler, if the request has nothing that would be passed over in silence.
func answer(rt *route.Route, c *route.Call) (any, error) {
	query, err := url.ParseQuery(c.R.URL.RawQuery)
	if err != nil {
		return nil, fault.Field("query", c.R.URL.RawQuery, "name=value, percent-encoded")
	}
	for name, values := range query {
		if known := strings.Fields(rt.Query); !slices.Contains(known, name) || len(values) != 1 {
			return nil, fault.Field("query", name, cmp.Or(strings.Join(known, ", "), "nothing")+", each once")
		}
	}
	return rt.Handle(c)
}

func noRoute(c *route.Call) (any, error) {
	return nil, fault.Errorf(fault.NotFound, "no route %s %s", c.R.Method, fault.Show(c.R.URL.Path)).
		WithHint("/v1/openapi.json describes those there are; an id in a path is percent-encoded, as one segment")
}
