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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"
)

// Bounds of waiting for room.
const (
	maxWaiting  = 1024
	maxOwn      = 256 // of these, of one caller
	defaultWait = 10 * time.Second
	longestWait = time.Hour
	retryEvery  = 500 * time.Millisecond
	retries     = 16 // at once, of all callers: each may ask every node
	trying      = 4  // of those of a caller who wait, the first, try again: the others would only be in their way
)

// queue is who waits for room, in the order they came.
type queue struct {
	mu   sync.Mutex
	list []*ticket
}

// ticket is one of them.
type ticket struct{ caller string }

// enter takes a place at the end; nil: there is none.
func (q *queue) enter(caller string) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &ticket{caller}
	if len(q.list) >= maxWaiting || q.ownLocked(t) >= maxOwn {
		return nil
	}
	q.list = append(q.list, t)
	return t
}

// tries reports whether a ticket is among the first of its caller. What one caller waits for may never come, and is to keep no
// other from what is there.
func (q *queue) tries(t *ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ownLocked(t) < trying
}

// ownLocked is how many of its caller are before a ticket; one that has no place is behind all.
func (q *queue) ownLocked(t *ticket) (n int) {
	for _, other := range q.list {
		if other == t {
			break
		}
		if other.caller == t.caller {
			n++
		}
	}
	return n
}

// place is that of a ticket, 1 for the first.
func (q *queue) place(t *ticket) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(q.list, t) + 1
}

func (q *queue) leave(t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = slices.DeleteFunc(q.list, func(other *ticket) bool { return other == t })
}

// len is how many wait.
func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list)
}

// claim claims a session for one node after another until one has it. Where it is claimed already, that node answers.
func (g *gateway) claim(c *call, place *placement, want *wanted, fields map[string]json.RawMessage) error {
	claims, bucket, err := g.table()
	if err != nil {
		return err
	}
	r := &reservation{g: g, c: c, claims: claims, bucket: bucket, place: place, want: want, key: claimKey(c.pass.Name, want.ID), target: "/v1/sessions"}
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	if r.claim, err = getClaim(ctx, claims, r.key); err != nil {
		return unread(err)
	}
	if b := r.claim; b != nil {
		switch {
		case b.State == api.FleetClaimLost:
			return g.lost(b)
		case b.State == api.FleetClaimMoving:
			return moving(b)
		case b.State == api.FleetClaimLive || g.recent(b):
			if b.State == api.FleetClaimStarting { // by a gateway that may have died before it told the node
				if err := g.remind(ctx, b); err != nil {
					return err
				}
			}
			body, err := json.Marshal(fields)
			if err != nil {
				return err
			}
			c.setBody(body) // its node has it, or says how it differs
			return g.pass(c, b.Node, nil)
		}
	}
	fields = maps.Clone(fields)
	fields["wait"] = json.RawMessage(`"0s"`) // a node that is full says so at once, and the next is asked
	if r.body, err = json.Marshal(fields); err != nil {
		return err
	}
	return r.begin()
}

// begin has a node make the session, and counts that.
func (r *reservation) begin() error {
	start := time.Now()
	err := r.run()
	r.g.metrics.claimed(r.placed, r.c.r.Context().Err() != nil, err, time.Since(start))
	return err
}

// start is a claim that is starting, as another gateway has left it.
type start struct {
	revision uint64
	seen     time.Time // first
}

// maxStarts bounds how many of these a gateway remembers.
const maxStarts = 1 << 14

// recent reports whether a session may still be made for a claim that is starting. The time in it is of another's clock, which may
// be hours off: this gateway counts from when it has seen the claim first.
func (g *gateway) recent(claim *sessionClaim) bool {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if s, ok := g.starts[claim.key]; ok && s.revision == claim.revision {
		return now.Sub(s.seen) < startingFor
	}
	if len(g.starts) >= maxStarts {
		maps.DeleteFunc(g.starts, func(_ string, s start) bool { return now.Sub(s.seen) >= startingFor })
	}
	if len(g.starts) < maxStarts {
		g.starts[claim.key] = start{claim.revision, now}
	}
	return true
}

