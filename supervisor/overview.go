// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"crypto/rand"
	"runtime"
	"slices"

	"github.com/boxd-dev/boxd/cgroup/usage"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/doctor"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Doctor examines the host, see the room of that name.
func (v *Supervisor) Doctor(ctx context.Context) ([]isolation.Check, error) {
	select { // each examination starts a box, which no limit on sessions counts
	case v.exams <- struct{}{}:
		defer func() { <-v.exams }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d := doctor.Doctor{Boxes: v.boxes, Config: &v.cfg, State: v.state, Look: v.lookAtHost, Spec: v.example}
	return d.Examine(ctx)
}

// example is a box as a session of the default profile would have it.
func (v *Supervisor) example(ctx context.Context) (*isolation.Spec, error) {
	s := &Session{ID: "doctor", Key: policy.Key("", rand.Text()), Hostname: "doctor"}
	var err error
	if s.Settings, _, err = v.cfg.Merge(&policy.Request{}); err != nil {
		return nil, err
	}
	if s.enforced, err = v.enforcement(ctx, &s.Settings); err != nil {
		s.enforced = nil // doctor says so elsewhere; this is about the box
	}
	return s.spec(), nil
}

// Overview is the daemon in figures.
type Overview struct {
	Sessions      int
	MaxSessions   int
	Running       int
	Executed      uint64
	Goroutines    int
	ControlGroups string
	BestEffort    []string // limits that may be missing
	Unenforced    []string // of them, those that are not kept here
}

// controlGroups is a word or two on what the limits of boxes rest on.
func (v *Supervisor) controlGroups() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := string(v.layout)
	if v.layout == usage.Unified && v.host.NoGroups != "" {
		text += ", none for boxes"
	}
	return text
}

// Overview returns the daemon in figures.
func (v *Supervisor) Overview() Overview {
	st := Overview{
		MaxSessions: v.cfg.Sessions.Max, Goroutines: runtime.NumGoroutine(),
		ControlGroups: v.controlGroups(), BestEffort: v.cfg.Limits.BestEffort,
	}
	st.Unenforced = v.unenforced()
	v.mu.Lock()
	st.Executed, st.Sessions = v.executed, len(v.sessions)
	all := make([]*Session, 0, len(v.sessions))
	for _, s := range v.sessions {
		all = append(all, s)
	}
	v.mu.Unlock()
	for _, s := range all {
		st.Running += s.Info().Running
	}
	return st
}

// unenforced are the limits that the operator lets go and that the kernel does not keep as a whole.
func (v *Supervisor) unenforced() []string {
	v.mu.Lock()
	host := v.host
	v.mu.Unlock()
	all := v.cfg
	all.Limits.BestEffort = policy.LimitNames() // so that nothing is refused
	by, err := all.Enforcement(&policy.Settings{IORead: 1, WorkspaceQuota: 1}, host)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(v.cfg.Limits.BestEffort), func(name string) bool {
		return by[name] != policy.MechanismRlimit && by[name] != policy.MechanismNone
	})
}

// Profiles returns the configured profiles by name.
func (v *Supervisor) Profiles() map[string]policy.Profile { return v.cfg.Profiles }

// Ready reports whether sessions can start: the keeper is there and boxd is not stopping.
func (v *Supervisor) Ready() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return fault.Errorf(fault.Unavailable, "boxd is stopping").WithHint("try again when it has started anew")
	}
	select {
	case <-v.boxes.Done():
		return fault.Errorf(fault.Unavailable, "the keeper is gone").WithHint("boxd waits for another one; if none comes its log says why")
	default:
		return nil
	}
}
