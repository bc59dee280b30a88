// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// days is a Day that only counts.
type days struct {
	mu   sync.Mutex
	used map[string]int
}

func (d *days) Begin(principal string, most int) (bool, int, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	used := d.used[principal]
	if most > 0 && used >= most {
		return false, used, time.Hour
	}
	d.used[principal]++
	return true, used, time.Hour
}

func (d *days) Used(principal string) (int, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used[principal], time.Hour
}

// clock is a clock that a test sets.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.Unix(1, c.at.Load()) }
func (c *clock) pass(d time.Duration) { c.at.Add(int64(d)) }

func accounts() (*quota.Accounts, *clock) {
	c := &clock{}
	return quota.NewAccounts(&days{used: map[string]int{}}, c.now), c
}

func effective(change func(*policy.Policy)) *policy.EffectivePolicy {
	h := &policy.EffectivePolicy{Policy: policy.NoPolicy(), Name: "ci"}
	change(&h.Policy)
	return h
}

func denial(t *testing.T, err error) fault.Denial {
	t.Helper()
	d := fault.DenialOf(err)
	if d == nil || fault.KindOf(err) != fault.Exhausted || d.Layer != fault.LayerQuota {
		t.Fatalf("%v is no refusal by a quota", err)
	}
	return *d
}

func TestOneTooManyNamesWhatIsUsedAndAllowed(t *testing.T) {
	t.Parallel()
	small := quota.Size{Memory: 100 * quantity.MiB, CPUs: 0.5}
	for _, tc := range []struct {
		rule, used, allowed string
		bounds              func(*policy.Policy)
		do                  func(*quota.Accounts, *policy.EffectivePolicy, int) error
	}{
		{"sessions", "2", "2", func(b *policy.Policy) { b.Sessions = 2 }, func(b *quota.Accounts, h *policy.EffectivePolicy, i int) error {
			return b.Session("ann", h, strconv.Itoa(i), small)
		}},
		{"total_memory", "200MiB", "299MiB", func(b *policy.Policy) { b.Memory = 299 * quantity.MiB }, func(b *quota.Accounts, h *policy.EffectivePolicy, i int) error {
			return b.Session("ann", h, strconv.Itoa(i), small)
		}},
		{"total_cpus", "1", "1.25", func(b *policy.Policy) { b.CPUs = 1.25 }, func(b *quota.Accounts, h *policy.EffectivePolicy, i int) error {
			return b.Session("ann", h, strconv.Itoa(i), small)
		}},
		{"executions", "2", "2", func(b *policy.Policy) { b.Executions = 2 }, func(b *quota.Accounts, h *policy.EffectivePolicy, _ int) error {
			_, err := b.Execution("ann", h)
			return err
		}},
		{"processes", "2", "2", func(b *policy.Policy) { b.Processes = 2 }, func(b *quota.Accounts, h *policy.EffectivePolicy, _ int) error {
			_, err := b.Process("ann", h)
			return err
		}},
		{"executions_per_day", "2", "2", func(b *policy.Policy) { b.PerDay = 2 }, func(b *quota.Accounts, h *policy.EffectivePolicy, _ int) error {
			release, err := b.Execution("ann", h)
			if err == nil {
				release()
			}
			return err
		}},
		{"executions_per_minute", "2", "2", func(b *policy.Policy) { b.PerMinute = 2 }, func(b *quota.Accounts, h *policy.EffectivePolicy, _ int) error {
			_, err := b.Process("ann", h)
			return err
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			t.Parallel()
			b, _ := accounts()
			h := effective(tc.bounds)
			for i := range 2 {
				if err := tc.do(b, h, i); err != nil {
					t.Fatalf("number %d: %v", i, err)
				}
			}
			for range 3 { // a try takes nothing
				tried := errors.Join(b.TrySession("ann", h, small), b.TryExecution("ann", h))
				if refused := tc.rule != "processes"; (tried != nil) != refused {
					t.Errorf("tried: tried = %v, want (tried != nil) == refused", tried)
				}
			}
			d := denial(t, tc.do(b, h, 2))
			if d.Rule != "policy.ci."+tc.rule || d.Used != tc.used || d.Allowed != tc.allowed || d.Setting == "" {
				t.Errorf(`d = %+v, want d.Rule == "policy.ci." + tc.rule and d.Used == %v and d.Allowed == %v and d.Setting != ""`,
					d, tc.used, tc.allowed)
			}
			if err := tc.do(b, effective(func(*policy.Policy) {}), 3); err != nil {
				t.Errorf("without bounds: %v", err)
			}
		})
	}
}

