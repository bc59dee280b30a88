// SPDX-License-Identifier: Apache-2.0

// The control plane: sandboxes of whoever has the API key.

package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Bounds of the control plane.
const (
	maxBody        = 1 << 20
	bodyTimeout    = time.Minute
	defaultTimeout = 300                // seconds
	maxTimeout     = 366 * 24 * 60 * 60 // seconds
)

// envdVersion says which features of envd are there: clients look at it before they use one.
const envdVersion = "0.6.3"

// clientID is a field that clients demand and nobody uses.
const clientID = "boxd"

// controlCall is a request to the control plane on its way through.
type controlCall struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	pass   access.Pass
	limits *conns.Limits
	id     string // of the sandbox in the path
	noted  *noted
}

// operation is a line of the table of the control plane.
type operation struct {
	pattern string // of net/http, without the method's own rules: METHOD /path/{id}
	route   string // of boxd's API: a token that is for some routes alone has to be for this one
	role    access.Role
	alters  bool
	ends    bool
	do      func(*controlCall) error
}

// Routes of boxd's API for which a token has to be.
const (
	routeCreate = "POST /v1/sessions"
	routeList   = "GET /v1/sessions"
	routeGet    = "GET /v1/sessions/{id}"
	routeChange = "PATCH /v1/sessions/{id}"
	routeDelete = "DELETE /v1/sessions/{id}"
	routeFreeze = "POST /v1/sessions/{id}/freeze"
	routeThaw   = "POST /v1/sessions/{id}/thaw"
	routeStop   = "POST /v1/sessions/{id}/stop"
	routeEvents = "GET /v1/events"
)

// operations are the whole control plane. Both spellings of a path do the same.
func operations() []operation {
	return slices.Concat([]operation{
		{"POST /sandboxes", routeCreate, access.User, true, false, (*controlCall).create},
		{"POST /v2/sandboxes", routeCreate, access.User, true, false, (*controlCall).create},
		{"GET /sandboxes", routeList, access.Viewer, false, false, (*controlCall).list},
		{"GET /v2/sandboxes", routeList, access.Viewer, false, false, (*controlCall).list},
		{"GET /sandboxes/{id}", routeGet, access.Viewer, false, false, (*controlCall).get},
		{"DELETE /sandboxes/{id}", routeDelete, access.User, true, true, (*controlCall).kill},
		{"POST /sandboxes/{id}/connect", routeChange, access.User, true, false, (*controlCall).connect},
		{"POST /v2/sandboxes/{id}/connect", routeChange, access.User, true, false, (*controlCall).connect},
		{"POST /sandboxes/{id}/resume", routeThaw, access.User, true, false, (*controlCall).connect},
		{"POST /sandboxes/{id}/pause", routeFreeze, access.User, true, false, (*controlCall).pause},
		{"POST /sandboxes/{id}/timeout", routeChange, access.User, true, false, (*controlCall).timeout},
		{"POST /sandboxes/{id}/refreshes", routeChange, access.User, true, false, (*controlCall).refresh},
		{"GET /sandboxes/{id}/metrics", routeGet, access.Viewer, false, false, (*controlCall).metrics},
		{"GET /sandboxes/{id}/logs", routeEvents, access.Viewer, false, false, (*controlCall).logs},
		{"GET /v2/sandboxes/{id}/logs", routeEvents, access.Viewer, false, false, (*controlCall).logEntries},
		{"PUT /sandboxes/{id}/network", routeChange, access.User, true, false, (*controlCall).network},
		{"GET /templates/aliases/{id}", routeList, access.Viewer, false, false, (*controlCall).alias},
	}, scaleboxOperations())
}

// Patterns lists the operations of the control plane, for who has to try every one of them.
func Patterns() []string {
	var list []string
	for _, op := range operations() {
		list = append(list, op.pattern)
	}
	return list
}

