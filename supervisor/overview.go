// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// Doctor examines the host, see the type doctor.
func (v *Supervisor) Doctor(ctx context.Context) ([]isolation.Check, error) {
	select { // each examination starts a box that no session limit counts
	case v.examSem <- struct{}{}:
		defer func() { <-v.examSem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d := doctor{Boxes: v.boxes, Config: v.cfg.Load(), State: v.state, Look: v.lookAtHost, Spec: v.example, More: v.checks}
	return d.Examine(ctx)
}

// example returns the spec of a box of the default profile.
func (v *Supervisor) example(ctx context.Context) (*isolation.Spec, error) {
	cfg := v.cfg.Load()
	settings, profile, err := cfg.Merge(&policy.Request{})
	if err != nil {
		return nil, err
	}
	by, err := v.enforcement(ctx, cfg, &settings)
	if err != nil {
		by = nil // another check reports that; this one is about the box
	}
	s := session.New(&v.sessionHooks, &session.Params{ID: "doctor", Settings: settings, Profile: profile, Made: cfg, Enforced: by})
	s.Key = policy.Key("", rand.Text())
	return s.Spec(), nil
}

// Overview is the state of the daemon in numbers.
type Overview struct {
	Sessions      int // without stopped ones
	Stopped       int
	MaxSessions   int
	Processes     int // of all sessions
	MaxProcesses  int // of one session
	Running       int
	Executed      uint64
	ControlGroups string
	BestEffort    []string                    // limits that need not be enforced
	Unenforced    []string                    // those of them that are not enforced here
	Enforced      map[string]policy.Mechanism // what enforces each limit here
	Degraded      []string                    // what is wrong, as text
	State         Condition
	Off           string      // why no new sessions are accepted, if they are not
	Warm          []PoolCount // preforked boxes
	Waiting       int         // requests in the queues
}

// Condition is the state of boxd as a whole.
type Condition string

// The conditions. Of those that apply, the worst counts.
const (
	ConditionOK       Condition = "ok"
	ConditionDegraded Condition = "degraded" // works, but something is wrong
	ConditionOff      Condition = "off"      // switched off: accepts no new sessions
	ConditionFailed   Condition = "failed"   // no session can start
)

// Overview returns the state of the daemon in numbers.
func (v *Supervisor) Overview() Overview {
	cfg := v.cfg.Load()
	v.mu.Lock()
	host := v.host
	o := Overview{Sessions: v.livingLocked(), Stopped: len(v.stopped), Executed: v.executed.Load()}
	all := slices.Collect(maps.Values(v.sessions))
	v.mu.Unlock()
	o.MaxSessions, o.MaxProcesses, o.BestEffort = cfg.Sessions.Max, cfg.Processes.Max, cfg.Limits.BestEffort
	o.ControlGroups, o.Enforced = host.Groups(), cfg.EnforcedBy(host)
	o.Unenforced = cfg.Unenforced(o.Enforced)
	for _, s := range all {
		info := s.Info()
		o.Running += info.Running
		o.Processes += info.Processes
	}
	o.State, o.Warm, o.Waiting = ConditionOK, v.pool.Counts(), v.line.Len()+v.execs.Len()
	if !v.boxes.Present() {
		o.Degraded, o.State = append(o.Degraded, "boxkeeper is not running: boxes keep running, but none can start"), ConditionFailed
	}
	settings, _, err := cfg.Merge(&policy.Request{})
	if err == nil {
		_, err = cfg.Enforcement(&settings, host)
	}
	for _, err := range []error{err, v.room(host.Workspaces)} {
		if err != nil {
			o.Degraded = append(o.Degraded, "no box can start: "+err.Error())
		}
	}
	o.Degraded = append(o.Degraded, v.pushes.failing()...)
	if err != nil {
		o.State = ConditionFailed
	}
	if err := v.gate.Check(cfg.Enabled); err != nil {
		o.Off = err.Error()
		if o.State != ConditionFailed {
			o.State = ConditionOff
		}
	}
	if o.State == ConditionOK && len(o.Degraded) > 0 {
		o.State = ConditionDegraded
	}
	return o
}

// Keys returns the keys of all boxes that belong, or will belong, to the pool or a session.
func (v *Supervisor) Keys() map[string]bool {
	keys := map[string]bool{}
	for _, key := range v.pool.Keys() {
		keys[key] = true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, s := range v.sessions {
		keys[key] = true
		select {
		case <-s.Started():
			keys[s.BoxKey()] = true
		default: // its box is not decided yet
		}
	}
	return keys
}

// Workspaces is the directory of all managed workspaces, "" if there is none.
func (v *Supervisor) Workspaces() string { return v.found().Workspaces }

// Profiles returns the configured profiles by name, and the name of the default one.
func (v *Supervisor) Profiles() (all map[string]policy.Profile, def string) {
	cfg := v.cfg.Load()
	return cfg.Profiles, cfg.Sessions.DefaultProfile
}

// SetConfig puts another configuration in force for everything that begins from now on. Living sessions keep what they were
// created with, except for secrets.
func (v *Supervisor) SetConfig(cfg policy.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	v.cfg.Store(&cfg)
	v.ledger.SetKeep(cfg.Usage.KeepDays)
	v.SetWarm()
	v.secrets.review()
	v.line.Wake()
	v.execs.Wake()
	v.totals.Wake()
	select {
	case v.resample <- struct{}{}:
	default:
	}
	return nil
}

// Idle reports whether no session has a box. A stopped one needs no boxd. Callers waiting for one are counted as connections.
func (v *Supervisor) Idle() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.livingLocked() == 0
}

// Alive reports whether the supervisor still works: its locks can be taken, for which it waits, and the reaper has run when it
// had to. It does not check keeper and disk: a new boxd would find them the same.
func (v *Supervisor) Alive() error {
	v.Sessions(access.Principal{}, true) // takes every lock
	v.mu.Lock()
	defer v.mu.Unlock()
	if overdue := time.Since(v.nextCheck); !v.nextCheck.IsZero() && overdue > reapLate {
		return fault.Errorf(fault.Unavailable, "expired sessions have not been checked for %v", overdue.Round(time.Second)).
			WithHint("restart boxd (boxes keep running): systemctl restart boxd")
	}
	return nil
}

// Stopping is the error of a boxd that is about to exit: the next one adopts what this one has left.
func Stopping() error {
	return fault.Errorf(fault.Unavailable, "boxd is stopping").WithHint("try again when it has restarted")
}

// Ready reports whether sessions can start: the keeper is there and boxd is not stopping.
func (v *Supervisor) Ready() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return Stopping()
	}
	select {
	case <-v.boxes.Done():
		return fault.Errorf(fault.Unavailable, "the keeper is gone").WithHint("boxd is waiting for a new keeper; its log says why if none starts: journalctl -u boxd")
	default:
	}
	if !v.boxes.Present() {
		return fault.Errorf(fault.Unavailable, "no session can start: there is no keeper").WithHint("boxd is waiting for a new keeper; its log says why if none starts: journalctl -u boxd")
	}
	return v.gate.Check(v.cfg.Load().Enabled)
}
