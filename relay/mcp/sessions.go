// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Times of sessions.
const (
	// orphanTTL is how long a session outlives its client if the profile sets no ttl.
	orphanTTL = 10 * time.Minute
	// renewalsPerTTL is how often a session is renewed within its ttl.
	renewalsPerTTL = 3
	// closeTimeout is how long boxd may take to end all of them.
	closeTimeout = time.Minute
)

// Sessions are the sessions of one MCP client: the default one, made when it is first needed, and those that it creates.
// They live as long as the client, and Close ends them; if that fails, their ttl does.
type Sessions struct {
	client     *client.Client
	request    api.SessionRequest // for the default session
	persistent bool               // the default session has an id, and is not ended
	any        bool               // all sessions of the caller may be used

	ctx    context.Context //nolint:containedctx // of the renewals, which Close ends
	cancel context.CancelFunc
	wg     sync.WaitGroup // the renewals

	makeMu  sync.Mutex // held while the default session is made
	mu      sync.Mutex // guards the fields below
	closed  bool       // no more sessions are made
	own     string     // id of the default session, "" if there is none now
	created []string   // sessions that end with the client
	leases  map[string]*leases
}

// leases keep a session that was made here, and its processes, alive until the client goes.
type leases struct {
	ttl       time.Duration
	processes []string
}

// SessionsOptions configure the sessions of a client.
type SessionsOptions struct {
	Ask api.SessionRequest // for the default session; with an id, it is permanent
	Any bool               // let the client use all sessions of its caller, not only its own
}

// NewSessions returns Sessions without any.
func NewSessions(c *client.Client, o SessionsOptions) *Sessions {
	b := &Sessions{client: c, request: o.Ask, persistent: o.Ask.ID != "" || o.Ask.Template != "", any: o.Any, leases: map[string]*leases{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// ID returns the session of a call: the default one if name is empty, which is made if it does not exist.
func (b *Sessions) ID(ctx context.Context, name string) (string, error) {
	if name != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.any || name == b.own || slices.Contains(b.created, name) {
			return name, nil
		}
		f := fault.Field("session", name, "a box that this connection has created")
		f.Kind, f.Hint = fault.NotFound, "omit it to use the box of this connection; box_create creates others"
		return "", f
	}
	b.makeMu.Lock()
	defer b.makeMu.Unlock()
	b.mu.Lock()
	own := b.own
	b.mu.Unlock()
	if own != "" {
		return own, nil
	}
	s, _, err := b.create(ctx, b.request, b.persistent)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own = s.ID
	return s.ID, nil
}

// createOther makes another session, which ends with the client as the default one does.
func (b *Sessions) createOther(ctx context.Context, req *api.SessionRequest) (api.Session, error) {
	s, isNew, err := b.create(ctx, *req, false)
	if err == nil && !isNew && !b.any && !b.has(s.ID) {
		return s, fault.Errorf(fault.Conflict, "box %s exists already, and was not created by this connection", fault.Show(s.ID)).WithHint("use another id")
	}
	return s, err
}

func (b *Sessions) has(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return id == b.own || slices.Contains(b.created, id)
}

// create makes a session and keeps it alive. A permanent session is not ended, and keeps its own ttl.
func (b *Sessions) create(ctx context.Context, req api.SessionRequest, persistent bool) (api.Session, bool, error) {
	if !persistent && req.TTL == nil {
		plan, err := b.client.PlanSession(ctx, &req)
		if err != nil {
			return api.Session{}, false, err
		}
		if plan.Session != nil && plan.Session.TTL == 0 {
			req.TTL = new(quantity.Duration(orphanTTL))
		}
	}
	s, isNew, err := b.client.CreateSession(ctx, &req)
	if err != nil {
		return s, false, err
	}
	if b.enter(&s, isNew, persistent) {
		return s, isNew, nil
	}
	if isNew && !persistent { // Close does not know it
		timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = b.client.DeleteSession(timeoutCtx, s.ID) // otherwise its ttl ends it
	}
	return s, false, fault.Errorf(fault.Unavailable, "this connection has ended").WithHint("connect again")
}

// enter keeps a session alive from now on, and returns false after Close.
func (b *Sessions) enter(s *api.Session, isNew, persistent bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if isNew && !persistent {
		b.created = append(b.created, s.ID)
		b.leases[s.ID] = &leases{ttl: time.Duration(s.TTL)}
	}
	if id, ttl := s.ID, time.Duration(s.TTL); (isNew || persistent) && ttl > 0 {
		b.wg.Go(func() { b.renew(id, ttl/renewalsPerTTL) })
	}
	return true
}

// renew keeps a session alive until Close, or until it has ended.
func (b *Sessions) renew(id string, every time.Duration) {
	ticker := time.NewTicker(max(every, time.Second/10))
	defer ticker.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := b.client.RenewSession(b.ctx, id); errors.Is(err, client.NotFound) {
			return
		}
		for _, p := range b.processes(id) {
			_, _ = b.client.RenewProcess(b.ctx, id, p) // an ended process has no lease
		}
	}
}

// Lease returns the lease for a process to be started in a session, and renews it from now on: in a session that ends with the
// client, the process must not keep the session alive when the client is gone, which boxd may not notice. nil means no lease.
func (b *Sessions) Lease(id, process string) *quantity.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.leases[id]
	if l == nil || l.ttl <= 0 {
		return nil
	}
	if !slices.Contains(l.processes, process) {
		l.processes = append(l.processes, process)
	}
	return new(quantity.Duration(l.ttl))
}

