// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// anyone is the role of a route for whoever can connect.
const anyone = ^access.Role(0)

// route is one way in. The zero role fits nobody, so a line without one is closed.
type route struct {
	pattern string
	role    access.Role
	query   string // the query parameters it knows
	handle  func(c *call) (any, error)
}

// routes is the whole API.
func routes() []route {
	return []route{
		{"GET /healthz", anyone, "", health},
		{"GET /readyz", anyone, "", ready},
		{"GET /v1/openapi.json", anyone, "", description},
		{"GET /v1/status", access.User, "", status},
		{"GET /v1/profiles", access.User, "", profiles},
		{"GET /v1/doctor", access.User, "", doctor},
		{"POST /v1/exec", access.User, "", oneShot},
		{"GET /v1/exec/stream", access.User, "", oneShotStream},
		{"GET /v1/sessions", access.User, "all", listSessions},
		{"POST /v1/sessions", access.User, "", createSession},
		{"GET /v1/sessions/{id}", access.User, "owner", getSession},
		{"PATCH /v1/sessions/{id}", access.User, "owner", changeSession},
		{"DELETE /v1/sessions/{id}", access.User, "owner", deleteSession},
		{"POST /v1/sessions/{id}/freeze", access.User, "owner", freeze},
		{"POST /v1/sessions/{id}/thaw", access.User, "owner", thaw},
		{"POST /v1/sessions/{id}/exec", access.User, "owner", execute},
		{"GET /v1/sessions/{id}/exec/stream", access.User, "owner", executeStream},
		{"GET /v1/sessions/{id}/processes", access.User, "owner", listProcesses},
		{"PUT /v1/sessions/{id}/processes/{p}", access.User, "owner", startProcess},
		{"GET /v1/sessions/{id}/processes/{p}", access.User, "owner wait", getProcess},
		{"DELETE /v1/sessions/{id}/processes/{p}", access.User, "owner", deleteProcess},
		{"POST /v1/sessions/{id}/processes/{p}/stop", access.User, "owner", stopProcess},
		{"POST /v1/sessions/{id}/processes/{p}/signal", access.User, "owner", signalProcess},
		{"POST /v1/sessions/{id}/processes/{p}/resize", access.User, "owner", resizeProcess},
		{"POST /v1/sessions/{id}/processes/{p}/renew", access.User, "owner", renewProcess},
		{"GET /v1/sessions/{id}/processes/{p}/logs", access.User, "owner follow stdout stderr tail lines stream format timestamps", processLogs},
		{"GET /v1/sessions/{id}/processes/{p}/stream", access.User, "owner", processStream},
		{"GET /v1/sessions/{id}/processes/{p}/stdio", access.User, "owner", processStdio},
	}
}

// Patterns lists the routes, for who has to try or describe every one of them.
func Patterns() []string {
	var list []string
	for _, r := range routes() {
		list = append(list, r.pattern)
	}
	return list
}

// path are the ids in the path of a request. An id is one segment whatever is in it.
type path struct{ session, process string }

// find returns the route of a request, and the ids in its path. ServeMux will not do: it redirects from
// paths that look unclean to it, and takes an id that is a slash for the end of the path.
func (s *Server) find(r *http.Request) (route, path) {
	asked := strings.Split(r.URL.EscapedPath(), "/")
	var methods []string // that the path has
	for _, rt := range s.routes {
		method, pattern, _ := strings.Cut(rt.pattern, " ")
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
		return route{role: anyone, handle: func(*call) (any, error) { return nil, wrongMethod(r.Method, methods) }}, path{}
	}
	return route{role: anyone, handle: noRoute}, path{}
}

// methodError is the refusal of a method on a path that has others.
type methodError struct {
	err     error
	allowed string
}

func wrongMethod(method string, allowed []string) error {
	list := strings.Join(allowed, ", ")
	return &methodError{fault.Field("method", method, list), list}
}

func (e *methodError) Error() string { return e.err.Error() }

// Unwrap leads to what the refusal says.
func (e *methodError) Unwrap() error { return e.err }

func match(pattern string, asked []string) (p path, ok bool) {
	if strings.Count(pattern, "/") != len(asked)-1 {
		return p, false
	}
	i := 0
	for want := range strings.SplitSeq(pattern, "/") {
		var id *string
		switch want {
		case "{id}":
			id = &p.session
		case "{p}":
			id = &p.process
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

// call is one request on its way through.
type call struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	who    access.Principal
	load   *load // of who
	path   path
	read   bool // the body, to its end
}

// ServeHTTP is the one place where a caller's right to a route is decided.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, path := s.find(r)
	peer, known := caller(r.Context())
	c := &call{server: s, w: w, r: r, who: peer.who, load: peer.load, path: path}
	if !known || rt.role != anyone && !c.who.Is(rt.role) {
		c.fail(r.Context(), fault.Errorf(fault.Denied, "this caller may not do that").WithHint("it is for root, over the socket of boxd"))
		return
	}
	body, err := rt.answer(c)
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound && r.Context().Err() != nil:
		c.fail(r.Context(), supervisor.Stopping()) // what is left to the next boxd is not there any more, but it will be again
	case err != nil:
		c.fail(r.Context(), err)
	case body != nil:
		c.reply(body)
	}
}

// answer calls the handler, if the request has nothing that would be passed over in silence.
func (rt *route) answer(c *call) (any, error) {
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, fault.Field("query", c.r.URL.RawQuery, "name=value, percent-encoded")
	}
	for name, values := range query {
		if known := strings.Fields(rt.query); !slices.Contains(known, name) || len(values) != 1 {
			return nil, fault.Field("query", name, cmp.Or(strings.Join(known, ", "), "nothing")+", each once")
		}
	}
	return rt.handle(c)
}

// context ends when the caller hangs up or boxd stops.
func (c *call) context() context.Context { return c.r.Context() }

// session finds the session of the path. An admin may name another owner; for everybody else a
// session of somebody else and one that does not exist are the same.
func (c *call) session() (*supervisor.Session, error) {
	who, err := c.owner()
	if err != nil {
		return nil, err
	}
	return c.server.sup.Session(who, c.path.session)
}

// process finds the process of the path.
func (c *call) process() (*supervisor.Session, *process.Process, error) {
	s, err := c.session()
	if err != nil {
		return nil, nil, err
	}
	p, err := c.server.sup.Process(s, c.path.process)
	return s, p, err
}

func (c *call) owner() (access.Principal, error) {
	name := c.r.URL.Query().Get("owner")
	if name == "" || name == c.who.Name {
		return c.who, nil
	}
	if !c.who.Is(access.Admin) {
		return c.who, fault.Field("owner", name, "left out, or "+c.who.Name).Of(fault.Denied)
	}
	return access.Principal{Name: name}, nil
}

func noRoute(c *call) (any, error) {
	return nil, fault.Errorf(fault.NotFound, "no route %s %s", c.r.Method, fault.Show(c.r.URL.Path)).
		WithHint("/v1/openapi.json describes those there are; an id in a path is percent-encoded, as one segment")
}
