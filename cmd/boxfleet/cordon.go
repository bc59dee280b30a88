// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// cordonBucket has a key for each node that is cordoned.
const cordonBucket = "boxd_cordons"

// maxReason bounds what somebody writes for people, in bytes.
const maxReason = 1024

// cordons opens the bucket.
func (g *gateway) cordons(ctx context.Context) (jetstream.KeyValue, error) {
	kv, _, err := openBucket(ctx, g.js, &jetstream.KeyValueConfig{Bucket: cordonBucket, Description: "nodes of the fleet of boxd that take no new sessions", History: 1, Replicas: g.cfg.Replicas}, "")
	return kv, err
}

// readCordons reads which nodes are cordoned: all of them, or it fails. Of two at a time, that which reads first notes first.
func (g *gateway) readCordons(ctx context.Context) error {
	g.readMu.Lock()
	defer g.readMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kv, err := g.cordons(ctx)
	if err != nil {
		return err
	}
	entries, err := listEntries(ctx, kv) // Keys takes the end of ctx for the end of the list
	if err != nil {
		return fmt.Errorf("list cordoned nodes: %w", err)
	}
	all := map[string]*api.FleetCordon{}
	for _, entry := range entries {
		c := &api.FleetCordon{}
		if json.Unmarshal(entry.Value(), c) != nil {
			c.Reason = "its record cannot be read"
		}
		all[entry.Key()] = c
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cordoned = all
	return nil
}

// cordon keeps new sessions from a node, or lets them there again. When it has answered it holds here, and within seconds at
// other gateways.
func (g *gateway) cordon(c *call, node string) error {
	if !access.ValidNode(node) {
		return fault.Field("node", node, "a-z, 0-9 and hyphens")
	}
	kv, err := g.cordons(c.r.Context())
	if err != nil {
		return fault.Errorf(fault.Unavailable, "the node cannot be cordoned: %w", err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	next := api.FleetCordon{By: c.pass.Name, Since: time.Now().UTC()}
	if c.r.Method == http.MethodDelete {
		err = kv.Delete(c.r.Context(), node)
	} else {
		var req api.FleetCordonRequest
		data, rerr := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, 2*maxReason))
		if rerr == nil && len(data) > 0 {
			rerr = json.Unmarshal(data, &req)
		}
		if rerr != nil || len(req.Reason) > maxReason {
			return fault.Field("reason", req.Reason, fmt.Sprintf("a text of at most %d bytes", maxReason))
		}
		next.Reason = req.Reason
		text, merr := json.Marshal(&next)
		if merr != nil {
			return merr
		}
		_, err = kv.Put(c.r.Context(), node, text)
	}
	if err == nil {
		err = g.readCordons(c.r.Context())
	}
	if err != nil {
		return fault.Errorf(fault.Unavailable, "the node cannot be cordoned: %w", err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	if c.r.Method == http.MethodDelete {
		g.events.add("node_uncordoned", node, "", "by "+c.pass.Name)
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	g.events.add("node_cordoned", node, "", "by "+c.pass.Name+": "+next.Reason)
	reply(c.w, http.StatusOK, next)
	return nil
}

// forget removes a lost node from what gateways know. Boxes that are lost with it stay so until they are removed; if it comes back, it is
// known again.
func (g *gateway) forget(c *call, node string) error {
	if !access.ValidNode(node) {
		return fault.Field("node", node, "a-z, 0-9 and hyphens")
	}
	switch n, ok := g.node(node); {
	case !ok:
		return fault.Errorf(fault.NotFound, "the gateway does not know a node %s", fault.Show(node)).WithHint("boxctl fleet nodes")
	case !n.lost:
		return notLost(node)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	if err := g.removeNode(ctx, node); err != nil {
		if fault.KindOf(err) == fault.Conflict {
			return err
		}
		return fault.Errorf(fault.Unavailable, "the node cannot be removed: %w", err).WithHint("try again: NATS JetStream may be choosing a leader")
	}
	g.events.add("node_forgotten", node, "", "by "+c.pass.Name)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func notLost(node string) error {
	return fault.Errorf(fault.Conflict, "the node %s is not lost", fault.Show(node)).WithHint("on that host: systemctl disable --now boxfleet-node; then wait until it is lost")
}

// removeNode removes the announcement of a lost node, and its cordon. Its sessions are lost before that: afterwards nobody would see to it.
func (g *gateway) removeNode(ctx context.Context, node string) error {
	claims, _, err := g.table()
	if err != nil {
		return err
	}
	nodes, _, err := openBucket(ctx, g.js, nodesConfig(g.cfg.Replicas), rand.Text())
	if err != nil {
		return err
	}
	var last []jetstream.KVDeleteOpt
	switch entry, err := nodes.Get(ctx, node); {
	case errors.Is(err, jetstream.ErrKeyNotFound): // its removal tells the other gateways all the same
	case err != nil:
		return err
	default:
		var n api.FleetNode
		if json.Unmarshal(entry.Value(), &n) == nil && g.reannounced(node, &n) {
			return notLost(node)
		}
		last = append(last, jetstream.LastRevision(entry.Revision()))
	}
	if !g.silent(g.lastSeen(node)) { // it has come back
		return notLost(node)
	}
	switch err := g.markLost(ctx, claims, node); {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "sessions of the node %s are just being changed", fault.Show(node)).WithHint("try again")
	case err != nil:
		return err
	}
	if err := nodes.Delete(ctx, node, last...); conflict(err) {
		return notLost(node)
	} else if err != nil {
		return err
	}
	g.removed(node)
	kv, err := g.cordons(ctx)
	if err == nil {
		err = kv.Delete(ctx, node)
	}
	if err == nil {
		err = g.readCordons(ctx)
	}
	if err != nil { // if the node comes back, it can be seen, and removed
		g.log.Warn("the cordon of a node that was removed remains", "node", node, "error", err)
	}
	return nil
}

// removed drops a node whose announcement was removed as soon as it is lost here, unless it is heard again.
func (g *gateway) removed(node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[node]; n != nil {
		n.removed = true
		g.dropLocked(node)
	}
}

func (g *gateway) dropLocked(node string) {
	if n := g.nodes[node]; n != nil && n.removed && n.lost {
		delete(g.nodes, node)
	}
}
