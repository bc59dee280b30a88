// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// placement is what a request says of where its session is to be: the field placement of POST /v1/sessions. Nodes do not see it.
type placement struct {
	Node     string            `json:"node,omitempty"`     // this one alone
	Requires map[string]string `json:"requires,omitempty"` // labels it must have
	Prefers  map[string]string `json:"prefers,omitempty"`  // labels that count for it
	Can      []string          `json:"can,omitempty"`      // capabilities it must have
	Spread   bool              `json:"spread,omitempty"`   // away from the owner's other sessions

	near map[string]float64 // the share of what the session needs that nodes are known to have
	only string             // the node that has the named workspaces that it needs; "": it needs none
}

// How many nodes are looked at, and what counts how much. A lower score is better.
const (
	sampleSize = 4 // K of "the best of K drawn at random": gateways that know the same do not all choose the same node

	warmCounts   = -0.5
	preferCounts = -0.25
	nearCounts   = -0.5 // for all that the session needs: otherwise it has to be sent
	spreadCounts = 0.5  // for each session of the owner
)

// wanted is what placement has to know of a request.
type wanted struct {
	Profile string         `json:"profile"`
	Memory  *quantity.Size `json:"memory"`
	ID      string         `json:"id"`
	sessionSpec

	Template  string             `json:"template"`
	Variables map[string]string  `json:"variables"`
	DryRun    bool               `json:"dry_run"`
	Wait      *quantity.Duration `json:"wait"`
	Placement *placement         `json:"placement"`
}

// fits reports why a node cannot take a session; "": it can.
func (p *placement) fits(n *nodeState) string {
	switch {
	case p.Node != "" && p.Node != n.Name:
		return "the request names another"
	case p.only != "" && p.only != n.Name:
		return "its workspace is on another node"
	case n.State != api.FleetNodeReady:
		return "it is " + n.State
	case n.cordon != nil && n.cordon.Reason != "":
		return "it is cordoned: " + n.cordon.Reason
	case n.cordon != nil:
		return "it is cordoned"
	case n.MaxSessions > 0 && n.Sessions >= n.MaxSessions:
		return fmt.Sprintf("it has %d boxes, the limit", n.Sessions)
	case n.IDRanges > 0 && n.IDRangesUsed >= n.IDRanges && len(n.Warm) == 0: // a warm box has its ids
		return fmt.Sprintf("all its %d id ranges are in use", n.IDRanges)
	case n.Pids > 0 && n.PidsUsed >= n.Pids:
		return fmt.Sprintf("it has %d processes and threads, the limit of its kernel", n.PidsUsed)
	}
	for name, value := range p.Requires {
		if n.Labels[name] != value {
			return fmt.Sprintf("it has no label %s=%s", name, value)
		}
	}
	for _, c := range p.Can {
		if !slices.Contains(n.Capabilities, c) {
			return "it cannot " + c
		}
	}
	return ""
}

// score says how much is against a node.
func (p *placement) score(n *nodeState, profile string, own int) float64 {
	share := func(used, all float64) float64 {
		if all <= 0 {
			return 0
		}
		return used / all
	}
	s := share(float64(n.MemoryReserved), float64(n.Memory)) + share(n.CPUsReserved, float64(n.CPUs)) +
		share(float64(n.Sessions), float64(n.MaxSessions)) + share(float64(n.PidsUsed), float64(n.Pids)) + share(float64(n.Memory-min(n.Memory, n.MemoryAvailable)), float64(n.Memory)) +
		(n.Pressure.CPU+n.Pressure.Memory+n.Pressure.IO)/100
	if slices.Contains(n.Warm, cmp.Or(profile, "default")) {
		s += warmCounts
	}
	for name, value := range p.Prefers {
		if n.Labels[name] == value {
			s += preferCounts
		}
	}
	s += nearCounts * p.near[n.Name]
	if p.Spread {
		s += spreadCounts * float64(own)
	}
	return s
}

// choose orders the nodes that can take a session, the best of those drawn first; none says why there is none.
func choose(p *placement, nodes []nodeState, profile string, own map[string]int) (list []nodeState, none string) {
	reasons := map[string][]string{}
	for i := range nodes {
		if why := p.fits(&nodes[i]); why != "" {
			reasons[why] = append(reasons[why], nodes[i].Name)
			continue
		}
		list = append(list, nodes[i])
	}
	if len(list) == 0 {
		var why []string
		for reason, names := range reasons {
			why = append(why, strings.Join(names, ", ")+": "+reason)
		}
		slices.Sort(why)
		return nil, cmp.Or(strings.Join(why, "; "), "there is no node")
	}
	mathrand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	k := min(len(list), sampleSize)
	slices.SortStableFunc(list[:k], func(a, b nodeState) int {
		return cmp.Compare(p.score(&a, profile, own[a.Name]), p.score(&b, profile, own[b.Name]))
	})
	return list, ""
}

// full is the refusal of what no node can take.
func full(why string) error {
	return fault.Errorf(fault.Exhausted, "no node can take it: %s", why).WithHint("GET /v1/fleet/nodes shows what is free; wait, or ask for less")
}

// unread is the failure to read claims.
func unread(err error) error {
	return fault.Errorf(fault.Unavailable, "the claims of the fleet cannot be read: %w", err).WithHint("try again: NATS JetStream may be choosing a leader")
}

// maxRequest is the largest request for a session, in bytes.
const maxRequest = 1 << 20

// maxID is the longest id that nodes take, in bytes. It is claimed before a node sees it.
const maxID = 256

