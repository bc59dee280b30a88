// SPDX-License-Identifier: Apache-2.0

// Clients of E2B. Nodes implement the protocol; a gateway finds the node of each request, places new sandboxes, and merges the lists of
// nodes.

package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// missingHeader names nodes whose sandboxes a list does not have.
const missingHeader = "Boxd-Missing-Nodes"

// e2bProfile is the default profile of sandboxes on nodes. A warm box of it improves the score of a node.
const e2bProfile = "e2b"

// Bounds of what unauthenticated clients can make nodes do.
const (
	maxSearches = 16 // at once, of requests that do not name their sandbox: all nodes are asked
	maxRefusal  = 64 << 10
)

// e2bFront is the HTTP handler for clients of E2B.
type e2bFront struct {
	g        *gateway
	domain   string
	byTLS    bool
	searches chan struct{}
}

func newE2BFront(g *gateway, cfg *gatewayConfig) *e2bFront {
	return &e2bFront{g: g, domain: wire.Domain(cfg.E2B.Domain, cfg.E2B.Listen), byTLS: cfg.Gateway.Certificate != "", searches: make(chan struct{}, maxSearches)}
}

// e2bCall is what the gateway adds to a request of E2B's protocol.
type e2bCall struct {
	domain string
	host   string // header Host of the client
	create string // id for a new sandbox
	data   bool   // for a sandbox: the node checks its token, and the gateway states which key is valid, not who calls
	ask    bool   // only ask which key the sandbox depends on
}

// sign adds the signed statement and the headers for the node, and removes the client's API key.
func (e *e2bCall) sign(a *access.Assertion, key ed25519.PrivateKey, now time.Time, out *http.Request) error {
	out.Header.Del(wire.HeaderKey)
	shown := out.Header.Values("Authorization")
	if !e.data || slices.ContainsFunc(shown, isKey) { // a key sent to a sandbox by mistake
		out.Header.Del("Authorization")
	}
	sign := a.Sign
	if e.data {
		sign = a.SignHolder
	}
	value, err := sign(key, now)
	if err != nil {
		return err
	}
	out.Host = e.host
	out.Header.Set(wire.HeaderGateway, value)
	out.Header.Set(wire.HeaderDomain, e.domain)
	if e.create != "" {
		out.Header.Set(wire.HeaderNew, e.create)
	}
	if e.ask {
		out.Header.Set(wire.HeaderAsk, "true")
	}
	return nil
}

// isKey reports whether a header contains a token of the gateway.
func isKey(value string) bool {
	return strings.Contains(value, access.TokenPrefix) || strings.Contains(strings.ToLower(value), wire.HexPrefix)
}

// refused reports whether a node refuses the gateway. A problem document is from its API: it does not serve E2B to gateways.
func (e *e2bCall) refused(resp *http.Response) bool {
	return resp.Header.Get(wire.HeaderRefused) != "" || (!e.data || e.ask) && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json")
}

// failE2B answers with an error as clients of E2B have it.
func failE2B(w http.ResponseWriter, err error) {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		kind := fault.KindOf(err)
		e = &wire.Error{Code: statusOf(kind), Message: err.Error()}
		if kind == fault.Conflict { // of a lost sandbox; SDKs take 409 for "already paused"
			e.Code = http.StatusServiceUnavailable
		}
		if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
			e.Message += " (" + f.Hint + ")"
		}
	}
	if e.Code == http.StatusTooManyRequests || e.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	reply(w, e.Code, e)
}

// ServeHTTP answers a request.
func (f *e2bFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name := range r.Header {
		if strings.HasPrefix(name, wire.Reserved) {
			delete(r.Header, name)
		}
	}
	to, ok := wire.PortHost(r.Host, f.domain)
	var err error
	if !ok && !f.byTLS {
		err = access.FromHere(r.Header.Values("Origin"), r.Host)
	}
	if err == nil && !ok {
		to, err = wire.Route(r)
	}
	switch {
	case err != nil:
	case r.Method == http.MethodConnect || !strings.HasPrefix(r.RequestURI, "/"):
		err = fault.Field("request", r.Method+" "+r.RequestURI, "a path, with a method other than CONNECT")
	case to.Control:
		err = f.control(w, r)
	default:
		err = f.data(w, r, to)
	}
	if err != nil {
		failE2B(w, err)
	}
}