func (b *Sessions) processes(id string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leases[id]; l != nil {
		return slices.Clone(l.processes)
	}
	return nil
}

// forget removes a session that has ended. b.mu is held.
func (b *Sessions) forget(id string) {
	b.created = slices.DeleteFunc(b.created, func(m string) bool { return m == id })
	delete(b.leases, id)
}

// explain explains an error about a session: it reports one that has ended, and the next call that needs the default
// session makes a new one.
func (b *Sessions) explain(ctx context.Context, id string, err error) error {
	if !errors.Is(err, client.NotFound) {
		return err
	}
	if _, getErr := b.client.Session(ctx, id); !errors.Is(getErr, client.NotFound) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(id)
	if id != b.own {
		return fault.Errorf(fault.NotFound, "box %s has ended, and its files are gone", id).WithHint("create another one with box_create")
	}
	b.own = ""
	return fault.Errorf(fault.NotFound, "the box of this connection has ended, and its files are gone").WithHint("the next call creates a new, empty one")
}

// remove ends a session, the default one if name is empty: the next call makes a new one.
func (b *Sessions) remove(ctx context.Context, name string) (string, error) {
	b.mu.Lock()
	id := name
	if id == "" {
		id = b.own
	}
	b.mu.Unlock()
	if id == "" {
		return "", fault.Errorf(fault.NotFound, "this connection has no box yet").WithHint("the first call that needs one creates it")
	}
	if _, err := b.ID(ctx, id); err != nil {
		return id, err
	}
	if err := b.client.DeleteSession(ctx, id); err != nil && !errors.Is(err, client.NotFound) {
		return id, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(id)
	if id == b.own {
		b.own = ""
	}
	return id, nil
}

// list describes the sessions, the default one first.
func (b *Sessions) list(ctx context.Context) ([]api.Session, error) {
	b.mu.Lock()
	ids := slices.Clone(b.created)
	if b.own != "" && !slices.Contains(ids, b.own) {
		ids = slices.Insert(ids, 0, b.own)
	}
	b.mu.Unlock()
	if b.any {
		return b.client.Sessions(ctx, false)
	}
	list := []api.Session{}
	for _, id := range ids {
		s, err := b.client.Session(ctx, id)
		if errors.Is(err, client.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// Close ends all sessions that the client has made. It returns when nothing is left of them, or says what is.
func (b *Sessions) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.wg.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, id := range b.created {
		if err := b.client.DeleteSession(ctx, id); err != nil && !errors.Is(err, client.NotFound) {
			errs = append(errs, fmt.Errorf("end session %s: %w", id, err))
		}
	}
	b.created, b.own = nil, ""
	return errors.Join(errs...)
}
