// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/quota"

	"github.com/boxd-dev/boxd/supervisor/policy"

	"github.com/boxd-dev/boxd/supervisor/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bare returns a supervisor without a keeper, in which nothing can start or end.
func bare(t *testing.T) *Supervisor {
	t.Helper()
	used, err := quota.OpenLedger(t.TempDir(), 3, quota.Clock{Wall: time.Now, Since: func() time.Duration { return 0 }}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := used.Close(); err != nil {
			t.Error(err)
		}
	})
	v := &Supervisor{ledger: used, accounts: quota.NewAccounts(used, time.Now), log: slog.New(slog.DiscardHandler), wakeup: make(chan struct{}, 1), sessions: map[string]*session.Session{}, leaving: map[string]*session.Session{}, owned: map[string]int{}, gate: &DrainSwitch{}, layout: policy.CgroupsLegacy, Attachments: newAttachments(nil, AttachmentStores{}, nil, nil)}
	v.cfg.Store(new(policy.DefaultConfig()))
	v.line, v.execs, v.pool, v.totals = quota.NewQueue(v.Queue), quota.NewQueue(v.Queue), v.newPool(), quota.NewOwnerLimits(nil, v.log)
	v.pressed.Store(&verdict{at: time.Now().Add(time.Hour)}) // the host is not short of anything
	v.sessionHooks = session.Hooks{Line: v.execs, Config: v.cfg.Load, Executed: &v.executed, Work: &v.work, Due: v.due, End: func(*session.Session, session.EndReason) {}, Leaving: func() bool { return false }, Accounts: v.accounts, Used: used.AddCPU, Turns: quota.NewStartLimiter(1, time.Hour)}
	return v
}

// ready returns a started session of a bare supervisor; its box does nothing.
func ready(t *testing.T, v *Supervisor, id string, ttl time.Duration, now time.Time) *session.Session {
	t.Helper()
	cfg := v.cfg.Load()
	s := session.New(&v.sessionHooks, &session.Params{
		ID: id, Created: now, Settings: policy.Settings{Lifetime: limits.Lifetime{TTL: quantity.Duration(ttl)}}, Profile: new(policy.DefaultProfile()), Made: cfg,
	})
	v.enterLocked(s)
	defer s.FinishStart()
	if err := s.Launched(new(client.Box), nil); err != nil {
		t.Fatal(err)
	}
	s.Touch(now)
	v.due(s, time.Time{})
	t.Cleanup(func() {
		s.BeginEnd(session.EndDeleted)
		s.FinishEnd()
	})
	return s
}

func wasWoken(v *Supervisor) bool {
	select {
	case <-v.wakeup:
		return true
	default:
		return false
	}
}

func TestTheReaperSleepsUntilTheNextDeadline(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := bare(t)
	if got := v.endDue(now); got != reapAtLeast {
		t.Errorf("without sessions it sleeps %v", got)
	}
	ready(t, v, "a", time.Hour, now)
	ready(t, v, "b", 7*time.Second, now)
	ready(t, v, "c", 9*time.Second, now)
	ready(t, v, "e", time.Second, now).BeginEnd(session.EndDeleted)
	starting := session.New(&v.sessionHooks, &session.Params{ID: "d", Created: now, Settings: policy.Settings{Lifetime: limits.Lifetime{TTL: quantity.Duration(time.Second)}}, Profile: &policy.Profile{}, Made: v.cfg.Load()})
	v.enterLocked(starting)
	if got := v.endDue(now); got != 7*time.Second {
		t.Errorf("it sleeps %v, want 7s", got)
	}
	wasWoken(v) // by the sessions that were entered
	a := v.sessions[policy.Key("", "a")]
	v.due(a, now.Add(2*time.Second))
	if !wasWoken(v) {
		t.Error("the reaper was not woken for the deadline of the session")
	}
	v.due(a, now.Add(time.Hour))
	if wasWoken(v) {
		t.Error("the reaper was woken for a deadline that it knows")
	}
	v.due(a, time.Time{})
	if !wasWoken(v) {
		t.Error("the reaper was not woken for a session that may be idle")
	}
}

