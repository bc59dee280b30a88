// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
)

// fencedSession is what a node remembers of a session of the fleet, on disk: which generation it has had, and whether it has it still.
type fencedSession struct {
	Owner      string    `json:"owner"`
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"`
	Bucket     string    `json:"bucket,omitempty"` // of the claims in which it was seen
	Sandbox    bool      `json:"sandbox,omitempty"`
	Coming     bool      `json:"coming,omitempty"`    // from another node, which still has the claim
	Whole      bool      `json:"whole,omitempty"`     // all of what is coming is here
	Workspace  int64     `json:"workspace,omitempty"` // see sessionClaim
	Keeps      bool      `json:"keeps,omitempty"`
	Ended      bool      `json:"ended,omitempty"`
	Since      time.Time `json:"since"`
}

// maxEnded is how many sessions that have ended are remembered.
const maxEnded = 10000

// fences are all of them.
type fences struct {
	dir *os.Root

	mu  sync.Mutex
	all map[string]fencedSession // by the key of their claim
}

const fenceSuffix = ".json"

func openFences(dir *os.Root) (*fences, error) {
	names, err := durable.Recover(dir)
	if err != nil {
		return nil, err
	}
	f := &fences{dir: dir, all: map[string]fencedSession{}}
	for _, name := range names {
		key, ok := strings.CutSuffix(name, fenceSuffix)
		if !ok {
			continue
		}
		var h fencedSession
		if err := durable.ReadJSON(dir, name, &h); err != nil {
			return nil, fmt.Errorf("generations of this node: %w", err) // without them it could have what another has
		}
		f.all[key] = h
	}
	return f, nil
}

func (f *fences) close() { f.dir.Close() }

// raise remembers a generation on disk, if it is higher than the one there is, or is that of a session of which all is here now.
func (f *fences) raise(to *fence) (ok bool, highest uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := claimKey(to.Owner, to.ID)
	before := f.all[key]
	if before.Generation == to.Generation && before.Coming && !before.Whole && !to.Coming && !before.Ended {
		before.Whole = true
		return true, before.Generation, f.writeLocked(key, &before)
	}
	if to.Workspace > 0 && to.Again && before.Generation == to.Generation && !before.Ended { // any gateway may say so
		next := before
		next.Workspace, next.Keeps = max(before.Workspace, to.Workspace), before.Keeps || to.Keeps
		if next == before {
			return true, next.Generation, nil
		}
		return true, next.Generation, f.writeLocked(key, &next)
	}
	if before.Generation == to.Generation && before.Ended { // what is made in it would be nobody's
		return false, before.Generation + 1, nil
	}
	if before.Generation >= to.Generation {
		return false, before.Generation, nil
	}
	if err := f.writeLocked(key, &fencedSession{Owner: to.Owner, ID: to.ID, Generation: to.Generation, Bucket: to.Bucket, Sandbox: to.Sandbox, Coming: to.Coming, Workspace: to.Workspace, Keeps: to.Keeps, Since: time.Now()}); err != nil {
		return false, 0, err
	}
	return true, to.Generation, nil
}

// coming is what is remembered of a session that is on its way here; nil: it is not.
func (f *fences) coming(of *fence) *fencedSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.all[claimKey(of.Owner, of.ID)]
	if !h.Coming || h.Ended {
		return nil
	}
	return &h
}

func (f *fences) writeLocked(key string, h *fencedSession) error {
	if err := durable.SyncJSON(f.dir, key+fenceSuffix, h); err != nil {
		return err
	}
	f.all[key] = *h
	return nil
}

// change notes something about a session, unless it has another generation by now.
func (f *fences) change(key string, generation uint64, what func(*fencedSession)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.all[key]
	if h.Generation != generation {
		return nil
	}
	before := h
	if what(&h); h == before {
		return nil
	}
	return f.writeLocked(key, &h)
}

// list copies what is remembered of sessions that have not ended, and forgets the oldest of the others that are too many.
func (f *fences) list() (map[string]fencedSession, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	live := map[string]fencedSession{}
	var ended []string
	for key, h := range f.all {
		if h.Ended {
			ended = append(ended, key)
		} else {
			live[key] = h
		}
	}
	if len(ended) <= maxEnded {
		return live, nil
	}
	slices.SortFunc(ended, func(a, b string) int { return f.all[a].Since.Compare(f.all[b].Since) })
	for _, key := range ended[:len(ended)-maxEnded] {
		if err := f.dir.Remove(key + fenceSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("generations of this node: %w", err)
		}
		delete(f.all, key)
	}
	return live, nil
}
