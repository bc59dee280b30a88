// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
)

// claimIndex finds claims of sandboxes by id, for requests that do not name the owner. JetStream delivers changes to it, so it can
// be late: see gateway.located.
type claimIndex struct {
	bucket string // of the claims

	mu    sync.Mutex
	ids   map[string][]api.FleetClaim // two owners may both have one
	keys  map[string]api.FleetClaim   // by the keys of claims
	upTo  uint64                      // sequence of the last change that was delivered
	moved chan struct{}               // closed with the next change
}

func newClaimIndex(bucket string, upTo uint64) *claimIndex {
	return &claimIndex{bucket: bucket, ids: map[string][]api.FleetClaim{}, keys: map[string]api.FleetClaim{}, upTo: upTo, moved: make(chan struct{})}
}

// note applies a change.
func (x *claimIndex) note(entry jetstream.KeyValueEntry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, ok := x.keys[entry.Key()]; ok {
		delete(x.keys, entry.Key())
		var rest []api.FleetClaim // never changed in place: readers may have it
		for _, c := range x.ids[before.ID] {
			if c.Owner != before.Owner {
				rest = append(rest, c)
			}
		}
		if x.ids[before.ID] = rest; len(rest) == 0 {
			delete(x.ids, before.ID)
		}
	}
	if entry.Operation() == jetstream.KeyValuePut {
		if c, err := readClaim(entry); err == nil && c.Sandbox && wire.ValidID(c.ID) && claimKey(c.Owner, c.ID) == entry.Key() {
			x.keys[entry.Key()] = c.FleetClaim
			x.ids[c.ID] = append(slices.Clip(x.ids[c.ID]), c.FleetClaim)
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

// nodesOf returns the nodes that have claims of an owner.
func (x *claimIndex) nodesOf(owner string) map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	nodes := map[string]bool{}
	for _, c := range x.keys {
		if c.Owner == owner {
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

// watchClaims starts to watch the claims of a bucket; nil: E2B is not served, so nothing needs the index. Only follow uses it.
func (g *gateway) watchClaims(ctx context.Context, claims jetstream.KeyValue, bucket string) (*claimWatch, error) {
	if !g.cfg.E2B {
		return nil, nil //nolint:nilnil // as said
	}
	last, err := lastChange(ctx, claims)
	if err != nil {
		return nil, err
	}
	w, err := claims.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch claims: %w", err)
	}
	return &claimWatch{newClaimIndex(bucket, last), w}, nil
}

// changes is the channel of changes, nil for a nil watch.
func (w *claimWatch) changes() <-chan jetstream.KeyValueEntry {
	if w == nil {
		return nil
	}
	return w.watch.Updates()
}

func (w *claimWatch) stop() {
	if w != nil {
		_ = w.watch.Stop() // of a bucket that may be gone
	}
}

// applyClaim applies a change. The index is used from when all existing claims have been delivered.
func (g *gateway) applyClaim(w *claimWatch, entry jetstream.KeyValueEntry) {
	if entry != nil {
		w.index.note(entry)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byID = w.index
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
	if g.byID == nil || g.byID.bucket != g.bucket {
		return nil
	}
	return g.byID
}

func noIndex() error {
	return fault.Errorf(fault.Unavailable, "the claims of the fleet are not known yet").WithHint("try again: NATS JetStream may be choosing a leader")
}

// lookAgain is how often located checks whether the index has been replaced, while it waits for a change.
const lookAgain = 100 * time.Millisecond

// located returns the claims of a session's id. If the index has none, it waits until all changes made before the call have been
// delivered, and looks again.
func (g *gateway) located(ctx context.Context, id string) ([]api.FleetClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
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
			case <-time.After(lookAgain):
				continue
			case <-ctx.Done():
			}
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return nil, noIndex()
		}
	}
}
