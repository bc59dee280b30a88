// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// startingFor is how long a node may take to have a session that it was asked for.
const startingFor = 2 * time.Minute

// readAnyway is after how many announcements a claim is read of which nothing was told: nobody promises that all is told.
const readAnyway = 15

// reconcile makes the sessions of this node and the claims agree: whose claim is gone or another's ends here, whose claim was
// lost is found, and a bucket that is new has its claims again.
func (a *agent) reconcile(ctx context.Context, claims jetstream.KeyValue, bucket string, sessions []api.Session) error {
	live := map[string]bool{}
	for i := range sessions {
		live[claimKey(sessions[i].Owner, sessions[i].ID)] = true
		if namespace, _, _, ok := rpc.SplitID(sessions[i].ID); ok {
			live[claimKey(sessions[i].Owner, workspacePrefix+namespace)] = true
		}
	}
	all, err := a.fences.list()
	if err != nil {
		return err
	}
	a.round++
	for i, key := range slices.Sorted(maps.Keys(all)) {
		h := all[key]
		if (live[key] || h.Workspace > 0) && h.Bucket == bucket && !h.Coming && a.view.has(key, h.Generation) && (i+a.round)%readAnyway != 0 {
			continue // as before
		}
		if err := a.reconcileOne(ctx, claims, bucket, key, &h, live[key]); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) reconcileOne(ctx context.Context, claims jetstream.KeyValue, bucket, key string, h *fencedSession, lives bool) error {
	if h.Workspace > 0 && a.isEnding(key) || a.isGivenUp(key) {
		return nil // a claim that has come meanwhile waits for that, and what ends is claimed by nobody
	}
	claim, err := getClaim(ctx, claims, key)
	if err != nil {
		return err
	}
	if claim == nil || claim.State != api.FleetClaimMoving {
		delete(a.moves, key)
	}
	if claim != nil {
		delete(a.dropped, key)
	}
	mine := claim != nil && claim.Node == a.name && claim.Generation == h.Generation && (!h.Coming || claim.State != api.FleetClaimStarting)
	if claim != nil && claim.State == api.FleetClaimMoving && (mine && lives && a.moveAlive(claim) || claim.To == a.name && claim.ToGeneration == h.Generation) {
		return nil // whoever moves it changes the claim
	}
	if lives || !mine {
		delete(a.idle, key)
	}
	lives = lives || h.Keeps
	recent := time.Since(h.Since) < startingFor
	switch {
	case !lives && mine && h.Workspace > 0 && (claim.State == api.FleetClaimLive || claim.State == api.FleetClaimStarting):
		return a.releaseIdle(ctx, claims, bucket, key, h, claim)
	case !lives && mine && (claim.State != api.FleetClaimStarting || !recent): // it has ended, or was never made
		if lives, err := a.lives(ctx, h); err != nil || lives { // it was made after boxd had listed its sessions
			return err
		}
		return a.release(ctx, claims, key, h, claim)
	case !lives && (mine || recent && a.dropped[key] != h.Generation):
		return nil // it may be about to be made
	case !lives:
		delete(a.dropped, key)
		return a.fences.change(key, h.Generation, func(h *fencedSession) { h.Ended = true })
	case mine && (claim.State != api.FleetClaimLive || claim.Ran || claim.Sandbox != h.Sandbox): // a gateway of an older version rewrites claims without the mark
		if changed, err := a.revive(ctx, claims, key, h, claim); err != nil || changed {
			return err
		}
	case mine:
	case claim == nil && h.Bucket != bucket && h.Coming && !h.Whole:
		return nil // it may have all or a part of what the other node has: it is neither ended nor claimed
	case claim == nil && (h.Bucket != bucket || a.dropped[key] == h.Generation) && !h.Since.After(time.Now()): // nobody else has removed it
		if err := a.claimAgain(ctx, claims, key, h); err != nil {
			if conflict(err) {
				return nil // somebody has claimed it: it is looked at again
			}
			return err
		}
		delete(a.dropped, key)
	default:
		return a.giveUp(ctx, claims, bucket, key, h, claim)
	}
	return a.fences.change(key, h.Generation, func(h *fencedSession) {
		h.Bucket, h.Coming, h.Whole = bucket, false, false
		h.follow(claim)
	})
}

// release removes the claim of a session that has ended here. A request that has seen the claim may make the session again meanwhile: that is
// claimed as before, now or with the next announcement, which notes that there is none any more.
func (a *agent) release(ctx context.Context, claims jetstream.KeyValue, key string, h *fencedSession, claim *sessionClaim) error {
	defer a.releasing(key, false)()
	if a.dropped == nil {
		a.dropped = map[string]uint64{}
	}
	a.dropped[key] = h.Generation
	if err := claims.Delete(ctx, key, jetstream.LastRevision(claim.revision)); conflict(err) {
		delete(a.dropped, key)
		return nil // a gateway has changed it: it is looked at again
	} else if err != nil {
		return fmt.Errorf("release the claim of %s: %w", h.ID, err)
	}
	lives, err := a.lives(ctx, h)
	if err == nil && lives {
		err = a.claimAgain(ctx, claims, key, h)
	}
	if conflict(err) {
		return nil // somebody else has claimed it: it is looked at again
	}
	return err
}

// claimAgain claims what runs here and has no claim.
func (a *agent) claimAgain(ctx context.Context, claims jetstream.KeyValue, key string, h *fencedSession) error {
	_, err := putClaim(ctx, claims, &sessionClaim{
		FleetClaim: api.FleetClaim{Owner: h.Owner, ID: h.ID, Node: a.name, Generation: h.Generation, State: api.FleetClaimLive, Since: time.Now()},
		Sandbox:    h.Sandbox, Workspace: h.Workspace, Served: h.Workspace, Keeps: h.Keeps, key: key,
	})
	return err
}

// revive makes the claim of a session that runs here live. changed means that somebody else has changed it.
func (a *agent) revive(ctx context.Context, claims jetstream.KeyValue, key string, h *fencedSession, claim *sessionClaim) (changed bool, err error) {
	next := *claim
	next.State, next.Reason, next.Snapshot, next.Sandbox, next.To, next.ToGeneration = api.FleetClaimLive, "", "", h.Sandbox, "", 0
	next.Served = next.Workspace
	if claim.State != api.FleetClaimLive {
		next.Since = time.Now()
	}
	if next.Ran {
		next.Ran = !a.startedAgain(key, h) //nolint:contextcheck // it goes on when the announcement has ended
	}
	if next == *claim {
		return false, nil // it is about to run again
	}
	_, err = putClaim(ctx, claims, &next)
	if conflict(err) {
		return true, nil // it is looked at again
	}
	if err != nil {
		return true, err
	}
	switch claim.State {
	case api.FleetClaimLost:
		a.log.Info("a lost session was found", "session", h.ID, "owner", h.Owner)
	case api.FleetClaimMoving:
		a.log.Warn("the move of a session has broken off; it stays here", "session", h.ID, "owner", h.Owner, "to", claim.To)
	}
	return false, nil
}

// follow remembers what gateways say in the claim of a Workspace; nil: there was none.
func (h *fencedSession) follow(claim *sessionClaim) {
	if claim != nil {
		h.Workspace, h.Keeps = max(h.Workspace, claim.Workspace), h.Keeps || claim.Keeps
	}
}

// idleFor is how long a Workspace of LangBot keeps its claim without a session.
const idleFor = 5 * time.Minute

// releaseIdle releases the claim of a Workspace that has no session and keeps nothing, in two steps: first gateways have to ask for the
// Workspace anew, and when what was sent before that can have made no session any more, the claim is removed.
func (a *agent) releaseIdle(ctx context.Context, claims jetstream.KeyValue, bucket, key string, h *fencedSession, claim *sessionClaim) error {
	s, ok := a.idle[key]
	if !ok || s.revision != claim.revision {
		s = start{claim.revision, a.clock()}
		if a.idle == nil {
			a.idle = map[string]start{}
		}
		a.idle[key] = s
	}
	idle := a.clock().Sub(s.seen)
	switch {
	case claim.State == api.FleetClaimLive && idle >= idleFor && !claim.Keeps:
		next := *claim
		next.State, next.Since = api.FleetClaimStarting, time.Now()
		revision, err := putClaim(ctx, claims, &next)
		if err != nil && !conflict(err) {
			return err
		}
		a.idle[key] = start{revision, a.clock()}
	case claim.State == api.FleetClaimStarting && idle >= startingFor && !claim.Keeps:
		if lives, err := a.lives(ctx, h); err != nil || lives {
			return err
		}
		defer a.releasing(key, false)()
		if err := claims.Delete(ctx, key, jetstream.LastRevision(claim.revision)); conflict(err) {
			return nil // a gateway has asked for it
		} else if err != nil {
			return fmt.Errorf("release the claim of %s: %w", h.ID, err)
		}
		delete(a.idle, key)
		return a.fences.change(key, h.Generation, func(h *fencedSession) { h.Ended = true })
	}
	return a.fences.change(key, h.Generation, func(h *fencedSession) {
		h.Bucket = bucket
		h.follow(claim)
	})
}

// workspacePrefix begins the id of a claim that is for a Workspace of LangBot. No session has such an id.
const workspacePrefix = "workspace/"

// sessionsOf returns the ids of the sessions of a Workspace here.
func (a *agent) sessionsOf(ctx context.Context, h *fencedSession) (ids []string, err error) {
	boxd := client.New(a.cfg.Socket)
	defer boxd.Close()
	all, err := boxd.Sessions(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("ask for the sessions of %s: %w", h.ID, err)
	}
	for i := range all {
		if namespace, _, _, ok := rpc.SplitID(all[i].ID); ok && all[i].Owner == h.Owner && workspacePrefix+namespace == h.ID {
			ids = append(ids, all[i].ID)
		}
	}
	return ids, nil
}

// stillIs fails if a bucket is another one by now: what is not in it was not released.
func stillIs(ctx context.Context, bucket jetstream.KeyValue, id string) error {
	status, err := bucket.Status(ctx)
	if err == nil && status.Metadata()[bucketID] != id {
		err = errors.New("it was removed and made again just now")
	}
	if err != nil {
		return fmt.Errorf("bucket %s: %w", bucket.Bucket(), err)
	}
	return nil
}

// moveAlive reports whether a session that is being moved from here is to be waited for. A gateway that has died does not renew the claim:
// this node counts from when it has seen the claim first, since times in claims are of other clocks.
func (a *agent) moveAlive(claim *sessionClaim) bool {
	if a.moves == nil {
		a.moves = map[string]start{}
	}
	s, ok := a.moves[claim.key]
	if !ok || s.revision != claim.revision {
		s = start{claim.revision, a.clock()}
		a.moves[claim.key] = s
	}
	return a.clock().Sub(s.seen) < movingFor
}

// againFor is how long a node tries to start a session again that was stopped for a move.
const againFor = 5 * time.Minute

// startedAgain reports whether a session runs again that was stopped for a move, and sees to it that it does: that may have to wait
// for room, and takes no part of the time of an announcement. One that cannot be started is left to its owner.
func (a *agent) startedAgain(key string, h *fencedSession) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	done, started := a.again[key]
	switch {
	case done:
		delete(a.again, key)
		return true
	case started:
		return false
	}
	if a.again == nil {
		a.again = map[string]bool{}
	}
	a.again[key] = false
	entry, baseCtx := *h, a.baseCtx
	a.background.Go(func() {
		a.startAgain(baseCtx, &entry)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.again[key] = true
	})
	return false
}