// control answers a request to the control plane.
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		w.WriteHeader(http.StatusOK)
		return
	}
	op, id, known := find(r)
	pass, err := s.caller(w, r, &op, nil)
	if err == nil && !known {
		err = unserved(r)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	share, release := s.callers.Share(pass.Name)
	defer release()
	original := r
	ctx, unwatch := s.cfg.Gate.Watch(r.Context(), &pass, func() (time.Time, error) {
		now, err := s.caller(w, original, &op, &pass)
		return now.Until, err
	})
	defer unwatch()
	r = r.WithContext(ctx)
	s.recorded(w, r, pass, call{route: op.pattern, session: id, alters: op.alters, ends: op.ends}, func(w http.ResponseWriter, r *http.Request) error {
		n, _ := w.(*noted) // recorded gives no other
		return op.do(&controlCall{s, w, r, pass, share, id, n})
	})
}

// find returns the operation of a request and the id in its path.
func find(r *http.Request) (operation, string, bool) {
	segments := strings.Split(r.URL.Path, "/")
	for _, op := range operations() {
		method, path, _ := strings.Cut(op.pattern, " ")
		parts := strings.Split(path, "/")
		if method != r.Method || len(parts) != len(segments) {
			continue
		}
		id, ok := "", true
		for i, part := range parts {
			if part == "{id}" {
				id = segments[i]
			} else {
				ok = ok && part == segments[i]
			}
		}
		if ok {
			return op, id, true
		}
	}
	return operation{role: access.Viewer}, "", false
}

// Why parts of the control plane are not there.
const (
	noSnapshots = "boxd keeps no images of memory; pause with keepMemory: false keeps files, and the operator makes images (boxctl images commit)"
	noTemplates = "the operator prepares images and names them in [e2b.templates] of box.toml"
	noVolumes   = "the operator's profiles mount directories, workspaces and drives"
	noSecrets   = "the operator's profiles give secrets to boxes"
)

// unserved refuses a request that is no operation, by the name of what it is for where clients have one.
func unserved(r *http.Request) error {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if (path[0] == "v2" || path[0] == "v3") && len(path) > 1 {
		path = path[1:]
	}
	if len(path) == 3 && path[0] == "sandboxes" {
		path = path[2:]
	}
	switch {
	case path[0] == "fork":
		return unsupported("a fork", noSnapshots)
	case path[0] == "snapshots":
		return unsupported("a snapshot", noSnapshots)
	case path[0] == "templates" && r.Method == http.MethodDelete && len(path) == 2: // by which clients remove a snapshot, too
		return unsupported("the removal of a template or snapshot", noSnapshots)
	case path[0] == "templates":
		return unsupported("a build, tag or list of templates", noTemplates)
	case path[0] == "volumes", path[0] == "volumecontent":
		return unsupported("a volume", noVolumes)
	case path[0] == "secrets":
		return unsupported("a secret", noSecrets)
	}
	return refusal(http.StatusNotImplemented, fmt.Sprintf("%s %s is not served by boxd: see docs/guide/e2b.md for what is", r.Method, fault.Show(r.URL.Path)))
}

// caller is who has sent a request to the control plane; before is who that was when it came, nil when it comes.
func (s *Server) caller(w http.ResponseWriter, r *http.Request, op *operation, before *access.Pass) (pass access.Pass, err error) {
	switch g, text := gatewayOf(r.Context()), wire.Key(r); {
	case g != nil && before != nil:
		pass, err = s.cfg.Gate.ReassertedPass(before)
	case g != nil:
		pass, err = g.caller(s.cfg.Gate, w)
	case text == "":
		err = unauthorized("missing API key: set E2B_API_KEY to a token of boxd (boxctl token new)")
	default:
		if pass, err = s.cfg.Gate.Identify(&access.Peer{}, []string{"Bearer " + text}); err != nil {
			err = unauthorized("unknown, expired or revoked API key: E2B_API_KEY has to be a token of boxd (boxctl token new)")
		}
	}
	switch {
	case err != nil:
		return pass, err
	case !pass.Is(op.role):
		return pass, refusal(http.StatusForbidden, fmt.Sprintf("permission denied: this needs the %s role, you have %q (%s)", op.role, pass.Role, pass.Rule))
	case op.route != "" && !pass.Allows(op.route):
		return pass, notAllowed(&pass, op.route)
	}
	return pass, conns.Identify(r.Context(), pass.Name)
}

