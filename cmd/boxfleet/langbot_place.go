// SPDX-License-Identifier: Apache-2.0

// A Workspace of LangBot has a claim, as a session has: all of its sessions and skills are on one node.

package main

import (
	"context"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Times of looking for the node of a Workspace.
const (
	placeTimeout = 20 * time.Second
	placeAgain   = 100 * time.Millisecond // after another gateway or request has changed the claim
)

// workspaceID is the id of a claim for a Workspace, the same for all its generations.
func workspaceID(instance, workspace string) string {
	return workspacePrefix + rpc.Namespace(instance, workspace)
}

// lostWorkspace is the refusal of what is asked of a Workspace whose node is lost.
func lostWorkspace(claim *sessionClaim) error {
	return fault.Errorf(fault.Unavailable, "the Workspace is lost since %s: %s", claim.Since.UTC().Format(time.RFC3339), claim.Reason).
		WithHint("it returns with its node; a later placement generation is placed on another")
}

// workspaceUse is a request for a Workspace.
type workspaceUse struct {
	pass       access.Pass
	id         string // of the claim
	generation int64
	stores     bool // it makes what stays without a session
}

// place returns the node that has a Workspace. One that nobody has is placed.
func (f *langBotFront) place(ctx context.Context, use *workspaceUse) (n nodeState, err error) {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	for {
		claim, err := f.g.claimOf(ctx, use.pass.Name, use.id)
		if err == nil && claim == nil {
			err = f.g.unsettled()
		}
		if err == nil {
			n, err = f.adoptClaim(ctx, use, claim)
		}
		if fault.KindOf(err) != fault.Conflict {
			return n, err
		}
		select { // another has changed the claim
		case <-time.After(placeAgain):
		case <-ctx.Done():
			return n, fault.Errorf(fault.Unavailable, "the claim of the Workspace changes all the time").WithHint("try again")
		}
	}
}

// adoptClaim makes a claim that was read one for this use. An error of the kind Conflict means that it has changed.
func (f *langBotFront) adoptClaim(ctx context.Context, use *workspaceUse, claim *sessionClaim) (n nodeState, err error) {
	switch {
	case claim == nil:
		return f.reserve(ctx, use, nil)
	case use.generation < claim.Workspace:
		return n, rpc.Stale()
	case claim.State == api.FleetClaimLost && use.generation > claim.served():
		return f.reserve(ctx, use, claim)
	case claim.State == api.FleetClaimLost:
		return n, lostWorkspace(claim)
	}
	n, ok := f.g.node(claim.Node)
	if !ok || n.lost {
		return n, fault.Errorf(fault.Unavailable, "node %s, which has the Workspace, is not heard of", claim.Node).
			WithHint("the Workspace returns with it; once it is lost, a later placement generation is placed on another node")
	}
	if claim.State == api.FleetClaimLive && use.generation == claim.Workspace && use.generation == claim.Served && (claim.Keeps || !use.stores) {
		return n, nil
	}
	next := *claim
	next.Workspace, next.Served, next.Keeps = use.generation, claim.served(), claim.Keeps || use.stores
	if next.Workspace != claim.Workspace || next.Keeps != claim.Keeps {
		next.State = api.FleetClaimStarting // until its node remembers that
		if err := f.store(ctx, &next); err != nil {
			return n, err
		}
	}
	if err := f.g.remind(ctx, &next); err != nil {
		return n, err
	}
	next.State, next.Since, next.Served = api.FleetClaimLive, time.Now(), next.Workspace
	return n, f.store(ctx, &next)
}

// store changes the claim of a Workspace.
func (f *langBotFront) store(ctx context.Context, next *sessionClaim) error {
	claims, _, err := f.g.table()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next.revision, err = putClaim(ctx, claims, next)
	switch {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the claim of the Workspace has changed").WithHint("try again")
	case err != nil:
		return fault.Errorf(fault.Unavailable, "the Workspace cannot be claimed: %w", err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	return nil
}

// reserve has a node take a Workspace. before is the claim of an earlier generation that is lost.
func (f *langBotFront) reserve(ctx context.Context, use *workspaceUse, before *sessionClaim) (n nodeState, err error) {
	claims, bucket, err := f.g.table()
	if err != nil {
		return n, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://boxd/v1/sessions", http.NoBody)
	if err != nil {
		return n, err
	}
	c := &call{r: r, pass: use.pass, langBot: true}
	res := &reservation{
		g: f.g, c: c, claims: claims, bucket: bucket, place: &placement{Can: []string{canLangBot}, Spread: true}, want: &wanted{ID: use.id},
		key: claimKey(use.pass.Name, use.id), claim: before, workspace: use.generation, keeps: use.stores,
	}
	res.served = neverServed
	if before != nil {
		res.served, res.lost = before.served(), before
	}
	if err := res.begin(); err != nil { //nolint:contextcheck // the call has it
		return n, err
	}
	if n, ok := f.g.node(res.claim.Node); ok {
		return n, nil
	}
	return n, fault.Errorf(fault.Conflict, "node %s has just been forgotten", res.claim.Node).WithHint("try again")
}
