// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// nodeHeader names the node that a request is for, where nothing else says so.
const nodeHeader = "Boxd-Node"

// mcpHeader is the id of an MCP session. A node has made it; the gateway writes the node's name before it.
const mcpHeader = "Mcp-Session-Id"

// call is a request on its way through.
type call struct {
	w    http.ResponseWriter
	r    *http.Request
	pass access.Pass
	span *requestSpan
	e2b  *e2bCall // nil: the request is one of boxd's API, or of LangBot
	// langBot says that it is one of LangBot's protocol.
	langBot bool
	// imports says that the gateway itself has a node import an image of the fleet.
	imports bool
	// cached is the claim by which the request is routed, if it was not read for this request, and stale whether it has changed.
	cached *sessionClaim
	stale  bool
}

// fail answers with an error as the caller's protocol has it.
func (c *call) fail(w http.ResponseWriter, err error) {
	switch {
	case c.e2b != nil:
		failE2B(w, err)
	case c.langBot:
		rpc.RefuseRelay(w, rpc.Explain(err))
	default:
		fail(w, err)
	}
}

// ServeHTTP answers a request.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	traced := nameRequest(r)
	w.Header().Set(trace.HeaderID, traced.ID)
	switch r.URL.Path {
	case "/healthz":
		reply(w, http.StatusOK, api.Health{Status: "ok"})
		return
	case "/readyz":
		if _, _, err := g.table(); err != nil {
			fail(w, err)
			return
		}
		reply(w, http.StatusOK, api.Health{Status: "ok"})
		return
	}
	shown := slices.Clone(r.Header.Values("Authorization")) // the header is changed on its way to a node
	identify := func() (access.Pass, error) {
		return g.cfg.Gate.Identify(&access.Peer{TLS: r.TLS != nil, Certificates: access.Shown(r.TLS)}, shown)
	}
	var pass access.Pass
	var err error
	if r.TLS != nil {
		err = access.SameOrigin(r.Header.Values("Origin"), r.Host)
	}
	if err == nil {
		pass, err = identify()
	}
	if err == nil && (pass.Anonymous() || pass.Role == 0) {
		err = g.cfg.Gate.Unknown()
	}
	if err == nil {
		err = conns.Identify(r.Context(), pass.Name)
	}
	if err != nil {
		fail(w, err)
		return
	}
	ctx, release := g.cfg.Gate.Watch(r.Context(), &pass, func() (time.Time, error) {
		again, err := identify()
		if err == nil && again.Name != pass.Name {
			err = g.cfg.Gate.Unknown()
		}
		return again.Until, err
	})
	defer release()
	traced.Principal = pass.Name
	span := g.begin(&traced, w, r)
	defer span.end()
	if span != nil {
		w = span
	}
	c := &call{w: w, r: r.WithContext(ctx), pass: pass, span: span}
	if err := g.route(c); err != nil { //nolint:contextcheck // the call has its request, and that its context
		fail(w, err)
	}
}

// route finds out where a request belongs.
func (g *gateway) route(c *call) error {
	path := strings.Split(strings.TrimPrefix(c.r.URL.EscapedPath(), "/"), "/")
	c.span.setRoute(path)
	switch {
	case len(path) >= 2 && path[0] == "v1" && path[1] == "fleet":
		return g.manage(c, path[2:])
	case c.r.Header.Get(nodeHeader) != "":
		if err := g.unmoved(c, path); err != nil {
			return err
		}
		return g.pass(c, c.r.Header.Get(nodeHeader), nil)
	case len(path) == 2 && path[0] == "v1" && path[1] == "sessions" && c.r.Method == http.MethodPost:
		return g.create(c)
	case len(path) == 2 && path[0] == "v1" && path[1] == "sessions":
		return g.list(c)
	case len(path) > 2 && path[0] == "v1" && path[1] == "sessions":
		id, err := url.PathUnescape(path[2])
		if err != nil {
			return fault.Field("path", c.r.URL.EscapedPath(), "percent-encoded")
		}
		owner, err := c.owner()
		if err != nil {
			return err
		}
		return g.session(c, owner, id, len(path) == 3)
	case len(path) >= 2 && path[0] == "v1" && path[1] == "exec":
		return g.once(c)
	case len(path) >= 2 && len(path) <= 3 && path[0] == "v1" && path[1] == "images":
		return g.images(c, path[2:])
	case len(path) >= 2 && path[0] == "v1" && path[1] == "skills":
		return g.skills(c, path[2:])
	case len(path) >= 2 && path[0] == "v1" && path[1] == "drives":
		return g.drives(c, path[2:])
	case len(path) >= 2 && len(path) <= 3 && path[0] == "v1" && path[1] == "workspaces":
		return g.workspaces(c, path[2:])
	case path[0] == "mcp":
		return g.mcp(c)
	case c.r.Method == http.MethodGet && c.r.URL.Path == "/metrics":
		if err := c.may("GET /metrics", access.Viewer); err != nil {
			return err
		}
		g.metrics.handler.ServeHTTP(c.w, c.r)
		return nil
	}
	return onNodes(c)
}