// notAllowed refuses what the token of a caller is not for.
func notAllowed(pass *access.Pass, route string) error {
	return refusal(http.StatusForbidden, fmt.Sprintf("permission denied: the token %s does not allow %s", fault.Show(pass.Token), route))
}

// getsTokens refuses those who would get tokens of a sandbox that lead to more than their key allows.
func (c *controlCall) getsTokens() error {
	for _, route := range dataRoutes() {
		if !c.pass.Allows(route) {
			return notAllowed(&c.pass, route+", which the tokens of a sandbox allow")
		}
	}
	return nil
}

// body reads a JSON object. Clients send fields that later versions know: they are passed over.
func (c *controlCall) body(into any) error {
	ctx := c.r.Context()
	release, err := c.limits.Reserve(ctx, maxBody)
	if err != nil {
		return err
	}
	defer release()
	expectBody(c.w, c.r) // it may have waited for its room
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return refusal(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", maxBody))
	}
	if err != nil {
		return refusal(http.StatusBadRequest, "read the body: "+err.Error())
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // or who waits long for a sandbox would be taken for gone
	if len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return refusal(http.StatusBadRequest, "the body is not the JSON object that was expected: "+err.Error())
	}
	return nil
}

// session is the sandbox in the path. One of somebody else and none are the same.
func (c *controlCall) session() (*session.Session, error) {
	s, err := c.server.cfg.Sup.Session(c.pass.Principal, c.id)
	if err != nil || s.Current().Labels[wire.LabelTemplate] == "" {
		return nil, wire.Missing(c.id)
	}
	return s, nil
}

// createRequest is the body of a request for a sandbox.
type createRequest struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout"` // seconds
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	Secure              *bool             `json:"secure"`
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	Network             *networkRequest   `json:"network"`
	AutoPause           bool              `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"` // absent: true
	AutoResume          *autoResume       `json:"autoResume"`
	VolumeMounts        []json.RawMessage `json:"volumeMounts"`
	MCP                 json.RawMessage   `json:"mcp"`
	IAM                 json.RawMessage   `json:"iam"`
}

// autoResume says whether whoever uses a paused sandbox resumes it.
type autoResume struct {
	Enabled bool `json:"enabled"`
}

// networkRequest says where programs of a sandbox may connect to.
type networkRequest struct {
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	AllowOut            []string          `json:"allowOut"`
	DenyOut             []string          `json:"denyOut"`
	Rules               json.RawMessage   `json:"rules"`
	EgressProxy         json.RawMessage   `json:"egressProxy"`
	AllowPublicTraffic  *bool             `json:"allowPublicTraffic"`
	MaskRequestHost     string            `json:"maskRequestHost"`
	HTTPSPorts          []json.RawMessage `json:"httpsPorts"`
}

// given reports whether a field of any form says something.
func given(raw json.RawMessage) bool {
	text := strings.TrimSpace(string(raw))
	return text != "" && text != "null" && text != "{}" && text != "[]" && text != "false"
}

// unsupported refuses what a client asks for and would not get.
func unsupported(field, why string) error {
	return refusal(http.StatusNotImplemented, fmt.Sprintf("%s is not served by boxd: %s", field, why))
}

// everywhere is how clients write every address.
var everywhere = netip.MustParsePrefix("0.0.0.0/0")

// label notes whether the ports of the sandbox may be public.
func (n *networkRequest) label(labels map[string]string) {
	switch {
	case n.AllowPublicTraffic == nil:
	case *n.AllowPublicTraffic:
		delete(labels, labelClosed)
	default:
		labels[labelClosed] = "true"
	}
}

// apply has the sandbox use the network as it was asked for, or refuses what boxd would not keep.
func (n *networkRequest) apply(req *policy.Request) error {
	switch {
	case given(n.Rules):
		return unsupported("network.rules", "list hosts in network.allowOut")
	case given(n.EgressProxy):
		return unsupported("network.egressProxy", "the operator configures the egress proxy of boxes")
	}
	deniesAll := false
	for _, text := range n.DenyOut {
		if text == "ALL_TRAFFIC" || text == everywhere.String() || text == "::/0" {
			deniesAll = true
			continue
		}
		return unsupported("network.denyOut = "+fault.Show(text), "boxes can connect only to what is allowed; deny 0.0.0.0/0 and list what is allowed in network.allowOut")
	}
	if n.AllowInternetAccess != nil && !*n.AllowInternetAccess {
		deniesAll = true
	}
	switch {
	case deniesAll && len(n.AllowOut) == 0:
		req.Network, req.NetworkRules = new(policy.NetworkOff), nil
	case deniesAll:
		req.Network, req.NetworkRules = new(policy.NetworkEgress), n.AllowOut
	}
	return nil // what is allowed beside everything changes nothing
}