// A deadline makes the reaper check one session, however many there are, and all of them are checked now and then.
func TestTheReaperChecksOnlyTheSessionThatIsDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := bare(t)
	long, short := ready(t, v, "long", time.Hour, now), ready(t, v, "short", 7*time.Second, now)
	if got := v.endDue(now); got != 7*time.Second {
		t.Fatalf("it sleeps %v, want 7s", got)
	}
	looks := func(at time.Time) (list []*session.Session) {
		v.mu.Lock()
		defer v.mu.Unlock()
		list = v.deadlines.due(at)
		for _, s := range list {
			v.deadlines.add(s, at) // puts it back
		}
		return list
	}
	if got := looks(now.Add(6 * time.Second)); len(got) > 0 {
		t.Errorf("before any deadline %d sessions are due", len(got))
	}
	if got := looks(now.Add(8 * time.Second)); !slices.Equal(got, []*session.Session{short}) {
		t.Errorf("after one deadline %d sessions are due", len(got))
	}
	short.Touch(now.Add(8 * time.Second)) // used meanwhile: it does not end, and is checked later
	if got := v.endDue(now.Add(8 * time.Second)); got != 7*time.Second {
		t.Errorf("it sleeps %v, want 7s", got)
	}
	v.due(long, now.Add(9*time.Second))
	v.due(long, now.Add(10*time.Second)) // a deadline that it knows already
	if got := looks(now.Add(11 * time.Second)); !slices.Equal(got, []*session.Session{long}) {
		t.Errorf("after a deadline that was reported %d sessions are due", len(got))
	}
	// The reaper was not told that this session has a deadline now.
	v.mu.Lock()
	v.deadlines = deadlines{full: now.Add(reapAtLeast)}
	v.mu.Unlock()
	if got := v.endDue(now.Add(12 * time.Second)); got != 18*time.Second {
		t.Errorf("it sleeps %v, want 18s", got)
	}
	short.Touch(now.Add(29 * time.Second))
	if got := v.endDue(now.Add(reapAtLeast)); got != 6*time.Second {
		t.Errorf("after a check of all sessions it sleeps %v, want 6s", got)
	}
}

// wanted returns a request for a session of which only the id matters.
func wanted(caller access.Principal, req *policy.Request, cfg *policy.Config) *want {
	return &want{caller: caller, req: req, cfg: cfg, effective: cfg.PolicyOf(caller), profile: &policy.Profile{}}
}

// Ten thousand concurrent creates make as many sessions as the policy allows, and do not delay another caller.
func TestT67TenThousandCreatesAtOnce(t *testing.T) {
	t.Parallel()
	v, cfg := bare(t), policy.DefaultConfig()
	cfg.Sessions.Max, cfg.Sessions.MaxPerOwner = 4096, 4096
	cfg.Queue.Starts = 1000
	b := policy.NoPolicy()
	b.Principals, b.Sessions = []string{"uid:1"}, 5
	cfg.Policies["ci"] = b
	one, other := access.Principal{Name: "uid:1", UID: 1, Role: access.User}, access.Principal{Name: "uid:2", UID: 2, Role: access.User}
	var made, refused atomic.Int64
	var work sync.WaitGroup
	for i := range 10_000 {
		work.Go(func() {
			_, _, err := v.claim(wanted(one, &policy.Request{ID: fmt.Sprint(i)}, &cfg))
			d := fault.DenialOf(err)
			switch {
			case err == nil:
				made.Add(1)
			case fault.KindOf(err) == fault.Exhausted && d != nil && d.Rule == "policy.ci.sessions" && d.Used == "5" && d.Allowed == "5":
				refused.Add(1)
			default:
				t.Errorf("%v", err)
			}
		})
	}
	for i := range 20 {
		if _, _, err := v.claim(wanted(other, &policy.Request{ID: fmt.Sprint(i)}, &cfg)); err != nil {
			t.Errorf("another: %v", err)
		}
	}
	work.Wait()
	if made.Load() != 5 || refused.Load() != 9_995 || len(v.sessions) != 25 {
		t.Errorf("%d made, %d refused, %d there", made.Load(), refused.Load(), len(v.sessions))
	}
	for _, s := range v.sessions {
		v.forget(s)
	}
	if got := v.accounts.Standing("uid:1"); got != (quota.Standing{}) {
		t.Errorf("left %+v, want quota.Standing{}", got)
	}
}

