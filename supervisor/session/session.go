// SPDX-License-Identifier: Apache-2.0

// Package session is one box with the programs in it: its states, its executions, its processes.
package session

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/quota"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Hooks are what all sessions of one boxd share, and their callbacks. All fields are set, unless nil is allowed below.
type Hooks struct {
	Config   func() *policy.Config // returns the configuration in force, which is never modified
	Executed *atomic.Uint64        // programs ever started
	Work     *sync.WaitGroup       // tracks background work
	End      func(*Session, EndReason)
	Due      func(*Session, time.Time) // the reaper must examine it by then: it may be over or idle; zero: now
	Leaving  func() bool               // the boxes are about to be left to the next boxd
	Events   *events.Log               // nil: events are not logged
	Accounts *quota.Accounts           // what owners hold
	Used     func(owner string, cpu time.Duration)
	Line     *quota.Queue        // where executions wait for room in their session
	Turns    *quota.StartLimiter // limits how many programs of an owner start at a time
	HandOver func(*Session)      // gives PID 1 the current state of what the next boxd needs
	Keep     func(*Session)      // writes the record of the session
	Reclaim  func(*Session)      // reclaims unused memory, as far as possible
}

// Params are the parameters of a new session.
type Params struct {
	ID       string
	Owner    access.Principal
	Created  time.Time
	Settings policy.Settings
	Profile  *policy.Profile
	Made     *policy.Config // the configuration under which it is created or adopted
	Env      []string       // NAME=value, without variables of a single program
	Enforced map[string]policy.Mechanism
	OneShot  bool // it is not adopted by a later boxd
	Live     []policy.LiveMount
	Skills   []policy.ActiveSkill
	Drives   []policy.ActiveDrive
	Pushes   []Push
	Rested   time.Duration // how long it was stopped in all
	Stopped  *Stopped      // what it is started again from; nil: it has not been stopped
}

// New returns a session that is starting; Launched tells it the outcome.
func New(hooks *Hooks, p *Params) *Session {
	s := &Session{
		ID: p.ID, Key: policy.Key(p.Owner.Name, p.ID), Owner: p.Owner, Hostname: policy.Hostname(p.ID, isolation.MaxHostname), Settings: p.Settings, Created: p.Created,
		hooks: hooks, profile: *p.Profile, createdConfig: p.Made, env: p.Env, enforced: p.Enforced, OneShot: p.OneShot, live: p.Live, skills: p.Skills, drives: p.Drives, pushes: p.Pushes,
		started: make(chan struct{}), ended: make(chan struct{}), state: StateStarting, lastUsed: time.Now(), rested: p.Rested, stopped: p.Stopped, history: &history{},
	}
	s.Record.Stopped = p.Stopped // until it has its box
	return s
}

// Session is one box and its state.
type Session struct {
	ID            string
	Key           string
	Owner         access.Principal
	Hostname      string
	Settings      policy.Settings // guarded by mu once the session has started
	Created       time.Time
	OneShot       bool   // it is not adopted by a later boxd
	Record        Record // state of its record on disk
	hooks         *Hooks
	profile       policy.Profile
	createdConfig *policy.Config // the configuration under which it was created or adopted
	env           []string       // NAME=value, without variables of a single program
	rootless      atomic.Bool    // its box has no root after all
	enforced      map[string]policy.Mechanism

	rested     time.Duration // how long it was stopped in all
	stopped    *Stopped      // what it is, or was, started again from; nil: it has not been stopped
	changeMu   sync.Mutex    // held while the session is changed or frozen
	handOverMu sync.Mutex    // held while the box is given what the next boxd needs
	history    *history      // has its own lock; not replaced once the session is visible to others

	started chan struct{} // closed when the start is over, successful or not
	ended   chan struct{} // closed when nothing is left of the session

	mu            sync.Mutex // guards the fields below
	state         State
	changes       int // number of changes of Settings
	box           *client.Box
	boxKey        string // key of its box, if that is not Key; fixed once it has started
	lastUsed      time.Time
	running       int // executions under way, and processes
	managed       int // managed processes among them
	watches       int // watches of directories
	execs         int // executions so far
	frozen        bool
	asleep        bool // frozen because it was idle: the next use thaws it
	watching      bool // its box, which counts as work of the supervisor
	missedPings   int  // pings in a row that its PID 1 has not answered
	reason        EndReason
	live          []policy.LiveMount  // mounts added while it lived, by target
	mounting      *policy.MountChange // the change of them that is under way
	skills        []policy.ActiveSkill
	drives        []policy.ActiveDrive
	pushes        []Push            // results that are yet to be copied
	extraEnv      map[string]string // variables that boxd adds to env: placeholders of secrets
	cachedContext *Context          // what context returned last; nil: nothing, or it is outdated

	processes map[string]*slot
	err       error    // why the start failed
	next      *Session // the session that has replaced it: this one was stopped, or started again
}