func (a *agent) startAgain(ctx context.Context, h *fencedSession) {
	ctx, cancel := context.WithTimeout(ctx, againFor)
	defer cancel()
	boxd := client.New(a.cfg.Socket)
	defer boxd.Close()
	boxd.Owner = h.Owner
	for {
		_, err := boxd.StartSession(ctx, h.ID)
		if err == nil || errors.Is(err, client.NotFound) {
			return
		}
		select {
		case <-time.After(renewEvery):
		case <-ctx.Done():
			a.log.Warn("cannot start a session again that was stopped for a move", "session", h.ID, "owner", h.Owner, "error", err)
			return
		}
	}
}

// lives asks boxd for one session.
func (a *agent) lives(ctx context.Context, h *fencedSession) (bool, error) {
	if h.Workspace > 0 {
		ids, err := a.sessionsOf(ctx, h)
		return len(ids) > 0, err
	}
	boxd := client.New(a.cfg.Socket)
	defer boxd.Close()
	boxd.Owner = h.Owner
	_, err := boxd.Session(ctx, h.ID)
	if errors.Is(err, client.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for session %s of %s: %w", h.ID, h.Owner, err)
	}
	return true, nil
}

// endingFor is how long boxd may take to end a session that is no longer its node's: another announcement asks for it again.
const endingFor = 5 * time.Minute

