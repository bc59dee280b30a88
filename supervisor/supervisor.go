// SPDX-License-Identifier: Apache-2.0

// Package supervisor holds all sessions, from their admission to their end.
package supervisor

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor/events"

	"github.com/boxd-dev/boxd/supervisor/policy"

	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// Parts are the components a Supervisor works with. It owns none of them.
type Parts struct {
	Boxes    *driver.Driver
	Stores   AttachmentStores
	Secrets  *Secrets // nil: no secrets
	Send     Sender   // sends results to buckets; nil: none are sent
	Pack     Packer   // packs results; set if Send is
	StateDir string
	Log      *slog.Logger
	// AdoptGrace is how long boxes live after boxd has gone without notice; 0: they end with it.
	AdoptGrace time.Duration
	// Keep makes Close leave the boxes to the next boxd.
	Keep   bool
	Events *events.Log // receives all events; nil: none are logged
	// Checks are further checks for doctor, of settings that the supervisor does not know.
	Checks []isolation.Check
}

// Supervisor holds all sessions of one boxd.
type Supervisor struct {
	Attachments  *Attachments                  // skills, drives and images of sessions
	Spaces       *volumes.Workspaces           // named workspaces
	Ports        *session.Ports                // connections into boxes
	cfg          atomic.Pointer[policy.Config] // the value is never modified
	boxes        *driver.Driver
	secrets      *Secrets
	pushes       *pusher
	state        string
	checks       []isolation.Check // see Parts
	log          *slog.Logger
	events       *events.Log
	records      *Records
	record       recorder
	layout       policy.CgroupLayout
	machine      policy.Machine
	grace        time.Duration
	keep         bool
	serveCtx     context.Context //nolint:containedctx // what New was called with: when it ends, boxd is about to
	wakeup       chan struct{}   // tells the reaper of a new deadline
	examSem      chan struct{}   // semaphore: one examination at a time
	readers      *places.Limit   // of boxes in which files of stopped sessions are read
	resample     chan struct{}   // tells takeSamples that the configuration has changed
	work         sync.WaitGroup
	stop         context.CancelFunc
	executed     atomic.Uint64 // programs ever started
	sessionHooks session.Hooks
	accounts     *quota.Accounts
	ledger       *quota.Ledger
	gate         *DrainSwitch
	line, execs  *quota.Queue // where starts wait; where executions wait for room in their session
	pool         *Pool
	totals       *quota.OwnerLimits
	ended        session.EndedSessions
	pressed      atomic.Pointer[verdict] // result of the last capacity check
	baseCtx      context.Context         //nolint:containedctx // the supervisor's own: ends its background work, never a request's

	mu        sync.Mutex // guards the fields below
	sessions  map[string]*session.Session
	closed    bool
	starting  int                                     // boxes of sessions that are starting
	leaving   map[string]*session.Session             // no longer listed, but their end is not yet reported
	owned     map[string]int                          // number of sessions, by owner
	stopped   map[*session.Session]bool               // those of sessions that have no box
	stopHolds map[*session.Session]*stopHold          // those of stopped that cannot be started now
	stopping  map[*session.Session]context.CancelFunc // ends the wait for their programs
	deletions map[*session.Session]*deletion          // those under way
	nextCheck time.Time                               // when the reaper runs next
	deadlines deadlines
	host      policy.Host
}

// startTimeout bounds a start. The start continues after its caller hangs up, as others may wait for it.
const startTimeout = time.Minute

