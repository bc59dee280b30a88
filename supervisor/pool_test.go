// SPDX-License-Identifier: Apache-2.0

package supervisor_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor"
)

// factory makes boxes that consist of nothing but their pointers.
type factory struct {
	mu     sync.Mutex
	living map[*client.Box]string
	silent map[*client.Box]bool
	made   int
	fails  bool
	most   int
	busy   bool
	during func() // is called while a box is being made
}

func (f *factory) source() supervisor.PoolSource {
	locked := func() func() {
		f.mu.Lock()
		return f.mu.Unlock
	}
	return supervisor.PoolSource{
		Launch: func(_ context.Context, spec *isolation.Spec) (*client.Box, error) {
			if f.during != nil {
				f.during()
			}
			defer locked()()
			if f.fails {
				return nil, errors.New("no")
			}
			if err := spec.Validate(); err != nil {
				return nil, err
			}
			b := &client.Box{}
			f.living[b] = spec.Key
			f.made++
			return b, nil
		},
		End: func(_ context.Context, _ string, b *client.Box) {
			defer locked()()
			delete(f.living, b)
		},
		Ping: func(_ context.Context, b *client.Box) error {
			defer locked()()
			if f.silent[b] {
				return client.ErrSilent
			}
			return nil
		},
		Alive: func(b *client.Box) bool {
			defer locked()()
			return f.living[b] != ""
		},
		Most: func() int {
			defer locked()()
			return f.most
		},
		Quiet: func() bool {
			defer locked()()
			return !f.busy
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

func (f *factory) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// counts returns how many boxes live, and how many were ever made.
func (f *factory) counts() (living, made int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.living), f.made
}

func plain() isolation.Spec {
	return isolation.Spec{Scratch: isolation.Scratch{Bytes: 1 << 20, Inodes: 1024}, ManagedWork: true}
}

func specWith(do func(*isolation.Spec)) *isolation.Spec {
	s := plain()
	s.Key, s.Hostname, s.Caller = "k", "h", isolation.Caller{UID: 7, GID: 7, Groups: []uint32{1}}
	if do != nil {
		do(&s)
	}
	return &s
}

// run runs a test with a pool that is being filled, in a synctest bubble.
func run(t *testing.T, f *factory, kinds []supervisor.PoolKind, test func(t *testing.T, p *supervisor.Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.living, f.silent = map[*client.Box]string{}, map[*client.Box]bool{}
		p := supervisor.NewPool(f.source())
		p.Set(kinds)
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { p.Run(ctx) })
		<-time.After(time.Second) // bubble time
		synctest.Wait()
		test(t, p)
		cancel()
		work.Wait()
		if living, _ := f.counts(); living > 0 || p.Len() > 0 {
			t.Errorf("at the end %d boxes run, %d are in the pool", living, p.Len())
		}
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestThePreforkPoolIsFilledAndTakenFrom(t *testing.T) {
	t.Parallel()
	f := &factory{most: 10}
	run(t, f, []supervisor.PoolKind{{Profile: "a", Count: 3, Spec: plain()}, {Profile: "b", Count: 1, Spec: plain()}}, func(t *testing.T, p *supervisor.Pool) {
		if c := p.Counts(); len(c) != 2 || c[0] != (supervisor.PoolCount{Profile: "a", Ready: 3, Want: 3}) || c[1].Ready != 1 {
			t.Fatalf(`c = %+v, want len(c) == 2 and c[0] == supervisor.PoolCount{Profile: "a", Ready: 3, Want: 3} and c[1].Ready == 1`,
				c)
		}
		seen := map[string]bool{}
		for range 3 {
			m := p.Take("a", specWith(nil))
			if m == nil || seen[m.Key] || m.Spec.Key != m.Key {
				t.Fatalf("m = %+v", m)
			}
			seen[m.Key] = true
			defer f.set(func() { delete(f.living, m.Box) })
		}
		if p.Take("a", specWith(nil)) != nil || p.Take("c", specWith(nil)) != nil {
			t.Error("Take returned a box though none is left")
		}
		pass(time.Second)
		if living, made := f.counts(); p.Len() != 4 || made != 7 || living != 7 { // the pool does not end boxes that were taken
			t.Errorf("%d in the pool, %d made, %d live", p.Len(), made, living)
		}
	})
}

func TestAPreforkedBoxFitsOnlyAMatchingSpec(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		do   func(s *isolation.Spec)
		fits bool
	}{
		{"as it is", nil, true},
		{"a mount", func(s *isolation.Spec) { s.Mounts = []isolation.Mount{{Source: "/x", Target: "/mnt"}} }, false},
		{"another tmpfs", func(s *isolation.Spec) { s.Scratch.Bytes *= 2 }, false},
		{"a limit of processes", func(s *isolation.Spec) { s.Rlimits = []isolation.Rlimit{{Resource: 1}} }, false},
		{"control groups", func(s *isolation.Spec) { s.Grouped = true }, false},
		{"a quota", func(s *isolation.Spec) { s.Work = isolation.Quota{Bytes: 1, Inodes: 1} }, false},
		{"no workspace of its own", func(s *isolation.Spec) { s.ManagedWork = false }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := &factory{most: 1}
			run(t, f, []supervisor.PoolKind{{Profile: "a", Count: 1, Spec: plain()}}, func(t *testing.T, p *supervisor.Pool) {
				m := p.Take("a", specWith(tc.do))
				if (m != nil) != tc.fits {
					t.Errorf("m = %+v, want (m != nil) == %v", m, tc.fits)
				}
				if m != nil {
					f.set(func() { delete(f.living, m.Box) })
				}
			})
		})
	}
}

// Cgroups of one owner are in one place, and a box cannot be moved between owners, so the pool gives no owner another's box.
func TestPreforkedBoxesInCgroupsGoToTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	f := &factory{most: 2}
	spec := plain()
	spec.Grouped = true
	spec.Limits.Memory = 1 << 20
	mine := func(uid uint32, other string) *isolation.Spec {
		return specWith(func(s *isolation.Spec) {
			s.Grouped, s.Limits.Memory, s.Caller.UID, s.Owner = true, 2<<20, uid, cgroup.Owner{Name: other, Memory: 1 << 30}
		})
	}
	run(t, f, []supervisor.PoolKind{{Profile: "a", Count: 2, Spec: spec}}, func(t *testing.T, p *supervisor.Pool) {
		for _, who := range []struct {
			uid   uint32
			other string
		}{{1000, ""}, {1001, ""}, {1001, "0123456789abcdef"}} {
			if p.Take("a", mine(who.uid, who.other)) != nil {
				t.Error("Take returned a box of another owner")
			}
			pass(time.Second)
			m := p.Take("a", mine(who.uid, who.other))
			if m == nil || m.Spec.Caller.UID != who.uid || m.Spec.Owner != (cgroup.Owner{Name: who.other, Memory: 1 << 30}) || m.Spec.Limits.Memory != 1<<20 {
				t.Fatalf("m = %+v, want m != nil and m.Spec.Caller.UID == %v and m.Spec.Owner == cgroup.Owner{Name: who.other, Memory: 1 << 30} and m.Spec.Limits.Memory == 1 << 20",
					m, who.uid)
			}
			f.set(func() { delete(f.living, m.Box) })
		}
	})
}

