// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// gatewayOptions is what a gateway needs to know.
type gatewayOptions struct {
	Name     string // of its table [fleet.gateways.NAME] on nodes
	Key      ed25519.PrivateKey
	Gate     *access.Gate // knows its callers
	Servers  natsServers
	Replicas int // of the buckets, if it has to make them
	Version  string
	Log      *slog.Logger
	Traces   *trace.Tracer // nil: no requests are recorded
	E2B      bool          // clients of E2B are served
	// Bytes of the snapshots of all owners, and of one; 0: there are none.
	Snapshots, OwnerSnapshots int64
	Skills, OwnerSkills       int64 // the same of the archives of skills
	Drives, OwnerDrives       int64 // the same of the archives of drives
	Outputs, OwnerOutputs     int64 // bytes of what processes have written whose session was ended for another
	Images                    int64 // bytes of the archives of images; 0: there are none
}

// gateway answers for all nodes of a fleet as one boxd does. It keeps nothing: any number of them may run.
type gateway struct {
	cfg       gatewayOptions
	log       *slog.Logger
	nc        *nats.Conn
	js        jetstream.JetStream
	bulk      jetstream.JetStream // for what is published without waiting for each acknowledgement
	ends      *endpoint
	transport *http.Transport
	directs   *directs // beside ends
	queue     queue
	lookups   chan struct{}   // see askLastChange
	baseCtx   context.Context //nolint:containedctx // of the gateway: what is sent to nodes goes on without the caller who needed it first
	cancel    context.CancelFunc
	work      sync.WaitGroup // what goes on under baseCtx
	turns     chan struct{}  // one for each of those who wait that asks nodes just now
	events    events
	now       func() time.Time
	metrics   *metrics
	readMu    sync.Mutex // of readCordons

	mu      sync.Mutex
	claims  jetstream.KeyValue // nil: JetStream has not been reached yet
	bucket  string             // that claims is
	opened  time.Time          // when this gateway has seen that bucket first
	nodes   map[string]*nodeState
	placing map[string]int   // requests about to have a node take something, where that counts
	starts  map[string]start // claims of others that are starting, by key
	cache   *claimIndex      // all claims; nil: not all have been delivered yet
	wrote   *atomic.Uint64   // the last revision in bucket that this gateway has written

	cordoned map[string]*api.FleetCordon // nodes
	copies   *places.Limit               // of archives that are made or restored
	sends    map[string]*delivery        // what is sent to a node just now
	noted    map[string]map[string]bool  // nodes that were seen to have something, by the key of a need
	untaken  map[string]untaken          // what nodes have not taken, by node and digest
}

// nodeState is a node as the gateway knows it.
type nodeState struct {
	api.FleetNode
	at     time.Time     // when it was heard of last, of the clock here
	offset time.Duration // what the node's clock is ahead of the one here
	lost   bool
	cordon *api.FleetCordon // nil: it is not

	removed bool // its announcement was removed
}

// newGateway connects to NATS. Close must follow.
func newGateway(ctx context.Context, cfg *gatewayOptions) (*gateway, error) {
	g := &gateway{cfg: *cfg, log: cfg.Log, nodes: map[string]*nodeState{}, directs: newDirects(), starts: map[string]start{}, now: time.Now, turns: make(chan struct{}, retries), lookups: make(chan struct{}, maxLookups), copies: newCopies()}
	g.metrics = newMetrics(g)
	g.baseCtx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if g.nc, err = connectNATS(&cfg.Servers, cfg.Log); err != nil {
		return nil, err
	}
	if g.js, err = jetstream.New(g.nc); err == nil {
		g.bulk, err = jetstream.New(g.nc, jetstream.WithPublishAsyncMaxPending(maxCopying*maxUnacked), jetstream.WithPublishAsyncTimeout(chunkTimeout))
	}
	if err == nil {
		g.ends, err = newEndpoint(context.WithoutCancel(ctx), &endpointConfig{Conn: g.nc, Subject: gatewaySubject + "." + strings.ToLower(rand.Text())})
	}
	if err != nil {
		g.cancel()
		g.nc.Close()
		return nil, err
	}
	g.transport = g.newTransport()
	if err := g.subscribeOutputs(); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// newTransport returns what connects to nodes.
func (g *gateway) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			node, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if n, ok := g.node(node); ok {
				if conn := g.directs.dial(ctx, &n, g.key(), g.log); conn != nil {
					return conn, nil
				}
			}
			return g.ends.Dial(ctx, nodeSubject+node)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
	}
}

// useKey has the gateway sign with another key from now on.
func (g *gateway) useKey(key ed25519.PrivateKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cfg.Key = key
}

func (g *gateway) key() ed25519.PrivateKey {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cfg.Key
}

// Close ends what goes through the gateway.
func (g *gateway) Close() {
	g.cancel()
	g.transport.CloseIdleConnections()
	g.ends.Close()
	g.directs.close()
	g.work.Wait()
	g.nc.Close()
}