// giveUp has a session ended that is no longer this node's. Its programs may take their time: no announcement waits for them.
func (a *agent) giveUp(ctx context.Context, claims jetstream.KeyValue, bucket, key string, h *fencedSession, claim *sessionClaim) error { //nolint:contextcheck // the same
	if a.isEnding(key) {
		return nil
	}
	why := "its claim was released"
	if claim == nil {
		if err := stillIs(ctx, claims, bucket); err != nil {
			return err // it is looked at again
		}
	}
	if claim != nil {
		why = fmt.Sprintf("node %s has claimed it (generation %d after %d)", claim.Node, claim.Generation, h.Generation)
	}
	switch ok, err := a.ofFleet(ctx, h.Owner); {
	case err != nil:
		return err
	case !ok:
		a.log.Warn("keeping a session that is claimed elsewhere: box.toml lets no gateway speak for its owner", "session", h.ID, "owner", h.Owner)
		return a.fences.change(key, h.Generation, func(h *fencedSession) { h.Ended = true })
	}
	a.log.Warn("ending a session that is no longer this node's", "session", h.ID, "owner", h.Owner, "reason", why)
	done := a.releasing(key, true)
	entry, baseCtx := *h, a.baseCtx
	a.background.Go(func() {
		defer done()
		if err := a.end(baseCtx, key, &entry, why); err != nil {
			a.log.Warn("cannot end a session that is no longer this node's; it is tried again", "session", entry.ID, "owner", entry.Owner, "error", err)
		}
	})
	return nil
}