// remind has a node remember the generation of its claim: it looks after no session of which it does not know one.
func (g *gateway) remind(ctx context.Context, claim *sessionClaim) error {
	_, bucket, err := g.table()
	if err != nil {
		return err
	}
	var answer fenced
	f := claim.fence(bucket)
	f.Again = true
	err = request(ctx, g.nc, claim.Node, "fence", f, &answer)
	switch {
	case err == nil && answer.Error != "":
		return fault.Errorf(fault.Unavailable, "node %s: %s", claim.Node, answer.Error).WithHint("try again")
	case err == nil && !answer.OK && answer.Highest != claim.Generation:
		err = fmt.Errorf("it has a later generation of session %s", fault.Show(claim.ID))
	}
	if err != nil {
		return unreached(claim.Node, err)
	}
	return nil
}

// reservation is a request for a session on its way to a node.
type reservation struct {
	g       *gateway
	c       *call
	claims  jetstream.KeyValue
	bucket  string // that claims is
	place   *placement
	want    *wanted
	key     string
	claim   *sessionClaim // as it is in the bucket; nil: there is none
	target  string        // of the request that a node is sent
	body    []byte
	queued  bool // it waits for room
	needs   *needs
	unfit   []error // why nodes cannot have what it needs, in this round
	why     string  // nobody has taken it so far
	placed  bool    // a node has it
	retried bool    // a node was asked for it again

	workspace int64         // it is a Workspace of LangBot in this placement generation, and no session; 0: a session
	served    int64         // the last placement generation that was live
	lost      *sessionClaim // of the Workspace, from before
	keeps     bool
}

// run asks nodes until one has answered for good, or the time to wait is over.
func (r *reservation) run() error {
	wait := defaultWait
	if r.want.Wait != nil {
		wait = min(max(time.Duration(*r.want.Wait), 0), longestWait)
	}
	ctx, cancel := context.WithTimeout(r.c.r.Context(), wait)
	defer cancel()
	var t *ticket
	defer func() {
		if t != nil {
			r.g.queue.leave(t)
		}
	}()
	for {
		var done bool
		var err error
		switch {
		case t == nil:
			done, err = r.round()
		case r.g.queue.tries(t):
			done, err = r.again(ctx)
		}
		if done || err != nil {
			return err
		}
		r.queued = true
		if t == nil {
			if t = r.g.queue.enter(r.c.pass.Name); t == nil {
				return full(fmt.Sprintf("%d requests wait, at most %d for each caller, and %s", r.g.queue.len(), maxOwn, r.why))
			}
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return fault.Errorf(fault.Exhausted, "no node can take the session within %v (place %d of %d in the queue): %s", wait, r.g.queue.place(t), r.g.queue.len(), r.why).
				WithHint("GET /v1/fleet/nodes shows what is free; wait longer, or ask for less")
		}
	}
}

// again is round for one that waits. Whoever comes first has the next turn.
func (r *reservation) again(ctx context.Context) (done bool, err error) {
	select {
	case r.g.turns <- struct{}{}:
		defer func() { <-r.g.turns }()
		return r.round() //nolint:contextcheck // the request has its own
	case <-ctx.Done():
		return false, nil
	}
}