// lifetime is max_lifetime of a sandbox that is so old and has seconds left.
func lifetime(age time.Duration, seconds int64) (*quantity.Duration, error) {
	if seconds < 0 || seconds > maxTimeout {
		return nil, fault.Field("timeout", seconds, fmt.Sprintf("0 to %d seconds", maxTimeout))
	}
	d := quantity.Duration(max(age, 0) + max(time.Duration(seconds)*time.Second, time.Millisecond))
	return &d, nil
}

// create makes a sandbox.
func (c *controlCall) create() error {
	if err := c.getsTokens(); err != nil {
		return err
	}
	var create createRequest
	if err := c.body(&create); err != nil {
		return err
	}
	sess, err := c.make(&create, func(*policy.Request) error { return nil })
	if err != nil {
		return err
	}
	reply(c.w, http.StatusCreated, c.answer(sess))
	return nil
}

// make makes a sandbox; adjust adds to what is asked of boxd.
func (c *controlCall) make(create *createRequest, adjust func(*policy.Request) error) (*session.Session, error) {
	req, err := c.request(create)
	if err != nil {
		return nil, err
	}
	if err := adjust(req); err != nil {
		return nil, err
	}
	c.noted.session = req.ID
	c.noted.what.Profile = req.Profile
	for env := range create.EnvVars {
		c.noted.what.Env = append(c.noted.what.Env, env)
	}
	s, _, err := c.server.cfg.Sup.Create(c.r.Context(), c.pass.Principal, req)
	if err != nil {
		return nil, err
	}
	c.server.index.add(s.ID, s.Owner.Name)
	if c.r.Context().Err() != nil { // nobody would ever hear of it
		return nil, errors.Join(errVanished, c.server.cfg.Sup.End(context.WithoutCancel(c.r.Context()), s, session.EndUnclaimed))
	}
	return s, nil
}

// request is what a client asks for as boxd has it.
func (c *controlCall) request(create *createRequest) (*policy.Request, error) {
	switch { // first, for some come with a template of their own, which is not there either
	case len(create.VolumeMounts) > 0:
		return nil, unsupported("volumeMounts", "the operator's profiles mount directories and workspaces")
	case given(create.MCP):
		return nil, unsupported("mcp", "start MCP servers as managed processes of the box (boxctl mcp)")
	case given(create.IAM):
		return nil, unsupported("iam", "boxes have no cloud identity")
	}
	name, template, ok := c.server.cfg.template(create.TemplateID)
	if !ok {
		return nil, refusal(http.StatusNotFound, fmt.Sprintf("template %s was not found; this host has %s", fault.Show(create.TemplateID), strings.Join(c.server.cfg.names(), ", ")))
	}
	req := c.server.cfg.request(template)
	req.ID = wire.NewID()
	if g := gatewayOf(c.r.Context()); g != nil { // which asks the next node where there is no room
		if req.ID = g.create; !wire.ValidID(req.ID) {
			return nil, fault.Field(wire.HeaderNew, req.ID, "the id of a sandbox: lower-case letters and digits")
		}
		req.Wait = new(quantity.Duration)
	}
	req.Env = create.EnvVars
	req.Metadata = create.Metadata
	req.Labels = map[string]string{wire.LabelTemplate: name, labelKey: c.pass.Token}
	seconds := int64(defaultTimeout)
	if create.Timeout != nil {
		seconds = *create.Timeout
	}
	var err error
	if req.MaxLifetime, err = lifetime(0, seconds); err != nil {
		return nil, err
	}
	never := quantity.Duration(0)
	req.TTL = &never
	if create.AutoPause {
		memory := create.AutoPauseMemory == nil || *create.AutoPauseMemory
		if memory && c.server.cfg.Sup.Overview().ControlGroups != string(policy.CgroupsUnified) {
			return nil, unsupported("autoPause with memory", noMemory)
		}
		pausing(req, seconds, memory)
	}
	if create.AutoResume != nil && create.AutoResume.Enabled {
		req.Labels[labelResume] = "true"
	}
	network := create.Network
	if network == nil {
		network = &networkRequest{}
	}
	if create.AllowInternetAccess != nil {
		network.AllowInternetAccess = create.AllowInternetAccess
	}
	network.label(req.Labels)
	if err := network.apply(req); err != nil {
		return nil, err
	}
	return req, nil
}

