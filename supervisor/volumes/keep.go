// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// minInterval is the longest time between checks of Run, so that a jump of the clock is noticed.
const minInterval = 10 * time.Minute

// Take holds a version of a drive for a session, until Release of its tree, a path relative to the store.
func (s *Drives) Take(owner, name string, number int) (v Version, tree string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, d, err := s.find(owner, name)
	if err != nil {
		return v, "", err
	}
	version, err := d.version(number)
	if err != nil {
		return v, "", err
	}
	tree = treePath(sp, version)
	s.treeRefs[tree]++
	return *version, tree, nil
}

// Restore holds the trees of an earlier boxd's sessions. Call it before Sweep.
func (s *Drives) Restore(trees ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range trees {
		s.treeRefs[t]++
	}
}

// Release releases trees.
func (s *Drives) Release(trees ...string) {
	if len(trees) == 0 {
		return
	}
	s.mu.Lock()
	for _, t := range trees {
		if s.treeRefs[t]--; s.treeRefs[t] <= 0 {
			delete(s.treeRefs, t)
		}
	}
	s.mu.Unlock()
	s.wakeSweeper()
}

// wakeSweeper makes Run check now.
func (s *Drives) wakeSweeper() {
	select {
	case s.wakeup <- struct{}{}:
	default: // already notified
	}
}

// Remove removes a version of a drive, or all if number is 0. It refuses versions that a session uses.
func (s *Drives) Remove(owner, name string, number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, d, err := s.find(owner, name)
	if err != nil {
		return err
	}
	if number > 0 {
		if _, err := d.version(number); err != nil {
			return err
		}
	}
	version := func(v *Version) bool { return number == 0 || v.Number == number }
	for i := range d.Versions {
		v := &d.Versions[i]
		if n := s.treeRefs[treePath(sp, v)]; n > 0 && version(v) {
			f := fault.Errorf(fault.Conflict, "version %d of drive %s is in use by %d sessions", v.Number, d.Name, n).
				WithHint("end those sessions first")
			f.Field, f.Value = "drive", name
			return f
		}
	}
	return s.drop(sp, d, version)
}

// drop removes versions of a drive, or the drive with its last: the record first, so that none is without its files. The lock is held.
func (s *Drives) drop(sp *driveSpace, d *Drive, which func(*Version) bool) error {
	next, removed := *d, []Version{}
	next.Versions = nil
	for i := range d.Versions {
		if v := &d.Versions[i]; which(v) {
			removed = append(removed, *v)
		} else {
			next.Versions = append(next.Versions, *v)
		}
	}
	if len(removed) == 0 {
		return nil
	}
	var err error
	if len(next.Versions) > 0 {
		err = s.write(sp, &next)
	} else if err = s.root.Remove(path.Join(sp.key, namesDir, durable.NameOf(d.Name))); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("drive %s: %w", d.Name, err)
	}
	if sp.drives[d.Name] = &next; len(next.Versions) == 0 {
		delete(sp.drives, d.Name)
	}
	s.removeTrees(sp, removed)
	return nil
}

func (s *Drives) removeTrees(sp *driveSpace, removed []Version) {
	for i := range removed {
		err := errors.Join(s.root.RemoveAll(treePath(sp, &removed[i])), s.root.RemoveAll(path.Join(sp.key, indexDir, removed[i].Tree)))
		if err != nil {
			s.log.Warn("cannot remove a version of a drive; boxd tries again when it starts", "directory", treePath(sp, &removed[i]), "error", err)
		}
	}
}

// Run removes versions that have expired, until ctx ends.
func (s *Drives) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wakeup:
		case <-ctx.Done():
			return
		}
		timer.Reset(s.retain(s.now()))
	}
}

// retain removes all versions that need not be kept, and returns when to do that again.
func (s *Drives) retain(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := minInterval
	for _, sp := range s.spaces {
		for _, d := range sp.drives {
			next, err := s.retainOne(sp, d, now)
			if err != nil {
				s.log.Warn("cannot remove old versions of a drive", "drive", d.Name, "error", err)
			}
			wait = min(wait, next)
		}
	}
	return max(wait, time.Second)
}