func TestOneOwnerHasOnlySoManySessions(t *testing.T) {
	t.Parallel()
	v, cfg := bare(t), policy.DefaultConfig()
	cfg.Sessions.Max, cfg.Sessions.MaxPerOwner = 8, 3
	cfg.Queue.Starts = 100
	claim := func(caller access.Principal, id string) error {
		_, _, err := v.claim(wanted(caller, &policy.Request{ID: id}, &cfg))
		return err
	}
	one, other, root := access.Principal{Name: "uid:1", UID: 1}, access.Principal{Name: "uid:2", UID: 2}, access.Principal{Name: "uid:0", Role: access.Admin}
	for i := range 3 {
		if err := claim(one, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := claim(one, "more")
	if fault.KindOf(err) != fault.Exhausted || err.Error() != "you have 3 of 3 sessions (sessions.max_per_owner)" {
		t.Errorf(`err = %v, want a fault.Exhausted error and err == "you have 3 of 3 sessions (sessions.max_per_owner)"`,
			err)
	}
	if err := claim(one, "0"); err != nil {
		t.Errorf("a session that exists: %v", err)
	}
	if err := claim(other, "0"); err != nil {
		t.Errorf("another owner: %v", err)
	}
	for i := range 4 { // more than one owner may have
		if err := claim(root, fmt.Sprint(i)); err != nil {
			t.Errorf("root's number %d: %v", i, err)
		}
	}
	for _, who := range []access.Principal{other, root} {
		if err := claim(who, "more"); fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "(sessions.max)") {
			t.Errorf(`%s: err = %v, want a fault.Exhausted error and err containing "(sessions.max)"`, who.Name, err)
		}
	}
	v.leaveLocked(v.sessions[policy.Key(one.Name, "0")])
	if err := claim(one, "more"); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestANewConfigurationAppliesToNewSessionsOnly(t *testing.T) {
	t.Parallel()
	v, who := bare(t), access.Principal{Name: "uid:1", UID: 1}
	make := func(id string) *session.Session {
		s, mine, err := v.claim(wanted(who, &policy.Request{ID: id, Env: map[string]string{"A": "b"}}, v.cfg.Load()))
		if err != nil || !mine {
			t.Fatalf("%s: err = %v, want no error and mine == true", id, err)
		}
		return s
	}
	old := make("old")
	next := policy.DefaultConfig()
	next.Sessions.Max = 0
	if err := v.SetConfig(next); err == nil || v.cfg.Load().Sessions.Max != 256 {
		t.Errorf("an invalid configuration is in force: err = %v, want an error and v.cfg.Load().Sessions.Max == 256",
			err)
	}
	next.Sessions.Max, next.Sessions.MaxPerOwner, next.Env = 2, 2, map[string]string{"B": "c"}
	if err := v.SetConfig(next); err != nil {
		t.Fatal(err)
	}
	young := make("young")
	if slices.Contains(old.Environment(), "B=c") || !slices.Contains(old.Environment(), "LANG=C.UTF-8") || !slices.Equal(young.Environment(), []string{"A=b", "B=c"}) {
		t.Errorf("the environments are %q and %q", old.Environment(), young.Environment())
	}
	for _, s := range []*session.Session{old, young} {
		if diff := v.differences(s, &policy.Request{Env: map[string]string{"A": "b"}}, &policy.Settings{}); len(diff) > 0 {
			t.Errorf("the same request again: session %s differs in %q", s.ID, diff)
		}
	}
	if diff := v.differences(old, &policy.Request{Env: map[string]string{"A": "c"}}, &policy.Settings{}); !slices.Equal(diff, []string{"env"}) {
		t.Errorf("an equivalent request: the session differs in %q", diff)
	}
	if _, _, err := v.claim(wanted(who, &policy.Request{ID: "more"}, v.cfg.Load())); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("one more than there may be now: %v", err)
	}
}

func TestASupervisorIsIdleWithoutSessionsAndAliveWhileItsReaperIs(t *testing.T) {
	t.Parallel()
	v := bare(t)
	if !v.Idle() {
		t.Error("the supervisor has no session and is not idle")
	}
	for _, tc := range []struct {
		next  time.Time
		alive bool
	}{
		{time.Time{}, true}, {time.Now().Add(reapAtLeast), true}, {time.Now().Add(-reapLate / 2), true}, {time.Now().Add(-2 * reapLate), false},
	} {
		v.nextCheck = tc.next
		if err := v.Alive(); (err == nil) != tc.alive {
			t.Errorf("with a reaper that is due at %v: err = %v, want (err == nil) == %v", tc.next, err, tc.alive)
		}
	}
	ready(t, v, "s", time.Hour, time.Now())
	v.nextCheck = time.Time{}
	if v.Idle() {
		t.Error("the supervisor has a session and is idle")
	}
	v.mu.Lock() // as if another goroutine held it
	done := make(chan error)
	go func() { done <- v.Alive() }()
	select {
	case err := <-done:
		t.Errorf("Alive answers while the locks are held: %v", err)
	case <-time.After(20 * time.Millisecond):
		v.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// An execution that is canceled while it waits for its owner's start limit has started nothing, and holds nothing.
func TestAnExecutionCanceledAtTheStartLimitStartsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := bare(t)
		s := ready(t, v, "a", time.Hour, time.Now())
		over, err := v.sessionHooks.Turns.Begin(t.Context(), s.Owner.Name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{"true"}})
			ended <- err
		}()
		synctest.Wait()
		if info := s.Info(); info.Running != 1 || v.executed.Load() != 0 {
			t.Errorf("%d are under way, %d have started", info.Running, v.executed.Load())
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it has ended with %v, want err is context.Canceled", err)
		}
		over()
		if info := s.Info(); info.Running != 0 || v.executed.Load() != 0 {
			t.Errorf("%d are under way, %d have started", info.Running, v.executed.Load())
		}
	})
}