// control answers a request to the control plane.
func (f *e2bFront) control(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if r.TLS != nil {
		if err := access.SameOrigin(r.Header.Values("Origin"), r.Host); err != nil {
			return err
		}
	}
	gate := f.g.cfg.Gate
	var shown []string // the headers are changed on their way to a node
	if text := wire.Key(r); text != "" {
		shown = []string{"Bearer " + text}
	} else if r.Header.Get(wire.HeaderKey) != "" || r.Header.Get("Authorization") != "" {
		shown = []string{""}
	}
	identify := func() (access.Pass, error) {
		pass, err := gate.Identify(&access.Peer{TLS: r.TLS != nil}, shown) // a certificate is no key, on which a sandbox could depend
		if err != nil || pass.Anonymous() || pass.Role == 0 {
			return pass, &wire.Error{Code: http.StatusUnauthorized, Message: "missing, unknown, expired or revoked API key: E2B_API_KEY has to be a token of the gateway (boxctl token new)"}
		}
		return pass, nil
	}
	pass, err := identify()
	if err == nil {
		err = conns.Identify(r.Context(), pass.Name)
	}
	if err != nil {
		return err
	}
	ctx, release := gate.Watch(r.Context(), &pass, func() (time.Time, error) {
		again, err := identify()
		if err == nil && again.Name != pass.Name {
			err = gate.Unknown()
		}
		return again.Until, err
	})
	defer release()
	c := &call{w: w, r: r.WithContext(ctx), pass: pass, e2b: &e2bCall{domain: f.domain, host: r.Host}}
	defer f.begin(c)()
	if err := f.route(c); err != nil { //nolint:contextcheck // the call has its request, and that its context
		failE2B(c.w, err)
	}
	return nil
}

// begin begins the span of a request, and returns the function that ends it. The node says which route it is.
func (f *e2bFront) begin(c *call) (end func()) {
	traced := nameRequest(c.r)
	traced.Principal = c.pass.Name
	c.span = f.g.begin(&traced, c.w, c.r)
	if c.span == nil {
		return func() {}
	}
	c.w, c.span.route = c.span, "e2b"
	if path := c.r.URL.Path; path == "/sandboxes" || path == "/v2/sandboxes" { // which the gateway answers itself, or many nodes refuse
		c.span.route += " " + c.span.method + " " + path
	}
	return c.span.end
}

// route finds out where a request to the control plane belongs.
func (f *e2bFront) route(c *call) error {
	path := strings.Split(strings.TrimPrefix(c.r.URL.Path, "/"), "/")
	if path[0] == "v1" {
		return &wire.Error{Code: http.StatusNotImplemented, Message: "the protocol of Scalebox is not served by a gateway: use boxd of one host"}
	}
	if path[0] == "v2" {
		path = path[1:]
	}
	switch {
	case len(path) == 1 && path[0] == "sandboxes" && c.r.Method == http.MethodPost:
		return f.create(c)
	case len(path) == 1 && path[0] == "sandboxes" && c.r.Method == http.MethodGet:
		return f.list(c)
	case len(path) > 1 && path[0] == "sandboxes":
		return f.sandbox(c, path[1], len(path) == 2)
	}
	return f.g.once(c)
}

// sandbox forwards a request about a sandbox to its node. The answer is the same for a foreign sandbox and a missing one.
func (f *e2bFront) sandbox(c *call, id string, itself bool) error {
	err := f.g.session(c, c.pass.Name, id, itself)
	if fault.KindOf(err) != fault.NotFound {
		return err
	}
	return wire.Missing(id)
}

