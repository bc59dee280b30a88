// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
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

// How long the claim of a session that is being moved holds without being renewed, before its node takes it back, and how often the
// gateway that moves it renews it.
const (
	movingFor   = 20 * time.Second
	moveRenewed = 5 * time.Second
)

// sessionMove is a move under way.
type sessionMove struct {
	g         *gateway
	c         *call // in the name of the session's owner
	owner, id string
	from, to  *nodeState
	leave     bool                   // what would be lost may be
	d         *api.SessionDefinition // as it was asked for first
	has       api.Session            // the same, as it was
	needs     *needs                 // what the fleet has of what it needs
	ran       bool                   // it was not stopped before
	created   bool                   // the node to which it goes has one
	stopped   time.Time              // since when the old one is stopped, of its node's clock
	lost      []string               // what it has less of on the other node, in words
	bucket    string                 // that the claim is in

	mu     sync.Mutex // guards the fields below
	claim  *sessionClaim
	placed bool // to is where it goes
}

// move takes a session to another node: POST /v1/fleet/sessions/{id}/move.
func (g *gateway) move(c *call, id string) error {
	owner, err := c.owner()
	if err != nil {
		return err
	}
	var req api.FleetMove
	if err := c.decode(&req); err != nil {
		return err
	}
	start := time.Now()
	r := &sessionMove{g: g, c: c.as(owner), owner: owner, id: id, leave: req.LeaveOut}
	if err := r.find(); err != nil {
		return err
	}
	list, err := r.plan(req.Node)
	if err != nil {
		return err
	}
	if err := r.run(list); err != nil {
		g.events.add("session_not_moved", r.from.Name, id, "asked by "+c.pass.Name+": "+err.Error())
		return err
	}
	g.events.add("session_moved", r.to.Name, id, "from "+r.from.Name+", asked by "+c.pass.Name)
	c.span.setSession(id)
	reply(c.w, http.StatusOK, api.FleetMoved{ID: id, Owner: owner, From: r.from.Name, Node: r.to.Name, Generation: r.claim.Generation, LeftOut: append(r.d.LeftOut, r.lost...), DurationMS: time.Since(start).Milliseconds()})
	return nil
}

// maxMoveRequest is the largest body of a request about the fleet, in bytes.
const maxMoveRequest = 1 << 16

// decode reads the body of a request about the fleet, which may be empty.
func (c *call) decode(body any) error {
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxMoveRequest))
	if err == nil && len(data) > 0 {
		in := json.NewDecoder(bytes.NewReader(data))
		in.DisallowUnknownFields()
		err = in.Decode(body)
	}
	if err != nil {
		return fault.Errorf(fault.Invalid, "the request cannot be decoded: %w", err).WithHint("docs/guide/fleet.md has the fields of each request")
	}
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

// within is the call with another context.
func (c *call) within(ctx context.Context) *call {
	out := *c
	out.r = c.r.WithContext(ctx)
	return &out
}