// Record is the state of a session's record, for its writer. Records are written one at a time.
type Record struct {
	sync.Mutex
	Ending bool // the session must not be adopted
	Gone   bool // the record was removed
	// Stopped is what the session is started again from; nil: it has a box, or will have one.
	Stopped *Stopped
	// Again is what the session is yet to be given after it was started again; nil: nothing.
	Again *Again
}

// Info is a consistent view of a session.
type Info struct {
	ID         string
	Box        string // the key of its box
	Owner      string
	OwnerUID   uint32
	Hostname   string
	State      State
	Settings   policy.Settings
	Enforced   map[string]policy.Mechanism
	Skills     []policy.ActiveSkill
	Drives     []policy.ActiveDrive
	Created    time.Time
	LastUsed   time.Time
	Running    int
	Processes  int // managed processes among Running
	Executions int
	// Expires is when the session ends if it is not used; zero if only a deletion ends it, or if a running program keeps it
	// alive and it has no absolute end.
	Expires     time.Time
	LeftRunning bool // processes continue that an ended program has left
	Frozen      bool
	Asleep      bool      // frozen because it was idle
	MissedPings int       // pings in a row that PID 1 has not answered
	Group       string    // path of the box's cgroup, "" if it has none
	PID         uint32    // of the box's PID 1, on the host
	IDBase      uint32    // first of the box's host ids
	Stopped     time.Time // when it was stopped; zero: it is not
}

// Info returns the session as it is now.
func (s *Session) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := Info{
		ID: s.ID, Box: cmp.Or(s.boxKey, s.Key), Owner: s.Owner.Name, OwnerUID: s.Owner.UID, Hostname: s.Hostname, State: s.state, Settings: s.Settings,
		Enforced: maps.Clone(s.enforced), Skills: slices.Clone(s.skills), Drives: slices.Clone(s.drives), Created: s.Created, LastUsed: s.lastUsed, Running: s.running, Processes: s.managed, Executions: s.execs, Frozen: s.frozen, Asleep: s.asleep, MissedPings: s.missedPings,
	}
	info.Expires, _ = s.expiryLocked()
	if s.state == StateStopped {
		info.Stopped = s.stopped.Since
	}
	if s.box != nil {
		info.PID, info.IDBase, info.Group = s.box.PID, s.box.IDBase, s.box.Group
		info.LeftRunning, _ = s.box.LeftRunning()
	}
	return info
}

// advanceLocked makes a transition of the table in state.go.
func (s *Session) advanceLocked(to State) error {
	if !slices.Contains(transitions()[s.state], to) {
		return fmt.Errorf("session %q: no way from %s to %s", s.ID, s.state, to)
	}
	s.state = to
	return nil
}

