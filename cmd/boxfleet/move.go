// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A session moves as a new one on the other node, which is given the files of the old one: so the other node decides about it as about
// any session, and knows nothing of moves. Until the claim changes, in one step, the old one is the session; from then on the new one
// is, and the old node ends its own as any that somebody else has claimed. What breaks off before leaves the old one as it was.

// How long a claim can be on its way without news of the gateway that moves it, before its node takes it back, and how often the
// gateway gives that news.
const (
	movingFor   = 20 * time.Second
	movingNews  = 5 * time.Second
	maxMoveBody = 1 << 16
)

// relocation is a move under way.
type relocation struct {
	g        *gateway
	c        *call // in the name of the session's owner
	from, to *seen
	ran      bool // it was not stopped before
	made     bool // the node to which it goes has one

	mu    sync.Mutex // guards the field below
	claim *sessionClaim
}

// move takes a session to another node: POST /v1/fleet/sessions/{id}/move.
func (g *gateway) move(c *call, id string) error {
	owner, err := c.owner()
	if err != nil {
		return err
	}
	var ask api.FleetMove
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxMoveBody))
	if err == nil && len(data) > 0 {
		in := json.NewDecoder(bytes.NewReader(data))
		in.DisallowUnknownFields()
		err = in.Decode(&ask)
	}
	if err != nil {
		return fault.Errorf(fault.Invalid, "the request for a move cannot be decoded: %w", err).WithHint("it has node and leave_out, or is empty: see docs/guide/fleet.md")
	}
	began := time.Now()
	r := &relocation{g: g, c: c.as(owner)}
	if err := r.find(owner, id); err != nil {
		return err
	}
	d, list, err := r.plan(&ask)
	if err != nil {
		return err
	}
	if err := r.run(d, list); err != nil {
		g.events.add("session_not_moved", r.from.Name, id, err.Error())
		return err
	}
	g.events.add("session_moved", r.to.Name, id, "from "+r.from.Name)
	c.span.setSession(id)
	reply(c.w, http.StatusOK, api.FleetMoved{ID: id, Owner: owner, From: r.from.Name, Node: r.to.Name, Generation: r.claim.Generation, LeftOut: d.LeftOut, DurationMS: time.Since(began).Milliseconds()})
	return nil
}

// as is the same call in the name of the owner of a session, where the gateway lets the caller act for that.
func (c *call) as(owner string) *call {
	out := *c
	if owner != c.pass.Name {
		out.pass = access.Pass{Principal: access.Principal{Name: owner, Role: access.User}}
	} else {
		out.pass = access.Pass{Principal: c.pass.Principal} // its token is for the route of the move; what that needs is the gateway's to ask for
	}
	return &out
}

// find reads where the session is.
func (r *relocation) find(owner, id string) error {
	claims, _, err := r.g.table()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.c.r.Context(), requestPatience)
	defer cancel()
	claim, err := getClaim(ctx, claims, claimKey(owner, id))
	switch {
	case err != nil:
		return unread(err)
	case claim == nil:
		return fault.Errorf(fault.NotFound, "no session %s", fault.Show(id)).WithHint("boxctl ls lists them")
	case claim.State == api.FleetClaimLost:
		return lost(claim)
	case claim.State == api.FleetClaimMoving:
		return moving(claim)
	case claim.State != api.FleetClaimLive:
		return fault.Errorf(fault.Conflict, "session %s is starting", fault.Show(id)).WithHint("try again")
	case claim.Sandbox:
		return fault.Errorf(fault.Unsupported, "session %s is a sandbox of E2B's clients, whose tokens are good on its node alone", fault.Show(id)).WithHint("it stays on its node until it ends")
	}
	n, ok := r.g.node(claim.Node)
	if !ok || n.lost {
		return fault.Errorf(fault.Unavailable, "node %s, which has session %s, cannot be reached", claim.Node, fault.Show(id)).WithHint("GET /v1/fleet/nodes lists the nodes")
	}
	r.claim, r.from = claim, &n
	return nil
}

// moving is the refusal of what is asked of a session that is being moved.
func moving(claim *sessionClaim) error {
	return fault.Errorf(fault.Conflict, "session %s is being moved from node %s to %s since %s", fault.Show(claim.ID), claim.Node, claim.To, claim.Since.UTC().Format(time.RFC3339)).
		WithHint("try again when it is there")
}

