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
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor"
)

// Backend is the name by which LangBot knows boxd.
const Backend = "boxd"

// TTL is how long a session lives that nobody uses and that is not persistent; LangBot cannot change it.
const TTL = 300 * time.Second

// BoxesConfig is what Boxes needs.
type BoxesConfig struct {
	Sup     *supervisor.Supervisor
	Profile string // of all sessions
	// NeedImage refuses a session whose image is not there, rather than to give it that of the profile.
	NeedImage bool
	// Soft lets a quota of a directory of the host be that cannot be kept here.
	Soft bool
	// Who is the principal whose all sessions are, as it is now.
	Owner func() (access.Principal, error)
	// Told is what LangBot has said with its last INIT.
	Init func() *InitConfig
	Log  *slog.Logger
}

// Boxes are all sessions of LangBot.
type Boxes struct {
	BoxesConfig

	making locks // by the physical id: who finds, makes or replaces a session
	execs  locks // by the physical id: one command at a time
	starts locks // by the physical id: one process is started at a time

	mu       sync.Mutex // guards the fields below
	reserved map[string]struct{}
	starting map[processKey]struct{}
	slots    map[processKey]*slot
	closing  bool // box_shutdown is under way
}

// newBoxes returns the sessions that LangBot has.
func newBoxes(c BoxesConfig) *Boxes {
	return &Boxes{BoxesConfig: c, reserved: map[string]struct{}{}, starting: map[processKey]struct{}{}, slots: map[processKey]*slot{}}
}

// Tenant is a Workspace in one generation.
type Tenant struct {
	Prefix string
	// Admitted is what it is held to by LangBot's own admission; nil: that is not required.
	Admitted *Admitted
	// Still refuses what is not allowed any more; nil: it always is.
	Still func() error
}

// begins every session of LangBot's.
const ours = "ws-"

// physical is the id of a session that was asked for.
func (t Tenant) physical(logical string) (string, error) { return physicalID(t.Prefix, logical) }

// logical is the id that LangBot knows a session by.
func (t Tenant) logical(physical string) string { return strings.TrimPrefix(physical, t.Prefix) }

// explain puts what the supervisor refuses into the words of the protocol.
func explain(err error, physical string) error {
	if _, ok := errors.AsType[*refusal](err); ok || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	class := "BoxError"
	switch fault.KindOf(err) {
	case fault.NotFound:
		return notFound(physical)
	case fault.Invalid, fault.Denied, fault.Unsupported:
		class = "BoxValidationError"
	case fault.Conflict:
		class = "BoxSessionConflictError"
	case fault.Exhausted:
		class = "BoxCapacityExceededError"
	case fault.Unavailable:
		class = "BoxBackendUnavailableError"
	case fault.Internal, fault.Unauthenticated:
	}
	text := err.Error()
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
		text += " (" + f.Hint + ")"
	}
	return refusalf(class, "%s", text)
}

func notFound(physical string) error {
	return refusalf("BoxSessionNotFoundError", "session %s not found", physical)
}

func beingDeleted(physical string) error {
	return refusalf("BoxSessionNotFoundError", "session %s is being deleted", physical)
}

// find is the living session of a physical id.
func (b *Boxes) find(physical string) (*session.Session, error) {
	who, err := b.Owner()
	if err != nil {
		return nil, err
	}
	s, err := b.Sup.Session(who, physical)
	if err != nil || s.Reason() != "" {
		return nil, notFound(physical)
	}
	return s, nil
}

// list are all sessions of LangBot, of all Workspaces.
func (b *Boxes) list() []session.Info {
	who, err := b.Owner()
	if err != nil {
		return nil
	}
	var list []session.Info
	for _, info := range b.Sup.Sessions(who, false) {
		if strings.HasPrefix(info.ID, ours) {
			list = append(list, info)
		}
	}
	return list
}

// Available reports whether sessions can start.
func (b *Boxes) Available() bool { return b.Init().Ours() && b.Sup.Ready() == nil }

// Counts are what LangBot has altogether.
type Counts struct {
	Sessions  int
	Running   int // processes
	Completed int // processes that have ended and are known
	Starting  int
	Ending    int
}

// Counts counts.
func (b *Boxes) Counts() (c Counts) {
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

// Status counts what one tenant has: sessions, and processes that run.
func (b *Boxes) Status(t Tenant) (sessions, processes int) {
	for _, info := range b.list() {
		if strings.HasPrefix(info.ID, t.Prefix) {
			sessions++
			processes += info.Processes
		}
	}
	return sessions, processes
}

// Highest is the highest generation that a session of a Workspace has, 0 if it has none.
func (b *Boxes) Highest(namespace string) (highest int64) {
	for _, info := range b.list() {
		if n, ok := generationOf(namespace, info.ID); ok {
			highest = max(highest, n)
		}
	}
	return highest
}

// Retire ends the sessions of earlier generations of a Workspace.
func (b *Boxes) Retire(ctx context.Context, namespace string, generation int64) error {
	return b.EndAll(ctx, func(id string) bool {
		n, ok := generationOf(namespace, id)
		return ok && n < generation
	})
}

// Shutdown ends all sessions of LangBot, and of nobody else. It goes on being served.
func (b *Boxes) Shutdown(ctx context.Context) error {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.closing = false
		b.mu.Unlock()
	}()
	return b.EndAll(ctx, func(string) bool { return true })
}

// EndAll ends some sessions at once, of all Workspaces, and waits until they have ended.
func (b *Boxes) EndAll(ctx context.Context, which func(id string) bool) error {
	who, err := b.Owner()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, info := range b.list() {
		if !which(info.ID) {
			continue
		}
		s, err := b.Sup.Session(who, info.ID)
		if err != nil {
			continue // it has ended meanwhile
		}
		all.Go(func() {
			if err := b.Sup.End(ctx, s, session.EndDeleted); err != nil {
				mu.Lock()
				errs = append(errs, explain(err, info.ID))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
