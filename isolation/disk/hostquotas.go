// SPDX-License-Identifier: Apache-2.0

// Project quotas for directories of the host that boxes may write to.

package disk

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// HostQuotas holds the quotas that one keeper has set on directories of the host. It is safe for
// concurrent use.
type HostQuotas struct {
	roots []string
	log   *log.Logger
	act   sync.Mutex // held while a directory gets an id or a user

	mu   sync.Mutex // guards the fields below
	ids  *idTable
	why  error              // why there is no id table
	busy map[[2]uint64]bool // directories that are just getting a quota, by device and inode
}

// OpenHostQuotas opens the id table of a state directory. Directories at and below roots can get
// a quota. If the id table cannot be opened none can, and Take says why.
func OpenHostQuotas(state string, roots []string, l *log.Logger) *HostQuotas {
	h := &HostQuotas{roots: roots, log: l, busy: map[[2]uint64]bool{}}
	if h.ids, h.why = openIDTable(state); h.why != nil {
		l.Printf("quotas of directories of the host: %v", h.why)
	}
	return h
}

// Close closes the id table. All quotas stay.
func (h *HostQuotas) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids != nil {
		h.ids.close()
		h.ids, h.why = nil, os.ErrClosed
	}
}

// Probe says for each of the roots why nothing below it can have a quota, "" if it can.
func (h *HostQuotas) Probe() []string {
	h.mu.Lock()
	why := h.why
	h.mu.Unlock()
	var list []string
	for _, root := range h.roots {
		err := why
		if err == nil {
			err = available(root)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		list = append(list, root, text)
	}
	return list
}

// Checks returns what doctor reports about the roots.
func (h *HostQuotas) Checks() []isolation.Check {
	var list []isolation.Check
	for found := h.Probe(); len(found) > 1; found = found[2:] {
		c := isolation.Check{Name: "quotas in " + found[0], Detail: "enforced by project quota"}
		if found[1] != "" {
			c.Level, c.Detail = isolation.CheckWarn, found[1]
			c.Hint = "boxes with a workspace limit cannot mount it writable, unless limits.best_effort lists \"workspace\"; see mounts.quota_roots in box.toml(5)"
		}
		list = append(list, c)
	}
	return list
}

// Usage returns how full the quota is on a directory that a box uses. ESRCH: there is none.
func (h *HostQuotas) Usage(req *isolation.ReadQuota) (*isolation.Disk, error) {
	h.mu.Lock()
	var e *entry
	if h.ids != nil {
		e = h.ids.ofBox(req.Key, req.Source)
	}
	h.mu.Unlock()
	if e == nil {
		return nil, unix.ESRCH
	}
	fd, err := h.open(e)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	u, err := Used(fd, e.id)
	if err != nil {
		return nil, err
	}
	return &isolation.Disk{Used: u.Bytes, Limit: u.Limits.Bytes, Files: u.Inodes, FilesLimit: u.Limits.Inodes}, nil
}

// Take puts a quota on a directory that a box may write to, or lets the box use the one that is
// there. What is in the directory counts. When it refuses, it has undone what it began, or
// Reconcile does later.
func (h *HostQuotas) Take(ctx context.Context, key string, m *isolation.Mount, fd int, want Limits) error {
	at, err := h.below(fd)
	path := at.path
	switch {
	case err != nil:
		return err
	case !at.in && at.off && m.Bound:
		return refusal(unix.EOPNOTSUPP, m.Source, "on the filesystem of the mounts.quota_roots directory it is below")
	case at.in && !m.Bound && path != m.Source && Available(fd) == nil, !at.in && m.Bound:
		return refusal(unix.EXDEV, m.Source, "a path without symbolic links, that is, "+path)
	case !m.Bound:
		return nil
	}
	h.mu.Lock()
	why := h.why
	h.mu.Unlock()
	if why != nil {
		return refusal(unix.EOPNOTSUPP, m.Source, "outside mounts.quota_roots, whose quotas do not work: "+why.Error())
	}
	if err := h.take(ctx, key, fd, path, want); err != nil {
		return explainHostQuota(m.Source, want, err)
	}
	return nil
}

func (h *HostQuotas) take(ctx context.Context, key string, fd int, path string, want Limits) error {
	t, err := openTree(fd)
	if err != nil {
		return err
	}
	defer t.Close()
	dev, ino, err := t.identity()
	if err != nil {
		return err
	}
	done, err := h.begin(dev, ino)
	if err != nil {
		return err
	}
	defer done()
	for _, e := range h.unfinished(path) {
		if err := h.undo(ctx, t, e); err != nil {
			return errors.Join(errBroken, err)
		}
	}
	id, inherit, err := t.Project()
	if err != nil {
		return err
	}
	if id != 0 {
		return h.share(key, t, id, inherit, path, want)
	}
	return h.bind(ctx, key, t, path, want)
}

// begin reserves a directory for one caller. Another one is refused, and need not wait for the
// walk through it.
func (h *HostQuotas) begin(dev, ino uint64) (done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := [2]uint64{dev, ino}
	if h.busy[at] {
		return nil, errBusy
	}
	h.busy[at] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.busy, at)
	}, nil
}

// unfinished returns the entries of a directory that were begun with and never completed.
func (h *HostQuotas) unfinished(path string) (list []*entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == nil {
		return nil
	}
	for _, e := range h.ids.entries {
		if e.path == path && e.state != bound && !e.active {
			list = append(list, e)
		}
	}
	return list
}