// plan reads what the session is made of, and lists the nodes that could have it. Nothing has been changed yet.
func (r *relocation) plan(ask *api.FleetMove) (*api.SessionDefinition, []seen, error) {
	id := r.claim.ID
	if ask.Node == r.from.Name {
		return nil, nil, fault.Field("node", ask.Node, "another node than that which has the session")
	}
	nodes := slices.DeleteFunc(r.g.known(), func(n seen) bool { return n.Name == r.from.Name })
	if ask.Node != "" && !slices.ContainsFunc(nodes, func(n seen) bool { return n.Name == ask.Node }) {
		return nil, nil, fault.Field("node", ask.Node, "the name of a node: GET /v1/fleet/nodes lists them")
	}
	d, err := r.definition()
	if err != nil {
		return nil, nil, err
	}
	var is api.SessionRequest
	if err := json.Unmarshal(d.Session, &is); err != nil {
		return nil, nil, fmt.Errorf("node %s: definition of session %q: %w", r.from.Name, id, err)
	}
	switch {
	case is.Workspace != "" || len(is.Inputs) > 0:
		return nil, nil, fault.Errorf(fault.Conflict, "session %s uses a named workspace, which stays on node %s", fault.Show(id), r.from.Name).WithHint("make a session without one on the other node, and copy what it needs: boxctl cp")
	case len(d.LeftOut) > 0 && !ask.LeaveOut:
		return nil, nil, fault.Errorf(fault.Conflict, "a move of session %s would lose: %s", fault.Show(id), strings.Join(d.LeftOut, "; ")).WithHint("set leave_out to move it without these")
	}
	profile := cmp.Or(is.Profile, "default")
	list, none := choose(&placement{Node: ask.Node}, nodes, profile, nil)
	if len(list) == 0 {
		return nil, nil, full(none)
	}
	return d, list, nil
}

// run moves the session, or leaves it where and as it was.
func (r *relocation) run(d *api.SessionDefinition, list []seen) (err error) {
	ctx, cancel := context.WithCancelCause(r.c.r.Context())
	defer cancel(nil)
	r.c.r = r.c.r.WithContext(ctx)
	if err := r.place(d, list); err != nil {
		return err
	}
	var news sync.WaitGroup
	news.Go(func() { r.giveNews(ctx, cancel) })
	err = r.carry()
	if err == nil {
		err = r.settle()
	} else {
		err = errors.Join(err, r.undo())
	}
	cancel(nil)
	news.Wait()
	return err
}

// place has a node make the session. It is not the fleet's there yet.
func (r *relocation) place(d *api.SessionDefinition, list []seen) error {
	var refused []string
	for i := range list {
		r.to = &list[i]
		why, err := r.offer(d)
		if err == nil && why == "" {
			return nil
		}
		if err != nil {
			return errors.Join(err, r.undo())
		}
		r.g.metrics.refusals.WithLabelValues(r.to.Name).Inc()
		refused = append(refused, r.to.Name+": "+why)
	}
	return errors.Join(full(strings.Join(refused, "; ")), r.undo())
}

// offer asks a node for the session; why says why it does not take it.
func (r *relocation) offer(d *api.SessionDefinition) (why string, err error) {
	// One that is not of the fleet would end there with a move that breaks off.
	switch err := r.call(r.to, http.MethodGet, "", nil, nil); {
	case err == nil:
		return "it has a session of this name that is not of the fleet", nil
	case fault.KindOf(err) != fault.NotFound:
		return err.Error(), nil // and the next is asked
	}
	generation := r.claim.Generation + 1
	for range 2 { // a node that has had it in a later generation says which
		if err := r.change(r.c.r.Context(), func(c *sessionClaim) { c.State, c.To, c.ToGeneration = api.FleetClaimMoving, r.to.Name, generation }); err != nil {
			return "", err
		}
		_, bucket, err := r.g.table()
		if err != nil {
			return "", err
		}
		var answer fenced
		err = request(r.c.r.Context(), r.g.nc, r.to.Name, "fence", &fence{Owner: r.claim.Owner, ID: r.claim.ID, Generation: generation, Bucket: bucket, Coming: true}, &answer)
		switch {
		case err != nil:
			return err.Error(), nil //nolint:nilerr // it is why the next is asked
		case answer.Error != "":
			return answer.Error, nil
		case !answer.OK:
			generation = answer.Highest + 1
			continue
		}
		return r.make(d)
	}
	return "it has a later generation of the session", nil
}