// onNodes is the refusal of what only nodes answer.
func onNodes(c *call) error {
	return fault.Errorf(fault.Unsupported, "a gateway does not answer %s %s for the whole fleet", c.r.Method, fault.Show(c.r.URL.Path)).
		WithHint("name a node with the header %s; GET /v1/fleet/nodes has them", nodeHeader)
}

// unmoved refuses a request to a named node for a session that is being moved.
func (g *gateway) unmoved(c *call, path []string) error {
	if len(path) < 3 || path[0] != "v1" || path[1] != "sessions" || len(path) == 3 && c.r.Method == http.MethodGet {
		return nil
	}
	id, err := url.PathUnescape(path[2])
	if err != nil {
		return fault.Field("path", c.r.URL.EscapedPath(), "percent-encoded")
	}
	claim, err := g.claimOf(c.r.Context(), cmp.Or(c.r.URL.Query().Get("owner"), c.pass.Name), id)
	if err == nil && claim != nil && claim.State == api.FleetClaimMoving {
		err = moving(claim)
	}
	return err
}

// claimOf reads the claim of a session; nil: there is none.
func (g *gateway) claimOf(ctx context.Context, owner, id string) (*sessionClaim, error) {
	claims, _, err := g.table()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	claim, err := getClaim(ctx, claims, claimKey(owner, id))
	if err != nil {
		return nil, unread(err)
	}
	return claim, nil
}

// claimed is claimOf for a request that needs the session.
func (g *gateway) claimed(ctx context.Context, owner, id string) (*sessionClaim, error) {
	claim, err := g.claimOf(ctx, owner, id)
	if err == nil && claim == nil {
		err = g.unsettled()
	}
	if err == nil && claim == nil {
		err = noSession(id)
	}
	return claim, err
}

func noSession(id string) error {
	return fault.Errorf(fault.NotFound, "no session %s", fault.Show(id)).WithHint("boxctl ls lists them")
}

// unsettled returns an error while the bucket of claims is new and a node has not put its claims into it yet: a session that has no claim
// may exist.
func (g *gateway) unsettled() error {
	_, bucket, err := g.table()
	if err != nil {
		return err
	}
	g.mu.Lock()
	recent := g.now().Sub(g.opened) < lostAfter
	g.mu.Unlock()
	if !recent {
		return nil
	}
	nodes := g.known()
	if len(nodes) == 0 || slices.ContainsFunc(nodes, func(n nodeState) bool { return !n.lost && n.Claims != bucket }) {
		return fault.Errorf(fault.Unavailable, "a node has not reported its sessions yet").WithHint("try again")
	}
	return nil
}

// owner is whose sessions a request is about. What a claim says is answered without a node, so whoever may not see sessions of
// others is refused here as there, whether there is such a session or not.
func (c *call) owner() (string, error) {
	owner := cmp.Or(c.r.URL.Query().Get("owner"), c.pass.Name)
	if owner != c.pass.Name && !c.pass.Is(access.Operator) {
		return "", fault.Field("owner", owner, c.pass.Name+", or left out").Of(fault.Denied).
			WithText("permission denied: to use boxes of %s needs the %s role, you have %q (%s)", fault.Show(owner), access.Operator, c.pass.Role, c.pass.Rule)
	}
	return owner, nil
}

