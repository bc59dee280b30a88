// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A node reads claims, and has a gateway change its own: the permissions of NATS know no contents, so a node that could write to the
// bucket could take over and remove claims of others.

// claimSubject begins the subjects at which gateways change claims. The name of the node ends it: NATS lets a node publish to its own alone.
const claimSubject = gatewaySubject + ".claim."

// Bounds of that.
const (
	claimTimeout    = 3 * time.Second // of a change, from when it was asked for: a later one could be of a session that is there again
	maxClaimChange  = 8 << 10         // bytes
	claimWriters    = 16              // changes at a time: each waits for JetStream
	maxClaimChanges = 1 << 10         // that wait; what is too much the nodes ask for again
)

// claimChange asks for a claim to be changed as a node wants it.
type claimChange struct {
	Bucket   string        `json:"bucket"` // that the node has read
	Owner    string        `json:"owner"`
	ID       string        `json:"id"`
	Revision uint64        `json:"revision,omitempty"` // of the claim that the node has read; 0: there was none
	Claim    *sessionClaim `json:"claim,omitempty"`    // what it is to be; nil: none
}

// claimChanged is the answer.
type claimChanged struct {
	Revision uint64 `json:"revision,omitempty"`
	Conflict bool   `json:"conflict,omitempty"` // somebody else has changed it
	Again    bool   `json:"again,omitempty"`    // it may be done later
	Error    string `json:"error,omitempty"`
}

// errClaimChanged means that somebody else has changed a claim.
var errClaimChanged = errors.New("the claim has changed")

// errNoClaimWriter means that no gateway has changed a claim. Nobody uses the session without a gateway, so that can wait.
var errNoClaimWriter = errors.New("no gateway changes claims just now")

// putClaim has a gateway write a claim of this node; see the function of that name.
func (a *agent) putClaim(ctx context.Context, bucket string, c *sessionClaim) (revision uint64, err error) {
	return a.changeClaim(ctx, &claimChange{Bucket: bucket, Owner: c.Owner, ID: c.ID, Revision: c.revision, Claim: c})
}

// dropClaim has a gateway remove a claim of this node, if it has not changed since it was read.
func (a *agent) dropClaim(ctx context.Context, bucket string, c *sessionClaim) error {
	_, err := a.changeClaim(ctx, &claimChange{Bucket: bucket, Owner: c.Owner, ID: c.ID, Revision: c.revision})
	return err
}

// changeClaim has a gateway change a claim. When none has done so, no other is asked before the next announcement.
func (a *agent) changeClaim(ctx context.Context, change *claimChange) (revision uint64, err error) {
	if a.noWriter != nil {
		return 0, a.noWriter
	}
	data, err := json.Marshal(change)
	if err != nil {
		return 0, err
	}
	askCtx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	answer, err := a.ask(askCtx, "claim", &nats.Msg{Subject: claimSubject + a.name, Data: data})
	var out claimChanged
	if err == nil {
		err = json.Unmarshal(answer.Data, &out)
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		err = fmt.Errorf("%w: none is connected that is as new as this node", errNoClaimWriter)
	case err != nil:
		err = fmt.Errorf("%w: none answers, or NATS does not let this node publish to %s: %w", errNoClaimWriter, claimSubject+a.name, err)
	case out.Conflict:
		return 0, errClaimChanged
	case out.Again:
		err = fmt.Errorf("%w: %s", errNoClaimWriter, out.Error)
	case out.Error != "":
		return 0, fmt.Errorf("claim of %s: a gateway refuses to change it: %s", fault.Show(change.ID), out.Error)
	default:
		return out.Revision, nil
	}
	a.noWriter = err
	return 0, err
}

// ask sends gateways a message that one of them answers, until ctx ends. Its answer comes where gateways may publish and this node alone
// hears it, unlike its inbox.
func (a *agent) ask(ctx context.Context, what string, m *nats.Msg) (*nats.Msg, error) {
	m.Reply = nodeSubject + a.name + "." + what + "." + rand.Text()
	answers, err := a.nc.SubscribeSync(m.Reply)
	if err != nil {
		return nil, fmt.Errorf("no gateway is asked: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }() // of a connection that may be closed
	if err := a.nc.PublishMsg(m); err != nil {
		return nil, fmt.Errorf("no gateway is asked: %w", err)
	}
	answer, err := answers.NextMsgWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("no gateway answers: %w", err)
	}
	return answer, nil
}

// claimRequest is a message of a node that a gateway is to answer.
type claimRequest struct {
	*nats.Msg
	at time.Time // it came
}

// subscribeClaims begins to change claims for nodes, until the gateway ends.
func (g *gateway) subscribeClaims() error {
	waiting := make(chan claimRequest, maxClaimChanges)
	for range claimWriters {
		g.work.Go(func() {
			for {
				select {
				case m := <-waiting:
					g.answerClaim(m)
				case <-g.baseCtx.Done():
					return
				}
			}
		})
	}
	_, err := g.nc.QueueSubscribe(claimSubject+"*", "gateways", func(m *nats.Msg) {
		select {
		case waiting <- claimRequest{m, time.Now()}:
		default:
		}
	})
	return err
}

// answerClaim answers a node that has its claim changed.
func (g *gateway) answerClaim(m claimRequest) {
	node := strings.TrimPrefix(m.Subject, claimSubject)
	if !access.ValidNode(node) || !strings.HasPrefix(m.Reply, nodeSubject+node+".claim.") { // a gateway publishes to no other subject because a node says so
		g.log.Warn("a message about a claim is not one of a node", "node", node)
		return
	}
	ctx, cancel := context.WithDeadline(g.baseCtx, m.at.Add(claimTimeout))
	defer cancel()
	if ctx.Err() != nil {
		return // nobody waits any more
	}
	revision, err := g.changeClaim(ctx, node, m.Data)
	out := claimChanged{Revision: revision}
	switch {
	case conflict(err):
		out.Conflict = true
	case err != nil:
		out.Error, out.Again = err.Error(), fault.KindOf(err) == fault.Unavailable
	}
	if out.Error != "" && !out.Again {
		g.log.Warn("a node wants a claim changed that it may not change", "node", node, "error", err)
	}
	data, err := json.Marshal(&out)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		g.log.Warn("cannot answer a node that wants a claim changed", "node", node, "error", err)
	}
}