// create places a sandbox, as sessions are.
func (f *e2bFront) create(c *call) error {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxRequest))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &wire.Error{Code: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body has more than %d bytes", maxRequest)}
	}
	if err != nil {
		return fault.Errorf(fault.Invalid, "read the body: %w", err).WithHint("send it again")
	}
	claims, bucket, err := f.g.table()
	if err != nil {
		return err
	}
	c.e2b.create = wire.NewID()
	r := &reservation{
		g: f.g, c: c, claims: claims, bucket: bucket, place: &placement{Can: []string{canE2B}}, want: &wanted{ID: c.e2b.create, Profile: e2bProfile},
		key: claimKey(c.pass.Name, c.e2b.create), target: c.r.URL.RequestURI(), body: body,
	}
	return r.begin()
}

// e2bNodes returns the nodes that serve E2B to gateways and are not lost.
func (g *gateway) e2bNodes() (list []nodeState) {
	for _, n := range g.known() {
		if !n.lost && slices.Contains(n.Capabilities, canE2B) {
			list = append(list, n)
		}
	}
	return list
}

// listed is a sandbox in a list of a node.
type listed struct {
	text    json.RawMessage
	id      string
	started time.Time
}

// list merges the pages of all nodes. A page token names the start time and id of the last sandbox, whichever node has that, so each
// node is asked with the same token.
func (f *e2bFront) list(c *call) error {
	if err := c.may("GET /v1/sessions", access.Viewer); err != nil {
		return err
	}
	query := c.r.URL.Query()
	limit := wire.UsualPage
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fault.Field("limit", text, "a number, 1 or more")
		}
		limit = n
	}
	nodes, index := f.g.e2bNodes(), f.g.index()
	switch {
	case index == nil:
		return noIndex()
	case len(nodes) == 0:
		return fault.Errorf(fault.Unavailable, "no node speaks E2B's protocol with gateways").WithHint("set e2b.fleet = true in box.toml of nodes")
	}
	pages, missing, err := fromEach(f.g, nodes, func(n *nodeState) (*e2bPage, error) { return f.page(c, n) })
	if err != nil {
		return err
	}
	var found []listed
	more := false
	for _, p := range pages {
		found, more = append(found, p.list...), more || p.more
	}
	for name := range index.nodesOf(c.pass.Name) {
		if !slices.ContainsFunc(nodes, func(n nodeState) bool { return n.Name == name }) {
			missing = append(missing, name)
		}
	}
	slices.SortFunc(found, func(a, b listed) int {
		order := wire.Compare(a.started.UnixNano(), a.id, b.started.UnixNano(), b.id)
		if query.Get("order") != "asc" {
			order = -order
		}
		return order
	})
	if len(found) > limit {
		found, more = found[:limit], true
	}
	if more && len(found) > 0 {
		last := found[len(found)-1]
		c.w.Header().Set(wire.HeaderNext, wire.Mark(last.started, last.id))
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		c.w.Header().Set(missingHeader, strings.Join(missing, ", "))
	}
	page := []json.RawMessage{}
	for _, l := range found {
		page = append(page, l.text)
	}
	reply(c.w, http.StatusOK, page)
	return nil
}

// e2bPage is what a node has for a page.
type e2bPage struct {
	list []listed
	more bool // it has further sandboxes
}

// page asks a node for its part of a page.
func (f *e2bFront) page(c *call, n *nodeState) (*e2bPage, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), streamTimeout)
	defer cancel()
	one := c.within(ctx)
	resp, err := f.g.request(one, n, http.MethodGet, c.r.URL.RequestURI(), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, asFault(resp)
	}
	var texts []json.RawMessage
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxListed)).Decode(&texts); err != nil {
		return nil, err
	}
	page := &e2bPage{more: resp.Header.Get(wire.HeaderNext) != ""}
	for _, text := range texts {
		var one struct {
			SandboxID string    `json:"sandboxID"`
			StartedAt time.Time `json:"startedAt"`
		}
		if err := json.Unmarshal(text, &one); err != nil {
			return nil, err
		}
		page.list = append(page.list, listed{text, one.SandboxID, one.StartedAt})
	}
	return page, nil
}