// may refuses a caller what no node is asked for that would refuse it.
func (c *call) may(route string, minRole access.Role) error {
	switch {
	case !c.pass.Allows(route):
		return fault.Errorf(fault.Denied, "permission denied: the token %s does not allow this route", fault.Show(c.pass.Token)).WithHint("the operator can add the route to the token in the tokens file")
	case !c.pass.Is(minRole):
		return fault.Field("role", c.pass.Role.String(), minRole.String()+" or more").Of(fault.Denied).WithText("permission denied: this needs the %s role, you have %q (%s)", minRole, c.pass.Role, c.pass.Rule)
	}
	return nil
}

// session passes a request for a session on to the node that has it.
func (g *gateway) session(c *call, owner, id string, itself bool) error {
	if claim := g.cachedClaim(c, owner, id); claim != nil && !itself {
		if err := g.keeps(c, owner, claim.Node); err != nil {
			return err
		}
		if answered, err := g.passCached(c, claim); answered || err != nil {
			return err
		}
	}
	claim, err := g.claimed(c.r.Context(), owner, id)
	if err == nil && c.e2b != nil && !claim.Sandbox {
		err = noSession(id)
	}
	if err != nil {
		return err
	}
	if claim.State == api.FleetClaimMoving && (!itself || c.r.Method != http.MethodGet) {
		return moving(claim)
	}
	if err := cmp.Or(g.attaches(c, owner, claim.Node), g.keeps(c, owner, claim.Node)); err != nil {
		return err
	}
	remove := itself && c.r.Method == http.MethodDelete
	if claim.State == api.FleetClaimLost && !remove {
		return g.lost(claim)
	}
	if remove && claim.Workspace > 0 && claim.State != api.FleetClaimLost && !g.gaveUpLangBot(claim.Node) {
		return cmp.Or(c.may("DELETE /v1/sessions/{id}", access.User), inUse(claim))
	}
	if claim.State == api.FleetClaimLost || remove && claim.Workspace > 0 {
		if err := c.may("DELETE /v1/sessions/{id}", access.User); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
		defer cancel()
		if err := g.drop(ctx, claim); err != nil {
			return err
		}
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	var then func(*http.Response)
	if remove {
		then = func(resp *http.Response) {
			// In E2B's protocol 404 can also mean that the session is none of a sandbox any more.
			if resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotFound && c.e2b == nil {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), requestTimeout)
				defer cancel()
				if err := g.drop(ctx, claim); err != nil {
					g.log.Warn("cannot remove the claim of a removed session; its node will", "session", id, "error", err)
				}
			}
		}
	}
	return g.pass(c, claim.Node, then)
}

// lost is the refusal of what is asked of a session that is lost.
func (g *gateway) lost(claim *sessionClaim) error {
	err := fault.Errorf(fault.Conflict, "session %s is lost since %s: %s", fault.Show(claim.ID), claim.Since.UTC().Format(time.RFC3339), claim.Reason)
	note := ""
	if g.cfg.Outputs > 0 {
		note = "; what its programs have written is then kept when its node returns: boxctl fleet outputs"
	}
	if claim.Snapshot != "" {
		return err.WithHint("it returns with its node; to give it up, remove it, then restore its last snapshot %s%s", fault.Show(claim.Snapshot), note)
	}
	return err.WithHint("it returns with its node; to give it up, remove it, then create it again%s", note)
}

// inUse is the refusal to remove the claim of a Workspace whose node has it: its sessions would be nobody's.
func inUse(claim *sessionClaim) error {
	return fault.Errorf(fault.Conflict, "%s is a Workspace of LangBot on node %s: only one that is lost can be removed", fault.Show(claim.ID), claim.Node).
		WithHint("delete its sessions in LangBot: a Workspace that has none, and has had no skill, is released")
}