// A stop that cannot be recorded is undone. Whoever ends the session meanwhile ends it then, and does not wait for the stop.
func TestASessionDeletedDuringAFailedStopEnds(t *testing.T) {
	t.Parallel()
	s := ready(t, bare(t), "s", time.Hour, time.Now())
	first := make(chan bool, 1)
	_ = s.Exclusive(func() error {
		if !s.BeginStop() {
			t.Fatal("the session cannot be stopped")
		}
		go func() { first <- beginEnd(s, session.EndDeleted) }() // ends with Exclusive
		select {
		case <-first:
			t.Fatal("the session was ended before its stop was done or undone")
		case <-time.After(50 * time.Millisecond):
		}
		s.CancelStop()
		return nil
	})
	if !<-first {
		t.Error("nothing ended the session after its stop was undone")
	}
	if state, _, _ := s.State(); state != session.StateEnding {
		t.Errorf("it is %v, want session.StateEnding", state)
	}
}

// The stop may be undone at any moment, also just before its state is looked at.
func TestDeletingASessionDoesNotRaceWithACanceledStop(t *testing.T) {
	t.Parallel()
	v := bare(t)
	for i := range 500 {
		s := ready(t, v, strconv.Itoa(i), time.Hour, time.Now())
		first := make(chan bool, 1)
		_ = s.Exclusive(func() error {
			go func() { first <- beginEnd(s, session.EndDeleted) }() // ends with Exclusive
			for range 200 {
				_ = s.BeginStop()
				s.CancelStop()
			}
			return nil
		})
		if !<-first {
			t.Fatalf("session %d was not ended", i)
		}
	}
}