// New adopts the sessions that an earlier boxd has left, cleans up after the others, and starts the reaper.
func New(ctx context.Context, cfg policy.Config, parts Parts) (*Supervisor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	found, err := OpenRecords(parts.StateDir)
	if err != nil {
		return nil, err
	}
	clock, err := quota.HostClock()
	if err != nil {
		return nil, err
	}
	used, err := quota.OpenLedger(parts.StateDir, cfg.Usage.KeepDays, clock, parts.Log)
	if err != nil {
		return nil, err
	}
	closed, err := OpenDrainSwitch(filepath.Join(parts.StateDir, statedir.Daemon))
	if err != nil {
		found.Close()
		return nil, err
	}
	v := &Supervisor{
		ledger: used, accounts: quota.NewAccounts(used, time.Now),
		gate: closed, boxes: parts.Boxes, secrets: parts.Secrets, state: parts.StateDir, checks: parts.Checks, log: parts.Log, events: parts.Events, records: found, layout: driver.HostLayout(), grace: parts.AdoptGrace, keep: parts.Keep, serveCtx: ctx,
		wakeup: make(chan struct{}, 1), examSem: make(chan struct{}, 1), resample: make(chan struct{}, 1), sessions: map[string]*session.Session{}, leaving: map[string]*session.Session{}, owned: map[string]int{}, stopped: map[*session.Session]bool{},
		stopHolds: map[*session.Session]*stopHold{}, stopping: map[*session.Session]context.CancelFunc{}, readers: newReaders(),
	}
	v.cfg.Store(&cfg)
	v.record = recorder{Dir: found, Log: v.log, MountPoints: mountPointCleanup{Boxes: v.boxes, Points: newMountPoints(), Keep: v.keepKey, Log: v.log}}
	v.Attachments = newAttachments(v.boxes, parts.Stores, v.record.Write, v.log)
	v.line, v.execs, v.pool, v.totals = quota.NewQueue(v.Queue), quota.NewQueue(v.Queue), v.newPool(), quota.NewOwnerLimits(v.boxes.SetOwnerLimits, v.log)
	v.sessionHooks = session.Hooks{
		Line: v.execs, Keep: v.keepRecord, Reclaim: v.reclaim, HandOver: v.handOverAgain,
		Config: v.cfg.Load, Executed: &v.executed, Work: &v.work, Due: v.due,
		End:      func(s *session.Session, reason session.EndReason) { _ = v.End(v.baseCtx, s, reason) }, // logged where it fails
		Leaving:  func() bool { return v.keep && v.serveCtx.Err() != nil },
		Events:   parts.Events,
		Accounts: v.accounts, Used: v.ledger.AddCPU,
		Turns: quota.NewStartLimiter(quota.PerCore*runtime.GOMAXPROCS(0), quota.Hold),
	}
	v.baseCtx, v.stop = context.WithCancel(context.WithoutCancel(ctx))
	v.Ports = session.NewPorts(v.boxes, v.cfg.Load)
	v.pushes = newPusher(v, &parts)
	host, err := v.lookAtHost(ctx)
	if err == nil {
		v.machine, err = policy.ReadMachine()
	}
	if err == nil {
		v.Spaces, err = volumes.OpenWorkspaces(ctx, v.state, host.Workspaces, volumes.WorkspaceParts{Boxes: v.boxes, Ledger: used, Log: v.log, Config: v.cfg.Load})
	}
	if err == nil {
		err = v.takeOver(ctx, host.Workspaces)
	}
	if err != nil {
		v.keep = true // adopted sessions must survive
		v.Close()
		return nil, err
	}
	v.SetWarm()
	v.work.Go(func() { v.reap(v.baseCtx) })
	v.work.Go(func() { v.ledger.Run(v.baseCtx, v.readings) })
	v.work.Go(func() { v.line.Run(v.baseCtx) })
	v.work.Go(func() { v.execs.Run(v.baseCtx) })
	v.work.Go(func() { v.pool.Run(v.baseCtx) })
	v.work.Go(func() { v.totals.Run(v.baseCtx, func() []quota.Total { return session.Totals(v.all()) }) })
	v.work.Go(func() { v.pingBoxes(v.baseCtx) })
	v.work.Go(func() { v.takeSamples(v.baseCtx) })
	v.work.Go(func() { v.pushes.run(v.baseCtx) })
	return v, nil
}

