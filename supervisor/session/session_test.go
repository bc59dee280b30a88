// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func states() []State {
	return []State{StateStarting, StateReady, StateStopping, StateStopped, StateEnding, StateEnded}
}

// The diagram above transitions in state.go shows the same transitions.
func Example_states() {
	for _, from := range states() {
		to := transitions()[from]
		words := make([]string, len(to))
		for i, s := range to {
			words[i] = string(s)
		}
		fmt.Printf("%-8s → %s\n", from, strings.Join(words, ", "))
	}
	// Output:
	// starting → ready, ended
	// ready    → ending, stopping
	// stopping → ready, ended
	// stopped  → ending, ended
	// ending   → ended
	// ended    →
}

func TestIllegalStateTransitionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, from := range states() {
		for _, to := range states() {
			s := &Session{ID: "s", state: from}
			err := s.advanceLocked(to)
			legal := slices.Contains(transitions()[from], to)
			if (err == nil) != legal || legal && s.state != to || !legal && s.state != from {
				t.Errorf("%s → %s: %v, now %s", from, to, err, s.state)
			}
		}
	}
	// Every state leads to the end, and nothing leads out of it.
	for _, from := range states() {
		reached := map[State]bool{from: true}
		for range states() {
			for s := range maps.Clone(reached) {
				for _, to := range transitions()[s] {
					reached[to] = true
				}
			}
		}
		if !reached[StateEnded] {
			t.Errorf("no way from %s to the end", from)
		}
	}
	if len(transitions()[StateEnded]) > 0 {
		t.Error("something comes after the end")
	}
}

func TestASessionExpiresByIdlenessOrAge(t *testing.T) {
	t.Parallel()
	created := time.Now()
	const minute, hour = quantity.Duration(time.Minute), quantity.Duration(time.Hour)
	for _, tc := range []struct {
		name          string
		ttl, lifetime quantity.Duration
		used          time.Duration // after the creation
		running       int
		at            time.Duration // after the creation; 0 is never
		reason        EndReason
	}{
		{"neither", 0, 0, time.Second, 0, 0, ""},
		{"unused", minute, 0, 0, 0, time.Minute, EndIdle},
		{"used", minute, 0, time.Second, 0, time.Minute + time.Second, EndIdle},
		{"a running program holds it", minute, 0, time.Second, 1, 0, ""},
		{"but not for ever", minute, hour, time.Second, 1, time.Hour, EndLifetime},
		{"idle before old", minute, hour, time.Second, 0, time.Minute + time.Second, EndIdle},
		{"old before idle", minute, hour, time.Hour - time.Second, 0, time.Hour, EndLifetime},
		{"old alone", 0, hour, time.Second, 0, time.Hour, EndLifetime},
	} {
		s := &Session{
			Created: created, lastUsed: created.Add(tc.used), running: tc.running, Settings: policy.Settings{Lifetime: limits.Lifetime{TTL: tc.ttl, MaxLifetime: tc.lifetime}},
		}
		at, reason := s.expiryLocked()
		want := time.Time{}
		if tc.at > 0 {
			want = created.Add(tc.at)
		}
		if !at.Equal(want) || reason != tc.reason {
			t.Errorf("%s: at %v because %q, want %v because %q", tc.name, at.Sub(created), reason, tc.at, tc.reason)
		}
		if info := s.Info(); !info.Expires.Equal(want) {
			t.Errorf("%s: the session says it expires at %v", tc.name, info.Expires)
		}
	}
}