// releasing has gateways that claim a Workspace again, or what is given up since another node has it, wait until it has ended here, when
// done is called.
func (a *agent) releasing(key string, givenUp bool) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending == nil {
		a.ending = map[string]bool{}
	}
	a.ending[key] = givenUp
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.ending, key)
	}
}

// isGivenUp reports whether a session is being ended that is another node's.
func (a *agent) isGivenUp(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending[key]
}

// isEnding reports whether a session is being ended; "": whether any is.
func (a *agent) isEnding(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ends := a.ending[key]
	return ends || key == "" && len(a.ending) > 0
}

// end ends a session whose output a gateway keeps, if it can, and remembers that.
func (a *agent) end(ctx context.Context, key string, h *fencedSession, why string) error {
	ctx, cancel := context.WithTimeout(ctx, endingFor)
	defer cancel()
	boxd := client.New(a.cfg.Socket)
	defer boxd.Close()
	boxd.Owner = h.Owner
	ids := []string{h.ID}
	if h.Workspace > 0 {
		var err error
		if ids, err = a.sessionsOf(ctx, h); err != nil {
			return err
		}
	}
	hand := !h.Coming && a.handOverOnce(key, h.Generation) // or it is a part of what the other node has
	var wg sync.WaitGroup
	for _, id := range ids {
		if hand {
			wg.Go(func() {
				if a.handOver(ctx, boxd, h, id, why) {
					a.mu.Lock()
					defer a.mu.Unlock()
					delete(a.handed, key)
				}
			})
		}
	}
	wg.Wait()
	for _, id := range ids {
		if err := boxd.DeleteSession(ctx, id); err != nil && !errors.Is(err, client.NotFound) {
			return err
		}
	}
	a.gaveUp.Add(1)
	return a.fences.change(key, h.Generation, func(h *fencedSession) { h.Ended = true })
}

// handOverOnce reports whether the output of a session is to be handed over: once, though its end may fail and be tried again.
func (a *agent) handOverOnce(key string, generation uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handed[key] == generation {
		return false
	}
	if a.handed == nil || len(a.handed) >= maxHanded {
		a.handed = map[string]uint64{}
	}
	a.handed[key] = generation
	return true
}

// maxHanded bounds how many sessions are remembered.
const maxHanded = 1 << 16

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
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}