// Errors of directories that already have a project id.
var (
	errForeign = errors.New("it has a project id that boxd did not set")
	errBroken  = errors.New("a quota of it or of a directory above it is still being changed: see the log of boxkeeper")
	errBusy    = errors.New("it is being given to another box right now")
)

// otherLimitError means that boxes use a directory with other limits.
type otherLimitError struct{ limits Limits }

func (e *otherLimitError) Error() string {
	return fmt.Sprintf("boxes use it with %d bytes and %d files", e.limits.Bytes, e.limits.Inodes)
}

// update changes the id table and writes it.
func (h *HostQuotas) update(change func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == nil {
		return h.why
	}
	change()
	return h.ids.write()
}

// find returns the entry with a project id, nil if there is none.
func (h *HostQuotas) find(id uint32) *entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == nil {
		return nil
	}
	return h.ids.byID(id)
}

// share adds a box to the users of a directory that has a quota, or is inside one that has.
func (h *HostQuotas) share(key string, t *Tree, id uint32, inherit bool, path string, want Limits) error {
	h.act.Lock()
	defer h.act.Unlock()
	e := h.find(id)
	switch {
	case e == nil || !inherit || !isolation.Within(path, e.path):
		return errForeign
	case e.state != bound:
		return errBroken
	}
	h.mu.Lock()
	busy := len(e.users) > 0 && e.limits != want
	h.mu.Unlock()
	if busy { // a box that starts to use it meanwhile waits for h.act
		return &otherLimitError{e.limits}
	}
	if err := t.Limit(id, want); err != nil {
		return err
	}
	return h.update(func() {
		e.limits = want
		if i, has := slices.BinarySearch(e.users, key); !has {
			e.users = slices.Insert(e.users, i, key)
		}
	})
}

// bind puts a quota on a directory that has no project id.
func (h *HostQuotas) bind(ctx context.Context, key string, t *Tree, path string, want Limits) error {
	e, err := h.claim(ctx, t, path, want)
	if err != nil {
		return err
	}
	defer h.finish(e)
	if err = t.fill(ctx, e.id, defaultReach()); err == nil {
		err = t.Limit(e.id, want)
	}
	if err == nil {
		if err = h.update(func() { e.state, e.users = bound, []string{key} }); err == nil {
			return nil
		}
	}
	_ = h.undo(ctx, t, e) // it has logged what could not be undone
	return err
}

// finish records that the work on an entry has ended.
func (h *HostQuotas) finish(e *entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.active = false
}

// claim records an id, sets it on the directory, and then records that the id is ours.
func (h *HostQuotas) claim(ctx context.Context, t *Tree, path string, want Limits) (*entry, error) {
	h.act.Lock()
	defer h.act.Unlock()
	e := &entry{state: claiming, limits: want, path: path, active: true}
	var err error
	if e.dev, e.ino, err = t.identity(); err != nil {
		return nil, err
	}
	for ours := false; !ours; {
		id, err := t.Free(func(id uint32) bool { return h.find(id) != nil })
		if err == nil {
			err = h.update(func() {
				h.ids.drop(e)
				e.id = id
				h.ids.entries = append(h.ids.entries, e)
			})
		}
		if err == nil {
			ours, err = t.Claim(id)
		}
		if err != nil {
			return nil, h.giveUp(ctx, t, e, err)
		}
	}
	if err := h.update(func() { e.state = making }); err != nil {
		return nil, h.giveUp(ctx, t, e, err)
	}
	return e, nil
}

// giveUp undoes a claim that has failed, and returns why it failed.
func (h *HostQuotas) giveUp(ctx context.Context, t *Tree, e *entry, why error) error {
	defer h.finish(e)
	_ = h.undo(ctx, t, e) // it has logged what could not be undone
	return why
}

// explainHostQuota returns a refusal that says what to do about an error.
func explainHostQuota(source string, want Limits, err error) error {
	requested := fmt.Sprintf("%d bytes, %d files", want.Bytes, want.Inodes)
	if used, ok := errors.AsType[*UsedError](err); ok {
		return refusal(unix.EDQUOT, requested, fmt.Sprintf("at least what %s has, %d bytes and %d files", source, used.Usage.Bytes, used.Usage.Inodes))
	}
	if other, ok := errors.AsType[*otherLimitError](err); ok {
		return refusal(unix.EBUSY, requested, "the quota of sessions that use "+source+": "+other.Error())
	}
	if lacks, ok := errors.AsType[*UnavailableError](err); ok {
		return refusal(unix.EOPNOTSUPP, source, "on a filesystem with project quota: "+lacks.Error()+"; "+lacks.Hint())
	}
	_, large := errors.AsType[*reachError](err)
	_, other := errors.AsType[*otherError](err)
	_, walked := errors.AsType[*walkError](err)
	if large || other || walked || errors.Is(err, errForeign) || errors.Is(err, errBroken) || errors.Is(err, errBusy) {
		return refusal(unix.EOPNOTSUPP, source, "a directory that can be given a quota: "+err.Error())
	}
	return err
}

// refusal returns a refusal by a rule. errno tells what kind it is.
func refusal(errno syscall.Errno, value, allowed string) error {
	return &isolation.StepError{Step: isolation.StepWorkspace, Item: value, Errno: errno, Refused: &isolation.Refusal{
		Field: "workspace_quota", Value: value, Allowed: allowed,
	}}
}