// find reads where the session is.
func (r *sessionMove) find() error {
	id := r.id
	var err error
	if _, r.bucket, err = r.g.table(); err != nil {
		return err
	}
	claim, err := r.g.claimed(r.c.r.Context(), r.owner, id)
	switch {
	case err != nil:
		return err
	case claim.Owner != r.owner || claim.ID != id: // nodes can write any claim
		return noSession(id)
	case claim.State == api.FleetClaimLost:
		return r.g.lost(claim)
	case claim.State == api.FleetClaimMoving:
		return moving(claim)
	case claim.State != api.FleetClaimLive:
		return fault.Errorf(fault.Conflict, "session %s is starting", fault.Show(id)).WithHint("try again")
	case claim.Workspace > 0:
		return fault.Errorf(fault.Unsupported, "%s is a Workspace of LangBot, whose sessions stay on its node", fault.Show(id)).WithHint("once its node is lost, LangBot can place it on another, with a later placement generation")
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
func (r *sessionMove) plan(node string) (list []nodeState, err error) {
	if node == r.from.Name {
		return nil, fault.Field("node", node, "another node than that which has the session")
	}
	nodes := slices.DeleteFunc(r.g.known(), func(n nodeState) bool { return n.Name == r.from.Name })
	if node != "" && !slices.ContainsFunc(nodes, func(n nodeState) bool { return n.Name == node }) {
		return nil, fault.Field("node", node, "the name of a node: GET /v1/fleet/nodes lists them")
	}
	if err := r.call(r.from, http.MethodGet, "", nil, &r.has); err != nil {
		return nil, err
	}
	if r.d, err = r.definition(r.from); err != nil {
		return nil, err
	}
	switch {
	case r.has.WorkspaceName != "" || len(r.has.Inputs) > 0:
		return nil, fault.Errorf(fault.Conflict, "session %s uses a named workspace, which stays on node %s", fault.Show(r.id), r.from.Name).WithHint("restore a snapshot with a copy of it there: boxctl fleet snapshot --with-workspace")
	case len(r.d.LeftOut) > 0 && !r.leave:
		return nil, r.lossy(r.d.LeftOut)
	}
	if r.needs, err = r.needed(); err != nil {
		return nil, err
	}
	list, none := choose(&placement{Node: node}, nodes, cmp.Or(r.has.Profile, "default"), nil)
	if len(list) == 0 {
		return nil, full(none)
	}
	return list, nil
}

// needed is what the session has of what the fleet has. What the fleet has of that name by now, a node that has this one may not need.
func (r *sessionMove) needed() (*needs, error) {
	spec, digests := sessionSpec{Image: r.has.Image, had: true}, map[string]string{}
	for _, k := range r.has.Skills {
		spec.Skills = append(spec.Skills, k.Name)
	}
	for _, k := range r.has.Drives {
		spec.Drives, digests[k.Name] = append(spec.Drives, fmt.Sprintf("%s@%d", k.Name, k.Version)), k.Digest
	}
	want, err := r.g.resolve(r.c, "POST /v1/sessions", &spec)
	if err != nil {
		return nil, err
	}
	if want.digest != r.d.ImageDigest {
		want.image = ""
	}
	want.drives = slices.DeleteFunc(want.drives, func(d neededDrive) bool { return d.digest != digests[d.name] })
	return want, nil
}

// lossy is the refusal of a move that loses something.
func (r *sessionMove) lossy(what []string) error {
	return fault.Errorf(fault.Conflict, "a move of session %s would lose: %s", fault.Show(r.id), strings.Join(what, "; ")).WithHint("set leave_out (boxctl fleet move --leave-out) to move it without these")
}

// run moves the session, or leaves it where and as it was.
func (r *sessionMove) run(list []nodeState) (err error) {
	ctx, cancel := context.WithCancelCause(r.c.r.Context())
	defer cancel(nil)
	r.c.r = r.c.r.WithContext(ctx)
	var renewing sync.WaitGroup
	renewCtx, done := context.WithCancel(ctx)
	renewing.Go(func() { r.renewClaim(renewCtx, cancel) })
	if err = r.place(list); err == nil {
		r.mu.Lock()
		r.placed = true
		r.mu.Unlock()
		err = r.carry()
	}
	done()
	renewing.Wait() // from here on nobody else changes the claim, or asks in its name
	if err != nil {
		return r.failed(cmp.Or(broken(ctx), err))
	}
	return r.commit()
}

// failed undoes the move, and says why it has failed: that somebody else has changed the claim first, and once.
func (r *sessionMove) failed(why error) error {
	err := r.undo()
	switch {
	case fault.KindOf(err) != fault.Conflict:
		return errors.Join(why, err)
	case fault.KindOf(why) == fault.Conflict:
		return why
	}
	return errors.Join(err, why)
}

// broken is why a move was broken off from here, if it was.
func broken(ctx context.Context) error {
	if cause := context.Cause(ctx); fault.KindOf(cause) == fault.Conflict {
		return cause
	}
	return nil
}

// place has a node make the session. It is not the fleet's there yet.
func (r *sessionMove) place(list []nodeState) error {
	var refused []error
	for i := range list {
		r.to = &list[i]
		final, err := r.offer()
		if err == nil || final {
			return err
		}
		r.g.metrics.refusals.WithLabelValues(r.to.Name).Inc()
		refused = append(refused, err)
	}
	return noNode(list, refused)
}

// offer asks a node for the session. An error that is not final is why this node does not take it.
func (r *sessionMove) offer() (final bool, err error) {
	// One that is not of the fleet would end there with a move that breaks off.
	switch err := r.call(r.to, http.MethodGet, "", nil, nil); {
	case err == nil:
		return false, fault.Errorf(fault.Conflict, "it has a session of this name that is not of the fleet").WithHint("its owner can remove that on the node itself")
	case fault.KindOf(err) != fault.NotFound:
		return false, err
	}
	if err := r.g.provide(r.c.r.Context(), r.c, r.to, r.needs); err != nil {
		return false, err
	}
	r.mu.Lock()
	generation := r.claim.Generation + 1
	r.mu.Unlock()
	for range 2 { // a node that has had it in a later generation says which
		if err := r.change(r.c.r.Context(), func(c *sessionClaim) { c.State, c.To, c.ToGeneration = api.FleetClaimMoving, r.to.Name, generation }); err != nil {
			return true, err
		}
		_, bucket, err := r.g.table()
		if err != nil {
			return true, err
		}
		var answer fenced
		err = request(r.c.r.Context(), r.g.nc, r.to.Name, "fence", &fence{Owner: r.owner, ID: r.id, Generation: generation, Bucket: bucket, Coming: true}, &answer)
		switch {
		case err != nil:
			return false, err
		case answer.Error != "":
			return false, fault.Errorf(fault.Unavailable, "%s", answer.Error).WithHint("GET /v1/fleet/nodes lists the nodes")
		case !answer.OK:
			generation = answer.Highest + 1
			continue
		}
		return false, r.make()
	}
	return false, fault.Errorf(fault.Conflict, "it has a later generation of the session").WithHint("try again")
}

// make asks a node for the session. One that is not what it was is removed again.
func (r *sessionMove) make() error {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(r.d.Session, &fields); err != nil {
		return err
	}
	fields["wait"] = json.RawMessage(`"0s"`)
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	resp, err := r.g.request(r.c, r.to, http.MethodPost, "/v1/sessions", body)
	if err != nil { // if it has made one, it ends that, as no claim is for it
		return unreached(r.to.Name, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusCreated:
	case http.StatusOK:
		return fault.Errorf(fault.Conflict, "it has a session of this name that is not of the fleet").WithHint("its owner can remove that on the node itself")
	default:
		return asFault(resp)
	}
	var info api.Session
	var other *api.SessionDefinition
	if err = json.NewDecoder(io.LimitReader(resp.Body, 16*maxRequest)).Decode(&info); err == nil {
		other, err = r.definition(r.to)
	}
	if err == nil && other.ImageDigest != r.d.ImageDigest {
		err = fault.Errorf(fault.Conflict, "its image %s is another one, %s and not %s", fault.Show(info.Image), cmp.Or(other.ImageDigest, "none"), cmp.Or(r.d.ImageDigest, "none")).WithHint("import the same image there")
	}
	if r.lost = less(&r.has, &info, r.needs.skills); err == nil && len(r.lost) > 0 && !r.leave {
		err = r.lossy(r.lost)
	}
	if err != nil {
		return errors.Join(err, r.call(r.to, http.MethodDelete, "", nil, nil))
	}
	r.created = true
	return nil
}

// less says in words what a session has less of than another. ofFleet are the skills that the fleet has: others, such as those that
// come with boxd, are a node's own.
func less(before, after *api.Session, ofFleet map[string]string) (list []string) {
	for _, c := range after.Clamped {
		list = append(list, fmt.Sprintf("%s %s of %s (%s)", c.Field, c.Got, c.Asked, c.By))
	}
	for _, k := range after.Drives { // a node numbers what is filled there itself
		i := slices.IndexFunc(before.Drives, func(b api.SessionDrive) bool { return b.Name == k.Name && b.Digest != k.Digest })
		if i >= 0 {
			list = append(list, fmt.Sprintf("the drive %s in its version %s, which is %s there", k.Name, before.Drives[i].Digest, k.Digest))
		}
	}
	for _, k := range after.Skills {
		had := slices.ContainsFunc(before.Skills, func(b api.SessionSkill) bool { return b.Name == k.Name && !b.Missing })
		if k.Missing && had {
			list = append(list, "the skill "+k.Name)
		}
		i := slices.IndexFunc(before.Skills, func(b api.SessionSkill) bool { return b.Name == k.Name && !b.Missing && b.Digest != k.Digest })
		if _, shared := ofFleet[k.Name]; shared && i >= 0 && !k.Missing {
			list = append(list, fmt.Sprintf("the skill %s in its version %s, which is %s there", k.Name, before.Skills[i].Digest, k.Digest))
		}
	}
	return list
}

// carry stops the session, and takes its files and processes along.
func (r *sessionMove) carry() error {
	if r.has.State != "stopped" {
		r.ran = true
		if err := r.change(r.c.r.Context(), func(c *sessionClaim) { c.Ran = true }); err != nil {
			return err
		}
	}
	var info api.Session
	if err := r.call(r.from, http.MethodPost, "/stop", nil, &info); err != nil {
		return err
	}
	if info.StoppedAt == nil {
		return r.changed()
	}
	r.stopped = *info.StoppedAt
	d, err := r.definition(r.from) // its processes may be others by now
	if err != nil {
		return err
	}
	if same, err := sameSettings(d, r.d); err != nil || !same {
		return cmp.Or(err, r.changed())
	}
	for _, path := range d.Paths {
		if err := r.checkClaim(); err != nil {
			return err
		}
		if err := r.copy(path); err != nil {
			return err
		}
	}
	if err := r.checkClaim(); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(d.Processes)) {
		if err := r.call(r.to, http.MethodPut, "/processes/"+url.PathEscape(id), d.Processes[id], nil); err != nil {
			return fmt.Errorf("process %s: %w", fault.Show(id), err)
		}
	}
	if !r.ran {
		if err := r.call(r.to, http.MethodPost, "/stop", nil, nil); err != nil {
			return err
		}
	}
	// Before it is noted that the new one is whole, and after that took its time.
	for _, do := range []func() error{r.unchanged, r.arrive, r.unchanged} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// checkClaim fails if somebody else has changed the claim: the new session may be another by now.
func (r *sessionMove) checkClaim() error {
	ctx, cancel := context.WithTimeout(r.c.r.Context(), arriveFor)
	defer cancel()
	return r.rewriteClaim(ctx)
}

// unchanged reports whether the old session is what was carried. Callers on the node itself do not hear of the move.
func (r *sessionMove) unchanged() error {
	var info api.Session
	if err := r.call(r.from, http.MethodGet, "", nil, &info); err != nil {
		return err
	}
	if info.StoppedAt == nil || !info.StoppedAt.Equal(r.stopped) {
		return r.changed()
	}
	d, err := r.definition(r.from)
	if err != nil {
		return err
	}
	if same, err := sameSettings(d, r.d); err != nil || !same {
		return cmp.Or(err, r.changed())
	}
	return nil
}

// changed is the refusal of a move of a session that is not what it was when the move began.
func (r *sessionMove) changed() error {
	return fault.Errorf(fault.Conflict, "session %s was changed or started on its node while it was moved", fault.Show(r.id)).WithHint("try again")
}

// sameSettings reports whether two definitions of one session make the same, besides its processes.
func sameSettings(a, b *api.SessionDefinition) (bool, error) {
	one, other := map[string]any{}, map[string]any{}
	if err := errors.Join(json.Unmarshal(a.Session, &one), json.Unmarshal(b.Session, &other)); err != nil {
		return false, err
	}
	delete(one, "max_lifetime") // what is left of it
	delete(other, "max_lifetime")
	return reflect.DeepEqual(one, other) && slices.Equal(a.LeftOut, b.LeftOut) && slices.Equal(a.Paths, b.Paths) && a.ImageDigest == b.ImageDigest, nil
}

// copy takes a directory of the session along.
func (r *sessionMove) copy(path string) error {
	query := url.Values{"path": {path}}
	from, err := r.g.request(r.c, r.from, http.MethodGet, r.target("/archive?"+query.Encode()), nil)
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

// arriveFor is how long the new node is asked to note that it has all of a session: its agent may be restarted, or JetStream choose a leader.
const arriveFor = 15 * time.Second

// arrive has the new node note that it has all of the session. Else it would not claim that in a bucket that is new, and the old node ends
// its own as soon as it sees the claim changed.
func (r *sessionMove) arrive() error {
	ctx, cancel := context.WithTimeout(r.c.r.Context(), arriveFor)
	defer cancel()
	r.mu.Lock()
	arrived := *r.claim
	r.mu.Unlock()
	arrived.Node, arrived.Generation = arrived.To, arrived.ToGeneration
	for {
		err := r.g.remind(ctx, &arrived)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// commit makes the new session the fleet's, and ends the old one.
func (r *sessionMove) commit() error {
	err := r.change(r.c.r.Context(), func(c *sessionClaim) {
		c.Node, c.Generation, c.State, c.Since, c.To, c.ToGeneration, c.Ran = c.To, c.ToGeneration, api.FleetClaimLive, time.Now(), "", 0, false
	})
	switch {
	case fault.KindOf(err) == fault.Conflict:
		return r.failed(err)
	case err != nil: // it may have been written
		return fault.Errorf(fault.Unavailable, "it is not known whether session %s has moved: %w", fault.Show(r.id), err).
			WithHint("within %v it is on one of nodes %s and %s: GET /v1/fleet/sessions", movingFor, r.from.Name, r.to.Name)
	}
	if err := r.call(r.from, http.MethodDelete, "", nil, nil); err != nil && fault.KindOf(err) != fault.NotFound {
		r.g.log.Warn("cannot remove a session that has moved; its node will", "session", r.id, "node", r.from.Name, "error", err)
	}
	return nil
}

// undo leaves the session where it was, and running if it ran: its node sees to that if it cannot be started at once. If the claim cannot be
// written, somebody else may have changed it, so that the new session is the fleet's, or the old one nobody's: the nodes end what they are
// to end, and none is ended from here.
func (r *sessionMove) undo() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.c.r.Context()), 2*streamTimeout)
	defer cancel()
	r.c.r = r.c.r.WithContext(ctx)
	var err error
	if r.claim.State == api.FleetClaimMoving {
		if err = r.rewriteClaim(ctx); err == nil { // nothing is started that is somebody else's by now
			runs := !r.ran || r.startAgain(ctx)
			err = r.change(ctx, func(c *sessionClaim) {
				c.State, c.Since, c.To, c.ToGeneration, c.Ran = api.FleetClaimLive, time.Now(), "", 0, c.Ran && !runs
			})
		}
	}
	if err != nil {
		if r.ran && r.stayed(ctx) {
			r.startAgain(ctx)
		}
		if fault.KindOf(err) == fault.Conflict {
			return err
		}
		return fault.Errorf(fault.Unavailable, "session %s is on node %s, which takes it back within %v, as soon as JetStream answers: %w", fault.Show(r.id), r.from.Name, movingFor, err).WithHint("GET /v1/fleet/sessions says when")
	}
	if r.created {
		if err := r.call(r.to, http.MethodDelete, "", nil, nil); err != nil && fault.KindOf(err) != fault.NotFound {
			r.g.log.Warn("cannot remove a session whose move broke off; its node will", "session", r.id, "node", r.to.Name, "error", err)
		}
	}
	return nil
}

// rewriteClaim writes the claim as it is, as soon as JetStream takes it.
func (r *sessionMove) rewriteClaim(ctx context.Context) error {
	for {
		err := r.change(ctx, func(*sessionClaim) {})
		if fault.KindOf(err) != fault.Unavailable {
			return err
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// stayed reports whether the claim says that the session is its old node's, and no more that it moves, although that was not written from here.
// In a bucket that is new the node puts it with its next announcement.
func (r *sessionMove) stayed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, movingFor)
	defer cancel()
	for {
		claims, bucket, err := openBucket(ctx, r.g.js, claimsConfig(r.g.cfg.Replicas), rand.Text())
		var claim *sessionClaim
		if err == nil {
			claim, err = getClaim(ctx, claims, r.claim.key)
		}
		switch {
		case err == nil && claim != nil:
			return claim.State == api.FleetClaimLive && claim.Node == r.from.Name && claim.Generation == r.claim.Generation
		case err == nil && bucket == r.bucket:
			return false // somebody has removed it
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return false
		}
	}
}

// startAgain starts the session again where it was. Its files may still be read for a moment.
func (r *sessionMove) startAgain(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, moveRenewed)
	defer cancel()
	for {
		err := r.call(r.from, http.MethodPost, "/start", []byte(`{"wait":"0s"}`), nil) //nolint:contextcheck // the call has its request, and that its context
		if err == nil || fault.KindOf(err) != fault.Conflict {
			return err == nil
		}
		select {
		case <-time.After(moveRenewed / 50):
		case <-ctx.Done():
			return false
		}
	}
}

// renewClaim renews the claim until ctx ends, and breaks the move off if somebody else has changed it.
func (r *sessionMove) renewClaim(ctx context.Context, breakOff context.CancelCauseFunc) {
	next := time.NewTicker(moveRenewed)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		r.mu.Lock()
		moving, placed := r.claim.State == api.FleetClaimMoving, r.placed
		r.mu.Unlock()
		if !moving {
			continue // no node has been asked yet
		}
		if err := r.change(ctx, func(*sessionClaim) {}); fault.KindOf(err) == fault.Conflict {
			breakOff(err)
			return
		}
		if placed {
			r.renew(ctx)
		}
	}
}

// renew says that the new session is not idle. If it has gone, the move fails at that.
func (r *sessionMove) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	one := *r.c
	one.r = r.c.r.WithContext(ctx)
	if resp, err := r.g.request(&one, r.to, http.MethodPost, r.target("/renew"), nil); err == nil { //nolint:contextcheck // the same
		resp.Body.Close()
	}
}

// change writes the claim anew. A conflict says that somebody else has.
func (r *sessionMove) change(ctx context.Context, what func(*sessionClaim)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	claims, bucket, err := r.g.table()
	if err == nil && bucket != r.bucket { // where its revision means nothing
		err = fault.Errorf(fault.Conflict, "the claims of the fleet were removed meanwhile").WithHint("try again")
	}
	if err != nil {
		return err
	}
	next := *r.claim
	if what(&next); next.State == api.FleetClaimMoving && r.claim.State != api.FleetClaimMoving {
		next.Since = time.Now()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	next.revision, err = putClaim(ctx, claims, &next)
	var claim *sessionClaim
	if conflict(err) { // or a write of this gateway that seemed to have failed was taken
		var rerr error
		if claim, rerr = getClaim(ctx, claims, next.key); rerr == nil && claim != nil && claim.same(r.claim) {
			next.revision = claim.revision
			next.revision, err = putClaim(ctx, claims, &next)
		}
	}
	switch {
	case conflict(err) && claim != nil && claim.State == api.FleetClaimLost:
		return r.g.lost(claim)
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the claim of session %s has changed meanwhile", fault.Show(next.ID)).WithHint("try again")
	case err != nil:
		return fault.Errorf(fault.Unavailable, "the claim of session %s cannot be written: %w", fault.Show(next.ID), err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	r.claim = &next
	return nil
}

// same reports whether a claim says the same as another, but for its revision.
func (c *sessionClaim) same(as *sessionClaim) bool {
	a, b := *c, *as
	a.revision, b.revision = 0, 0
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b
}

// target is a path of the session.
func (r *sessionMove) target(rest string) string {
	return "/v1/sessions/" + url.PathEscape(r.id) + rest
}

func (r *sessionMove) definition(n *nodeState) (*api.SessionDefinition, error) {
	d := &api.SessionDefinition{}
	return d, r.call(n, http.MethodGet, "/definition", nil, d)
}

// call makes a request about the session to a node, and decodes the answer into out, unless that is nil.
func (r *sessionMove) call(n *nodeState, method, rest string, body []byte, out any) error {
	resp, err := r.g.request(r.c, n, method, r.target(rest), body)
	if err != nil {
		if cause := context.Cause(r.c.r.Context()); fault.KindOf(cause) != fault.Internal {
			return cause
		}
		return unreached(n.Name, err) // also if the caller has gone, or the gateway stops
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("node %s: %w", n.Name, asFault(resp))
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16*maxRequest)).Decode(out); err != nil {
		return unreached(n.Name, fmt.Errorf("%s %s: %w", method, strconv.Quote(r.target(rest)), err))
	}
	return nil
}
