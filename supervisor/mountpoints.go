// SPDX-License-Identifier: Apache-2.0

// Mounts inside a writable directory of the host need a mount point there. Several sessions may use the same one:
// the last that needs a mount point removes it, and none before, because removing a directory would take the mounts
// of others with it.

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

// mountPoint is directories of the host that were made for the target of a mount, or may have been, and all that it takes
// to remove them, whoever does that.
type mountPoint struct {
	UID    uint32   `json:"uid"` // of whose session they were made for
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Source string   `json:"source"`          // the directory that was lent
	Owner  uint32   `json:"owner,omitempty"` // of it, see isolation.Mount
	Real   string   `json:"real"`            // it without links
	At     string   `json:"at"`              // where it was in the box
	Made   string   `json:"made"`            // the first that was made, in the box
	Target string   `json:"target"`          // the last
}

// Host is where a path of the box is on the host, at or below the directory that was lent.
func (g *mountPoint) Host(name string) string { return path.Join(g.Real, name[len(g.At):]) }

// valid reports whether a created mount point of a record can be one.
func (g *mountPoint) valid() bool {
	return isolation.CleanAbsolute(g.Real) && isolation.CleanAbsolute(g.At) && g.Made != g.At && isolation.Within(g.Made, g.At) && isolation.Within(g.Target, g.Made)
}

// same reports whether two are the same directories.
func (g *mountPoint) same(o mountPoint) bool {
	return g.Host(g.Made) == o.Host(o.Made) && g.Host(g.Target) == o.Host(o.Target)
}

// hostMounts is what a session has, for its record.
type hostMounts struct {
	Real    map[string]string `json:"real,omitempty"`   // by source: the directories that it is lent, without links
	Places  []string          `json:"places,omitempty"` // where it has mounts in directories of the host
	Created []mountPoint      `json:"ghosts,omitempty"` // to be removed when it has ended
}

// mountPoints knows them of all sessions of one boxd. It is safe for concurrent use.
type mountPoints struct {
	mu    sync.Mutex // guards the fields below
	all   map[string]*mountEntry
	going []*removal
}

type mountEntry struct {
	hostMounts
	ending bool // what it has mounted goes: nobody keeps anything for it
}

// newMountPoints returns what knows of none.
func newMountPoints() *mountPoints { return &mountPoints{all: map[string]*mountEntry{}} }

func (b *mountPoints) entryLocked(key string) *mountEntry {
	e := b.all[key]
	if e == nil {
		e = &mountEntry{hostMounts: hostMounts{Real: map[string]string{}}}
		b.all[key] = e
	}
	return e
}

// Restore enters a session that an earlier boxd has left, as its record has it.
func (b *mountPoints) Restore(key string, has *hostMounts) {
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

// Of is what a session has, for its record; nil: nothing.
func (b *mountPoints) Of(key string) *hostMounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[key]
	if e == nil || len(e.Places)+len(e.Created) == 0 {
		return nil
	}
	return &hostMounts{Real: maps.Clone(e.Real), Places: slices.Clone(e.Places), Created: slices.Clone(e.Created)}
}

// Real is where a directory is that a session is lent, "" if nobody has asked yet.
func (b *mountPoints) Real(key, source string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		return e.Real[source]
	}
	return ""
}

// Enter notes that a session is about to have a mount on a place. Who looks afterwards whether that is there sees what
// stays: it waits until nobody is removing it.
func (b *mountPoints) Enter(ctx context.Context, key, source, real, place string) error {
	return b.afterRemovals(ctx, func(r *removal) bool { return isolation.Within(place, r.top) }, func() {
		e := b.entryLocked(key)
		e.Real[source] = real
		if !slices.Contains(e.Places, place) {
			e.Places = append(e.Places, place)
		}
	})
}

// afterRemovals does something as soon as no removal is under way that it has to wait for.
func (b *mountPoints) afterRemovals(ctx context.Context, hinders func(*removal) bool, do func()) error {
	for {
		b.mu.Lock()
		i := slices.IndexFunc(b.going, hinders)
		if i < 0 {
			do()
			b.mu.Unlock()
			return nil
		}
		over := b.going[i].over
		b.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Only drops the places of a session that are not among these.
func (b *mountPoints) Only(key string, places []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		e.Places = slices.DeleteFunc(e.Places, func(p string) bool { return !slices.Contains(places, p) })
	}
}

// Own notes that a session is to remove directories when it ends.
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

// Begin notes that a session begins. What one of the same key could not have removed, it has removed when it ends.
func (b *mountPoints) Begin(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[key]; e != nil {
		e.ending = false
	}
}

// Ending notes that a session ends, with directories that it has to remove besides. It reports whether there are any.
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

// removal is directories that are being removed.
type removal struct {
	MountPoint mountPoint // what to remove, as far as it is empty; nothing if its Made is ""
	Successor  string     // the session that was given the rest, "": nobody. Its record is written first
	top        string     // nobody else removes anything at or below, or enters there, until it is over
	over       chan struct{}
}

// Leave begins to remove directories that were made for a session which does not need them any more, and hands on those
// that others need. Nobody begins to need them meanwhile. Who gets a Removal calls Done.
func (b *mountPoints) Leave(ctx context.Context, key string, g *mountPoint) (r *removal, err error) {
	top := g.Host(g.Made)
	err = b.afterRemovals(ctx, func(r *removal) bool { return isolation.Within(r.top, top) || isolation.Within(top, r.top) }, func() {
		r = &removal{MountPoint: *g, top: top, over: make(chan struct{})}
		b.going = append(b.going, r)
		rest := *g
		if r.MountPoint.Made, rest.Target = cutMountPoint(g, b.neededLocked(key, top)); rest.Target == "" {
			return
		}
		// To one that needs the last of them: when that ends, there may be more to remove.
		for _, heir := range slices.Sorted(maps.Keys(b.all)) {
			if e := b.all[heir]; heir != key && !e.ending && e.needs(g.Host(rest.Target)) {
				e.own(&rest)
				r.Successor = heir
				return
			}
		}
	})
	return r, err
}

// neededLocked lists where sessions other than one have mounts at or below a directory, those aside that end.
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

// cutMountPoint divides directories into those that nobody needs, of which it returns the first, and those above, of which it
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
	b.going = slices.DeleteFunc(b.going, func(o *removal) bool { return o == r })
	close(r.over)
}

// Sweep has what a session has removed, as far as it does not need it itself any more, and hands on what others need.
// It reports whether there was anything. After an error of remove, which says that nobody knows, the session has it still.
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

// free lists what a session has to remove and does not need any more. The deepest come first: what is below another
// has to go before that.
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