// sandboxAnswer is what clients learn of a sandbox when they get it.
type sandboxAnswer struct {
	TemplateID         string  `json:"templateID"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	Alias              string  `json:"alias,omitempty"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken"`
	TrafficAccessToken string  `json:"trafficAccessToken"`
	Domain             *string `json:"domain"`
}

func (c *controlCall) answer(sess *session.Session) *sandboxAnswer {
	s := c.server
	domain := s.domain(c.r.Context())
	return &sandboxAnswer{
		TemplateID: sess.Current().Labels[wire.LabelTemplate], SandboxID: sess.ID, ClientID: clientID, EnvdVersion: envdVersion,
		EnvdAccessToken: s.token(purposeAccess, sess), TrafficAccessToken: s.token(purposeTraffic, sess), Domain: &domain,
	}
}

// timeoutRequest is a body that has a time.
type timeoutRequest struct {
	Timeout  *int64 `json:"timeout"`  // seconds from now
	Duration *int64 `json:"duration"` // the same, of refreshes
}

// connect answers with the tokens of a sandbox, and has it live for longer, never shorter, unless it was paused.
func (c *controlCall) connect() error {
	sess, resumed, err := c.connected()
	if err != nil {
		return err
	}
	status := http.StatusOK
	if resumed {
		status = http.StatusCreated
	}
	reply(c.w, status, c.answer(sess))
	return nil
}

func (c *controlCall) connected() (sess *session.Session, resumed bool, err error) {
	if err := c.getsTokens(); err != nil {
		return nil, false, err
	}
	var req timeoutRequest
	if err := c.body(&req); err != nil {
		return nil, false, err
	}
	seconds := int64(defaultTimeout)
	if req.Timeout != nil {
		seconds = *req.Timeout
	}
	if _, err := lifetime(0, seconds); err != nil { // one that is paused with its memory has no end: nothing resumes it and then refuses to set one
		return nil, false, err
	}
	sess, err = c.session()
	if err != nil {
		return nil, false, err
	}
	if info := sess.Info(); isPaused(&info) && !c.pass.Allows(routeThaw) {
		return nil, false, notAllowed(&c.pass, routeThaw)
	}
	if sess, resumed, err = c.server.resume(c.r.Context(), sess); err != nil {
		return nil, false, err
	}
	return sess, resumed, c.extend(sess, seconds, !resumed)
}

// extend has a sandbox live for so many seconds from now; only longer: no shorter than it would.
func (c *controlCall) extend(sess *session.Session, seconds int64, onlyLonger bool) error {
	key := sess.Current().Labels[labelKey]
	if allows(&c.pass) { // or its tokens would lead nowhere from now on
		key = c.pass.Token
	}
	return c.server.extend(c.r.Context(), sess, seconds, onlyLonger, key)
}

// extend does the same for whoever holds a key, which is the one that has to hold from now on. It goes on without its client: a sandbox
// that was paused with its memory has no end before that.
func (s *Server) extend(ctx context.Context, sess *session.Session, seconds int64, onlyLonger bool, key string) error {
	ctx = context.WithoutCancel(ctx)
	now := sess.Current()
	life, err := lifetime(time.Since(sess.Created)-sess.Rested(), seconds)
	if err != nil {
		return err
	}
	req := &policy.Request{}
	labels := now.Labels
	if labels[labelKey] != key {
		req.Labels = maps.Clone(labels)
		req.Labels[labelKey] = key
		labels = req.Labels
	}
	switch end, pauses := endOf(labels); {
	case pauses && (!onlyLonger || time.Until(end) < time.Duration(seconds)*time.Second):
		req.Labels = withEnd(labels, seconds)
	case !pauses && (!onlyLonger || now.MaxLifetime != 0 && now.MaxLifetime < *life):
		req.Patch = limits.Patch{MaxLifetime: life}
	case req.Labels == nil:
		return nil
	}
	return s.cfg.Sup.Update(ctx, sess, req)
}