// changeClaim changes a claim for a node, if the node may do that and the claim is as the node has read it.
func (g *gateway) changeClaim(ctx context.Context, node string, data []byte) (revision uint64, err error) {
	var change claimChange
	if len(data) > maxClaimChange {
		return 0, fmt.Errorf("it has %d bytes: must be at most %d", len(data), maxClaimChange)
	}
	if err := json.Unmarshal(data, &change); err != nil {
		return 0, err
	}
	claims, bucket, err := g.table()
	if err != nil {
		return 0, err
	}
	if change.Bucket != bucket {
		return 0, fault.Errorf(fault.Unavailable, "this gateway has another bucket of claims than the node")
	}
	key := claimKey(change.Owner, change.ID)
	now, err := getClaim(ctx, claims, key)
	if err != nil {
		return 0, unread(err)
	}
	if now == nil && change.Revision != 0 || now != nil && now.revision != change.Revision {
		return 0, errClaimChanged
	}
	if err := change.validate(node, now); err != nil {
		return 0, err
	}
	if change.Claim == nil {
		err = claims.Delete(ctx, key, jetstream.LastRevision(now.revision))
	} else {
		change.Claim.key, change.Claim.revision = key, change.Revision
		revision, err = putClaim(ctx, claims, change.Claim)
	}
	if err != nil && !conflict(err) {
		err = fault.Errorf(fault.Unavailable, "the claim cannot be changed: %w", err)
	}
	return revision, err
}

// validate refuses what no node has to change. Of a claim that is its own a node says whether it has the session, and nothing else; where
// there is none it may say that it has one, as it does when the bucket was removed.
func (c *claimChange) validate(node string, now *sessionClaim) error {
	switch {
	case c.Owner == "" || c.ID == "":
		return errors.New("it names no session")
	case now != nil && now.Node != node:
		return fmt.Errorf("the claim of session %s of %s is that of node %s", fault.Show(c.ID), fault.Show(c.Owner), now.Node)
	case now == nil && c.Claim == nil:
		return errClaimChanged
	case c.Claim == nil:
		return nil
	}
	next := *c.Claim
	want := sessionClaim{FleetClaim: api.FleetClaim{Owner: c.Owner, ID: c.ID, Node: node, Generation: next.Generation}, Workspace: next.Workspace, Keeps: next.Keeps}
	if now != nil {
		want = *now
		want.Reason, want.Snapshot, want.To, want.ToGeneration = "", "", "", 0
		want.key, want.revision = "", 0
		want.Ran = now.Ran && next.Ran
	}
	want.State, want.Since, want.Sandbox, want.Served = next.State, next.Since, next.Sandbox, next.Served
	switch {
	case next != want:
		return fmt.Errorf("a node may not change the claim of session %s of %s so", fault.Show(c.ID), fault.Show(c.Owner))
	case next.Generation == 0:
		return errors.New("it has no generation")
	case next.Workspace < 0 || next.Served != next.Workspace && (now == nil || next.Served != now.Served):
		return fmt.Errorf("a node may not have served placement generation %d of session %s of %s", next.Served, fault.Show(c.ID), fault.Show(c.Owner))
	case next.State != api.FleetClaimLive && (now == nil || next.State != api.FleetClaimStarting):
		return fmt.Errorf("a node may not make the claim of session %s of %s %s", fault.Show(c.ID), fault.Show(c.Owner), fault.Show(next.State))
	}
	return nil
}

// getClaim reads a claim; nil: there is none.
func getClaim(ctx context.Context, claims jetstream.KeyValue, key string) (*sessionClaim, error) {
	entry, err := claims.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil //nolint:nilnil // there is none, and nothing has failed
	}
	if err != nil {
		return nil, fmt.Errorf("read a claim: %w", err)
	}
	return readClaim(entry)
}

func readClaim(entry jetstream.KeyValueEntry) (*sessionClaim, error) {
	c := &sessionClaim{}
	if err := json.Unmarshal(entry.Value(), c); err != nil {
		return nil, fmt.Errorf("claim %s: %w", entry.Key(), err)
	}
	c.key, c.revision = entry.Key(), entry.Revision()
	return c, nil
}

// putClaim writes a claim if it has not changed since it was read; a claim without a revision must not be there.
func putClaim(ctx context.Context, claims jetstream.KeyValue, c *sessionClaim) (revision uint64, err error) {
	data, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	if c.revision == 0 {
		revision, err = claims.Create(ctx, c.key, data)
	} else {
		revision, err = claims.Update(ctx, c.key, data, c.revision)
	}
	if err != nil {
		return 0, fmt.Errorf("claim %s: %w", c.ID, err)
	}
	return revision, nil
}

// conflict reports whether somebody has been faster.
func conflict(err error) bool {
	return errors.Is(err, errClaimChanged) || errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}