// retainOne never removes the newest version, one that a session uses, or one that must be pushed first.
func (s *Drives) retainOne(sp *driveSpace, d *Drive, now time.Time) (next time.Duration, err error) {
	count, age := s.cfg.KeepVersions, s.cfg.KeepAge
	if d.KeepVersions != nil {
		count = *d.KeepVersions
	}
	if d.KeepAge != nil {
		age = *d.KeepAge
	}
	next = minInterval
	newest := 0
	if n := len(d.Versions); n > 0 {
		newest = d.Versions[n-1].Number
	}
	behind := len(d.Versions)
	return next, s.drop(sp, d, func(v *Version) bool {
		behind-- // counts the newer ones
		if v.Number == newest || s.treeRefs[treePath(sp, v)] > 0 || d.Push && v.Pushed.IsZero() || v.waits() {
			return false
		}
		if stays := v.Created.Add(deliveredStays).Sub(now); v.Delivered && stays > 0 {
			next = min(next, stays)
			return false
		}
		left := v.Created.Add(time.Duration(age)).Sub(now)
		if age > 0 && left > 0 {
			next = min(next, left)
		}
		return count > 0 && behind >= count || age > 0 && left <= 0
	})
}

// Sweep removes files of an earlier boxd that no record names. Trees of sessions must be held again before.
func (s *Drives) Sweep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for key, sp := range s.spaces {
		if sp.broken { // they may belong to an unreadable record
			continue
		}
		known := map[string]bool{}
		for _, d := range sp.drives {
			for i := range d.Versions {
				known[d.Versions[i].Tree] = true
			}
		}
		for _, dir := range []string{treesDir, indexDir} {
			entries, err := fs.ReadDir(s.root.FS(), path.Join(key, dir))
			errs = append(errs, err)
			for _, e := range entries {
				if at := path.Join(key, dir, e.Name()); !known[e.Name()] && s.treeRefs[path.Join(key, treesDir, e.Name())] == 0 {
					errs = append(errs, s.root.RemoveAll(at))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// total returns how many bytes a principal has on disk. The lock is held.
func (sp *driveSpace) total() (n int64) {
	for _, d := range sp.drives {
		for i := range d.Versions {
			n += d.Versions[i].Bytes
		}
	}
	return n
}

// full returns the refusal of what exceeds a principal's limit.
func full(key, used, limit string) error {
	f := fault.Errorf(fault.Exhausted, "your drives are full: %s of %s used", used, limit).WithHint("remove a drive, or old versions: boxctl drives rm").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: key, Used: used, Allowed: limit, Setting: key + " in box.toml"})
	f.Field, f.Allowed = "drive", limit
	return f
}

// allow checks new content against the limits, and removes what was delivered and nobody uses if that makes room. The lock is held.
func (s *Drives) allow(sp *driveSpace, name string, v *Version) error {
	for {
		n, total := len(sp.drives), sp.total()+v.Bytes
		var err error
		if sp.drives[name] == nil && n >= s.cfg.Max {
			err = full("drives.max", fmt.Sprint(n), fmt.Sprint(s.cfg.Max))
		} else if total > int64(s.cfg.MaxTotal) {
			err = full("drives.max_total", quantity.Size(total).String(), s.cfg.MaxTotal.String())
		}
		if err == nil || v.Bytes > int64(s.cfg.MaxTotal) || !s.evict(sp, name, v.Number) {
			return err
		}
	}
}

// evict removes the oldest version that was delivered, a while ago, and that no session uses: who needs it again has it delivered again.
// The newest of a drive goes after all the others and not for the version number of that drive, an earlier one, so that none of these is taken
// for it; nor does the last of a drive that has settings of its owner's. The lock is held.
func (s *Drives) evict(sp *driveSpace, name string, number int) bool {
	var of *Drive
	var oldest *Version
	for _, d := range sp.drives {
		for i := range d.Versions {
			v := &d.Versions[i]
			newest := i == len(d.Versions)-1
			if newest && (d.KeepVersions != nil || d.KeepAge != nil || d.Name == name && v.Number > number) {
				continue
			}
			if v.Delivered && s.treeRefs[treePath(sp, v)] == 0 && !d.Push && !v.waits() && (i == 0 || !newest) && (oldest == nil || v.Created.Before(oldest.Created)) {
				of, oldest = d, v
			}
		}
	}
	if oldest == nil || s.now().Before(oldest.Created.Add(deliveredStays)) {
		return false
	}
	err := s.drop(sp, of, func(v *Version) bool { return v.Number == oldest.Number })
	if err != nil {
		s.log.Warn("cannot remove a version of a drive that was delivered", "drive", of.Name, "error", err)
	}
	return err == nil
}