// gaveUpLangBot reports whether a node lives and does not serve LangBot, so that it ends what it has of a Workspace without a claim.
func (g *gateway) gaveUpLangBot(node string) bool {
	n, ok := g.node(node)
	return ok && !n.lost && !slices.Contains(n.Capabilities, canLangBot)
}

// pass sends a request to a node, in the name of its caller; then sees the answer before it goes on.
func (g *gateway) pass(c *call, name string, then func(*http.Response)) error {
	n, ok := g.node(name)
	switch {
	case c.anonymous() && (!ok || n.lost):
		return errSandboxUnreached()
	case !ok:
		return fault.Errorf(fault.Unavailable, "node %s of the fleet is not known to this gateway", fault.Show(name)).WithHint("GET /v1/fleet/nodes lists them")
	case n.lost:
		return fault.Errorf(fault.Unavailable, "node %s is lost: %s", name, n.Reason).WithHint("GET /v1/fleet/nodes lists the nodes")
	}
	var refused error
	proxy := &httputil.ReverseProxy{
		Transport: roundTrip(func(out *http.Request) (*http.Response, error) {
			if refused != nil { // nothing is sent that is not signed
				return nil, refused
			}
			return g.transport.RoundTrip(out)
		}),
		FlushInterval: -1, // streams are read as they are written
		Rewrite: func(p *httputil.ProxyRequest) {
			c.span.setNode(name)
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", name, "boxd"
			p.Out.Header.Del(nodeHeader)
			p.Out.Header.Del(wire.HeaderGateway) // by which a node would take it for one of another protocol
			refused = g.sign(c, &n, p.Out)
		},
		ModifyResponse: func(resp *http.Response) error {
			if c.refused(resp) {
				return refusal(resp)
			}
			if err := g.checkCached(c, resp.StatusCode); err != nil {
				return err
			}
			c.span.answered(resp)
			resp.Header.Del(api.RouteHeader)
			resp.Header.Del(rpc.HeaderRefused) // it is for the gateway
			if id := resp.Header.Get(mcpHeader); id != "" && c.e2b == nil {
				resp.Header.Set(mcpHeader, name+"."+id)
			}
			if then != nil {
				then(resp)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			switch {
			case errors.Is(err, errStale):
				c.stale = true
			case fault.KindOf(err) == fault.Unavailable: // what the claim is cannot be read
				c.fail(w, err)
			case c.anonymous() && refused == nil:
				if c.r.Context().Err() == nil { // or the client has gone
					g.log.Warn("a sandbox cannot be reached", "node", name, "error", err)
				}
				c.fail(w, errSandboxUnreached())
			default:
				c.fail(w, unreached(name, cmp.Or(refused, err)))
			}
		},
	}
	proxy.ServeHTTP(c.w, c.r)
	return nil
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// anonymous reports whether a request comes from somebody who is no caller of the gateway: nodes and owners are not named to them.
func (c *call) anonymous() bool { return c.e2b != nil && c.e2b.data }

// sign signs for whom a request is.
func (g *gateway) sign(c *call, n *nodeState, out *http.Request) error {
	key := g.key()
	a := access.Assertion{
		Gateway: g.cfg.Name, Node: n.Name, Principal: c.pass.Name, Role: c.pass.Role, Token: c.pass.Token, Routes: c.pass.Routes(),
		Method: out.Method, Target: out.URL.RequestURI(), Image: c.imports,
	}
	now := time.Now().Add(n.offset)
	if c.e2b != nil {
		return c.e2b.sign(&a, key, now, out)
	}
	out.Header.Del("Authorization")
	if c.langBot {
		out.Header.Del(rpc.HeaderToken)
		value, err := a.SignLangBot(key, now)
		out.Header.Set(access.HeaderGateway, value)
		return err
	}
	value, err := a.Sign(key, now)
	if err != nil {
		return err
	}
	out.Header.Set("Authorization", value)
	return nil
}

// refused reports whether a node refuses the gateway, which is not about its caller.
func (c *call) refused(resp *http.Response) bool {
	if c.e2b != nil {
		return c.e2b.refused(resp)
	}
	if c.langBot {
		return resp.StatusCode == http.StatusForbidden && resp.Header.Get(rpc.HeaderRefused) != ""
	}
	return resp.StatusCode == http.StatusUnauthorized
}

// nodeRefusal is what a node says of the gateway, not of its caller.
type nodeRefusal struct{ detail string }

func (e *nodeRefusal) Error() string { return e.detail }

func refusal(resp *http.Response) error {
	var p struct {
		Detail  string `json:"detail"`
		Message string `json:"message"` // as answers of E2B have it
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<16)).Decode(&p); err != nil {
		return &nodeRefusal{resp.Status}
	}
	return &nodeRefusal{cmp.Or(p.Detail, p.Message)}
}

// unreached is what a caller hears of a node that has not answered. A request that could not be signed has not been sent.
func unreached(name string, err error) error {
	if fault.KindOf(err) == fault.Invalid {
		return err
	}
	if r, ok := errors.AsType[*nodeRefusal](err); ok {
		return fault.Errorf(fault.Unavailable, "node %s does not accept this gateway: %s", name, r.detail).WithHint("[fleet.gateways] of the node's box.toml must have the key and name of this gateway")
	}
	if errors.Is(err, errNoResponder) {
		return fault.Errorf(fault.Unavailable, "node %s cannot be reached: %w", name, err).WithHint("GET /v1/fleet/nodes says since when")
	}
	return fault.Errorf(fault.Unavailable, "node %s has not answered: %w", name, err).WithHint("a program with an id continues: send it again")
}

// mcp passes a message of an MCP session on to its node. A new session is where its box is, or is placed.
func (g *gateway) mcp(c *call) error {
	id := c.r.Header.Get(mcpHeader)
	if id != "" {
		node, rest, ok := strings.Cut(id, ".")
		if !ok || !access.ValidNode(node) {
			return fault.Field(mcpHeader, id, "the id of an open MCP connection").Of(fault.NotFound).WithHint("send initialize again")
		}
		c.r.Header.Set(mcpHeader, rest)
		return g.pass(c, node, nil)
	}
	if s := c.r.URL.Query().Get("session"); s != "" {
		owner, err := c.owner()
		if err != nil {
			return err
		}
		return g.session(c, owner, s, false)
	}
	return g.once(c)
}

// once places what leaves no session behind.
func (g *gateway) once(c *call) error {
	place := &placement{}
	if c.e2b != nil {
		place.Can = []string{canE2B}
	}
	want, err := g.needed(c)
	if err != nil {
		return err
	}
	return g.passOn(c, place, want)
}

func reply(w http.ResponseWriter, code int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	data = append(data, '\n')
	w.Header().Set("Content-Type", "application/json")
	if p, ok := body.(*api.Problem); ok {
		w.Header().Set("Content-Type", "application/problem+json")
		if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	_, _ = w.Write(data) // who has hung up needs no answer
}

// statusOf is how HTTP calls a kind of error.
func statusOf(kind fault.Kind) int {
	return map[fault.Kind]int{
		fault.Internal: http.StatusInternalServerError, fault.Invalid: http.StatusBadRequest, fault.NotFound: http.StatusNotFound, fault.Conflict: http.StatusConflict,
		fault.Denied: http.StatusForbidden, fault.Exhausted: http.StatusTooManyRequests, fault.Unsupported: http.StatusNotImplemented,
		fault.Unavailable: http.StatusServiceUnavailable, fault.Unauthenticated: http.StatusUnauthorized,
	}[kind]
}

// fail answers with the problem that an error is.
func fail(w http.ResponseWriter, err error) {
	kind := fault.KindOf(err)
	status := statusOf(kind)
	p := &api.Problem{Type: api.ProblemType + kind.String(), Title: strings.ReplaceAll(kind.String(), "_", " "), Status: status, Detail: err.Error()}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		p.Field, p.Value, p.Allowed, p.Hint = f.Field, f.Value, f.Allowed, f.Hint
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	reply(w, status, p)
}