// A request too large for the policy is refused at once: no session that ends could make room for it.
func TestARequestTooLargeForThePolicyIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	h := effective(func(b *policy.Policy) { b.Memory, b.CPUs = quantity.GiB, 1 })
	for rule, size := range map[string]quota.Size{"total_memory": {Memory: quantity.GiB + 1, CPUs: 1}, "total_cpus": {Memory: 1, CPUs: 1.5}} {
		err := b.Session("ann", h, "k", size)
		if d := fault.DenialOf(err); d == nil || d.Rule != "policy.ci."+rule || d.Allowed == "" || fault.KindOf(err) != fault.Denied {
			t.Errorf(`%v: d = %+v, want d != nil and d.Rule == "policy.ci." + rule and d.Allowed != "" and a fault.Denied error`,
				err, d)
		}
	}
	if err := b.Session("ann", h, "k", quota.Size{Memory: quantity.GiB, CPUs: 1}); err != nil {
		t.Error(err)
	}
}

func TestReleasedQuotaCanBeReservedAgain(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	h := effective(func(b *policy.Policy) {
		b.Sessions, b.Executions, b.Processes, b.Memory, b.CPUs = 1, 1, 1, quantity.GiB, 1
	})
	for i := range 3 {
		key := strconv.Itoa(i)
		if err := b.Session("ann", h, key, quota.Size{Memory: quantity.GiB, CPUs: 1}); err != nil {
			t.Fatal(err)
		}
		execution, err1 := b.Execution("ann", h)
		process, err2 := b.Process("ann", h)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second time has no effect
			execution()
			process()
			b.Release("ann", key)
		}
		if got := b.Standing("ann"); got != (quota.Standing{}) {
			t.Fatalf("left %+v, want quota.Standing{}", got)
		}
	}
}

// The rate limit is a token bucket: as many at once as it holds, and then as fast as it fills.
func TestTheExecutionRateIsATokenBucket(t *testing.T) {
	t.Parallel()
	b, c := accounts()
	h := effective(func(b *policy.Policy) { b.PerMinute, b.Burst = 60, 3 })
	run := func() error {
		release, err := b.Execution("ann", h)
		if err == nil {
			release()
		}
		return err
	}
	for range 3 {
		if err := run(); err != nil {
			t.Fatal(err)
		}
	}
	d := denial(t, run())
	if d.After <= 0 || d.After > time.Second+time.Millisecond {
		t.Errorf("again after %v", d.After)
	}
	c.pass(d.After)
	if err := run(); err != nil {
		t.Errorf("at the time of Retry-After: %v", err)
	}
	denial(t, run())
	c.pass(-time.Hour) // a clock that jumps neither gives nor takes
	denial(t, run())
	c.pass(time.Hour + time.Hour)
	for range 3 {
		if err := run(); err != nil {
			t.Fatal(err)
		}
	}
	denial(t, run())
	if _, err := b.Execution("bob", h); err != nil {
		t.Errorf("another owner: %v", err)
	}
}

// A refused execution consumes nothing: not from the rate if the day is used up, and not from the day if the rate is.
func TestARefusedExecutionConsumesNoQuota(t *testing.T) {
	t.Parallel()
	day := &days{used: map[string]int{}}
	c := &clock{}
	b := quota.NewAccounts(day, c.now)
	h := effective(func(b *policy.Policy) { b.PerMinute, b.PerDay, b.Executions = 2, 3, 1 })
	release, err := b.Execution("ann", h)
	if err != nil {
		t.Fatal(err)
	}
	denial(t, second(b.Execution("ann", h)))
	release()
	for range 5 {
		if release, err := b.Execution("ann", h); err == nil {
			release()
		}
	}
	if day.used["ann"] != 2 {
		t.Errorf("the day has %d, want the 2 that the rate let through", day.used["ann"])
	}
}

