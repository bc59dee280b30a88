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

// The diagram above moves in state.go shows the same transitions.
func Example_states() {
	for _, from := range states() {
		to := moves()[from]
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
			legal := slices.Contains(moves()[from], to)
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
				for _, to := range moves()[s] {
					reached[to] = true
				}
			}
		}
		if !reached[StateEnded] {
			t.Errorf("no way from %s to the end", from)
		}
	}
	if len(moves()[StateEnded]) > 0 {
		t.Error("something comes after the end")
	}
}

func TestASessionExpiresByIdlenessOrAge(t *testing.T) {
	t.Parallel()
	born := time.Now()
	const minute, hour = quantity.Duration(time.Minute), quantity.Duration(time.Hour)
	for _, tc := range []struct {
		name      string
		ttl, life quantity.Duration
		used      time.Duration // after the creation
		running   int
		at        time.Duration // after the creation; 0 is never
		why       EndReason
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
			Created: born, lastUsed: born.Add(tc.used), running: tc.running, Settings: policy.Settings{Lifetime: limits.Lifetime{TTL: tc.ttl, MaxLifetime: tc.life}},
		}
		at, why := s.expiryLocked()
		want := time.Time{}
		if tc.at > 0 {
			want = born.Add(tc.at)
		}
		if !at.Equal(want) || why != tc.why {
			t.Errorf("%s: at %v because %q, want %v because %q", tc.name, at.Sub(born), why, tc.at, tc.why)
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
		if _, err := s.begin(2, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.begin(2, now); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("a third: %v", err)
	}
	s.finish(now.Add(time.Second))
	if _, err := s.begin(2, now.Add(2*time.Second)); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	if info := s.Info(); info.Running != 2 || info.Executions != 3 || !info.LastUsed.Equal(now.Add(2*time.Second)) {
		t.Errorf("%+v", info)
	}
	for _, state := range []State{StateStarting, StateEnding, StateEnded} {
		if _, err := (&Session{state: state}).begin(9, now); fault.KindOf(err) != fault.NotFound {
			t.Errorf("in a session that is %s: %v", state, err)
		}
	}
}

// When its last program ends, a session reports its deadline: the reaper saw none while the program ran.
func TestTheEndOfTheLastProgramReportsTheSessionDeadline(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var told []time.Time
	line := quota.NewQueue(func() quota.QueueLimits { return quota.QueueLimits{} })
	host := &Hooks{Line: line, Due: func(_ *Session, at time.Time) { told = append(told, at) }}
	s := &Session{hooks: host, state: StateReady, Created: now, Settings: policy.Settings{Lifetime: limits.Lifetime{TTL: quantity.Duration(time.Minute)}}}
	for range 2 {
		if _, err := s.begin(2, now); err != nil {
			t.Fatal(err)
		}
	}
	if s.done(); len(told) != 0 {
		t.Errorf("told of %v while a program runs", told)
	}
	if s.done(); len(told) != 1 || told[0].Before(now.Add(time.Minute)) {
		t.Errorf("told of %v", told)
	}
}

// The last report of what waits contains everything, since looking and reporting happen under one lock.
func TestTheLastReportOfQueuedExecutionsIsComplete(t *testing.T) {
	t.Parallel()
	told := 0 // guarded by handingOver
	s := &Session{state: StateReady, hooks: &Hooks{HandOver: func(s *Session) {
		if s.handingOver.TryLock() {
			defer s.handingOver.Unlock()
			t.Error("another could look and tell at the same time")
		}
		told = len(s.Waiting())
	}}}
	var all sync.WaitGroup
	for i := range maxWaiting {
		all.Go(func() {
			if _, err := s.enqueue(&process.Spec{ID: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
			s.handOver()
		})
	}
	all.Wait()
	if told != maxWaiting {
		t.Errorf("%d wait, and %d were told last", maxWaiting, told)
	}
}

// A session is listed from its creation on and gets its box later. Only the race detector, which pure tests run with, would
// notice a data race here.
func TestASessionIsSeenWhileItGetsItsBox(t *testing.T) {
	t.Parallel()
	s := &Session{ID: "s", Key: "own", state: StateStarting}
	var looking sync.WaitGroup
	looking.Go(func() {
		for i := 0; i < 1000 || s.BoxKey() != "warm"; i++ {
			if box := s.Info().Box; box != "own" && box != "warm" {
				t.Errorf("its box is %q", box)
				return
			}
			runtime.Gosched()
		}
	})
	s.SetBoxKey("warm")
	looking.Wait()
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
	is := s.ToHaveAgain()
	if len(is.Mounts) != 2 || is.Mounts[0].Source != "/new" || is.Mounts[1].Source != "/b" || len(is.Processes) != 1 || is.Processes[0].ID != "p" {
		t.Errorf("%+v", is)
	}
}

// The context for programs is built once, and again after every change of the session or the configuration.
func TestTheProgramContextIsRebuiltAfterEveryChange(t *testing.T) {
	t.Parallel()
	one, other := policy.DefaultConfig(), policy.DefaultConfig()
	cfg := &one
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