// Run keeps what the gateway knows of the fleet up to date, until ctx ends.
func (g *gateway) Run(ctx context.Context) {
	lastError := ""
	for {
		err := g.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != lastError {
			lastError = err.Error()
			g.log.Warn("cannot watch the fleet", "error", err)
		}
		select {
		case <-time.After(requestTimeout / 10):
		case <-ctx.Done():
			return
		}
	}
}

// follow hears what nodes announce until something is wrong.
func (g *gateway) follow(ctx context.Context) error {
	requestCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes, nodesID, err := openBucket(requestCtx, g.js, nodesConfig(g.cfg.Replicas), rand.Text())
	if err != nil {
		return err
	}
	claims, id, err := openBucket(requestCtx, g.js, claimsConfig(g.cfg.Replicas), rand.Text())
	if err != nil {
		return err
	}
	if err := g.readCordons(requestCtx); err != nil {
		return err
	}
	g.mu.Lock()
	if g.bucket != id {
		g.opened, g.wrote = g.now(), &atomic.Uint64{}
	}
	g.claims, g.bucket = ownWrites{claims, g.wrote}, id
	g.mu.Unlock()
	w, err := nodes.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer func() { _ = w.Stop() }() // of a bucket that may be gone
	watch, err := watchClaims(ctx, g.nc, claims, id)
	if err != nil {
		return err
	}
	defer func() { watch.stop() }()
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case entry, ok := <-w.Updates():
			if !ok {
				return errors.New("the watch of nodes has ended")
			}
			switch {
			case entry == nil: // these were there before
			case entry.Operation() == jetstream.KeyValuePut:
				g.update(entry)
			default:
				g.removed(entry.Key())
			}
		case entry, ok := <-watch.watch.Updates():
			if !ok {
				return errors.New("the watch of claims has ended")
			}
			g.applyClaim(watch, entry)
		case <-ticker.C:
			if watch, err = g.rewatch(ctx, watch, claims, id); err != nil {
				return err
			}
			if err := g.checkNodes(ctx, nodesID, id); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// update notes what a node announces.
func (g *gateway) update(entry jetstream.KeyValueEntry) {
	var n api.FleetNode
	if err := json.Unmarshal(entry.Value(), &n); err != nil || n.Name != entry.Key() || !access.ValidNode(n.Name) {
		g.log.Warn("a node announces invalid data", "node", entry.Key(), "error", err)
		return
	}
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.nodes[n.Name]
	// One of a node that is dead may have been there for long. Clocks of others do not say so: it is lost when no other follows.
	g.nodes[n.Name] = &nodeState{FleetNode: n, at: now, offset: n.Time.Sub(now)}
	switch {
	case before == nil:
	case before.Instance != n.Instance:
		g.transport.CloseIdleConnections() // those to the agent that was there before lead nowhere
		g.directs.closeNode(n.Name)
	case (before.Direct == nil) != (n.Direct == nil):
		g.transport.CloseIdleConnections() // the next goes another way
	}
	switch {
	case before == nil:
		g.events.add("node_seen", n.Name, "", n.State)
	case before.Host != n.Host: // the one that had the name before is silent
		g.log.Warn("another host has the name of a node now", "node", n.Name)
		g.events.add("node_moved", n.Name, "", "another host has its name")
	case before.lost:
		g.events.add("node_back", n.Name, "", n.State)
	case before.State != n.State:
		g.events.add("node_"+n.State, n.Name, "", n.Reason)
	}
}

// checkNodes finds out which nodes are lost, and whether the buckets are those they were.
func (g *gateway) checkNodes(ctx context.Context, nodesID, claimsID string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes, id, err := openBucket(ctx, g.js, nodesConfig(g.cfg.Replicas), rand.Text())
	if err != nil {
		return err
	}
	claims, other, err := openBucket(ctx, g.js, claimsConfig(g.cfg.Replicas), rand.Text())
	if err != nil {
		return err
	}
	if id != nodesID || other != claimsID {
		return errors.New("a bucket of the fleet was removed; asking the nodes again for what was in it")
	}
	if err := g.readCordons(ctx); err != nil {
		return err
	}
	var lost []string
	g.mu.Lock()
	for name, n := range g.nodes {
		if g.silent(n.at) {
			lost = append(lost, name)
		}
	}
	g.mu.Unlock()
	for _, name := range lost {
		entry, err := nodes.Get(ctx, name) // which this gateway may only not have been told
		if g.lastSeen(name).IsZero() {
			continue // somebody has removed it meanwhile
		}
		if err == nil && g.silent(g.lastSeen(name)) {
			var n api.FleetNode
			if json.Unmarshal(entry.Value(), &n) == nil && g.reannounced(name, &n) {
				g.update(entry)
				continue
			}
		} else if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return err
		}
		if err := g.markLost(ctx, claims, name); err != nil && !conflict(err) { // that is looked at again
			return err
		}
	}
	return nil
}