// data forwards a request for a sandbox to its node. The gateway does not know the caller: the node checks the token of the sandbox and says
// which key the sandbox depends on. The request is forwarded if that key is valid, and ended when it no longer is.
func (f *e2bFront) data(w http.ResponseWriter, r *http.Request, to wire.Destination) error {
	nodes, release, err := f.candidates(r, to)
	if err != nil {
		return err
	}
	of, other, err := f.search(r, nodes)
	release()
	switch {
	case err != nil:
		return err
	case of == nil:
		other.write(w)
		return nil
	}
	token, ours := strings.CutPrefix(of.key, access.FleetToken(f.g.cfg.Name, ""))
	gate := f.g.cfg.Gate
	holds := func() (access.Pass, error) {
		pass := gate.Reauthenticate(&access.Peer{}, token)
		if !ours || pass.Anonymous() || pass.Name != of.owner {
			return pass, &wire.Error{Code: http.StatusUnauthorized, Message: wire.KeylessMessage}
		}
		return pass, nil
	}
	pass, err := holds()
	if err != nil {
		return err
	}
	identify := conns.Identify
	if to.Port != wire.PortEnvd && r.Header.Get(wire.HeaderAccess) == "" {
		identify = conns.IdentifyVisitor
	}
	if err := identify(r.Context(), pass.Name); err != nil {
		return err
	}
	ctx, unwatch := gate.Watch(r.Context(), &pass, func() (time.Time, error) {
		now, err := holds()
		return now.Until, err
	})
	defer unwatch()
	c := &call{w: w, r: r.WithContext(ctx), pass: pass, e2b: &e2bCall{domain: f.domain, host: r.Host, data: true}}
	if to.Port == wire.PortEnvd || to.Port == wire.PortCode { // what is for a program's port is no request to boxd
		defer f.begin(c)()
	}
	if err := f.g.pass(c, of.node, nil); err != nil { //nolint:contextcheck // the call has its request, and that its context
		failE2B(c.w, err)
	}
	return nil
}

