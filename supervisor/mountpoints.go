// SPDX-License-Identifier: Apache-2.0

// Mounts inside a writable host directory need a mount point there. Several sessions may share one: the last that needs it
// removes it, and none before, because removing a directory would detach the mounts of the others.

package supervisor

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/boxd-dev/boxd/isolation"
)

// mountPoint is directories of the host that were, or may have been, created for the target of a mount, with everything needed
// to remove them.
type mountPoint struct {
	UID    uint32   `json:"uid"` // of the session they were created for
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Source string   `json:"source"`          // the mounted host directory
	Owner  uint32   `json:"owner,omitempty"` // of the source, see isolation.Mount
	Real   string   `json:"real"`            // the source without symbolic links
	At     string   `json:"at"`              // where it was mounted in the box
	Made   string   `json:"made"`            // the first created directory, as a path in the box
	Target string   `json:"target"`          // the last one
}

// Host returns the host path of a path in the box, at or below the mounted directory.
func (g *mountPoint) Host(name string) string { return path.Join(g.Real, name[len(g.At):]) }

// valid reports whether a mount point from a record is plausible.
func (g *mountPoint) valid() bool {
	return isolation.CleanAbsolute(g.Real) && isolation.CleanAbsolute(g.At) && g.Made != g.At && isolation.Within(g.Made, g.At) && isolation.Within(g.Target, g.Made)
}

// same reports whether two mount points are the same directories.
func (g *mountPoint) same(o mountPoint) bool {
	return g.Host(g.Made) == o.Host(o.Made) && g.Host(g.Target) == o.Host(o.Target)
}

// hostMounts is what the record of a session contains about its mounts in host directories.
type hostMounts struct {
	Real    map[string]string `json:"real,omitempty"`   // by source: the mounted host directories without symbolic links
	Places  []string          `json:"places,omitempty"` // host paths on which it has mounts
	Created []mountPoint      `json:"ghosts,omitempty"` // to be removed when the session has ended
}

// mountPoints tracks the mount points of all sessions of one boxd. It is safe for concurrent use.
type mountPoints struct {
	mu       sync.Mutex // guards the fields below
	all      map[string]*mountEntry
	removals []*removal
}

type mountEntry struct {
	hostMounts
	ending bool // its mounts are going away: nothing is kept for it
}

// newMountPoints returns an empty set.
func newMountPoints() *mountPoints { return &mountPoints{all: map[string]*mountEntry{}} }

func (b *mountPoints) entryLocked(key string) *mountEntry {
	e := b.all[key]
	if e == nil {
		e = &mountEntry{hostMounts: hostMounts{Real: map[string]string{}}}
		b.all[key] = e
	}
	return e
}

// restore enters a session of an earlier boxd from its record.
func (b *mountPoints) restore(key string, has *hostMounts) {
	if has == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entryLocked(key)
	maps.Copy(e.Real, has.Real)
	e.Places = has.Places
	e.Created = slices.DeleteFunc(slices.Clone(has.Created), func(g mountPoint) bool { return !g.valid() })
}

// Of returns the mount points of a session for its record; nil: it has none.
func (b *mountPoints) Of(key string) *hostMounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[key]
	if e == nil || len(e.Places)+len(e.Created) == 0 {
		return nil
	}
	return &hostMounts{Real: maps.Clone(e.Real), Places: slices.Clone(e.Places), Created: slices.Clone(e.Created)}
}

// Real returns the resolved path of a mounted host directory, "" if it is not known yet.
func (b *mountPoints) Real(key, source string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		return e.Real[source]
	}
	return ""
}

// Enter notes that a session is about to mount on a place. It first waits for removals there, so whether the place exists no
// longer changes.
func (b *mountPoints) Enter(ctx context.Context, key, source, real, place string) error {
	return b.afterRemovals(ctx, func(r *removal) bool { return isolation.Within(place, r.top) }, func() {
		e := b.entryLocked(key)
		e.Real[source] = real
		if !slices.Contains(e.Places, place) {
			e.Places = append(e.Places, place)
		}
	})
}

// afterRemovals calls do, under the lock, once no removal that hinders it is under way.
func (b *mountPoints) afterRemovals(ctx context.Context, hinders func(*removal) bool, do func()) error {
	for {
		b.mu.Lock()
		i := slices.IndexFunc(b.removals, hinders)
		if i < 0 {
			do()
			b.mu.Unlock()
			return nil
		}
		done := b.removals[i].done
		b.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Only drops the places of a session that are not among places.
func (b *mountPoints) Only(key string, places []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		e.Places = slices.DeleteFunc(e.Places, func(p string) bool { return !slices.Contains(places, p) })
	}
}

// Own notes directories that a session must remove when it ends.
func (b *mountPoints) Own(key string, g *mountPoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entryLocked(key).own(g)
}

func (e *mountEntry) own(g *mountPoint) {
	if !slices.ContainsFunc(e.Created, g.same) {
		e.Created = append(e.Created, *g)
	}
}

// Begin notes that a session begins. It inherits what an earlier one of its key could not remove, and removes it when it ends.
func (b *mountPoints) Begin(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		e.ending = false
	}
}