// create places a session: it is claimed for a node, which may refuse it, and then for the next.
func (g *gateway) create(c *call) error {
	data, err := c.readBody(maxRequest)
	if err != nil {
		return err
	}
	fields := map[string]json.RawMessage{}
	var want wanted
	if err := errors.Join(json.Unmarshal(data, &fields), json.Unmarshal(data, &want)); err != nil {
		return fault.Errorf(fault.Invalid, "the request for a session cannot be decoded: %w", err).WithHint("see /v1/openapi.json of a node, and docs/guide/fleet.md for placement")
	}
	place := want.Placement
	if place == nil {
		place = &placement{}
	}
	delete(fields, "placement")
	if want.DryRun {
		return g.plan(c, place, &want, fields)
	}
	if want.ID == "" {
		if want.ID, err = g.name(c, place, fields, &want); err != nil {
			return err
		}
		if want.Template == "" && len(want.Variables) == 0 {
			fields["id"], _ = json.Marshal(want.ID) // a string can be marshalled
		}
	}
	if len(want.ID) > maxID {
		return fault.Field("id", want.ID, fmt.Sprintf("at most %d bytes", maxID))
	}
	c.span.setSession(want.ID)
	return g.claim(c, place, &want, fields)
}

// plan has a node say what it would make of a request.
func (g *gateway) plan(c *call, place *placement, want *wanted, fields map[string]json.RawMessage) error {
	var err error
	if place.only, err = g.workspacesNode(c, want.neededWorkspaces()); err != nil {
		return err
	}
	list, none := choose(place, g.known(), "", nil)
	if len(list) == 0 {
		return full(none)
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	c.setBody(body)
	return g.pass(c, list[0].Name, nil)
}

// name is the id that a session will have: of a template a node knows it.
func (g *gateway) name(c *call, place *placement, fields map[string]json.RawMessage, want *wanted) (string, error) {
	if want.Template == "" && len(want.Variables) == 0 {
		return strings.ToLower(rand.Text()[:12]), nil
	}
	list, none := choose(place, g.known(), want.Profile, nil)
	if len(list) == 0 {
		return "", full(none)
	}
	dry := map[string]json.RawMessage{"dry_run": json.RawMessage("true")}
	maps.Copy(dry, fields)
	body, err := json.Marshal(dry)
	if err != nil {
		return "", err
	}
	resp, err := g.request(c, &list[0], http.MethodPost, "/v1/sessions", body)
	if err != nil {
		return "", unreached(list[0].Name, err)
	}
	defer resp.Body.Close()
	var plan api.Plan
	if resp.StatusCode != http.StatusOK {
		return "", asFault(resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxRequest)).Decode(&plan); err != nil || plan.Session == nil || plan.Session.ID == "" {
		return "", fault.Errorf(fault.Unavailable, "node %s reports no session id: %v", list[0].Name, err).WithHint("give the session an id")
	}
	return plan.Session.ID, nil
}

// asFault is the problem of a node, as an error.
func asFault(resp *http.Response) error {
	var p struct {
		api.Problem
		Message string `json:"message"` // as answers of E2B have it
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxRequest)).Decode(&p); err != nil {
		return fault.Errorf(fault.Unavailable, "a node has answered %s", resp.Status).WithHint("see the log of its boxd")
	}
	p.Status = resp.StatusCode
	return asError(&p.Problem, errors.New(cmp.Or(p.Detail, p.Message)))
}

// asError is the problem of a node, as an error with a text.
func asError(p *api.Problem, text error) error {
	kinds := map[int]fault.Kind{
		http.StatusBadRequest: fault.Invalid, http.StatusNotFound: fault.NotFound, http.StatusConflict: fault.Conflict, http.StatusForbidden: fault.Denied,
		http.StatusTooManyRequests: fault.Exhausted, http.StatusNotImplemented: fault.Unsupported,
	}
	kind, ok := kinds[p.Status]
	if !ok {
		kind = fault.Unavailable
	}
	return &fault.Error{Kind: kind, Field: p.Field, Value: p.Value, Allowed: p.Allowed, Hint: p.Hint, Err: text}
}

// peekBody reads the beginning of the body, of at most that many bytes, which stays to be read.
func (c *call) peekBody(maxBytes int64) ([]byte, error) {
	head, err := io.ReadAll(io.LimitReader(c.r.Body, maxBytes))
	body := c.r.Body
	c.r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), body), body}
	return head, err
}

// readBody reads the whole body, of at most that many bytes.
func (c *call) readBody(maxBytes int64) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBytes))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fault.Field("body", fault.Word("longer"), fmt.Sprintf("at most %d bytes", maxBytes))
	}
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "read the body: %w", err).WithHint("send it again")
	}
	return data, nil
}

func (c *call) setBody(body []byte) {
	c.r.Body, c.r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	c.r.Header.Del("Content-Length")
	c.r.TransferEncoding = nil
}

// request makes a request of its own to a node, in the name of a caller.
func (g *gateway) request(c *call, n *nodeState, method, target string, body []byte) (*http.Response, error) {
	return g.send(c, n, method, target, "application/json", bytes.NewReader(body))
}

// send is request with a body of another type, which may be a stream.
func (g *gateway) send(c *call, n *nodeState, method, target, contentType string, body io.Reader) (*http.Response, error) {
	u, err := url.Parse("http://" + n.Name + target)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(c.r.Context(), method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Host = "boxd"
	req.Header.Set("Content-Type", contentType)
	for _, name := range []string{trace.HeaderID, trace.HeaderParent, trace.HeaderState} {
		if v := c.r.Header.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	if err := g.sign(c, n, req); err != nil {
		return nil, err
	}
	resp, err := g.transport.RoundTrip(req)
	if err == nil && c.refused(resp) {
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return resp, err
}
