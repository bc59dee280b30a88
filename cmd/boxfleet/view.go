// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
)

// view is what JetStream tells a node of its claims as they change, so that it need not ask for each of them with every
// announcement. It may be late: what it shows to be as before needs no look, and everything else is read.
type view struct {
	watch jetstream.KeyWatcher
	done  sync.WaitGroup

	mu     sync.Mutex
	live   map[string]uint64 // the generations of claims that are live on the node, by key
	closed bool              // nothing more is told
}

// openView reads all claims of a bucket, for requestTimeout at most, and goes on hearing of them until close, or until ctx ends.
func openView(ctx context.Context, claims jetstream.KeyValue, node string) (*view, error) {
	watch, err := claims.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch claims: %w", err)
	}
	v := &view{watch: watch, live: map[string]uint64{}}
	all := make(chan struct{})
	v.done.Go(func() {
		complete := sync.OnceFunc(func() { close(all) })
		for entry := range watch.Updates() {
			if entry == nil { // what was there has been told
				complete()
				continue
			}
			v.note(entry, node)
		}
		v.mu.Lock()
		v.closed = true
		v.mu.Unlock()
	})
	select {
	case <-all:
		return v, nil
	case <-time.After(requestTimeout):
		v.close()
		return nil, errors.New("read the claims: JetStream did not send all of them in time")
	}
}

// close ends the view. A subscription that JetStream could not be told to end ends with the connection.
func (v *view) close() {
	if v.watch.Stop() == nil {
		v.done.Wait()
	}
}

func (v *view) note(entry jetstream.KeyValueEntry, node string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.live, entry.Key())
	if entry.Operation() != jetstream.KeyValuePut {
		return
	}
	if c, err := readClaim(entry); err == nil && c.Node == node && c.State == api.FleetClaimLive && !c.Ran { // what is unreadable is told when it is read
		v.live[c.key] = c.Generation
	}
}

// has reports whether a claim is live on the node, with that generation, as far as has been told.
func (v *view) has(key string, generation uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	g, ok := v.live[key]
	return ok && g == generation
}

func (v *view) ended() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed
}