// Close ends all sessions and waits until nothing is left of them, or leaves them to the next boxd. It gives up on a box that
// does not die after startTimeout: that must not keep boxd from exiting.
func (v *Supervisor) Close() {
	v.mu.Lock()
	v.closed = true
	all := v.allLocked()
	v.mu.Unlock()
	v.line.Wake() // callers waiting for room get an error
	var ends sync.WaitGroup
	for _, s := range all {
		if state, _, _ := s.State(); state == session.StateStopped { // it has no box, and is left to the next boxd
			continue
		}
		ends.Go(func() {
			if v.keep {
				v.park(s)
				return
			}
			_ = v.End(v.baseCtx, s, session.EndShutdown) // End logs failures
		})
	}
	timer := time.AfterFunc(startTimeout, v.stop)
	ends.Wait()
	timer.Stop()
	v.stop()
	v.work.Wait()
	v.records.Close()
	v.Spaces.Close()
	if err := v.ledger.Close(); err != nil {
		v.log.Error("cannot write usage", "error", err)
	}
	v.gate.Close()
}

// Create returns the principal's session of the requested id, and creates it if there is none; the second result tells which.
// An existing session must match the request.
func (v *Supervisor) Create(ctx context.Context, caller access.Principal, req *policy.Request) (*session.Session, bool, error) {
	w, err := v.want(ctx, caller, req)
	if err != nil {
		return nil, false, err
	}
	for {
		s, isNew, err := v.admit(ctx, w)
		if err != nil {
			return nil, false, err
		}
		if isNew {
			return s, true, v.start(ctx, s)
		}
		joined, err := v.join(ctx, s, req, &w.settings)
		if joined || err != nil {
			return s, false, err
		}
	}
}

// join waits for an existing session. It returns false if that has ended meanwhile.
func (v *Supervisor) join(ctx context.Context, s *session.Session, req *policy.Request, requested *policy.Settings) (bool, error) {
	if !v.isLeaving(s) {
		if err := different(s, v.differences(s, req, requested)); err != nil {
			return true, err
		}
	}
	select {
	case <-s.Started():
	case <-ctx.Done():
		return true, ctx.Err()
	}
	state, lost, err := s.State()
	switch {
	case err != nil:
		return true, err
	case lost: // and not handled yet
		return false, v.End(ctx, s, session.EndLost)
	case state == session.StateReady:
		s.Touch(time.Now())
		return true, nil
	case state == session.StateStopped || state == session.StateStopping:
		return true, session.StoppedError(s.ID)
	}
	select {
	case <-s.Ended():
		return false, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// isLeaving reports whether a session is off the list already.
func (v *Supervisor) isLeaving(s *session.Session) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.leaving[s.Key] == s
}

// differences names the requested fields in which the session differs.
func (v *Supervisor) differences(s *session.Session, req *policy.Request, requested *policy.Settings) []string {
	settings := s.Current()
	names := settings.Differences(req, requested)
	if req.Env != nil && !slices.Equal(s.Environment(), session.Environment(s.Made(), &settings, req.Env)) {
		names = append(names, "env") // compared by value; no record has them
	}
	return names
}

// Session returns the principal's session of an id.
func (v *Supervisor) Session(caller access.Principal, id string) (*session.Session, error) {
	if err := policy.ValidateID(id); err != nil {
		return nil, err
	}
	v.mu.Lock()
	s := v.sessions[policy.Key(caller.Name, id)]
	v.mu.Unlock()
	if s == nil {
		return nil, v.notFound(caller, id)
	}
	return s, nil
}

// List returns the principal's sessions, or everybody's, oldest first.
func (v *Supervisor) List(caller access.Principal, allOwners bool) []*session.Session {
	v.mu.Lock()
	var list []*session.Session
	for _, s := range v.sessions {
		if allOwners || s.Owner.Name == caller.Name {
			list = append(list, s)
		}
	}
	v.mu.Unlock()
	slices.SortFunc(list, func(a, b *session.Session) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Sessions describes the principal's sessions, or everybody's, oldest first.
func (v *Supervisor) Sessions(caller access.Principal, allOwners bool) []session.Info {
	list := v.List(caller, allOwners)
	infos := make([]session.Info, len(list))
	for i, s := range list {
		infos[i] = s.Info()
	}
	return infos
}
