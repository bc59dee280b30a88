// SPDX-License-Identifier: Apache-2.0

// LangBot's actions as sessions and processes of the supervisor.

package actionrpc

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor"
)

// Backend is the name by which LangBot knows boxd.
const Backend = "boxd"

// ttl is how long an unused session lives that is not persistent; LangBot cannot change it.
const ttl = 300 * time.Second

// BoxesConfig configures Boxes.
type BoxesConfig struct {
	Sup     *supervisor.Supervisor
	Profile string // of all sessions
	// NeedImage refuses a session whose image is missing, instead of using the image of the profile.
	NeedImage bool
	// Soft drops a quota on a host directory that cannot be enforced here.
	Soft bool
	// Owner returns the current principal that owns all sessions.
	Owner func() (access.Principal, error)
	// Init returns the configuration of LangBot's last INIT.
	Init func() *InitConfig
	Log  *slog.Logger
}

// Boxes are all sessions of LangBot.
type Boxes struct {
	BoxesConfig

	making locks // by physical id: finding, making or replacing a session
	execs  locks // by physical id: one command at a time
	starts locks // by physical id: one process start at a time

	mu       sync.Mutex // guards the fields below
	reserved map[string]struct{}
	starting map[processKey]struct{}
	slots    map[processKey]*slot
	closing  bool // box_shutdown is under way
}

// newBoxes returns the sessions of LangBot.
func newBoxes(c BoxesConfig) *Boxes {
	return &Boxes{BoxesConfig: c, reserved: map[string]struct{}{}, starting: map[processKey]struct{}{}, slots: map[processKey]*slot{}}
}

// Tenant is a Workspace in one generation.
type Tenant struct {
	Prefix string
	// Admitted is what LangBot's own admission allows the tenant; nil: the admission is not required.
	Admitted *Admitted
	// Still refuses what is not allowed any more; nil: it always is allowed.
	Still func() error
}

// ours is the prefix of every session id of LangBot.
const ours = "ws-"

// physical returns the boxd session id for a requested one.
func (t Tenant) physical(logical string) (string, error) { return wire.PhysicalID(t.Prefix, logical) }

// logical returns the id by which LangBot knows a session.
func (t Tenant) logical(physical string) string { return strings.TrimPrefix(physical, t.Prefix) }

// explain translates a refusal of the supervisor to the protocol.
func explain(err error, physical string) error {
	if _, ok := errors.AsType[*wire.Refusal](err); !ok && fault.KindOf(err) == fault.NotFound {
		return notFound(physical)
	}
	return wire.Explain(err) //nolint:wrapcheck // it has its class
}

func notFound(physical string) error {
	return wire.Refusef("BoxSessionNotFoundError", "session %s not found", physical)
}

func beingDeleted(physical string) error {
	return wire.Refusef("BoxSessionNotFoundError", "session %s is being deleted", physical)
}

// find returns the living session of a physical id.
func (b *Boxes) find(physical string) (*session.Session, error) {
	owner, err := b.Owner()
	if err != nil {
		return nil, err
	}
	s, err := b.Sup.Session(owner, physical)
	if err != nil || s.Reason() != "" {
		return nil, notFound(physical)
	}
	return s, nil
}

// list returns all sessions of LangBot, of all Workspaces.
func (b *Boxes) list() []session.Info {
	owner, err := b.Owner()
	if err != nil {
		return nil
	}
	var list []session.Info
	for _, info := range b.Sup.Sessions(owner, false) {
		if strings.HasPrefix(info.ID, ours) {
			list = append(list, info)
		}
	}
	return list
}

// Available reports whether sessions can start.
func (b *Boxes) Available() bool { return b.Init().Ours() && b.Sup.Ready() == nil }

// Counts are the totals of all Workspaces.
type Counts struct {
	Sessions  int
	Running   int // processes
	Completed int // ended processes that are still known
	Starting  int
	Ending    int
}

// counts returns the totals.
func (b *Boxes) counts() (c Counts) {
	for _, info := range b.list() {
		c.Sessions++
		c.Running += info.Processes
		if s, err := b.find(info.ID); err == nil {
			c.Completed += max(len(s.Processes())-info.Processes, 0)
		} else {
			c.Ending++
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.Starting = len(b.reserved)
	return c
}

// Status counts the sessions and the running processes of one tenant.
func (b *Boxes) Status(t Tenant) (sessions, processes int) {
	for _, info := range b.list() {
		if strings.HasPrefix(info.ID, t.Prefix) {
			sessions++
			processes += info.Processes
		}
	}
	return sessions, processes
}

// highest returns the highest generation that a session of a Workspace has, 0 if it has none.
func (b *Boxes) highest(namespace string) (highest int64) {
	for _, info := range b.list() {
		if n, ok := wire.GenerationOf(namespace, info.ID); ok {
			highest = max(highest, n)
		}
	}
	return highest
}

// Retire ends the sessions of earlier generations of a Workspace.
func (b *Boxes) Retire(ctx context.Context, namespace string, generation int64) error {
	return b.endAll(ctx, func(id string) bool {
		n, ok := wire.GenerationOf(namespace, id)
		return ok && n < generation
	})
}

// Shutdown ends all sessions of LangBot and no others. LangBot is served afterwards too.
func (b *Boxes) Shutdown(ctx context.Context) error {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.closing = false
		b.mu.Unlock()
	}()
	return b.endAll(ctx, func(string) bool { return true })
}

// endAll ends the chosen sessions of all Workspaces at once, and waits until they have ended.
func (b *Boxes) endAll(ctx context.Context, which func(id string) bool) error {
	owner, err := b.Owner()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, info := range b.list() {
		if !which(info.ID) {
			continue
		}
		s, err := b.Sup.Session(owner, info.ID)
		if err != nil {
			continue // it has ended meanwhile
		}
		wg.Go(func() {
			if err := b.Sup.End(ctx, s, session.EndDeleted); err != nil {
				mu.Lock()
				errs = append(errs, explain(err, info.ID))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
