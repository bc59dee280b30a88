// SPDX-License-Identifier: Apache-2.0

// The pool holds preforked boxes, started before a session needs them. Each is complete but for its name, and becomes the box
// of a session when it is taken.

package supervisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// PoolSource creates and ends the boxes of a pool, and tells it when it may.
type PoolSource struct {
	Launch func(ctx context.Context, spec *isolation.Spec) (*client.Box, error)
	End    func(ctx context.Context, key string, box *client.Box)
	Ping   func(ctx context.Context, box *client.Box) error
	Alive  func(box *client.Box) bool
	Most   func() int  // boxes allowed at present: any beyond that are ended
	Quiet  func() bool // nothing else is starting or waiting, and the host has room
	Log    *slog.Logger
}

// PoolKind is one kind of box to prefork.
type PoolKind struct {
	Profile string
	Count   int            // always this many
	Max     int            // up to this many, as sessions ask for them; if not above Count, demand does not matter
	Spec    isolation.Spec // without key and hostname
}

// PoolMember is a box of the pool.
type PoolMember struct {
	Key     string
	Spec    isolation.Spec // as it was created
	Box     *client.Box
	created time.Time
}

// PoolCount is the state of the pool for one profile.
type PoolCount struct {
	Profile     string
	Ready, Want int
}

// Intervals and limits of a pool.
const (
	quiet       = 20 * time.Millisecond // since the last start, before a box is preforked
	again       = time.Second           // between attempts after a failure
	maxDelay    = time.Minute           // the longest such interval, after repeated failures
	health      = 10 * time.Second      // between two health checks of all boxes
	maxAge      = 10 * time.Minute      // of a box: it shows the host's /etc as of its creation
	poolTimeout = time.Minute           // for creating or ending boxes
	together    = time.Second           // starts within it count as simultaneous
	remembered  = 11                    // minutes of demand that are remembered, including the current one
)

type kind struct {
	PoolKind
	ready []*PoolMember // oldest first
	use   use
}

// use is how many boxes of a kind sessions have asked for at the same time.
type use struct {
	peak   [remembered]int // of each minute, at minute%remembered
	minute int64           // the latest minute in most
	last   []time.Time     // times of the latest requests, oldest first
}

// forget clears the minutes that are too long ago.
func (u *use) forget(now time.Time) {
	minute := now.Unix() / 60
	for m := max(u.minute+1, minute-remembered+1); m <= minute; m++ {
		u.peak[m%remembered] = 0
	}
	u.minute = max(u.minute, minute)
}

// count notes that a session asks for a box. No more than most simultaneous requests are counted.
func (u *use) count(now time.Time, peak int) {
	u.forget(now)
	u.last = append(slices.DeleteFunc(u.last, func(t time.Time) bool { return now.Sub(t) >= together }), now)
	u.last = u.last[max(len(u.last)-peak, 0):]
	u.peak[u.minute%remembered] = max(u.peak[u.minute%remembered], len(u.last))
}

// want returns how many boxes there should be.
func (k *kind) want(now time.Time) int {
	k.use.forget(now)
	return max(k.Count, min(slices.Max(k.use.peak[:]), k.Max))
}

// Pool is the preforked boxes of one boxd.
type Pool struct {
	src    PoolSource
	wakeup chan struct{} // wakes Run

	mu    sync.Mutex // guards the fields below
	kinds map[string]*kind
	used  time.Time // time of the last start
}

// NewPool returns a pool that wants no boxes yet. Run fills it.
func NewPool(src PoolSource) *Pool {
	return &Pool{src: src, wakeup: make(chan struct{}, 1), kinds: map[string]*kind{}}
}

// Set says which boxes are wanted from now on. Others are ended.
func (p *Pool) Set(kinds []PoolKind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := map[string]*kind{}
	for _, k := range kinds {
		updated := &kind{PoolKind: k}
		if old := p.kinds[k.Profile]; old != nil { // trim ends those that no longer match
			updated.Spec.Caller.UID, updated.Spec.Owner, updated.ready, updated.use = old.Spec.Caller.UID, old.Spec.Owner, old.ready, old.use
			delete(p.kinds, k.Profile)
		}
		next[k.Profile] = updated
	}
	for name, old := range p.kinds {
		old.Count, old.Max = 0, 0 // trim ends them all
		next[name] = old
	}
	p.kinds = next
	p.wake()
}