// Ending notes that a session is ending, with more directories to remove. It reports whether there are any at all.
func (b *mountPoints) Ending(key string, more []mountPoint) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[key] == nil && len(more) == 0 {
		return false
	}
	e := b.entryLocked(key)
	e.ending, e.Places = true, nil
	for i := range more {
		e.own(&more[i])
	}
	return len(e.Created) > 0
}

// Forget forgets a session.
func (b *mountPoints) Forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, key)
}

// removal is a removal of directories that is under way.
type removal struct {
	MountPoint mountPoint // what to remove, as far as it is empty; nothing if its Made is ""
	Successor  string     // the session that the rest was handed to, "": none. Its record is written first
	top        string     // no other removal at, above or below it, and no Enter, until this is over
	done       chan struct{}
}

// Leave begins to remove directories created for a session that no longer needs them, and hands those that others need over to
// one of them. No other session can begin to need them meanwhile. The caller must call Done.
func (b *mountPoints) Leave(ctx context.Context, key string, g *mountPoint) (r *removal, err error) {
	top := g.Host(g.Made)
	err = b.afterRemovals(ctx, func(r *removal) bool { return isolation.Within(r.top, top) || isolation.Within(top, r.top) }, func() {
		r = &removal{MountPoint: *g, top: top, done: make(chan struct{})}
		b.removals = append(b.removals, r)
		remaining := *g
		if r.MountPoint.Made, remaining.Target = cutMountPoint(g, b.neededLocked(key, top)); remaining.Target == "" {
			return
		}
		// To a session that needs the last of them: when that one ends, there may be more to remove.
		for _, next := range slices.Sorted(maps.Keys(b.all)) {
			if e := b.all[next]; next != key && !e.ending && e.needs(g.Host(remaining.Target)) {
				e.own(&remaining)
				r.Successor = next
				return
			}
		}
	})
	return r, err
}

// neededLocked lists the places at or below a directory of all sessions but key's and those that are ending.
func (b *mountPoints) neededLocked(key, top string) (list []string) {
	for other, e := range b.all {
		if other != key && !e.ending {
			list = append(list, e.Places...)
		}
	}
	return slices.DeleteFunc(list, func(p string) bool { return !isolation.Within(p, top) })
}

// needs reports whether a session has a mount at or below a directory.
func (e *mountEntry) needs(dir string) bool {
	return slices.ContainsFunc(e.Places, func(p string) bool { return isolation.Within(p, dir) })
}

// cutMountPoint splits directories into those that are not needed, of which it returns the first, and those above, of which it
// returns the last; "": there are none.
func cutMountPoint(g *mountPoint, needed []string) (free, last string) {
	for dir := g.Target; ; dir = path.Dir(dir) {
		if slices.ContainsFunc(needed, func(p string) bool { return isolation.Within(p, g.Host(dir)) }) {
			return free, dir
		}
		if free = dir; dir == g.Made {
			return free, ""
		}
	}
}

// Done notes that a removal is over.
func (b *mountPoints) Done(r *removal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removals = slices.DeleteFunc(b.removals, func(o *removal) bool { return o == r })
	close(r.done)
}

// Sweep calls remove for what a session must remove and no longer needs itself, and hands over what others need. It reports
// whether there was anything. If remove fails, there was no answer, and the session still has it to remove.
func (b *mountPoints) Sweep(ctx context.Context, key string, remove func(*removal) error) (bool, error) {
	list := b.free(key)
	for i := range list {
		r, err := b.Leave(ctx, key, &list[i])
		if err != nil {
			return true, err
		}
		if err = remove(r); err == nil {
			b.drop(key, &list[i])
		}
		b.Done(r)
		if err != nil {
			return true, err
		}
	}
	return len(list) > 0, nil
}

// free lists what a session must remove and no longer needs, deepest first: a directory can go only after those below it.
func (b *mountPoints) free(key string) (list []mountPoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[key]
	if e == nil {
		return nil
	}
	for _, g := range e.Created {
		if !e.needs(g.Host(g.Made)) {
			list = append(list, g)
		}
	}
	slices.SortStableFunc(list, func(a, b mountPoint) int { return cmp.Compare(len(b.Host(b.Made)), len(a.Host(a.Made))) })
	return list
}

func (b *mountPoints) drop(key string, g *mountPoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		e.Created = slices.DeleteFunc(e.Created, func(o mountPoint) bool { return g.same(o) })
	}
}
