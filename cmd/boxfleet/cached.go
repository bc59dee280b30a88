// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Most requests for a session are routed by a cached claim, which a watch of JetStream keeps up to date: a node that answers for a session has it,
// since it serves nothing while it is not sure of its claims, and ends what another has. If the node answers 404, the claim is read, as it may have changed
// without the watch having delivered that. After 404 nothing has been done, so the request can be sent to another node; after another error, or none, it cannot.

// ownWrites is the bucket of claims; it keeps in mind what this gateway has written last, which it may not have heard of yet.
type ownWrites struct {
	jetstream.KeyValue
	last *atomic.Uint64
}

// Create adds a key.
func (b ownWrites) Create(ctx context.Context, key string, value []byte, options ...jetstream.KVCreateOpt) (uint64, error) {
	revision, err := b.KeyValue.Create(ctx, key, value, options...)
	return b.wrote(revision), err
}

// Update changes a key.
func (b ownWrites) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	revision, err := b.KeyValue.Update(ctx, key, value, revision)
	return b.wrote(revision), err
}

func (b ownWrites) wrote(revision uint64) uint64 {
	for {
		last := b.last.Load()
		if revision <= last || b.last.CompareAndSwap(last, revision) {
			return revision
		}
	}
}

// cachedClaim returns the cached claim of a live session; nil: it has to be read.
func (g *gateway) cachedClaim(c *call, owner, id string) *sessionClaim {
	x := g.index()
	if x == nil || !g.nc.IsConnected() || x.renewal != g.nc.Stats().Reconnects || c.r.Method == http.MethodPut { // by which skills and drives are attached
		return nil
	}
	g.mu.Lock()
	wrote := g.wrote.Load()
	g.mu.Unlock()
	claim, ok := x.live(claimKey(owner, id), wrote)
	if !ok || c.e2b != nil && !claim.Sandbox {
		return nil
	}
	if n, ok := g.node(claim.Node); !ok || n.lost {
		return nil
	}
	return &claim
}

// errStale means that a request was routed by a cached claim which has changed. Nothing has been answered.
var errStale = errors.New("the claim has changed")

// passCached passes a request on to the node of a cached claim. It reports false if the claim was stale: then nothing was answered, and the request is as it was
// before.
func (g *gateway) passCached(c *call, claim *sessionClaim) (answered bool, err error) {
	restore, err := c.keepBody()
	if err != nil {
		return true, err
	}
	c.cached = claim
	err = g.pass(c, claim.Node, nil)
	stale := c.stale
	c.cached, c.stale = nil, false
	switch {
	case err != nil || !stale:
		return true, err
	case !restore():
		return true, fault.Errorf(fault.Unavailable, "session %s has just changed its node", fault.Show(claim.ID)).WithHint("send the request again")
	}
	return false, nil
}

// maxKeptBody is the largest body of a request that is kept until the node has answered.
const maxKeptBody = 64 << 10

// keepBody makes a request one that can be sent twice. The function that it returns makes it as it was, and reports false if it cannot.
func (c *call) keepBody() (func() bool, error) {
	if c.r.ContentLength < 0 || c.r.ContentLength > maxKeptBody {
		return func() bool { return false }, nil
	}
	if c.r.ContentLength == 0 {
		return func() bool { return true }, nil
	}
	data := make([]byte, c.r.ContentLength)
	if _, err := io.ReadFull(c.r.Body, data); err != nil {
		return nil, fault.Errorf(fault.Invalid, "the body of the request ends early: %w", err).WithHint("send all of its Content-Length")
	}
	restore := func() bool {
		c.r.Body = io.NopCloser(bytes.NewReader(data))
		return true
	}
	restore()
	return restore, nil
}

// checkCached checks the status of an answer to a request that was routed by a cached claim. If that is 404, it reads the claim: its error is errStale if that has
// changed, and says why if it cannot be read.
func (g *gateway) checkCached(c *call, status int) error {
	if c.cached == nil || status != http.StatusNotFound {
		return nil
	}
	now, err := g.claimOf(c.r.Context(), c.cached.Owner, c.cached.ID)
	if err != nil {
		return err
	}
	if now == nil || now.Node != c.cached.Node || now.Generation != c.cached.Generation || now.State != c.cached.State {
		return errStale
	}
	return nil
}