func (r *relocation) make(d *api.SessionDefinition) (why string, err error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(d.Session, &fields); err != nil {
		return "", err
	}
	fields["wait"] = json.RawMessage(`"0s"`)
	body, err := json.Marshal(fields)
	if err != nil {
		return "", err
	}
	resp, err := r.g.ask(r.c, r.to, http.MethodPost, "/v1/sessions", body)
	if err != nil {
		return err.Error(), nil // and if it has made one, it ends that, as no claim is for it
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusCreated:
		r.made = true
		return "", nil
	case http.StatusOK:
		return "it has a session of this name that is not of the fleet", nil
	}
	return asFault(resp).Error(), nil
}

// carry stops the session, and takes its files and processes along.
func (r *relocation) carry() error {
	var is api.Session
	if err := r.call(r.from, http.MethodGet, "", nil, &is); err != nil {
		return err
	}
	if is.State != "stopped" {
		r.ran = true
		if err := r.call(r.from, http.MethodPost, "/stop", nil, nil); err != nil {
			return err
		}
	}
	d, err := r.definition() // its processes may be others by now
	if err != nil {
		return err
	}
	for _, path := range d.Paths {
		if err := r.copy(path); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.Processes)) {
		if err := r.call(r.to, http.MethodPut, "/processes/"+url.PathEscape(id), d.Processes[id], nil); err != nil {
			return fmt.Errorf("process %s: %w", fault.Show(id), err)
		}
	}
	if r.ran {
		return nil
	}
	return r.call(r.to, http.MethodPost, "/stop", nil, nil)
}

// copy takes a directory of the session along.
func (r *relocation) copy(path string) error {
	query := url.Values{"path": {path}}
	from, err := r.g.ask(r.c, r.from, http.MethodGet, r.target("/archive?"+query.Encode()), nil)
	if err != nil {
		return unreached(r.from.Name, err)
	}
	defer from.Body.Close()
	if from.StatusCode != http.StatusOK {
		return fmt.Errorf("files of %s on node %s: %w", path, r.from.Name, asFault(from))
	}
	query.Set("overwrite", "true")
	query.Set("outward_links", "true")
	files := &watched{from: from.Body}
	to, err := r.g.send(r.c, r.to, http.MethodPut, r.target("/archive?"+query.Encode()), "application/x-tar", files)
	if broken := files.broken(); broken != nil {
		err = fault.Errorf(fault.Unavailable, "node %s has broken off the archive of %s: %w", r.from.Name, path, broken).WithHint("boxctl cp of that directory says why")
	} else if err != nil {
		err = unreached(r.to.Name, err)
	}
	if to != nil {
		defer to.Body.Close()
	}
	if err != nil {
		return err
	}
	if to.StatusCode != http.StatusOK {
		return fmt.Errorf("files of %s on node %s: %w", path, r.to.Name, asFault(to))
	}
	return nil
}

// watched is a stream that remembers why it has broken off.
type watched struct {
	from io.Reader

	mu  sync.Mutex // the transport may still read when its request has been answered
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}
	return n, err
}

func (w *watched) broken() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// settle makes the new session the fleet's, and ends the old one.
func (r *relocation) settle() error {
	err := r.change(r.c.r.Context(), func(c *sessionClaim) {
		c.Node, c.Generation, c.State, c.Since, c.To, c.ToGeneration = c.To, c.ToGeneration, api.FleetClaimLive, time.Now(), "", 0
	})
	switch {
	case fault.KindOf(err) == fault.Conflict:
		return errors.Join(err, r.undo())
	case err != nil: // it may have been written
		return fault.Errorf(fault.Unavailable, "it is not known whether session %s has moved: %w", fault.Show(r.claim.ID), err).
			WithHint("within %v it is on one of nodes %s and %s: GET /v1/fleet/sessions", movingFor, r.from.Name, r.to.Name)
	}
	// Otherwise the other node knows with its next announcement that it is no more on its way.
	if err := r.g.remind(r.c.r.Context(), r.claim); err != nil {
		r.g.log.Warn("a node was not told of a session that has arrived", "session", r.claim.ID, "node", r.to.Name, "error", err)
	}
	if err := r.call(r.from, http.MethodDelete, "", nil, nil); err != nil && fault.KindOf(err) != fault.NotFound {
		r.g.log.Warn("cannot remove a session that has moved; its node will", "session", r.claim.ID, "node", r.from.Name, "error", err)
	}
	return nil
}

