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

// Most requests for a session go to its node by what this gateway has heard of its claim, without reading it: a node that answers for a session has it,
// since it serves nothing while it is not sure of its claims, and ends what another has. Only where the node has not found what was asked for, the claim is read: it may have
// changed, and JetStream not told of it yet. Then nothing has been done, which another error, or none, does not say.

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

// believed returns the claim of a live session as this gateway has heard of it; nil: it has to be read.
func (g *gateway) believed(c *call, owner, id string) *sessionClaim {
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

// errOutdated means that a node was asked by a claim that is another by now. Nothing has been answered.
var errOutdated = errors.New("the claim has changed")

// passBelieved sends a request to the node of a claim that was not read. It reports false if the node has said no and the claim is another: then the
// request is as it was before.
func (g *gateway) passBelieved(c *call, claim *sessionClaim) (answered bool, err error) {
	restore, err := c.keepBody()
	if err != nil {
		return true, err
	}
	c.believed = claim
	err = g.pass(c, claim.Node, nil)
	outdated := c.outdated
	c.believed, c.outdated = nil, false
	switch {
	case err != nil || !outdated:
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

// checkBelieved looks at the answer to a request that went to a node by a claim that was not read. If nothing was found, it reads the claim:
// its error is errOutdated if that is another, and says why if it cannot be read.
func (g *gateway) checkBelieved(c *call, status int) error {
	if c.believed == nil || status != http.StatusNotFound {
		return nil
	}
	now, err := g.claimOf(c.r.Context(), c.believed.Owner, c.believed.ID)
	if err != nil {
		return err
	}
	if now == nil || now.Node != c.believed.Node || now.Generation != c.believed.Generation || now.State != c.believed.State {
		return errOutdated
	}
	return nil
}