// round asks each node that could have it. done: one has answered.
func (r *reservation) round() (done bool, err error) {
	nodes := r.g.known()
	_, bucket, err := r.g.table()
	if err != nil {
		return false, err
	}
	for i := range nodes {
		if n := &nodes[i]; n.State == api.FleetNodeReady && n.Claims != bucket { // it may have what would be claimed
			r.why = fmt.Sprintf("node %s has not yet reported its sessions to the new bucket of claims", n.Name)
			return false, nil
		}
	}
	own, err := r.own()
	if err == nil { // each time, as who waits may wait for long
		r.needs, err = r.g.resolve(r.c, "POST /v1/sessions", &r.want.sessionSpec)
	}
	if err != nil {
		return false, err
	}
	if r.place.only == "" { // who waits has asked before
		if r.place.only, err = r.g.workspacesNode(r.c, r.needs.workspaces); err != nil {
			return false, err
		}
	}
	r.place.near = r.g.near(r.needs, r.c.pass.Name)
	list, none, chosen := r.choose(nodes, own)
	defer chosen()
	r.why, r.unfit = none, nil
	var refused []string
	for i := range list {
		done, why, err := r.request(&list[i])
		if done || err != nil {
			return done, err
		}
		r.g.metrics.refusals.WithLabelValues(list[i].Name).Inc()
		refused = append(refused, list[i].Name+": "+why)
		r.why = strings.Join(refused, "; ")
	}
	if err := r.giveUp(); err != nil || len(list) == 0 || len(r.unfit) < len(nodes) { // meanwhile it is nobody's
		return false, err
	}
	if err := noNode(list, r.unfit); fault.KindOf(err) != fault.Exhausted { // no node of all will ever take it
		return false, err
	}
	return false, nil
}

// choose is choose, which counts what other requests are about to have nodes take. done must be called when a claim says so.
func (r *reservation) choose(nodes []nodeState, own map[string]int) (list []nodeState, none string, done func()) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if !r.place.Spread {
		list, none = choose(r.place, nodes, r.want.Profile, own)
		return list, none, func() {}
	}
	for node, n := range r.g.placing {
		own[node] += n
	}
	if list, none = choose(r.place, nodes, r.want.Profile, own); len(list) == 0 {
		return list, none, func() {}
	}
	first := list[0].Name
	if r.g.placing == nil {
		r.g.placing = map[string]int{}
	}
	r.g.placing[first]++
	return list, none, func() {
		r.g.mu.Lock()
		defer r.g.mu.Unlock()
		if r.g.placing[first]--; r.g.placing[first] == 0 {
			delete(r.g.placing, first)
		}
	}
}

// own counts the caller's sessions on each node, where that matters.
func (r *reservation) own() (map[string]int, error) {
	if !r.place.Spread {
		return nil, nil //nolint:nilnil // nobody asks
	}
	ctx, cancel := context.WithTimeout(r.c.r.Context(), requestTimeout)
	defer cancel()
	all, err := listClaims(ctx, r.claims)
	if err != nil {
		return nil, unread(err)
	}
	own := map[string]int{}
	for _, c := range all {
		if c.Owner == r.c.pass.Name {
			own[c.Node]++
		}
	}
	return own, nil
}

// request claims the session for a node, has the node remember that, and asks it for the session.
func (r *reservation) request(n *nodeState) (done bool, why string, err error) {
	ctx := r.c.r.Context()
	if r.queued { // it keeps others from their turns
		short, cancel := context.WithTimeout(ctx, queuedTimeout)
		defer cancel()
		ctx = short
	}
	if err := r.g.provide(ctx, r.c, n, r.needs); err != nil {
		r.unfit = append(r.unfit, err)
		return false, err.Error(), nil
	}
	if err := r.put(n.Name, 1); err != nil {
		return false, "", err
	}
	for range 2 { // a node that has had it in a later generation says which
		ctx, cancel := context.WithTimeout(r.c.r.Context(), requestTimeout)
		var answer fenced
		err := request(ctx, r.g.nc, n.Name, "fence", r.claim.fence(r.bucket), &answer)
		cancel()
		switch {
		case err != nil:
			return false, err.Error(), nil
		case answer.Error != "":
			return false, answer.Error, nil
		case answer.OK && r.workspace > 0:
			r.placed = true
			return true, "", r.live()
		case answer.OK:
			return r.make(n)
		}
		if err := r.put(n.Name, answer.Highest+1); err != nil {
			return false, "", err
		}
	}
	return false, "it has a later generation of the session", nil
}