func TestThePreforkPoolYieldsCapacityAndReplacesDeadBoxes(t *testing.T) {
	t.Parallel()
	f := &factory{most: 3}
	run(t, f, []supervisor.PoolKind{{Profile: "a", Count: 3, Spec: plain()}}, func(t *testing.T, p *supervisor.Pool) {
		for _, step := range []struct {
			name string
			do   func()
			want int
		}{
			{"sessions need the room", func() { f.most = 1 }, 1},
			{"they do not any more, but the host is busy", func() { f.most, f.busy = 3, true }, 1},
			{"it is not", func() { f.busy = false }, 3},
			{"they die", func() { clear(f.living) }, 3},
			{"they fall silent", func() {
				for b := range f.living {
					f.silent[b] = true
				}
			}, 3},
			{"none can be made", func() {
				clear(f.living)
				f.fails = true
			}, 0},
			{"they can again", func() { f.fails = false }, 3},
		} {
			_, before := f.counts()
			f.set(step.do)
			p.Wake()
			pass(2 * time.Minute)
			living, made := f.counts()
			if p.Len() != step.want || living != step.want {
				t.Errorf("%s: %d in the pool, %d live, want %d", step.name, p.Len(), living, step.want)
			}
			if made-before > 3 {
				t.Errorf("%s: %d were made", step.name, made-before)
			}
		}
		_, before := f.counts()
		pass(15 * time.Minute)
		if _, made := f.counts(); made-before != 3 || p.Len() != 3 {
			t.Errorf("%d of 3 were renewed", made-before)
		}
	})
}

func TestAConfigurationChangeReplacesPreforkedBoxes(t *testing.T) {
	t.Parallel()
	f := &factory{most: 9}
	run(t, f, []supervisor.PoolKind{{Profile: "a", Count: 2, Spec: plain()}, {Profile: "b", Count: 2, Spec: plain()}}, func(t *testing.T, p *supervisor.Pool) {
		other := plain()
		other.Scratch.Bytes *= 2
		p.Set([]supervisor.PoolKind{{Profile: "a", Count: 1, Spec: plain()}, {Profile: "c", Count: 1, Spec: other}})
		pass(time.Second)
		if _, made := f.counts(); made != 5 || p.Len() != 2 {
			t.Errorf("%d made, %d there: those of a are still good", made, p.Len())
		}
		p.Set([]supervisor.PoolKind{{Profile: "a", Count: 1, Spec: other}})
		pass(time.Second)
		if _, made := f.counts(); made != 6 || p.Len() != 1 {
			t.Errorf("%d made, %d there", made, p.Len())
		}
	})
}