// undo leaves the session where it was, and running if it ran.
func (r *relocation) undo() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.c.r.Context()), 2*streamTimeout)
	defer cancel()
	r.c.r = r.c.r.WithContext(ctx)
	r.mu.Lock()
	marked := r.claim.State == api.FleetClaimMoving
	r.mu.Unlock()
	var err error
	if marked {
		err = r.change(ctx, func(c *sessionClaim) { c.State, c.Since, c.To, c.ToGeneration = api.FleetClaimLive, time.Now(), "", 0 })
	}
	if r.made {
		if err := r.call(r.to, http.MethodDelete, "", nil, nil); err != nil && fault.KindOf(err) != fault.NotFound {
			r.g.log.Warn("cannot remove a session whose move broke off; its node will", "session", r.claim.ID, "node", r.to.Name, "error", err)
		}
	}
	if r.ran {
		err = errors.Join(err, r.call(r.from, http.MethodPost, "/start", nil, nil))
	}
	if err == nil {
		return nil
	}
	return fault.Errorf(fault.Unavailable, "session %s is on node %s, and could not be left as it was: %w", fault.Show(r.claim.ID), r.from.Name, err).WithHint("if it is stopped, start it: boxctl start BOX")
}

// giveNews tells the nodes that the move goes on, and breaks it off if the claim is somebody else's to change by now.
func (r *relocation) giveNews(ctx context.Context, breakOff context.CancelCauseFunc) {
	next := time.NewTicker(movingNews)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		r.mu.Lock()
		going := r.claim.State == api.FleetClaimMoving
		r.mu.Unlock()
		if !going {
			return
		}
		if err := r.change(ctx, func(*sessionClaim) {}); fault.KindOf(err) == fault.Conflict {
			breakOff(err)
			return
		}
	}
}

// change writes the claim anew. A conflict says that somebody else has.
func (r *relocation) change(ctx context.Context, what func(*sessionClaim)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	claims, _, err := r.g.table()
	if err != nil {
		return err
	}
	next := *r.claim
	if what(&next); next.State == api.FleetClaimMoving && r.claim.State != api.FleetClaimMoving {
		next.Since = time.Now()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestPatience)
	defer cancel()
	next.revision, err = putClaim(ctx, claims, &next)
	switch {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the claim of session %s has changed meanwhile", fault.Show(next.ID)).WithHint("try again")
	case err != nil:
		return fault.Errorf(fault.Unavailable, "the claim of session %s cannot be written: %w", fault.Show(next.ID), err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	r.claim = &next
	return nil
}

// target is a path of the session.
func (r *relocation) target(rest string) string {
	return "/v1/sessions/" + url.PathEscape(r.claim.ID) + rest
}

func (r *relocation) definition() (*api.SessionDefinition, error) {
	d := &api.SessionDefinition{}
	return d, r.call(r.from, http.MethodGet, "/definition", nil, d)
}

// call makes a request about the session to a node, and decodes the answer into out, unless that is nil.
func (r *relocation) call(n *seen, method, rest string, body []byte, out any) error {
	resp, err := r.g.ask(r.c, n, method, r.target(rest), body)
	if err != nil {
		if cause := context.Cause(r.c.r.Context()); cause != nil {
			return cause
		}
		return unreached(n.Name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("node %s: %w", n.Name, asFault(resp))
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16*maxRequest)).Decode(out); err != nil {
		return fmt.Errorf("node %s: %s %s: %w", n.Name, method, strconv.Quote(r.target(rest)), err)
	}
	return nil
}
