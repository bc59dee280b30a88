// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// agentOptions is what an agent needs to know.
type agentOptions struct {
	Fleet    access.Fleet                                // the table of box.toml
	Ask      func(context.Context) (access.Fleet, error) // asks boxd for the table as it is now
	Socket   string                                      // of boxd, for what the agent asks itself
	State    string                                      // directory of its own, where it remembers generations
	Disk     string                                      // a path on the disk of boxes
	IDRanges int                                         // that boxd has for boxes
	E2B      bool                                        // boxd speaks E2B's protocol with gateways
	LangBot  bool                                        // and LangBot's
	Replicas int                                         // of the buckets, if it has to make them
	Log      *slog.Logger
}

// agent makes a host a node of a fleet.
type agent struct {
	cfg      agentOptions
	name     string
	instance string
	host     string // the same after each start
	boxd     *client.Client
	log      *slog.Logger
	nc       *nats.Conn
	js       jetstream.JetStream
	fences   *fences

	// Of claims; only beat uses these.
	view       *view             // nil: none yet
	renewal    uint64            // how often the connection to NATS had been made again when it was opened
	round      int               // announcements so far
	moves      map[string]start  // claims of sessions that are being moved from here, by key
	idle       map[string]start  // claims of Workspaces of LangBot that have no session here, by key
	dropped    map[string]uint64 // generations of claims that this node is releasing, by key
	baseCtx    context.Context   //nolint:containedctx // of the agent
	background sync.WaitGroup    // sessions that are being started again, or ended

	// Of its name; only renew uses these.
	lease       nameLease
	ends        *endpoint          // nil: the name is not its own
	fencing     *nats.Subscription // beside ends
	direct      *directListener    // nil: there is none
	listenError string             // why not, as it was logged last

	timeout time.Duration // of the end of a session: how long its output may be on its way
	bounds  outputBounds  // of that output
	handing chan struct{} // one for each session whose output is on its way

	renewed atomic.Int64 // when the fleet has taken an announcement last, of the steady clock
	start   time.Time
	clock   func() time.Time

	// What it announces of itself.
	streams                 atomic.Int64
	failed, refused, gaveUp atomic.Uint64

	mu      sync.Mutex
	agreed  string       // the bucket of claims with which the sessions here agree
	now     access.Fleet // the table of box.toml, as it was asked for last
	fetched time.Time
	can     []string          // by doctor
	again   map[string]bool   // sessions that were stopped for a move, by the key of their claim: whether they run again
	ending  map[string]bool   // sessions that are being ended, by the same key: whether another node has them
	handed  map[string]uint64 // generations of those whose output was handed over
}

// newAgent returns an agent. Run makes it work.
func newAgent(cfg *agentOptions) (*agent, error) {
	name := cfg.Fleet.NodeName()
	if !access.ValidNode(name) {
		return nil, fmt.Errorf("fleet.name = %q of box.toml: must be a-z, 0-9 and hyphens, or empty for the name of the host", name)
	}
	if len(cfg.Fleet.Servers) == 0 {
		return nil, errors.New("this host is in no fleet: fleet.servers = [] of box.toml: must be addresses of NATS servers")
	}
	if err := os.MkdirAll(cfg.State, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	dir, err := durable.Directory(cfg.State)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	store, err := openFences(dir)
	if err != nil {
		dir.Close()
		return nil, err
	}
	host, err := openHost(dir)
	if err != nil {
		dir.Close()
		return nil, err
	}
	return &agent{cfg: *cfg, now: cfg.Fleet, name: name, instance: rand.Text(), host: host, boxd: client.New(cfg.Socket), log: cfg.Log.With("node", name), fences: store, timeout: handOverFor, bounds: outputBounds{maxKept, maxPacked}, handing: make(chan struct{}, maxHandingOut), start: time.Now(), clock: time.Now}, nil
}

// Run connects and serves until ctx ends.
func (a *agent) Run(ctx context.Context) error {
	defer a.fences.close()
	defer a.boxd.Close()
	f := &a.cfg.Fleet
	nc, err := connectNATS(&natsServers{Addresses: f.Servers, Credentials: f.Credentials, CA: f.CA, Name: "node_" + a.name}, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	a.nc = nc
	if a.js, err = jetstream.New(nc); err != nil {
		return err
	}
	defer a.background.Wait()
	defer a.stopAnswering()
	a.renew(ctx)
	return nil
}

// serves reports whether the fleet knows of this node what is true: otherwise somebody may have what it has.
func (a *agent) serves() bool {
	a.mu.Lock()
	agreed := a.agreed
	a.mu.Unlock()
	return agreed != "" && !a.fenced()
}

// fenced reports whether the fleet has not taken an announcement for so long that others may soon think this node lost.
func (a *agent) fenced() bool {
	return a.clock().Sub(a.start)-time.Duration(a.renewed.Load()) >= fencedAfter
}

// goneTimeout is how long boxd may take to receive what a gateway has sent that has gone since.
const goneTimeout = 5 * time.Second

// carry connects a stream of a gateway with boxd. Who asks, and what it may, is for boxd to find out.
func (a *agent) carry(far *stream) {
	defer func() { _ = far.Close() }() // once
	a.streams.Add(1)
	defer a.streams.Add(-1)
	if !a.serves() {
		far.Reset("the node is not ready: its sessions are not yet reconciled with the fleet")
		return
	}
	conn, err := net.Dial("unix", a.cfg.Fleet.Socket) //nolint:noctx // answers or refuses at once
	if err != nil {
		far.Reset("cannot reach boxd: " + err.Error())
		return
	}
	near := conn.(*net.UnixConn) //nolint:forcetypeassert // it is one
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-far.Gone(): // boxd may wait for a program that does nothing, and nobody waits for boxd any more
			_ = near.SetDeadline(time.Now().Add(goneTimeout))
		case <-done:
		}
	})
	wg.Go(func() {
		if _, err := io.Copy(near, far); err != nil { // the stream is over, or boxd is
			_ = near.Close() // it may be closed already, as below
			return
		}
		_ = near.CloseWrite() // one that is closed takes nothing more
		<-far.Gone()          // who has gone wants no answer
		_ = near.Close()
	})
	_, _ = io.Copy(far, near) // either way its end is told
	_ = far.CloseWrite()
	// boxd has closed the connection. What it has said is to arrive; what it would be told it does not hear.
	_ = near.CloseRead()
	<-far.Gone()
	close(done)
	_ = near.Close()
	wg.Wait()
}