// sameSpec reports whether two boxes differ in nothing but what depends on the session or its owner: key, hostname and caller.
func sameSpec(a, b *isolation.Spec) bool {
	return a.Limits == b.Limits && a.View == b.View && a.Work == b.Work && alike(a, b)
}

// alike reports whether one box can be turned into the other: they may differ in limits of cgroups and of the workspace, which
// can be changed in living boxes.
func alike(a, b *isolation.Spec) bool {
	x, y := *a, *b
	for _, s := range []*isolation.Spec{&x, &y} {
		s.Key, s.Hostname, s.Scope, s.Caller, s.Owner = "", "", "", isolation.Caller{}, isolation.Spec{}.Owner
		s.Limits, s.View, s.Work = isolation.Spec{}.Limits, isolation.Spec{}.View, isolation.Quota{}
		s.Rlimits = slices.Clone(s.Rlimits)
		slices.SortFunc(s.Rlimits, func(m, n isolation.Rlimit) int { return cmp.Compare(m.Resource, n.Resource) })
	}
	return reflect.DeepEqual(x, y) && (a.Work.Bytes == 0) == (b.Work.Bytes == 0) && (a.Grouped || a.Limits == b.Limits && a.View == b.View)
}

// sameOwner reports whether the cgroups of two boxes have the same parent.
func sameOwner(a, b *isolation.Spec) bool {
	return a.Caller.UID == b.Caller.UID && a.Owner.Name == b.Owner.Name
}

// Take returns a box that can be turned into that of spec, which is then the caller's; nil: there is none. Boxes with cgroups
// below another owner's do not match; boxes of this owner are made from now on.
func (p *Pool) Take(profile string, spec *isolation.Spec) *PoolMember {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds[profile]
	if k == nil || len(spec.Mounts) > 0 || !alike(&k.Spec, spec) {
		return nil
	}
	if spec.Grouped && !sameOwner(&k.Spec, spec) {
		k.Spec.Caller.UID, k.Spec.Owner = spec.Caller.UID, spec.Owner // Run replaces the existing ones
		p.wake()
		return nil
	}
	k.use.count(time.Now(), k.Max)
	k.Spec.Owner = spec.Owner // otherwise a new cgroup of the owner would get outdated limits
	p.wake()
	i := slices.IndexFunc(k.ready, func(m *PoolMember) bool { return p.src.Alive(m.Box) }) // Run ends the others
	if i < 0 {
		return nil
	}
	m := k.ready[i]
	k.ready = slices.Delete(k.ready, i, i+1)
	p.used = time.Now()
	return m
}

// Used notes a start without the pool, which takes precedence over preforking.
func (p *Pool) Used() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = time.Now()
}

// Wake makes the pool check whether it has what is wanted.
func (p *Pool) Wake() { p.wake() }

func (p *Pool) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default: // it is already pending
	}
}

// Counts returns the state of the pool, by profile.
func (p *Pool) Counts() []PoolCount {
	p.mu.Lock()
	defer p.mu.Unlock()
	var counts []PoolCount
	for _, k := range p.kinds {
		if k.Count > 0 || k.Max > 0 {
			counts = append(counts, PoolCount{k.Profile, len(k.ready), k.want(time.Now())})
		}
	}
	slices.SortFunc(counts, func(a, b PoolCount) int { return cmp.Compare(a.Profile, b.Profile) })
	return counts
}

// Keys returns the keys of the boxes in the pool.
func (p *Pool) Keys() (keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds {
		for _, m := range k.ready {
			keys = append(keys, m.Key)
		}
	}
	return keys
}

// Len returns how many boxes the pool has.
func (p *Pool) Len() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds {
		n += len(k.ready)
	}
	return n
}

// Run keeps the pool filled, creating one box at a time, until ctx ends. Then it ends all its boxes.
func (p *Pool) Run(ctx context.Context) {
	timer := time.NewTimer(health)
	defer timer.Stop()
	pause := again
	var after, lastCheck time.Time // no box is created before after; lastCheck is the last health check
	for {
		p.trim(ctx)
		if time.Since(lastCheck) >= health {
			p.examine(ctx)
			lastCheck = time.Now()
		}
		wait := health
		if k, spec, early := p.wanting(); k != nil {
			early = max(early, time.Until(after))
			switch {
			case early > 0:
				wait = early
			case !p.src.Quiet():
				wait = again
			case p.make(ctx, k, spec):
				pause = again
				continue
			default:
				wait, after, pause = pause, time.Now().Add(pause), min(2*pause, maxDelay)
			}
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-p.wakeup:
		case <-ctx.Done():
			p.Set(nil)
			p.trim(ctx)
			return
		}
	}
}