// Of a kind in use the pool keeps as many boxes as sessions have recently asked for at once, and of an unused one only Count.
func TestThePreforkPoolFollowsRecentDemand(t *testing.T) {
	t.Parallel()
	f := &factory{most: 100}
	kinds := []supervisor.PoolKind{{Profile: "a", Max: 4, Spec: plain()}, {Profile: "b", Count: 1, Max: 2, Spec: plain()}}
	run(t, f, kinds, func(t *testing.T, p *supervisor.Pool) {
		ask := func(profile string, n int) (warm int) {
			p.Used() // no box is made for a while, or one could come between two that are asked for
			for range n {
				if m := p.Take(profile, specWith(nil)); m != nil {
					f.set(func() { delete(f.living, m.Box) })
					warm++
				}
			}
			return warm
		}
		has := func(when string, a, b int) {
			t.Helper()
			want := map[string]int{"a": a, "b": b}
			for _, c := range p.Counts() {
				if c.Ready != want[c.Profile] || c.Want != want[c.Profile] {
					t.Errorf("%s: %+v, want %d", when, c, want[c.Profile])
				}
				delete(want, c.Profile)
			}
			if living, _ := f.counts(); living != a+b || want["a"]+want["b"] > 0 {
				t.Errorf("%s: %d live, want %d and %d", when, living, a, b)
			}
		}
		has("before any use", 0, 1)
		if warm := ask("a", 3) + ask("b", 1); warm != 1 {
			t.Errorf("%d preforked boxes were used", warm)
		}
		pass(time.Second)
		has("after three at once", 3, 1)
		if warm := ask("a", 3); warm != 3 {
			t.Errorf("%d of 3 were preforked boxes", warm)
		}
		for range 8 {
			pass(time.Minute)
			ask("a", 1)
		}
		pass(time.Second)
		has("one at a time for eight minutes", 3, 1)
		p.Set(kinds)
		pass(time.Second)
		has("after the configuration was read again", 3, 1)
		for range 5 {
			ask("a", 1)
			pass(time.Minute)
		}
		has("and for five more", 1, 1)
		ask("a", 4)
		for range 7 {
			pass(2 * time.Minute)
			ask("a", 3)
			pass(time.Second)
		}
		has("three at once for fourteen minutes, after four", 3, 1)
		ask("a", 1)
		pass(900 * time.Millisecond) // counted within any second, not per second of the clock
		ask("a", 3)
		pass(time.Second)
		has("four within a second", 4, 1)
		ask("a", 3)
		pass(time.Second)
		ask("a", 50)
		ask("b", 50)
		pass(time.Second)
		has("more at once than may be", 4, 2)
		p.Take("a", specWith(func(s *isolation.Spec) { s.Mounts = []isolation.Mount{{Source: "/x", Target: "/mnt"}} }))
		pass(9 * time.Minute)
		has("nine minutes without use", 4, 2)
		pass(3 * time.Minute)
		has("without use", 0, 1)
		for range 20 { // which no box of the pool could serve
			p.Take("a", specWith(func(s *isolation.Spec) { s.Mounts = []isolation.Mount{{Source: "/x", Target: "/mnt"}} }))
		}
		pass(time.Second)
		has("for others", 0, 1)
		ask("a", 2)
		p.Set(nil)
		pass(time.Second)
		has("when none are wanted", 0, 0)
	})
}

// A box that is being made while the configuration is read again is kept if it is still wanted, and ended otherwise.
func TestABoxPreforkedDuringAReloadIsKeptOnlyIfStillWanted(t *testing.T) {
	t.Parallel()
	for name, after := range map[string][]supervisor.PoolKind{"the same": {{Profile: "a", Count: 1, Spec: plain()}}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &factory{most: 10}
			run(t, f, nil, func(t *testing.T, p *supervisor.Pool) {
				f.during = func() {
					f.during = nil
					p.Set(after)
				}
				p.Set([]supervisor.PoolKind{{Profile: "a", Count: 1, Spec: plain()}})
				pass(time.Minute)
				if living, made := f.counts(); living != len(after) || made != 1 || p.Len() != len(after) {
					t.Errorf("%d live and %d were made, %d in the pool, want %d", living, made, p.Len(), len(after))
				}
			})
		})
	}
}
