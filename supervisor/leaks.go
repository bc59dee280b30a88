// SPDX-License-Identifier: Apache-2.0

// The leak check counts what exists on the host for boxes that nothing refers to. It should find nothing.

package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Kinds of leftovers.
const (
	Boxes      = "box"
	Groups     = "group"
	Workspaces = "workspace"
)

// Limits of a check.
const (
	interval    = 5 * time.Second // between two checks: a caller that asks more often gets the last result
	leakTimeout = 2 * time.Second // for the keeper
)

// LeakCheck looks for leaks: what two checks in a row have found. What is just being created or removed is none.
type LeakCheck struct {
	List       func(context.Context) ([]string, error) // keys of living boxes
	Known      func() map[string]bool                  // keys that are in use
	Workspaces func() string                           // the directory of all workspaces, named by their keys; "": there is none
	Groups     string                                  // the cgroup below which boxes have theirs; "": they have none

	mu     sync.Mutex // guards the fields below, and is held during a check
	at     time.Time
	before map[string]bool
	counts map[string]int
}

// Count returns the number of leaks of each kind, as of the last check.
func (l *LeakCheck) Count(ctx context.Context) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && time.Since(l.at) < interval {
		return l.counts
	}
	found := l.count(ctx)
	counts := map[string]int{Boxes: 0, Groups: 0, Workspaces: 0}
	for name := range found {
		if kind, _, _ := strings.Cut(name, " "); l.before[name] {
			counts[kind]++
		}
	}
	l.at, l.before, l.counts = time.Now(), found, counts
	return counts
}

// count returns what is in use by nothing.
func (l *LeakCheck) count(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, leakTimeout)
	defer cancel()
	all := map[string][]string{}
	all[Boxes], _ = l.List(ctx) // without a keeper none are known
	if dir := l.Workspaces(); dir != "" {
		all[Workspaces] = names(dir, "")
	}
	if l.Groups != "" {
		for _, owner := range names(l.Groups, "owner-") {
			all[Groups] = append(all[Groups], names(filepath.Join(l.Groups, "owner-"+owner), "box-")...)
		}
	}
	known := l.Known() // after the listings: what was created meanwhile is known by now
	found := map[string]bool{}
	for kind, keys := range all {
		for _, key := range keys {
			if !known[key] {
				found[kind+" "+key] = true
			}
		}
	}
	return found
}

// names lists the directories in dir whose names begin with prefix, without the prefix.
func names(dir, prefix string) (list []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), prefix); ok && e.IsDir() {
			list = append(list, name)
		}
	}
	return list
}
