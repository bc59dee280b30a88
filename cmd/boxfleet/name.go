// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/relay/api"
)

// hostFile has the id of the host, beside what it remembers of sessions: an agent that is started again is no other host.
const hostFile = "host"

// openHost reads the id of the host, or makes one.
func openHost(dir *os.Root) (string, error) {
	var id string
	err := durable.ReadJSON(dir, hostFile, &id)
	if errors.Is(err, fs.ErrNotExist) {
		id = rand.Text()
		err = durable.WriteJSON(dir, hostFile, id)
	}
	if err != nil {
		return "", fmt.Errorf("id of this host: %w", err)
	}
	return id, nil
}

// nameLease is the right to the name of a node: its key among the announcements, each of which follows the one before. Who has
// no such right answers nothing that is for that name.
type nameLease struct {
	revision uint64 // of the announcement that was made last; 0: the name is not ours
	// other is the announcement of another host that was seen last, and seen when that was, since the agent began.
	other uint64
	seen  time.Duration
	// copied says that it was ours until another agent took it: that host may be a copy of this one, with the same id.
	copied bool
}

// errTaken is for a name that another host has.
var errTaken = errors.New("another host uses the name of this node: change fleet.name in box.toml on one of the two")

// put announces the node, if the name is its own. A host takes the name over that its own agent has had before, and one that
// nobody has announced for so long that its sessions are lost.
func (a *agent) put(ctx context.Context, nodes jetstream.KeyValue, data []byte) error {
	if a.lease.revision == 0 {
		if err := a.mayTake(ctx, nodes); err != nil {
			return err
		}
	}
	revision, err := a.write(ctx, nodes, data)
	if conflict(err) {
		if err = a.mayTake(ctx, nodes); err == nil { // it was ours all the same
			revision, err = a.write(ctx, nodes, data)
		}
	}
	switch {
	case conflict(err):
		a.lease.revision = 0
		return errTaken
	case err != nil:
		return fmt.Errorf("announce the node: %w", err)
	}
	a.lease.revision, a.lease.copied = revision, false
	return nil
}

// write writes an announcement that follows the one before; the first, where there is none.
func (a *agent) write(ctx context.Context, nodes jetstream.KeyValue, data []byte) (uint64, error) {
	if a.lease.revision == 0 {
		return nodes.Create(ctx, a.name, data)
	}
	return nodes.Update(ctx, a.name, data, a.lease.revision)
}

// mayTake finds out which announcement the next of this node may follow.
func (a *agent) mayTake(ctx context.Context, nodes jetstream.KeyValue) error {
	a.lease.copied = a.lease.copied || a.lease.revision != 0
	a.lease.revision = 0
	entry, err := nodes.Get(ctx, a.name)
	now := a.clock().Sub(a.start)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound) && a.lease.other != 0 && now-a.lease.seen <= lostAfter: // its host will say it again
		return errTaken
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("look up the name of this node: %w", err)
	}
	var n api.FleetNode
	if err := json.Unmarshal(entry.Value(), &n); err != nil {
		return fmt.Errorf("announcement of node %s: %w", a.name, err)
	}
	switch {
	case n.Instance == a.instance: // what it has announced was taken, and it has not heard so
	case n.Host == a.host && !a.lease.copied: // by the agent before this one
	case entry.Revision() == a.lease.other && now-a.lease.seen > lostAfter: // by a host that is gone
	default:
		if entry.Revision() != a.lease.other {
			a.lease.other, a.lease.seen = entry.Revision(), now
		}
		return errTaken
	}
	a.lease.revision = entry.Revision()
	return nil
}

// answer begins to answer what is for this node, since the name is its own; stopAnswering ends that.
func (a *agent) answer(ctx context.Context) (err error) {
	a.answerDirect(ctx)
	if a.ends != nil {
		return nil
	}
	subject := nodeSubject + a.name
	if a.fencing, err = a.nc.Subscribe(subject+".fence", func(m *nats.Msg) { a.fence(ctx, m) }); err != nil {
		return err
	}
	if a.ends, err = newEndpoint(context.WithoutCancel(ctx), &endpointConfig{Conn: a.nc, Subject: subject, From: gatewaySubject, Accept: a.carry}); err != nil {
		_ = a.fencing.Unsubscribe() // of a connection that is closed
	}
	return err
}

// answerDirect listens at the node's own address, if it has one. One that cannot be used yet is tried again with the next announcement.
func (a *agent) answerDirect(ctx context.Context) {
	if a.cfg.Fleet.Listen == "" || a.direct != nil {
		return
	}
	direct, err := a.listenDirect(ctx)
	if err != nil {
		if err.Error() != a.listenError {
			a.listenError = err.Error()
			a.log.Error("cannot listen on fleet.listen; gateways use NATS", "address", a.cfg.Fleet.Listen, "error", err)
		}
		return
	}
	a.direct, a.listenError = direct, ""
}

func (a *agent) stopAnswering() {
	if a.direct != nil {
		_ = a.direct.Close() // nobody waits for what it would say
		a.direct = nil
	}
	if a.ends == nil {
		return
	}
	_ = a.fencing.Unsubscribe() // of a connection that may be closed
	a.ends.Close()
	a.ends = nil
}
