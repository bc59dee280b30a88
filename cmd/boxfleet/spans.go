// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"
)

// maxRoute is the longest name of a route that a node may give, in bytes.
const maxRoute = 128

// requestSpan is the span of a request that is recorded, with what is seen of the answer. A nil requestSpan records nothing.
type requestSpan struct {
	http.ResponseWriter

	span    *trace.Span
	request *trace.Request
	method  string
	route   string
	session string
	node    string
	status  int
	hungUp  func() bool // who has asked has hung up
}

// statusCut is what boxd notes of a request whose caller has hung up before there was an answer.
const statusCut = 499

// nameRequest returns the id and the traceparent of a request, and gives the node that id.
func nameRequest(r *http.Request) trace.Request {
	q := trace.FromHeader(r.Header)
	r.Header.Set(trace.HeaderID, q.ID)
	return q
}

// begin begins the span of a request, which the node is told of.
func (g *gateway) begin(request *trace.Request, w http.ResponseWriter, r *http.Request) *requestSpan {
	if g.cfg.Traces == nil {
		return nil
	}
	before := request.Parent
	span := g.cfg.Traces.Begin(request)
	if request.Parent != before {
		r.Header.Set(trace.HeaderParent, request.Parent)
	}
	if before == "" { // what it says is of a trace that there is not
		r.Header.Del(trace.HeaderState)
	}
	if span == nil {
		return nil
	}
	return &requestSpan{ResponseWriter: w, span: span, request: request, method: trace.Method(r.Method), hungUp: func() bool { return r.Context().Err() != nil }}
}

// WriteHeader keeps the status of the answer.
func (p *requestSpan) WriteHeader(status int) {
	switch {
	case p.status != 0 && p.status != http.StatusSwitchingProtocols || status < http.StatusOK:
	case status >= http.StatusInternalServerError && p.hungUp():
		p.status = statusCut // nobody reads what is written
	default:
		p.status = status
	}
	p.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the answer.
func (p *requestSpan) Write(b []byte) (int, error) {
	if p.status == 0 {
		p.status = http.StatusOK
	}
	return p.ResponseWriter.Write(b)
}

// Unwrap is the connection's.
func (p *requestSpan) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// setRoute says what the gateway knows of a route by its path. A node knows the rest.
func (p *requestSpan) setRoute(path []string) {
	if p == nil {
		return
	}
	p.route = "none"
	switch {
	case len(path) >= 2 && path[0] == "v1" && path[1] == "fleet":
		p.route = "/v1/fleet/" + fleetRoute(path[2:])
	case len(path) == 2 && path[0] == "v1" && path[1] == "sessions", len(path) == 1 && (path[0] == "mcp" || path[0] == "metrics"), len(path) == 2 && path[0] == "v1" && path[1] == "exec":
		p.route = "/" + strings.Join(path, "/")
	case len(path) >= 2 && path[0] == "v1" && path[1] == "skills":
		p.route = "/v1/skills" + map[bool]string{true: "/..."}[len(path) > 2]
	case len(path) >= 2 && path[0] == "v1" && path[1] == "drives":
		p.route = "/v1/drives" + map[bool]string{true: "/..."}[len(path) > 2]
	case len(path) == 2 && path[0] == "v1" && path[1] == "images":
		p.route = "/v1/images"
	case len(path) == 3 && path[0] == "v1" && path[1] == "images":
		p.route = "/v1/images/{image}"
	case len(path) > 2 && path[0] == "v1" && path[1] == "sessions":
		p.session, _ = url.PathUnescape(path[2]) // a wrong one is refused
		p.route = "/v1/sessions/{id}"
		if len(path) > 3 {
			p.route += "/..."
		}
	}
	if p.route != "none" {
		p.route = p.method + " " + p.route
	}
}

// fleetRoute is what of a route of the fleet itself may be in a name.
func fleetRoute(path []string) string {
	switch {
	case len(path) == 1 && (path[0] == "nodes" || path[0] == "sessions" || path[0] == "owners" || path[0] == "events" || path[0] == "snapshots" || path[0] == "outputs"):
		return path[0]
	case len(path) == 3 && path[0] == "nodes" && path[2] == "cordon":
		return "nodes/{node}/cordon"
	case len(path) == 3 && path[0] == "sessions" && path[2] == "move":
		return "sessions/{id}/move"
	case len(path) == 2 && (path[0] == "snapshots" || path[0] == "outputs"):
		return path[0] + "/{name}"
	case len(path) == 3 && path[0] == "snapshots" && path[2] == "restore":
		return "snapshots/{name}/restore"
	}
	return "..."
}

// setSession notes the session that a request is to make.
func (p *requestSpan) setSession(session string) {
	if p != nil {
		p.session = session
	}
}

// setNode notes the node that is asked; of several, the last.
func (p *requestSpan) setNode(node string) {
	if p != nil {
		p.node = node
	}
}

// answered notes what a node has answered: a stream gets no header of ours.
func (p *requestSpan) answered(resp *http.Response) {
	if p == nil {
		return
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // which is not written by WriteHeader
		p.status = resp.StatusCode
	}
	if route := resp.Header.Get(api.RouteHeader); route != "" && len(route) <= maxRoute && !strings.ContainsFunc(route, func(r rune) bool { return r < ' ' || r > '~' }) {
		p.route = route
	}
}

// end ends the span.
func (p *requestSpan) end() {
	if p == nil {
		return
	}
	s := p.span
	s.Set("http.request.method", p.method)
	if path := p.route[strings.LastIndexByte(p.route, ' ')+1:]; strings.HasPrefix(path, "/") {
		s.Set("http.route", path)
	}
	s.Set("boxd.request", p.request.ID)
	s.Set("boxd.principal", p.request.Principal)
	s.Set("boxd.session", p.session)
	s.Set("boxd.node", p.node)
	switch {
	case p.status == 0 && p.hungUp():
		p.status = statusCut
	case p.status == 0:
		s.Fail("no answer")
	case p.status >= http.StatusInternalServerError:
		s.Fail(http.StatusText(p.status))
	}
	if p.status != 0 {
		s.SetNumber("http.response.status_code", p.status)
	}
	s.End(p.route)
}
