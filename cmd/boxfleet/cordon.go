// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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

// readCordons reads which nodes are cordoned.
func (g *gateway) readCordons(ctx context.Context) error {
	kv, err := g.cordons(ctx)
	if err != nil {
		return err
	}
	all := map[string]*api.FleetCordon{}
	keys, err := kv.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return fmt.Errorf("list cordoned nodes: %w", err)
	}
	for _, node := range keys {
		entry, err := kv.Get(ctx, node)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list cordoned nodes: %w", err)
		}
		c := &api.FleetCordon{}
		if json.Unmarshal(entry.Value(), c) != nil {
			c.Reason = "its record cannot be read"
		}
		all[node] = c
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
		var ask api.FleetCordonRequest
		data, rerr := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, 2*maxReason))
		if rerr == nil && len(data) > 0 {
			rerr = json.Unmarshal(data, &ask)
		}
		if rerr != nil || len(ask.Reason) > maxReason {
			return fault.Field("reason", ask.Reason, fmt.Sprintf("a text of at most %d bytes", maxReason))
		}
		next.Reason = ask.Reason
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