// silent reports whether a node that was heard of then is lost.
func (g *gateway) silent(since time.Time) bool { return g.now().Sub(since) >= lostAfter }

func (g *gateway) lastSeen(name string) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[name]; n != nil {
		return n.at
	}
	return time.Time{}
}

// reannounced reports whether an announcement is not the one that was heard last.
func (g *gateway) reannounced(name string, n *api.FleetNode) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.nodes[name]
	return before == nil || before.Instance != n.Instance || !before.Time.Equal(n.Time)
}

// markLost makes the sessions of a node that is not heard of lost. Others do the same: the first counts. Its error is a conflict if some have
// changed meanwhile.
func (g *gateway) markLost(ctx context.Context, claims jetstream.KeyValue, node string) error {
	g.mu.Lock()
	n := g.nodes[node]
	first, since := n != nil && !n.lost, time.Time{}
	if n != nil && !g.silent(n.at) { // it has just been heard
		g.mu.Unlock()
		return nil
	}
	if n != nil {
		n.lost = true
		since = n.at
		g.directs.closeNode(node)
	}
	g.mu.Unlock()
	if first {
		g.metrics.lost.WithLabelValues(kindOfNodes).Inc()
		g.events.add("node_lost", node, "", "silent since "+since.UTC().Format(time.RFC3339))
		g.log.Warn("a node is lost", "node", node, "since", since)
	}
	all, err := listClaims(ctx, claims)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c *sessionClaim) bool { return c.Node != node || c.State == api.FleetClaimLost })
	if len(all) == 0 {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.dropLocked(node)
		return nil
	}
	var changed error
	last := g.lastSnapshots(ctx)
	for _, c := range all {
		next := *c
		next.Snapshot = last[[2]string{c.Owner, c.ID}]
		next.State, next.Since, next.To, next.ToGeneration = api.FleetClaimLost, time.Now(), "", 0 // it runs again when it is found, if it ran
		next.Reason = fmt.Sprintf("node %s has been silent since %s", node, since.UTC().Format(time.RFC3339))
		switch _, err := putClaim(ctx, claims, &next); {
		case conflict(err):
			changed = err
		case err != nil:
			return err
		default:
			g.metrics.lost.WithLabelValues(kindOfSessions).Inc()
			g.events.add("session_lost", node, c.ID, next.Reason)
		}
	}
	return changed
}

// listClaims reads all claims.
func listClaims(ctx context.Context, claims jetstream.KeyValue) ([]*sessionClaim, error) {
	entries, err := listEntries(ctx, claims)
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	all := make([]*sessionClaim, len(entries))
	for i, entry := range entries {
		if all[i], err = readClaim(entry); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// listEntries reads all of a bucket.
func listEntries(ctx context.Context, kv jetstream.KeyValue) ([]jetstream.KeyValueEntry, error) {
	return listMatching(ctx, kv, jetstream.AllKeys)
}

// listMatching reads what a bucket has of such keys: "*" is any one word of them.
func listMatching(ctx context.Context, kv jetstream.KeyValue, keys string) (all []jetstream.KeyValueEntry, err error) {
	w, err := kv.Watch(ctx, keys, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Stop() }() // it has told all there was
	for {
		select {
		case entry, ok := <-w.Updates():
			if !ok {
				return nil, errors.New("cut off")
			}
			if entry == nil {
				return all, nil
			}
			all = append(all, entry)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// unknownClaims is why a node takes no sessions that calls itself ready and does not know the claims: one that works says so of a new
// bucket with its next announcement.
const unknownClaims = "it reports that it is ready, but its claims are not those of the fleet"

// known copies what is known of nodes, in order of their names.
func (g *gateway) known() []nodeState {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []nodeState
	for _, name := range slices.Sorted(maps.Keys(g.nodes)) {
		n := *g.nodes[name]
		n.cordon = g.cordoned[name]
		if n.lost = n.lost || g.silent(n.at); n.lost {
			n.State, n.Reason = api.FleetNodeLost, "silent since "+n.at.UTC().Format(time.RFC3339)
		} else if n.State == api.FleetNodeReady && n.Claims != g.bucket && g.now().Sub(g.opened) >= lostAfter {
			n.State, n.Reason = api.FleetNodeFailed, unknownClaims
		}
		list = append(list, n)
	}
	return list
}

func (g *gateway) node(name string) (nodeState, bool) {
	for _, n := range g.known() {
		if n.Name == name {
			return n, true
		}
	}
	return nodeState{}, false
}

// isInstance reports whether a node is heard of, and is the one that it was.
func (g *gateway) isInstance(name, instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[name]
	return n != nil && !n.lost && !g.silent(n.at) && n.Instance == instance
}

// table is the bucket of claims, once JetStream has been reached.
func (g *gateway) table() (jetstream.KeyValue, string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.claims == nil {
		return nil, "", fault.Errorf(fault.Unavailable, "the fleet is not known yet: NATS JetStream has not answered").WithHint("try again; the log of boxfleet has the reason")
	}
	return g.claims, g.bucket, nil
}