// wanting returns a kind that has too few boxes, the spec of one, and how long to wait before making it.
func (p *Pool) wanting() (*kind, *isolation.Spec, time.Duration) {
	peak := p.src.Most()
	p.mu.Lock()
	defer p.mu.Unlock()
	count, lacking := 0, 0
	var best *kind
	for _, k := range p.kinds {
		count += len(k.ready)
		if missing := k.want(time.Now()) - len(k.ready); missing > lacking {
			best, lacking = k, missing
		}
	}
	if best == nil || count >= peak {
		return nil, nil, 0
	}
	spec := best.Spec
	spec.Key = strings.ToLower(rand.Text() + rand.Text())[:isolation.KeyLen]
	spec.Hostname = "ahead"
	return best, &spec, quiet - time.Since(p.used)
}

// yield ends one box to free its resources for a session; false if there is none.
func (p *Pool) yield(ctx context.Context) bool {
	p.mu.Lock()
	var removed []*PoolMember
	for _, k := range p.kinds {
		if n := len(k.ready); n > 0 {
			removed = append(removed, k.ready[n-1])
			k.ready = k.ready[:n-1]
			break
		}
	}
	p.mu.Unlock()
	p.end(ctx, removed)
	return len(removed) > 0
}

// make creates one box, and reports whether it has.
func (p *Pool) make(ctx context.Context, k *kind, spec *isolation.Spec) bool {
	timeoutCtx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	box, err := p.src.Launch(timeoutCtx, spec)
	if err != nil {
		if ctx.Err() == nil {
			p.src.Log.Warn("cannot prefork a box", "profile", k.Profile, "error", err)
		}
		return false
	}
	member := &PoolMember{Key: spec.Key, Spec: *spec, Box: box, created: time.Now()}
	p.mu.Lock()
	now := p.kinds[k.Profile] // the configuration may have changed meanwhile
	if now != nil {
		now.ready = append(now.ready, member) // trim ends it if it is no longer wanted
	}
	p.mu.Unlock()
	if now == nil {
		p.end(ctx, []*PoolMember{member})
	}
	return true
}

// trim ends boxes that are dead, too old, too many, or no longer wanted.
func (p *Pool) trim(ctx context.Context) {
	peak := p.src.Most()
	var removed []*PoolMember
	p.mu.Lock()
	count, now := 0, time.Now()
	for name, k := range p.kinds {
		want := k.want(now)
		k.ready = slices.DeleteFunc(k.ready, func(m *PoolMember) bool {
			keep := count < peak && want > 0 && p.src.Alive(m.Box) && now.Sub(m.created) < maxAge && sameSpec(&m.Spec, &k.Spec) && sameOwner(&m.Spec, &k.Spec)
			if !keep {
				removed = append(removed, m)
				return true
			}
			count++
			return false
		})
		if surplus := len(k.ready) - want; surplus > 0 {
			removed = append(removed, k.ready[:surplus]...)
			k.ready = slices.Clone(k.ready[surplus:])
			count -= surplus
		}
		if k.Count == 0 && k.Max == 0 {
			delete(p.kinds, name)
		}
	}
	p.mu.Unlock()
	p.end(ctx, removed)
}

// end ends boxes of the pool, even if ctx has ended.
func (p *Pool) end(ctx context.Context, removed []*PoolMember) {
	timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, m := range removed {
		wg.Go(func() { p.src.End(timeoutCtx, m.Key, m.Box) })
	}
	wg.Wait()
}

// examine ends the boxes that do not answer.
func (p *Pool) examine(ctx context.Context) {
	p.mu.Lock()
	var all []*PoolMember
	for _, k := range p.kinds {
		all = append(all, k.ready...)
	}
	p.mu.Unlock()
	for _, m := range all {
		timeoutCtx, cancel := context.WithTimeout(ctx, again)
		err := p.src.Ping(timeoutCtx, m.Box)
		cancel()
		if err == nil || ctx.Err() != nil {
			continue
		}
		p.mu.Lock()
		var removed []*PoolMember
		for _, k := range p.kinds {
			if i := slices.Index(k.ready, m); i >= 0 { // it was not taken meanwhile
				k.ready = slices.Delete(k.ready, i, i+1)
				removed = append(removed, m)
			}
		}
		p.mu.Unlock()
		p.end(ctx, removed)
	}
}