func TestOneSessionRunsOnlySoManyExecutions(t *testing.T) {
	t.Parallel()
	s := &Session{ID: "s", state: StateReady}
	now := time.Now()
	for range 2 {
		if _, err := s.beginExec(2, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.beginExec(2, now); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("a third: %v", err)
	}
	s.finishExec(now.Add(time.Second))
	if _, err := s.beginExec(2, now.Add(2*time.Second)); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	if info := s.Info(); info.Running != 2 || info.Executions != 3 || !info.LastUsed.Equal(now.Add(2*time.Second)) {
		t.Errorf("%+v", info)
	}
	for _, state := range []State{StateStarting, StateEnding, StateEnded} {
		if _, err := (&Session{state: state}).beginExec(9, now); fault.KindOf(err) != fault.NotFound {
			t.Errorf("in a session that is %s: %v", state, err)
		}
	}
}

// When its last program ends, a session reports its deadline: the reaper saw none while the program ran.
func TestTheEndOfTheLastProgramReportsTheSessionDeadline(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var reports []time.Time
	line := quota.NewQueue(func() quota.QueueLimits { return quota.QueueLimits{} })
	hooks := &Hooks{Line: line, Due: func(_ *Session, at time.Time) { reports = append(reports, at) }}
	s := &Session{hooks: hooks, state: StateReady, Created: now, Settings: policy.Settings{Lifetime: limits.Lifetime{TTL: quantity.Duration(time.Minute)}}}
	for range 2 {
		if _, err := s.beginExec(2, now); err != nil {
			t.Fatal(err)
		}
	}
	if s.endExec(); len(reports) != 0 {
		t.Errorf("told of %v while a program runs", reports)
	}
	if s.endExec(); len(reports) != 1 || reports[0].Before(now.Add(time.Minute)) {
		t.Errorf("told of %v", reports)
	}
}

// The last report of what waits contains everything, since looking and reporting happen under one lock.
func TestTheLastReportOfQueuedExecutionsIsComplete(t *testing.T) {
	t.Parallel()
	reported := 0 // guarded by handOverMu
	s := &Session{state: StateReady, hooks: &Hooks{HandOver: func(s *Session) {
		if s.handOverMu.TryLock() {
			defer s.handOverMu.Unlock()
			t.Error("another could look and tell at the same time")
		}
		reported = len(s.Waiting())
	}}}
	var wg sync.WaitGroup
	for i := range maxWaiting {
		wg.Go(func() {
			if _, err := s.enqueue(&process.Spec{ID: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
			s.handOver()
		})
	}
	wg.Wait()
	if reported != maxWaiting {
		t.Errorf("%d wait, and %d were told last", maxWaiting, reported)
	}
}

// A session is listed from its creation on and gets its box later. Only the race detector, which pure tests run with, would
// notice a data race here.
func TestASessionIsSeenWhileItGetsItsBox(t *testing.T) {
	t.Parallel()
	s := &Session{ID: "s", Key: "own", state: StateStarting}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; i < 1000 || s.BoxKey() != "warm"; i++ {
			if box := s.Info().Box; box != "own" && box != "warm" {
				t.Errorf("its box is %q", box)
				return
			}
			runtime.Gosched()
		}
	})
	s.SetBoxKey("warm")
	wg.Wait()
}

// A process is started again from a copy of its specification: the old process, which may still exist, shares the original.
func TestProcessesStartAgainFromACopyOfWhatTheyWere(t *testing.T) {
	t.Parallel()
	cfg, spec := policy.DefaultConfig(), &process.Spec{ID: "p", Managed: true}
	line := quota.NewQueue(func() quota.QueueLimits { return quota.QueueLimits{} })
	s := &Session{hooks: &Hooks{Config: func() *policy.Config { return &cfg }, Line: line}, processes: map[string]*slot{"p": {}}}
	s.StartAgain(t.Context(), []*process.Spec{spec}, slog.New(slog.DiscardHandler))
	if r := spec.Restart; r.Policy != "" || r.Limit != nil || spec.Stop.Signal != "" {
		t.Errorf("it was changed to %+v", spec)
	}
}

// What a session was not given before it was stopped is still due; what it has by now is listed once.
func TestAttachmentsPendingAtAStopAreStillDue(t *testing.T) {
	t.Parallel()
	s := &Session{live: []policy.LiveMount{{Mount: policy.Mount{Source: "/new", Target: "/data/a"}}}}
	s.Record.Again = &Again{
		Mounts:    []policy.Mount{{Source: "/old", Target: "/data/a"}, {Source: "/b", Target: "/data/b"}},
		Processes: []*process.Spec{{ID: "p"}},
	}
	again := s.ToHaveAgain()
	if len(again.Mounts) != 2 || again.Mounts[0].Source != "/new" || again.Mounts[1].Source != "/b" || len(again.Processes) != 1 || again.Processes[0].ID != "p" {
		t.Errorf("%+v", again)
	}
}

// The context for programs is built once, and again after every change of the session or the configuration.
func TestTheProgramContextIsRebuiltAfterEveryChange(t *testing.T) {
	t.Parallel()
	first, other := policy.DefaultConfig(), policy.DefaultConfig()
	cfg := &first
	s := &Session{hooks: &Hooks{Config: func() *policy.Config { return cfg }}, env: []string{"A=1"}}
	before := s.context()
	if s.context() != before {
		t.Error("it is made anew although nothing has changed")
	}
	s.Set(policy.Settings{Workspace: "w"})
	s.SetGiven(map[string]string{"B": "2"})
	now := s.context()
	if now.Settings.Workspace != "w" || !slices.Equal(now.Env, []string{"A=1", "B=2"}) {
		t.Errorf("a program has %+v, %q", now.Settings, now.Env)
	}
	cfg = &other
	if now = s.context(); now.Config != cfg || now.Settings.Workspace != "w" {
		t.Errorf("a program has the configuration %p, not %p", now.Config, cfg)
	}
}