// timeout sets how long a sandbox lives from now on.
func (c *controlCall) timeout() error { return c.setTimeout(false) }

// refresh has a sandbox live for longer.
func (c *controlCall) refresh() error { return c.setTimeout(true) }

func (c *controlCall) setTimeout(onlyLonger bool) error {
	if _, err := c.changedTimeout(onlyLonger); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *controlCall) changedTimeout(onlyLonger bool) (*session.Session, error) {
	var req timeoutRequest
	if err := c.body(&req); err != nil {
		return nil, err
	}
	sess, err := c.session()
	if err != nil {
		return nil, err
	}
	if info := sess.Info(); info.State == session.StateStopped || info.State == session.StateStopping { // which has no time that passes
		return nil, session.StoppedError(sess.ID)
	}
	seconds := req.Timeout
	if seconds == nil {
		seconds = req.Duration
	}
	if seconds == nil {
		return nil, fault.Field("timeout", fault.Word("missing"), "a number of seconds")
	}
	return sess, c.extend(sess, *seconds, onlyLonger)
}

// kill ends a sandbox.
func (c *controlCall) kill() error {
	s, err := c.session()
	if err != nil {
		return err
	}
	if err := c.server.cfg.Sup.End(c.r.Context(), s, session.EndDeleted); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// pauseRequest is the body of a request to pause.
type pauseRequest struct {
	Memory *bool `json:"memory"` // absent: true
}

// pause has a sandbox do nothing until it is connected to again.
func (c *controlCall) pause() error {
	if _, err := c.pausedNow(); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *controlCall) pausedNow() (*session.Session, error) {
	var req pauseRequest
	if err := c.body(&req); err != nil {
		return nil, err
	}
	memory := req.Memory == nil || *req.Memory
	if !memory && !c.pass.Allows(routeStop) {
		return nil, notAllowed(&c.pass, routeStop)
	}
	sess, err := c.session()
	if err != nil {
		return nil, err
	}
	return sess, c.server.pause(c.r.Context(), sess, memory)
}

// network changes where programs of a sandbox may connect to.
func (c *controlCall) network() error {
	var change networkRequest
	if err := c.body(&change); err != nil {
		return err
	}
	s, err := c.session()
	if err != nil {
		return err
	}
	req := &policy.Request{}
	if err := change.apply(req); err != nil {
		return err
	}
	if now := s.Current(); now.Network == policy.NetworkEgress && req.Network != nil && *req.Network == policy.NetworkOff { // it keeps its network, which leads nowhere
		req.Network, req.NetworkRules = nil, []string{}
	}
	if now := s.Current(); req.Network != nil && *req.Network != now.Network || now.Network != policy.NetworkEgress {
		return unsupported("this change of the network", fmt.Sprintf("a box keeps the network %q that it was created with; only the rules of an egress network can change", now.Network))
	}
	if req.NetworkRules == nil {
		req.NetworkRules = s.Profile().NetworkRules
	}
	if change.AllowPublicTraffic != nil {
		req.Labels = maps.Clone(s.Current().Labels)
		change.label(req.Labels)
	}
	if err := c.server.cfg.Sup.Update(c.r.Context(), s, req); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// alias tells whether there is a template of a name.
func (c *controlCall) alias() error {
	name, _, ok := c.server.cfg.template(c.id)
	if !ok {
		return refusal(http.StatusNotFound, fmt.Sprintf("template %s was not found", fault.Show(c.id)))
	}
	reply(c.w, http.StatusOK, map[string]any{"templateID": name, "public": false})
	return nil
}

// number reads a whole number of a query; without one it is the usual.
func (c *controlCall) number(name string, def, minimum, limit int64) (int64, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < minimum || n > limit {
		return 0, fault.Field(name, text, fmt.Sprintf("a number, %d to %d", minimum, limit))
	}
	return n, nil
}