func second(_ func(), err error) error { return err }

func TestAResizedSessionIsCountedAtItsNewSize(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	h := effective(func(b *policy.Policy) { b.Memory, b.CPUs = 3*quantity.GiB, 3 })
	for key, n := range map[string]quantity.Size{"a": 1, "b": 1} {
		if err := b.Session("ann", h, key, quota.Size{Memory: n * quantity.GiB, CPUs: float64(n)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Resize("ann", h, "a", quota.Size{Memory: 2 * quantity.GiB, CPUs: 2}); err != nil {
		t.Fatal(err)
	}
	denial(t, b.Resize("ann", h, "b", quota.Size{Memory: 2 * quantity.GiB, CPUs: 1}))
	denial(t, b.Resize("ann", h, "b", quota.Size{Memory: quantity.GiB, CPUs: 1.5}))
	less := effective(func(b *policy.Policy) { b.Memory, b.CPUs = quantity.GiB, 1 })
	if err := b.Resize("ann", less, "a", quota.Size{Memory: quantity.GiB, CPUs: 1}); err != nil {
		t.Errorf("less is refused under bounds that are exceeded already: %v", err)
	}
	if got := b.Standing("ann"); got.Memory != 2*quantity.GiB || got.CPUs != 2 {
		t.Errorf("got %+v, want got.Memory == 2 * quantity.GiB and got.CPUs == 2", got)
	}
}

// What an earlier boxd has left counts, and is never refused.
func TestRestoredSessionsCountAgainstTheQuota(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	h := effective(func(b *policy.Policy) { b.Sessions, b.Executions, b.Processes = 1, 1, 1 })
	b.Restore("ann", &policy.EffectivePolicy{}, "a", quota.Size{Memory: 1, CPUs: 1})
	b.Restore("ann", &policy.EffectivePolicy{}, "b", quota.Size{Memory: 1, CPUs: 1})
	b.Restore("ann", &policy.EffectivePolicy{}, "b", quota.Size{Memory: 1, CPUs: 1}) // counts once
	execution, process := b.Running("ann", &policy.EffectivePolicy{}, false), b.Running("ann", &policy.EffectivePolicy{}, true)
	denial(t, b.Session("ann", h, "c", quota.Size{}))
	denial(t, second(b.Execution("ann", h)))
	denial(t, second(b.Process("ann", h)))
	execution()
	process()
	b.Release("ann", "a")
	b.Release("ann", "b")
	if got := b.Standing("ann"); got != (quota.Standing{}) {
		t.Errorf("left %+v, want quota.Standing{}", got)
	}
}

// Of ten thousand concurrent creates exactly the allowed number gets through for each owner, whatever the others do.
func TestTenThousandAtOnce(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	bounds := map[string]*policy.EffectivePolicy{
		"ann": effective(func(b *policy.Policy) { b.Sessions = 7 }),
		"bob": effective(func(b *policy.Policy) { b.Memory = 50 * quantity.MiB }),
		"eve": effective(func(b *policy.Policy) { b.Executions, b.PerDay = 11, 100 }),
	}
	var got [3]atomic.Int64
	var work sync.WaitGroup
	for i := range 10_000 {
		work.Go(func() {
			key := fmt.Sprint(i)
			if b.Session("ann", bounds["ann"], key, quota.Size{Memory: 1}) == nil {
				got[0].Add(1)
			}
			if b.Session("bob", bounds["bob"], key, quota.Size{Memory: 9 * quantity.MiB}) == nil {
				got[1].Add(1)
			}
			if _, err := b.Execution("eve", bounds["eve"]); err == nil {
				got[2].Add(1)
			}
		})
	}
	work.Wait()
	if got[0].Load() != 7 || got[1].Load() != 5 || got[2].Load() != 11 {
		t.Errorf("%d, %d and %d got through", got[0].Load(), got[1].Load(), got[2].Load())
	}
	if s := b.Standing("bob"); s.Memory != 45*quantity.MiB || s.Sessions != 5 {
		t.Errorf("bob has %+v, want s.Memory == 45 * quantity.MiB and s.Sessions == 5", s)
	}
}

// Concurrent reserve and release leave nothing counted, and never let one too many in.
func TestConcurrentReserveAndReleaseStayConsistent(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	h := effective(func(b *policy.Policy) { b.Sessions, b.Executions, b.Processes, b.CPUs = 3, 3, 3, 0.6 })
	var work sync.WaitGroup
	var in, most atomic.Int64
	for w := range 16 {
		work.Go(func() {
			for i := range 500 {
				key := fmt.Sprint(w, " ", i)
				if b.Session("ann", h, key, quota.Size{CPUs: 0.2}) == nil {
					n := in.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					in.Add(-1)
					b.Release("ann", key)
				}
				for _, reserve := range []func(string, *policy.EffectivePolicy) (func(), error){b.Execution, b.Process} {
					if release, err := reserve("ann", h); err == nil {
						release()
					}
				}
			}
		})
	}
	work.Wait()
	if most.Load() > 3 {
		t.Errorf("%d sessions at once", most.Load())
	}
	if got := b.Standing("ann"); got != (quota.Standing{}) {
		t.Errorf("left %+v, want quota.Standing{}", got)
	}
}

// What a principal does for a tenant counts for both, and a tenant cannot use up what is another's.
func TestTenantsHaveBoundsOfTheirOwn(t *testing.T) {
	t.Parallel()
	b, _ := accounts()
	bounds := policy.EffectivePolicy{Name: "refly", Policy: policy.Policy{Sessions: 4, Tenant: policy.Tenant{Label: "tenant", Sessions: 2, Executions: 1, Processes: 1, Memory: 3 * quantity.GiB}}}
	of := func(tenant string) *policy.EffectivePolicy {
		h := bounds.For(map[string]string{"tenant": tenant})
		return &h
	}
	size := quota.Size{Memory: quantity.GiB, CPUs: 1}
	refused := func(err error, rule string) {
		t.Helper()
		if d := fault.DenialOf(err); d == nil || d.Rule != "policy.refly."+rule {
			t.Errorf("%v, want %s", err, rule)
		}
	}
	for _, s := range []struct{ tenant, key string }{{"a", "1"}, {"a", "2"}, {"b", "3"}} {
		if err := b.Session("refly", of(s.tenant), s.key, size); err != nil {
			t.Fatal(err)
		}
	}
	refused(b.Session("refly", of("a"), "x", size), "tenant.sessions")
	refused(b.TrySession("refly", of("a"), size), "tenant.sessions")
	refused(b.Session("refly", of("b"), "x", quota.Size{Memory: 3 * quantity.GiB}), "tenant.total_memory")
	refused(b.Resize("refly", of("a"), "1", quota.Size{Memory: 3 * quantity.GiB}), "tenant.total_memory")
	if err := b.Session("refly", of(""), "4", size); err != nil { // no label is a tenant too
		t.Fatal(err)
	}
	refused(b.Session("refly", of("c"), "x", size), "sessions")
	b.Release("refly", "1")
	if err := b.Session("refly", of("a"), "5", size); err != nil {
		t.Error(err)
	}
	end, err := b.Execution("refly", of("a"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Execution("refly", of("a"))
	refused(err, "tenant.executions")
	refused(b.TryExecution("refly", of("a")), "tenant.executions")
	other, err := b.Execution("refly", of("b"))
	if err != nil {
		t.Fatal(err)
	}
	end()
	end()
	if again, err := b.Execution("refly", of("a")); err != nil {
		t.Error(err)
	} else {
		again()
	}
	other()
	stop, err := b.Process("refly", of("a"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Process("refly", of("a"))
	refused(err, "tenant.processes")
	stop()
	for _, key := range []string{"2", "3", "4", "5"} {
		b.Release("refly", key)
	}
	if now := b.Standing("refly"); now != (quota.Standing{}) {
		t.Errorf("left: now = %+v, want quota.Standing{}", now)
	}
	for _, key := range []string{"6", "7"} {
		if err := b.Session("refly", of("a"), key, size); err != nil {
			t.Errorf("after usage was given back: %v", err)
		}
	}
}