// expiryLocked returns when and why the session ends by itself; a zero time means never. A session is not idle while a program
// runs, nor while processes continue that a program has left.
func (s *Session) expiryLocked() (time.Time, EndReason) {
	var at time.Time
	var reason EndReason
	if s.state == StateStopped {
		if age := time.Duration(s.hooks.Config().Sessions.StoppedAge); age > 0 {
			at, reason = s.stopped.Since.Add(age), EndStoppedAge
		}
		return at, reason
	}
	idle, since := s.running == 0, s.lastUsed
	if s.box != nil && idle {
		busy, quiet := s.box.LeftRunning()
		idle = !busy
		if quiet.After(since) {
			since = quiet
		}
	}
	if ttl := time.Duration(s.Settings.TTL); ttl > 0 && idle {
		at, reason = since.Add(ttl), EndIdle
	}
	if lifetime := time.Duration(s.Settings.MaxLifetime); lifetime > 0 {
		if end := s.Created.Add(s.rested + lifetime); at.IsZero() || end.Before(at) {
			at, reason = end, EndLifetime
		}
	}
	return at, reason
}

// beginExec admits one execution; the caller must call finishExec.
func (s *Session) beginExec(limit int, now time.Time) (*client.Box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSlotLocked(limit); err != nil {
		return nil, err
	}
	return s.box, s.beginExecLocked(now)
}

// checkSlot refuses an execution that beginExec would refuse now.
func (s *Session) checkSlot(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.checkSlotLocked(limit), s.checkReadyLocked())
}

// checkSlotLocked refuses an execution beyond the limit.
func (s *Session) checkSlotLocked(limit int) error {
	if s.running-s.managed < limit || s.state != StateReady || s.frozen {
		return nil // beginExecLocked refuses it
	}
	return &quota.Full{Reason: quota.Executions, Own: true, Err: fault.Errorf(fault.Exhausted, "session %s has %d executions running, its limit (exec.max_per_session)", fault.Show(s.ID), limit).
		WithHint("wait for one of them to end").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: "exec.max_per_session", Used: strconv.Itoa(limit), Allowed: strconv.Itoa(limit), Setting: "a larger exec.max_per_session"})}
}

// checkReadyLocked refuses a session in which nothing can be started.
func (s *Session) checkReadyLocked() error {
	if s.state != StateReady {
		return s.notReadyErrorLocked()
	}
	if s.asleep {
		return errAsleep
	}
	if s.frozen {
		return frozenError(s.ID)
	}
	return nil
}

// beginExecLocked is beginExec for a caller that checks the limit itself.
func (s *Session) beginExecLocked(now time.Time) error {
	if err := s.checkReadyLocked(); err != nil {
		return err
	}
	s.running++
	s.execs++
	s.lastUsed = now
	return nil
}

// Current returns the settings that the session has now.
func (s *Session) Current() policy.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Settings
}

// Home is the home directory of the box user. It does not change.
func (s *Session) Home() string {
	settings := s.Current()
	return settings.HomeDir()
}

// Grouped reports whether the box has cgroups.
func (s *Session) Grouped() bool { return policy.Grouped(s.enforced) }

// limitHit is the refusal of a program because of a limit of the session.
func (s *Session) limitHit(step *isolation.StepError) error {
	pids := 0
	if s.Grouped() {
		pids = s.Current().Pids
	}
	return limitError(s.ID, pids, step)
}

// finishExec ends an execution and returns when the session expires if that was its last use.
func (s *Session) finishExec(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.lastUsed = now
	at, _ := s.expiryLocked()
	return at
}

// Touch notes a use, which restarts the idle time.
func (s *Session) Touch(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastUsed = now
}

// Reason is why the session is ending or has ended; empty if it is not.
func (s *Session) Reason() EndReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// NotFoundError is the error for an id without a session.
func NotFoundError(id string) error {
	return fault.Errorf(fault.NotFound, "no session %s", fault.Show(id)).
		WithHint("list sessions: boxctl ls")
}

// Config is the configuration in force.
func (s *Session) Config() *policy.Config { return s.hooks.Config() }