// candidates returns the nodes that may have the sandbox of a request. release must be called after they have been asked.
func (f *e2bFront) candidates(r *http.Request, to wire.Destination) (nodes []nodeState, release func(), err error) {
	release = func() {}
	if to.Sandbox == "" {
		if !r.URL.Query().Has("signature") { // any node would see the token of a sandbox that need not be its own
			return nil, release, &wire.Error{Code: http.StatusUnauthorized, Message: wire.UnprovenMessage}
		}
		select {
		case f.searches <- struct{}{}:
		case <-time.After(requestTimeout):
			return nil, release, fault.Errorf(fault.Unavailable, "too many lookups of signed addresses").WithHint("try again")
		case <-r.Context().Done():
			return nil, release, r.Context().Err()
		}
		return f.g.e2bNodes(), func() { <-f.searches }, nil
	}
	list, err := f.g.located(r.Context(), to.Sandbox)
	if err != nil {
		return nil, release, err
	}
	if len(list) == 0 {
		if err := f.g.unsettled(); err != nil {
			return nil, release, err
		}
		return nil, release, wire.Gone(to.Sandbox)
	}
	if len(list) > 1 && to.Port != wire.PortEnvd && to.Port != wire.PortCode && r.Header.Get(wire.HeaderAccess) == "" && r.Header.Get(wire.HeaderTraffic) == "" {
		// Two owners have this id, and without a token nothing tells which is meant.
		return nil, release, &wire.Error{Code: http.StatusUnauthorized, Message: wire.UnprovenMessage}
	}
	for i := range list {
		if n, ok := f.g.node(list[i].Node); ok && !n.lost && !slices.ContainsFunc(nodes, func(other nodeState) bool { return other.Name == n.Name }) {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		switch exists, err := f.g.stillClaimed(r.Context(), list); {
		case err != nil:
			return nil, release, err
		case !exists:
			return nil, release, wire.Gone(to.Sandbox)
		}
		return nil, release, errSandboxUnreached() // node and reason in the claim are for the owner only
	}
	return nodes, release, nil
}

// stillClaimed reads claims of the index again: they may have been removed just now.
func (g *gateway) stillClaimed(ctx context.Context, list []api.FleetClaim) (bool, error) {
	claims, _, err := g.table()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for i := range list {
		claim, err := getClaim(ctx, claims, claimKey(list[i].Owner, list[i].ID))
		if err != nil {
			return false, unread(err)
		}
		if claim != nil {
			return true, nil
		}
	}
	return false, nil
}

// errSandboxUnreached is the answer to requests for a sandbox whose node does not answer: which that is, is not for strangers.
func errSandboxUnreached() error {
	return fault.Errorf(fault.Unavailable, "the sandbox cannot be reached: its host does not answer").WithHint("try again when its host is back")
}

// sandboxOf says where a sandbox is, who owns it and which key it depends on.
type sandboxOf struct{ node, key, owner string }

// refusedData is the answer of a node that is final: a refusal, or one for which no token is needed (/health).
type refusedData struct {
	status int
	kind   string
	body   []byte
	none   bool // the node has no such sandbox
}

func (d *refusedData) write(w http.ResponseWriter) {
	if d.kind != "" {
		w.Header().Set("Content-Type", d.kind)
	}
	w.WriteHeader(d.status)
	_, _ = w.Write(d.body) // who has hung up needs no answer
}

// search asks nodes which of them has the sandbox that the token of a request is for. If none has, it returns one of their answers,
// preferably of a node that has a sandbox of this id.
func (f *e2bFront) search(r *http.Request, nodes []nodeState) (of *sandboxOf, other *refusedData, err error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			found, answer, failed := f.checkToken(ctx, r, &n)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed != nil && of != nil: // nobody waits for the others
			case fault.KindOf(failed) == fault.Invalid:
				err = failed
			case failed != nil:
				f.g.log.Debug("a node does not say whose sandbox a request is for", "node", n.Name, "error", failed)
				err = errSandboxUnreached()
			case found != nil:
				of = found
				cancel()
			case other == nil || other.none:
				other = answer
			}
		})
	}
	wg.Wait()
	switch {
	case of != nil:
		return of, nil, nil
	case err != nil && (other == nil || other.none): // the node that did not answer may have it
		return nil, nil, err
	case other == nil: // no node was asked
		return nil, nil, &wire.Error{Code: http.StatusUnauthorized, Message: wire.UnprovenMessage}
	}
	return nil, other, nil
}

// checkToken asks a node whether the token of a request is for one of its sandboxes, and which key that depends on.
func (f *e2bFront) checkToken(ctx context.Context, r *http.Request, n *nodeState) (*sandboxOf, *refusedData, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	u := &url.URL{Scheme: "http", Host: n.Name, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	out, err := http.NewRequestWithContext(ctx, r.Method, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range []string{wire.HeaderAccess, wire.HeaderTraffic, wire.HeaderSandbox, wire.HeaderPort} {
		if values := r.Header.Values(name); len(values) > 0 {
			out.Header[name] = values
		}
	}
	c := &call{r: r, e2b: &e2bCall{domain: f.domain, host: r.Host, data: true, ask: true}}
	if err := f.g.sign(c, n, out); err != nil {
		return nil, nil, err
	}
	resp, err := f.g.transport.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if c.refused(resp) {
		return nil, nil, refusal(resp)
	}
	if owner := resp.Header.Get(wire.HeaderOwner); owner != "" {
		of := &sandboxOf{node: n.Name}
		var bad error
		of.key, err = url.QueryUnescape(resp.Header.Get(wire.HeaderHolds))
		of.owner, bad = url.QueryUnescape(owner)
		return of, nil, errors.Join(err, bad)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	return nil, &refusedData{resp.StatusCode, resp.Header.Get("Content-Type"), body, resp.Header.Get(wire.HeaderNone) != ""}, err
}
