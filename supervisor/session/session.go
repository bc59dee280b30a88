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

// Hooks is what all sessions of one boxd share, and what a session tells of itself. All of it is set.
type Hooks struct {
	Config   func() *policy.Config // that is in force; what it points to does not change
	Executed *atomic.Uint64        // programs ever started
	Work     *sync.WaitGroup       // owns what goes on in the background
	End      func(*Session, EndReason)
	Due      func(*Session, time.Time) // it has to be looked at by then: it may be over or idle; zero: now
	Leaving  func() bool               // the boxes are about to be left to the next boxd
	Events   *events.Log               // nil: what happens is not noted
	Accounts *quota.Accounts           // what owners have
	Used     func(owner string, cpu time.Duration)
	Line     *quota.Queue        // where executions wait for room in their session
	Turns    *quota.StartLimiter // of which owner how many programs begin at a time
	HandOver func(*Session)      // gives PID 1 what the next boxd needs, anew
	Keep     func(*Session)      // writes down what has changed of the session
	Reclaim  func(*Session)      // takes back memory that nothing needs, as far as that can be
}

// Params are what a session is made of.
type Params struct {
	ID       string
	Owner    access.Principal
	Created  time.Time
	Settings policy.Settings
	Profile  *policy.Profile
	Made     *policy.Config // the configuration it is made or taken over under
	Env      []string       // NAME=value of every program that adds nothing
	Enforced map[string]policy.Mechanism
	OneShot  bool // no later boxd takes it over
	Live     []policy.LiveMount
	Skills   []policy.ActiveSkill
	Drives   []policy.ActiveDrive
	Pushes   []Push
	Rested   time.Duration // how long it was stopped, in all
	Stopped  *Stopped      // what it is started again from; nil: it has not been stopped
}

// New returns a session that is starting; Launched tells it what has come of that.
func New(host *Hooks, p *Params) *Session {
	s := &Session{
		ID: p.ID, Key: policy.Key(p.Owner.Name, p.ID), Owner: p.Owner, Hostname: policy.Hostname(p.ID, isolation.MaxHostname), Settings: p.Settings, Created: p.Created,
		hooks: host, profile: *p.Profile, made: p.Made, env: p.Env, enforced: p.Enforced, OneShot: p.OneShot, live: p.Live, skills: p.Skills, drives: p.Drives, pushes: p.Pushes,
		started: make(chan struct{}), ended: make(chan struct{}), state: StateStarting, lastUsed: time.Now(), rested: p.Rested, stopped: p.Stopped, history: &history{},
	}
	s.Record.Stopped = p.Stopped // until it has its box
	return s
}

// Session is one box and what is known of it.
type Session struct {
	ID       string
	Key      string
	Owner    access.Principal
	Hostname string
	Settings policy.Settings // guarded by mu once the session has started
	Created  time.Time
	OneShot  bool   // no later boxd takes it over
	Record   Record // what is on disk of it
	hooks    *Hooks
	profile  policy.Profile
	made     *policy.Config // the configuration it was made or taken over under
	env      []string       // NAME=value of every program that adds nothing
	enforced map[string]policy.Mechanism

	rested      time.Duration // how long it was stopped, in all
	stopped     *Stopped      // what it is, or was, started again from; nil: it has not been stopped
	changing    sync.Mutex    // held while the session is changed or frozen
	handingOver sync.Mutex    // held while the box is given what the next boxd needs
	history     *history      // has a lock of its own; does not change once others know the session

	started chan struct{} // closed when the start is over, well or not
	ended   chan struct{} // closed when nothing is left of the session

	mu          sync.Mutex // guards the fields below
	state       State
	changes     int // of Settings
	box         *client.Box
	boxKey      string // of its box, if that is not Key; does not change once it has started
	lastUsed    time.Time
	running     int // executions under way, and processes
	lives       int // processes among them
	watches     int // of directories
	execs       int // executions ever
	frozen      bool
	asleep      bool // frozen because nobody has used it: the next use thaws it
	missedPings int  // signs of life in a row that its PID 1 has not given
	reason      EndReason
	live        []policy.LiveMount  // mounts it was given, by target
	mounting    *policy.MountChange // the change of them that is under way
	skills      []policy.ActiveSkill
	drives      []policy.ActiveDrive
	pushes      []Push            // results that are still to be taken
	given       map[string]string // variables that boxd adds to env: placeholders of secrets
	gives       *Context          // what context has made last; nil: nothing, or what it was made of has changed

	processes map[string]*slot
	err       error    // why the start failed
	next      *Session // that has taken its place: this one was stopped, or started again
}

// Record is how the record of a session stands, for who writes it, which is done one at a time.
type Record struct {
	sync.Mutex
	Ending bool // the session is not to be taken over
	Gone   bool // there is none any more
	// Stopped is what the session is started again from; nil: it has, or is to have, a box.
	Stopped *Stopped
	// Again is what the session is still to be given, after it was started again; nil: nothing.
	Again *Again
}

