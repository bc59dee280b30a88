// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
)

// claimIndex has the claims, so that not every request has to read one. It also finds those of sandboxes by id, for requests that do not name the
// owner. JetStream delivers changes to it, so it can be late: see gateway.cachedClaim and gateway.located.
type claimIndex struct {
	bucket string // of the claims
	// renewal is how often the connection to NATS had been made again when the watch began: since another time, changes may come late.
	renewal uint64

	mu    sync.Mutex
	ids   map[string][]api.FleetClaim // of sandboxes; two owners may both have one
	keys  map[string]sessionClaim     // all, by their keys
	upTo  uint64                      // sequence of the last change that was delivered
	moved chan struct{}               // closed with the next change
}

func newClaimIndex(bucket string, upTo uint64) *claimIndex {
	return &claimIndex{bucket: bucket, ids: map[string][]api.FleetClaim{}, keys: map[string]sessionClaim{}, upTo: upTo, moved: make(chan struct{})}
}

// note applies a change.
func (x *claimIndex) note(entry jetstream.KeyValueEntry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, ok := x.keys[entry.Key()]; ok {
		delete(x.keys, entry.Key())
		var others []api.FleetClaim // never changed in place: readers may have it
		for _, c := range x.ids[before.ID] {
			if c.Owner != before.Owner {
				others = append(others, c)
			}
		}
		if x.ids[before.ID] = others; len(others) == 0 {
			delete(x.ids, before.ID)
		}
	}
	if entry.Operation() == jetstream.KeyValuePut {
		if c, err := readClaim(entry); err == nil && claimKey(c.Owner, c.ID) == entry.Key() {
			x.keys[entry.Key()] = *c
			if c.Sandbox && wire.ValidID(c.ID) {
				x.ids[c.ID] = append(slices.Clip(x.ids[c.ID]), c.FleetClaim)
			}
		}
	}
	x.upTo = max(x.upTo, entry.Revision())
	close(x.moved)
	x.moved = make(chan struct{})
}

// find returns the claims of an id, the sequence of the last change, and a channel that is closed with the next change.
func (x *claimIndex) find(id string) (list []api.FleetClaim, upTo uint64, moved <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ids[id], x.upTo, x.moved
}

// live returns the claim of a session that is live, if the index has heard of all changes up to one.
func (x *claimIndex) live(key string, upTo uint64) (sessionClaim, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, ok := x.keys[key]
	return c, ok && c.State == api.FleetClaimLive && x.upTo >= upTo
}

// nodesOf returns the nodes that have sandboxes of an owner.
func (x *claimIndex) nodesOf(owner string) map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	nodes := map[string]bool{}
	for _, c := range x.keys {
		if c.Owner == owner && c.Sandbox {
			nodes[c.Node] = true
		}
	}
	return nodes
}

// claimWatch watches claims.
type claimWatch struct {
	index *claimIndex
	watch jetstream.KeyWatcher
}

// watchClaims starts to watch the claims of a bucket. Only follow uses it.
func watchClaims(ctx context.Context, conn *nats.Conn, claims jetstream.KeyValue, bucket string) (*claimWatch, error) {
	renewal := conn.Stats().Reconnects
	last, err := lastChange(ctx, claims)
	if err != nil {
		return nil, err
	}
	w, err := claims.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch claims: %w", err)
	}
	index := newClaimIndex(bucket, last)
	index.renewal = renewal
	return &claimWatch{index, w}, nil
}

// rewatch returns a watch of the connection that there is now. One of a connection before hears only after a while that JetStream has forgotten it.
func (g *gateway) rewatch(ctx context.Context, w *claimWatch, claims jetstream.KeyValue, bucket string) (*claimWatch, error) {
	if w.index.renewal == g.nc.Stats().Reconnects {
		return w, nil
	}
	next, err := watchClaims(ctx, g.nc, claims, bucket)
	if err != nil {
		return w, err
	}
	w.stop()
	return next, nil
}

func (w *claimWatch) stop() {
	_ = w.watch.Stop() // of a bucket that may be gone
	go func() {
		for range w.watch.Updates() { // it waits for somebody to take what it has, and ends then
		}
	}()
}

// applyClaim applies a change. The index is used from when all existing claims have been delivered.
func (g *gateway) applyClaim(w *claimWatch, entry jetstream.KeyValueEntry) {
	if entry != nil {
		w.index.note(entry)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cache = w.index
}

// lastChange is the sequence of the last change of a bucket.
func lastChange(ctx context.Context, claims jetstream.KeyValue) (uint64, error) {
	status, err := claims.Status(ctx)
	if err != nil {
		return 0, fmt.Errorf("bucket %s: %w", claimBucket, err)
	}
	of, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return 0, errors.New("bucket " + claimBucket + ": JetStream says nothing of its changes")
	}
	return of.StreamInfo().State.LastSeq, nil
}

// maxLookups bounds questions to JetStream about ids that no claim has, which cost a stranger nothing to send.
const maxLookups = 16

// askLastChange is lastChange for a request that anybody can make.
func (g *gateway) askLastChange(ctx context.Context, claims jetstream.KeyValue) (uint64, error) {
	select {
	case g.lookups <- struct{}{}:
		defer func() { <-g.lookups }()
		return lastChange(ctx, claims)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// index is the index of the current bucket of claims; nil: it is not complete yet.
func (g *gateway) index() *claimIndex {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cache == nil || g.cache.bucket != g.bucket {
		return nil
	}
	return g.cache
}

func noIndex() error {
	return fault.Errorf(fault.Unavailable, "the claims of the fleet are not known yet").WithHint("try again: NATS JetStream may be choosing a leader")
}

// recheckInterval is how often located checks whether the index has been replaced, while it waits for a change.
const recheckInterval = 100 * time.Millisecond

// located returns the claims of a session's id. If the index has none, it waits until all changes made before the call have been
// delivered, and looks again.
func (g *gateway) located(ctx context.Context, id string) ([]api.FleetClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	claims, _, err := g.table()
	if err != nil {
		return nil, err
	}
	var last uint64
	for known := false; ; {
		if x := g.index(); x != nil {
			list, upTo, moved := x.find(id)
			if len(list) > 0 || known && upTo >= last {
				return list, nil
			}
			if !known {
				if last, err = g.askLastChange(ctx, claims); err != nil {
					return nil, unread(err)
				}
				known = true
				continue
			}
			select {
			case <-moved:
				continue
			case <-time.After(recheckInterval):
				continue
			case <-ctx.Done():
			}
		}
		select {
		case <-time.After(recheckInterval):
		case <-ctx.Done():
			return nil, noIndex()
		}
	}
}
