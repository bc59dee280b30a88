// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/host"
	"github.com/boxd-dev/boxd/relay/logs"
	"github.com/boxd-dev/boxd/relay/processes"
	"github.com/boxd-dev/boxd/relay/route"
	"github.com/boxd-dev/boxd/relay/sessions"
	"github.com/boxd-dev/boxd/supervisor"
)

// routes is the whole API.
func routes() []route.Route {
	return []route.Route{
		line("GET /healthz", route.Anyone, "", host.Health),
		line("GET /readyz", route.Anyone, "", host.Ready),
		line("GET /v1/openapi.json", route.Anyone, "", host.Description),
		line("GET /v1/status", access.User, "", host.Status),
		line("GET /v1/profiles", access.User, "", host.Profiles),
		line("GET /v1/doctor", access.User, "", host.Doctor),
		line("POST /v1/exec", access.User, "", sessions.OneShot),
		line("GET /v1/exec/stream", access.User, "", sessions.OneShotStream),
		line("GET /v1/sessions", access.User, "all", sessions.List),
		line("POST /v1/sessions", access.User, "", sessions.Create),
		line("GET /v1/sessions/{id}", access.User, "owner", sessions.Get),
		line("PATCH /v1/sessions/{id}", access.User, "owner", sessions.Change),
		line("DELETE /v1/sessions/{id}", access.User, "owner", sessions.Delete),
		line("POST /v1/sessions/{id}/freeze", access.User, "owner", sessions.Freeze),
		line("POST /v1/sessions/{id}/thaw", access.User, "owner", sessions.Thaw),
		line("POST /v1/sessions/{id}/exec", access.User, "owner", sessions.Exec),
		line("GET /v1/sessions/{id}/exec/stream", access.User, "owner", sessions.ExecStream),
		line("GET /v1/sessions/{id}/processes", access.User, "owner", processes.List),
		line("PUT /v1/sessions/{id}/processes/{p}", access.User, "owner", processes.Start),
		line("GET /v1/sessions/{id}/processes/{p}", access.User, "owner wait", processes.Get),
		line("DELETE /v1/sessions/{id}/processes/{p}", access.User, "owner", processes.Delete),
		line("POST /v1/sessions/{id}/processes/{p}/stop", access.User, "owner", processes.Stop),
		line("POST /v1/sessions/{id}/processes/{p}/signal", access.User, "owner", processes.Signal),
		line("POST /v1/sessions/{id}/processes/{p}/resize", access.User, "owner", processes.Resize),
		line("POST /v1/sessions/{id}/processes/{p}/renew", access.User, "owner", processes.Renew),
		line("GET /v1/sessions/{id}/processes/{p}/logs", access.User, "owner follow stdout stderr tail lines stream format timestamps", logs.Send),
		line("GET /v1/sessions/{id}/processes/{p}/stream", access.User, "owner", processes.Stream),
		line("GET /v1/sessions/{id}/processes/{p}/stdio", access.User, "owner", processes.Stdio),
	}
}

func line(pattern string, role access.Role, query string, handle func(*route.Call) (any, error)) route.Route {
	return route.Route{Pattern: pattern, Role: role, Query: query, Handle: handle}
}

// Patterns lists the routes, for who has to try or describe every one of them.
func Patterns() []string {
	var list []string
	for _, r := range routes() {
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

// ServeHTTP is the one place where a caller's right to a route is decided.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, ids := s.find(r)
	peer, known := caller(r.Context())
	c := &route.Call{Common: s.common, W: w, R: r, Who: peer.who, Load: peer.load, Socket: socketOf(r.Context()), Path: ids}
	if !known || rt.Role != route.Anyone && !c.Who.Is(rt.Role) {
		c.Fail(r.Context(), fault.Errorf(fault.Denied, "this caller may not do that").WithHint("it is for root, over the socket of boxd"))
		return
	}
	body, err := answer(&rt, c)
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound && r.Context().Err() != nil:
		c.Fail(r.Context(), supervisor.Stopping()) // what is left to the next boxd is not there any more, but it will be again
	case err != nil:
		c.Fail(r.Context(), err)
	case body != nil:
		c.Reply(body)
	}
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