// ofFleet reports whether sessions of a principal can be of the fleet: box.toml has to let a gateway speak for it. The agent asks
// boxd as root, which would let it end those of anybody, and whoever is on NATS may say what they like.
func (a *agent) ofFleet(ctx context.Context, owner string) (bool, error) {
	a.mu.Lock()
	ok, old := a.now.SpeaksFor(owner), time.Since(a.fetched) > renewEvery
	a.mu.Unlock()
	if ok || !old {
		return ok, nil
	}
	if err := a.refreshFleet(ctx); err != nil { // the operator may have changed that
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now.SpeaksFor(owner), nil
}

// refreshFleet asks boxd which gateways may speak for whom.
func (a *agent) refreshFleet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now, err := a.cfg.Ask(ctx)
	if err != nil {
		return fmt.Errorf("boxd: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now, a.fetched = now, time.Now()
	return nil
}

// fence remembers a generation.
func (a *agent) fence(ctx context.Context, m *nats.Msg) {
	var f fence
	var out fenced
	err := json.Unmarshal(m.Data, &f)
	switch {
	case err == nil && f.Generation == 0:
		err = errors.New("a claim without a generation")
	case err == nil && !a.serves():
		err = errors.New("the node is not ready: its sessions are not yet reconciled with the fleet")
	}
	if err == nil {
		var ok bool
		if ok, err = a.ofFleet(ctx, f.Owner); err == nil && !ok {
			err = fmt.Errorf("box.toml of node %s lets no gateway speak for %q: [fleet.gateways]", a.name, f.Owner)
		}
	}
	if err == nil {
		err = a.checkComing(ctx, &f)
	}
	if key := claimKey(f.Owner, f.ID); err == nil && (f.Workspace > 0 && a.isEnding(key) || a.isGivenUp(key)) {
		err = errors.New("it has not yet ended what it has under that id")
	}
	switch {
	case errors.Is(err, errLeftOver):
		out.Highest, err = f.Generation+1, nil // so that nobody takes it for the one that has this generation
	case err == nil:
		out.OK, out.Highest, err = a.fences.raise(&f)
	}
	if err == nil && !out.OK {
		a.refused.Add(1)
	}
	if err != nil {
		out.Error = err.Error()
	}
	data, err := json.Marshal(&out)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		a.log.Warn("cannot answer a gateway", "error", err)
	}
}

// comingTimeout bounds the wait of checkComing: fences of other sessions wait for it, and the gateway for the answer.
const comingTimeout = 2 * time.Second

// errLeftOver means that what is left of a move has the generation of a new session.
var errLeftOver = errors.New("a part of the session has this generation")

// checkComing refuses what a gateway says of a session that is on its way here, or was, if that is not so any more. A later generation of it has to
// wait until the one whose move broke off has ended: who asks for a new session would be given that, with a part of its files. And that
// all of it is here is not noted when its claim says something else: the move may have broken off before this was heard.
func (a *agent) checkComing(ctx context.Context, f *fence) error {
	h := a.fences.coming(f)
	if h == nil || h.Generation > f.Generation || h.Generation == f.Generation && f.Coming {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, comingTimeout)
	defer cancel()
	if h.Generation < f.Generation {
		lives, err := a.lives(ctx, h)
		if err == nil && lives {
			err = fmt.Errorf("it has not yet ended what it has of session %s, whose move broke off", fault.Show(f.ID))
			// Also in a bucket that is new: somebody else has claimed it there.
			err = errors.Join(err, a.fences.change(claimKey(f.Owner, f.ID), h.Generation, func(h *fencedSession) { h.Bucket, h.Whole = f.Bucket, false }))
		}
		return err
	}
	claims, err := a.js.KeyValue(ctx, claimBucket)
	if err != nil {
		return fmt.Errorf("bucket %s: %w", claimBucket, err)
	}
	claim, err := getClaim(ctx, claims, claimKey(f.Owner, f.ID))
	switch {
	case err != nil:
		return err
	case claim != nil && claim.starts(a.name, f.Generation):
		return errLeftOver
	case claim == nil || !claim.goesTo(a.name, f.Generation):
		return fmt.Errorf("session %s is not on its way here any more", fault.Show(f.ID))
	}
	return nil
}

// renew announces the node and looks after its claims, until ctx ends.
func (a *agent) renew(ctx context.Context) {
	var background sync.WaitGroup
	background.Go(func() { a.examine(ctx) })
	defer background.Wait()
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	defer func() {
		if a.view != nil {
			a.view.close()
		}
	}()
	lastError := ""
	for {
		start := a.clock().Sub(a.start) // not when it was taken: gateways count from later
		err := a.beat(ctx)
		switch {
		case err == nil:
			a.renewed.Store(int64(start))
			lastError = ""
		case errors.Is(err, errTaken):
			a.agree("")
			a.stopAnswering()
			if err.Error() != lastError {
				lastError = err.Error()
				a.log.Error("this node is not in the fleet", "error", err)
			}
		case ctx.Err() == nil:
			a.failed.Add(1)
			if err.Error() != lastError { // the same again is told once
				lastError = err.Error()
				a.log.Warn("cannot renew the lease of this node", "error", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// comparing is why a node takes no sessions at first.
const comparing = "it reconciles its sessions with the fleet's claims"

// beat is one announcement.
func (a *agent) beat(ctx context.Context) error {
	always := ctx
	a.baseCtx = always
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes, _, err := openBucket(ctx, a.js, nodesConfig(a.cfg.Replicas), a.instance)
	if err != nil {
		return err
	}
	claims, id, err := openBucket(ctx, a.js, claimsConfig(a.cfg.Replicas), rand.Text())
	if err != nil {
		return err
	}
	if a.fenced() {
		a.agree("")
	}
	if a.lease.revision == 0 { // before anything is said or done in that name
		if err := a.announce(ctx, nodes, &api.FleetNode{State: api.FleetNodeOff, Reason: comparing}); err != nil {
			return err
		}
	}
	if err := a.answer(always); err != nil {
		return err
	}
	sessions, err := a.boxd.Sessions(ctx, true)
	if err != nil {
		a.agree("")
		return errors.Join(fmt.Errorf("boxd: %w", err), a.announce(ctx, nodes, &api.FleetNode{State: api.FleetNodeFailed, Reason: "cannot reach boxd: " + err.Error()}))
	}
	if !a.agrees(id) || a.view == nil || a.view.ended() || a.renewal != a.nc.Stats().Reconnects { // something may not have been told
		if err := a.rewatch(always, claims); err != nil {
			return err
		}
	}
	if !a.agrees(id) { // before gateways look which of its claims are lost
		if err := a.announce(ctx, nodes, &api.FleetNode{State: api.FleetNodeOff, Reason: comparing}); err != nil {
			return err
		}
	}
	if err := a.reconcile(ctx, claims, id, sessions); err != nil {
		return err
	}
	if !a.agrees(id) && a.isEnding("") {
		return a.announce(ctx, nodes, &api.FleetNode{State: api.FleetNodeOff, Reason: "it ends what other nodes have by now"})
	}
	a.agree(id)
	n, err := a.describe(ctx, sessions)
	if err != nil {
		return err
	}
	n.Claims = id
	return a.announce(ctx, nodes, n)
}

// rewatch reads all claims again, and goes on hearing of them, until it is called again.
func (a *agent) rewatch(ctx context.Context, claims jetstream.KeyValue) (err error) {
	if a.view != nil {
		a.view.close()
	}
	a.renewal = a.nc.Stats().Reconnects
	a.view, err = openView(ctx, claims, a.name)
	return err
}

func (a *agent) agrees(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.agreed == id
}

// agree notes that the sessions of this node and the claims of a bucket agree; "": nobody knows.
func (a *agent) agree(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.agreed == id:
	case id == "":
		a.log.Warn("this node stops serving the fleet until its sessions match the claims")
	default:
		a.log.Info("this node serves the fleet: its sessions match the claims", "claims", id)
	}
	a.agreed = id
}

func (a *agent) announce(ctx context.Context, nodes jetstream.KeyValue, n *api.FleetNode) error {
	n.Name, n.Instance, n.Host, n.Labels, n.Time = a.name, a.instance, a.host, a.cfg.Fleet.Labels, time.Now()
	if a.direct != nil {
		n.Direct = &api.FleetDirect{Address: a.cfg.Fleet.Listen, Key: a.direct.key}
	}
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return a.put(ctx, nodes, data)
}