// Info is a consistent picture of a session.
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
	Processes  int // among those that run
	Executions int
	// Expires is when the session ends if nobody uses it; zero if only deletion ends it or a
	// running program holds it and it has no absolute end.
	Expires     time.Time
	LeftRunning bool // processes go on that a program has left
	Frozen      bool
	Asleep      bool      // frozen because nobody has used it
	MissedPings int       // signs of life in a row that PID 1 has not given
	Group       string    // path of the box's cgroup, "" if it has none
	PID         uint32    // of the box's PID 1, on the host
	IDBase      uint32    // first of the box's host ids
	Stopped     time.Time // since when it is stopped; zero: it is not
}

// Info returns the session as it is now.
func (s *Session) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := Info{
		ID: s.ID, Box: cmp.Or(s.boxKey, s.Key), Owner: s.Owner.Name, OwnerUID: s.Owner.UID, Hostname: s.Hostname, State: s.state, Settings: s.Settings,
		Enforced: maps.Clone(s.enforced), Skills: slices.Clone(s.skills), Drives: slices.Clone(s.drives), Created: s.Created, LastUsed: s.lastUsed, Running: s.running, Processes: s.lives, Executions: s.execs, Frozen: s.frozen, Asleep: s.asleep, MissedPings: s.missedPings,
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

// advanceLocked makes a move of the table in state.go.
func (s *Session) advanceLocked(to State) error {
	if !slices.Contains(moves()[s.state], to) {
		return fmt.Errorf("session %q: no way from %s to %s", s.ID, s.state, to)
	}
	s.state = to
	return nil
}

// expiryLocked returns when the session ends by itself and why; a zero time is never. A session with
// a running program is not idle, nor one in which processes go on that a program has left.
func (s *Session) expiryLocked() (time.Time, EndReason) {
	var at time.Time
	var why EndReason
	if s.state == StateStopped {
		if age := time.Duration(s.hooks.Config().Sessions.StoppedAge); age > 0 {
			at, why = s.stopped.Since.Add(age), EndStoppedAge
		}
		return at, why
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
		at, why = since.Add(ttl), EndIdle
	}
	if life := time.Duration(s.Settings.MaxLifetime); life > 0 {
		if end := s.Created.Add(s.rested + life); at.IsZero() || end.Before(at) {
			at, why = end, EndLifetime
		}
	}
	return at, why
}

// begin admits one execution; the caller must call finish.
func (s *Session) begin(limit int, now time.Time) (*client.Box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSlotLocked(limit); err != nil {
		return nil, err
	}
	return s.box, s.beginLocked(now)
}

// checkSlot refuses an execution that begin would refuse now.
func (s *Session) checkSlot(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.checkSlotLocked(limit), s.openLocked())
}

// checkSlotLocked refuses an execution that would be one too many.
func (s *Session) checkSlotLocked(limit int) error {
	if s.running-s.lives < limit || s.state != StateReady || s.frozen {
		return nil // or beginLocked refuses it
	}
	return &quota.Full{Reason: quota.Executions, Own: true, Err: fault.Errorf(fault.Exhausted, "session %s has %d executions running, its limit (exec.max_per_session)", fault.Show(s.ID), limit).
		WithHint("wait for one of them to end").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: "exec.max_per_session", Used: strconv.Itoa(limit), Allowed: strconv.Itoa(limit), Setting: "a larger exec.max_per_session"})}
}

// openLocked refuses a session in which nothing can begin.
func (s *Session) openLocked() error {
	if s.state != StateReady {
		return s.closedLocked()
	}
	if s.asleep {
		return errAsleep
	}
	if s.frozen {
		return FrozenError(s.ID)
	}
	return nil
}

// beginLocked is begin for whoever counts for himself.
func (s *Session) beginLocked(now time.Time) error {
	if err := s.openLocked(); err != nil {
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

// Home is the home directory of the user of its programs. It does not change.
func (s *Session) Home() string {
	settings := s.Current()
	return settings.HomeDir()
}

// Grouped reports whether the box has cgroups.
func (s *Session) Grouped() bool { return policy.Grouped(s.enforced) }

// limitHit is the refusal of a program for which there was no room in the session.
func (s *Session) limitHit(step *isolation.StepError) error {
	pids := 0
	if s.Grouped() {
		pids = s.Current().Pids
	}
	return LimitError(s.ID, pids, step)
}

// finish ends an execution and returns when the session ends if it was the last use.
func (s *Session) finish(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.lastUsed = now
	at, _ := s.expiryLocked()
	return at
}

// Touch notes a use, so that the idle time begins anew.
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

// NotFoundError is the answer where there is no session of an id.
func NotFoundError(id string) error {
	return fault.Errorf(fault.NotFound, "no session %s", fault.Show(id)).
		WithHint("list sessions: boxctl ls")
}

// Config is the configuration that is in force.
func (s *Session) Config() *policy.Config { return s.hooks.Config() }