// put claims the session for a node, in a generation that is at least so high.
func (r *reservation) put(node string, minRevision uint64) error {
	next := sessionClaim{FleetClaim: api.FleetClaim{Owner: r.c.pass.Name, ID: r.want.ID, Node: node, Generation: minRevision, State: api.FleetClaimStarting, Since: time.Now()}, Sandbox: r.c.e2b != nil, Workspace: r.workspace, Served: r.served, Keeps: r.keeps, key: r.key}
	if r.claim != nil {
		next.revision, next.Generation = r.claim.revision, max(minRevision, r.claim.Generation+1)
	}
	return r.store(&next)
}

func (r *reservation) store(next *sessionClaim) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.c.r.Context()), requestTimeout)
	defer cancel()
	next.revision, err = putClaim(ctx, r.claims, next)
	switch {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "session %s is being made by another request", fault.Show(next.ID)).WithHint("send the request again: it gets that session")
	case err != nil:
		return fault.Errorf(fault.Unavailable, "the session cannot be claimed: %w", err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	r.claim = next
	return nil
}

// live marks the claim live.
func (r *reservation) live() error {
	next := *r.claim
	next.State, next.Since, next.Served = api.FleetClaimLive, time.Now(), next.Workspace
	return r.store(&next)
}

// make asks the node for the session.
func (r *reservation) make(n *nodeState) (done bool, why string, err error) {
	r.c.span.setNode(n.Name)
	resp, err := r.g.request(r.c, n, http.MethodPost, r.target, r.body)
	refused := &nodeRefusal{}
	switch {
	case errors.Is(err, errNoResponder):
		return false, "it cannot be reached", nil
	case errors.As(err, &refused):
		return false, "it does not accept this gateway: " + refused.detail, nil
	case fault.KindOf(err) == fault.Invalid: // it was not sent
		return false, "", cmp.Or(r.giveUp(), err)
	case err != nil: // it may have it, or not: the node will tell
		return false, "", unreached(n.Name, err)
	}
	defer resp.Body.Close()
	r.c.span.answered(resp)
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16*maxRequest))
	if err != nil {
		return false, "", unreached(n.Name, err)
	}
	if resp.StatusCode == http.StatusNotFound && !r.retried && r.needs != nil && len(r.needs.drives) > 0 {
		r.retried = true // it may have removed a version of a drive meanwhile, which is sent again before the claim is renewed
		return r.request(n)
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		resp.Body = io.NopCloser(bytes.NewReader(data))
		return false, asFault(resp).Error(), nil
	case http.StatusCreated, http.StatusOK:
		r.placed = true
		if err := r.live(); err != nil {
			r.g.log.Warn("cannot mark a claim live; its node will", "session", r.claim.ID, "error", err)
		}
	default:
		if err := r.giveUp(); err != nil {
			return false, "", err
		}
	}
	for name, values := range resp.Header {
		if name != "Connection" && name != trace.HeaderID && name != api.RouteHeader {
			r.c.w.Header()[name] = values
		}
	}
	r.c.w.Header().Set(nodeHeader, n.Name)
	r.c.w.WriteHeader(resp.StatusCode)
	_, _ = r.c.w.Write(data) // who has hung up needs no answer
	return true, "", nil
}

// giveUp removes the claim: no node has it. The claim of a lost Workspace is as it was before: its node may come back.
func (r *reservation) giveUp() error {
	if r.claim == nil || r.claim.State == api.FleetClaimLost { // or only the one before is there
		return nil
	}
	if r.lost != nil {
		next := *r.lost
		next.revision = r.claim.revision
		return r.store(&next)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.c.r.Context()), requestTimeout)
	defer cancel()
	err := r.g.drop(ctx, r.claim)
	r.claim = nil
	return err
}

// drop removes a claim, unless it has changed.
func (g *gateway) drop(ctx context.Context, claim *sessionClaim) error {
	claims, _, err := g.table()
	if err != nil {
		return err
	}
	switch err := claims.Delete(ctx, claim.key, jetstream.LastRevision(claim.revision)); {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the claim of session %s has changed meanwhile", fault.Show(claim.ID)).WithHint("try again")
	case err != nil:
		return fault.Errorf(fault.Unavailable, "cannot release the claim of session %s: %w", fault.Show(claim.ID), err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	return nil
}
