// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func states() []State { return []State{StateStarting, StateReady, StateEnding, StateEnded} }

// The diagram above moves in state.go is this one.
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
	// ready    → ending
	// ending   → ended
	// ended    →
}

func TestEveryMoveIsLegalOrRefused(t *testing.T) {
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
	// From everywhere a session can end, and nothing comes after that.
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
		used      time.Duration // after the birth
		running   int
		at        time.Duration // after the birth; 0 is never
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
			Created: born, lastUsed: born.Add(tc.used), running: tc.running, Settings: policy.Settings{TTL: tc.ttl, MaxLifetime: tc.life},
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

// bare is a supervisor without a keeper: nothing can start or end in it.
func bare() *Supervisor {
	v := &Supervisor{log: slog.New(slog.DiscardHandler), poke: make(chan struct{}, 1), sessions: map[string]*Session{}}
	v.cfg.Store(new(policy.DefaultConfig()))
	return v
}

func poked(v *Supervisor) bool {
	select {
	case <-v.poke:
		return true
	default:
		return false
	}
}

func TestTheReaperSleepsUntilTheNextDeadline(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := bare()
	if got := v.endDue(now); got != reapAtLeast {
		t.Errorf("without sessions it sleeps %v", got)
	}
	add := func(key string, ttl time.Duration, state State) *Session {
		s := &Session{Key: key, Created: now, lastUsed: now, state: state, Settings: policy.Settings{TTL: quantity.Duration(ttl)}}
		v.sessions[key] = s
		return s
	}
	add("a", time.Hour, StateReady)
	add("b", 7*time.Second, StateReady)
	add("c", 9*time.Second, StateReady)
	add("d", time.Second, StateStarting)
	add("e", time.Second, StateEnding)
	if got := v.endDue(now); got != 7*time.Second {
		t.Errorf("it sleeps %v, want 7s", got)
	}
	// A session that was held by a program had no deadline when the reaper looked.
	held := add("f", 2*time.Second, StateReady)
	if _, err := held.begin(1, now); err != nil {
		t.Fatal(err)
	}
	if got := v.endDue(now); got != 7*time.Second {
		t.Errorf("it sleeps %v, want 7s", got)
	}
	v.finish(held)
	if !poked(v) {
		t.Error("the end of its program gives a session a deadline of which the reaper does not hear")
	}
	long := v.sessions["a"]
	if _, err := long.begin(1, now); err != nil {
		t.Fatal(err)
	}
	v.finish(long)
	if poked(v) {
		t.Error("the reaper is woken for a deadline it knows of")
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

func TestOneOwnerHasOnlySoManySessions(t *testing.T) {
	t.Parallel()
	v, cfg := bare(), policy.DefaultConfig()
	cfg.Sessions.Max, cfg.Sessions.MaxPerOwner = 8, 3
	claim := func(who Principal, id string) error {
		_, _, err := v.claim(who, &policy.Request{ID: id}, &cfg, policy.Settings{}, &policy.Profile{}, nil)
		return err
	}
	one, other, root := Principal{Name: "uid:1", UID: 1}, Principal{Name: "uid:2", UID: 2}, Principal{Name: "uid:0", Role: access.Admin}
	for i := range 3 {
		if err := claim(one, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := claim(one, "more")
	if fault.KindOf(err) != fault.Exhausted || err.Error() != "you have 3 sessions, the limit is 3 (sessions.max_per_owner)" {
		t.Errorf("%v", err)
	}
	if err := claim(one, "0"); err != nil {
		t.Errorf("one that exists: %v", err)
	}
	if err := claim(other, "0"); err != nil {
		t.Errorf("another owner: %v", err)
	}
	for i := range 4 { // more than one owner may have
		if err := claim(root, fmt.Sprint(i)); err != nil {
			t.Errorf("root's number %d: %v", i, err)
		}
	}
	for _, who := range []Principal{other, root} {
		if err := claim(who, "more"); fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "(sessions.max)") {
			t.Errorf("%s: %v", who.Name, err)
		}
	}
	delete(v.sessions, policy.Key(one.Name, "0"))
	if err := claim(one, "more"); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestAConfigurationIsForWhatBeginsUnderIt(t *testing.T) {
	t.Parallel()
	v, who := bare(), Principal{Name: "uid:1", UID: 1}
	make := func(id string) *Session {
		s, mine, err := v.claim(who, &policy.Request{ID: id, Env: map[string]string{"A": "b"}}, v.cfg.Load(), policy.Settings{}, &policy.Profile{}, nil)
		if err != nil || !mine {
			t.Fatalf("%s: %v", id, err)
		}
		return s
	}
	old := make("old")
	next := policy.DefaultConfig()
	next.Sessions.Max = 0
	if err := v.SetConfig(next); err == nil || v.cfg.Load().Sessions.Max != 256 {
		t.Errorf("one that is not in order is in force: %v", err)
	}
	next.Sessions.Max, next.Sessions.MaxPerOwner, next.Env = 2, 2, map[string]string{"B": "c"}
	if err := v.SetConfig(next); err != nil {
		t.Fatal(err)
	}
	young := make("young")
	if slices.Contains(old.env, "B=c") || !slices.Contains(old.env, "LANG=C.UTF-8") || !slices.Equal(young.env, []string{"A=b", "B=c"}) {
		t.Errorf("the environments are %q and %q", old.env, young.env)
	}
	for _, s := range []*Session{old, young} {
		if diff := v.differences(s, &policy.Request{Env: map[string]string{"A": "b"}}, &policy.Settings{}); len(diff) > 0 {
			t.Errorf("asked again in the same words, %s has another %q", s.ID, diff)
		}
	}
	if diff := v.differences(old, &policy.Request{Env: map[string]string{"A": "c"}}, &policy.Settings{}); !slices.Equal(diff, []string{"env"}) {
		t.Errorf("asked in others, it has another %q", diff)
	}
	if _, _, err := v.claim(who, &policy.Request{ID: "more"}, v.cfg.Load(), policy.Settings{}, &policy.Profile{}, nil); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("one more than there may be now: %v", err)
	}
}

func TestASupervisorIsIdleWithoutSessionsAndAliveWhileItsReaperIs(t *testing.T) {
	t.Parallel()
	v := bare()
	if !v.Idle() {
		t.Error("it has nothing and is not idle")
	}
	for _, tc := range []struct {
		next  time.Time
		alive bool
	}{
		{time.Time{}, true}, {time.Now().Add(reapAtLeast), true}, {time.Now().Add(-reapLate / 2), true}, {time.Now().Add(-2 * reapLate), false},
	} {
		v.nextLook = tc.next
		if err := v.Alive(); (err == nil) != tc.alive {
			t.Errorf("with a reaper that is to look at %v: %v", tc.next, err)
		}
	}
	s := &Session{ID: "s", state: StateReady}
	v.sessions["s"], v.nextLook = s, time.Time{}
	if v.Idle() {
		t.Error("it has a session and is idle")
	}
	s.mu.Lock() // somebody does not let go of it
	done := make(chan error)
	go func() { done <- v.Alive() }()
	select {
	case err := <-done:
		t.Errorf("it is alive without its locks: %v", err)
	case <-time.After(20 * time.Millisecond):
		s.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
