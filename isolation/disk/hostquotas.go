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

// HostQuotas is what one keeper has bounded. It is safe for concurrent use.
type HostQuotas struct {
	roots []string
	log   *log.Logger
	act   sync.Mutex // held while a directory is given an id, or a box

	mu   sync.Mutex // guards the fields below
	ids  *idTable
	why  error              // why there is no book
	busy map[[2]uint64]bool // directories that are being given to a box, by device and inode
}

// OpenHostQuotas opens the id table of a state directory. Directories at and below roots can be bounded. Where the id table cannot be had,
// nothing can be, and Take says why.
func OpenHostQuotas(state string, roots []string, l *log.Logger) *HostQuotas {
	h := &HostQuotas{roots: roots, log: l, busy: map[[2]uint64]bool{}}
	if h.ids, h.why = openIDTable(state); h.why != nil {
		l.Printf("quotas of directories of the host: %v", h.why)
	}
	return h
}

// Close lets go of the id table. All quotas stay.
func (h *HostQuotas) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids != nil {
		h.ids.close()
		h.ids, h.why = nil, os.ErrClosed
	}
}

// Probe says of each of the roots, by its path, why nothing below it can be bounded; "" if it can.
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

// Checks are what doctor says of the roots.
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

// Held says how full the quota is of a directory that a box uses. ESRCH: it has none.
func (h *HostQuotas) Held(req *isolation.ReadQuota) (*isolation.Disk, error) {
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

// Take gives a directory that a box may write to a quota, or lets the box use the one that it has. What is in it counts.
// Whatever it refuses it has undone, or Settle does.
func (h *HostQuotas) Take(ctx context.Context, key string, m *isolation.Mount, fd int, want Limits) error {
	at, err := h.below(fd)
	path := at.path
	switch {
	case err != nil:
		return err
	case !at.in && at.off && m.Bound:
		return refusal(unix.EOPNOTSUPP, m.Source, "a directory of the filesystem that the directory of mounts.quota_roots is on which it is below")
	case at.in && !m.Bound && path != m.Source && Available(fd) == nil, !at.in && m.Bound:
		return refusal(unix.EXDEV, m.Source, "a path without links: by its own one it is "+path)
	case !m.Bound:
		return nil
	}
	h.mu.Lock()
	why := h.why
	h.mu.Unlock()
	if why != nil {
		return refusal(unix.EOPNOTSUPP, m.Source, "no directory: "+why.Error())
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
	dev, ino, err := t.Identity()
	if err != nil {
		return err
	}
	done, err := h.begin(dev, ino)
	if err != nil {
		return err
	}
	defer done()
	for _, e := range h.left(path) {
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

// begin has one directory for one caller: the walk through it is nobody else's to wait for.
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

// left are the entries of a directory that somebody has begun with and could not end.
func (h *HostQuotas) left(path string) (list []*entry) {
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

// Errors of directories that have a project already.
var (
	errForeign = errors.New("it has a project that is not of boxd's making")
	errBroken  = errors.New("boxd is not done with a quota of it or above it yet: the log of the keeper may say why")
	errBusy    = errors.New("another session is being given it at this moment")
)

// otherLimitError means that boxes use a directory with other limits.
type otherLimitError struct{ limits Limits }

func (e *otherLimitError) Error() string {
	return fmt.Sprintf("boxes use it with %d bytes and %d files", e.limits.Bytes, e.limits.Inodes)
}

// note changes the id table and writes it.
func (h *HostQuotas) note(change func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == nil {
		return h.why
	}
	change()
	return h.ids.write()
}

// find is the entry of a project, nil if there is none.
func (h *HostQuotas) find(id uint32) *entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == nil {
		return nil
	}
	return h.ids.byID(id)
}

// share has one more box use a directory that is bounded, or that is in one.
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
	if busy { // and who uses it meanwhile waits for h.act
		return &otherLimitError{e.limits}
	}
	if err := t.Limit(id, want); err != nil {
		return err
	}
	return h.note(func() {
		e.limits = want
		if i, has := slices.BinarySearch(e.users, key); !has {
			e.users = slices.Insert(e.users, i, key)
		}
	})
}

// bind gives a directory without a project one.
func (h *HostQuotas) bind(ctx context.Context, key string, t *Tree, path string, want Limits) error {
	e, err := h.claim(ctx, t, path, want)
	if err != nil {
		return err
	}
	defer h.rest(e)
	if err = t.Fill(ctx, e.id, Usual()); err == nil {
		err = t.Limit(e.id, want)
	}
	if err == nil {
		if err = h.note(func() { e.state, e.users = bound, []string{key} }); err == nil {
			return nil
		}
	}
	_ = h.undo(ctx, t, e) // and has said what could not be
	return err
}

// rest notes that nobody is at work with an entry any more.
func (h *HostQuotas) rest(e *entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.active = false
}

// claim notes an id, takes it, and notes that it is ours.
func (h *HostQuotas) claim(ctx context.Context, t *Tree, path string, want Limits) (*entry, error) {
	h.act.Lock()
	defer h.act.Unlock()
	e := &entry{state: claiming, limits: want, path: path, active: true}
	var err error
	if e.dev, e.ino, err = t.Identity(); err != nil {
		return nil, err
	}
	for ours := false; !ours; {
		id, err := t.Free(func(id uint32) bool { return h.find(id) != nil })
		if err == nil {
			err = h.note(func() {
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
	if err := h.note(func() { e.state = making }); err != nil {
		return nil, h.giveUp(ctx, t, e, err)
	}
	return e, nil
}

// giveUp undoes what could not be claimed, and returns why that was.
func (h *HostQuotas) giveUp(ctx context.Context, t *Tree, e *entry, why error) error {
	defer h.rest(e)
	_ = h.undo(ctx, t, e) // and has said what could not be
	return why
}

// explainHostQuota is the refusal of a directory, in words that say what to do.
func explainHostQuota(source string, want Limits, err error) error {
	asked := fmt.Sprintf("%d bytes, %d files", want.Bytes, want.Inodes)
	if used, ok := errors.AsType[*UsedError](err); ok {
		return refusal(unix.EDQUOT, asked, fmt.Sprintf("no less than is in %s, %d bytes and %d files", source, used.Usage.Bytes, used.Usage.Inodes))
	}
	if other, ok := errors.AsType[*otherLimitError](err); ok {
		return refusal(unix.EBUSY, asked, "what the sessions have that use "+source+": "+other.Error())
	}
	if lacks, ok := errors.AsType[*UnavailableError](err); ok {
		return refusal(unix.EOPNOTSUPP, source, "a directory of a filesystem with project quota: "+lacks.Error()+"; "+lacks.Hint())
	}
	_, large := errors.AsType[*ReachError](err)
	_, other := errors.AsType[*OtherError](err)
	_, walked := errors.AsType[*WalkError](err)
	if large || other || walked || errors.Is(err, errForeign) || errors.Is(err, errBroken) || errors.Is(err, errBusy) {
		return refusal(unix.EOPNOTSUPP, source, "a directory that can be given a quota: "+err.Error())
	}
	return err
}

// refusal is one by a rule. Its number says of which kind it is.
func refusal(errno syscall.Errno, value, allowed string) error {
	return &isolation.StepError{Step: isolation.StepWorkspace, Item: value, Errno: errno, Refused: &isolation.Refusal{
		Field: "workspace_quota", Value: value, Allowed: allowed,
	}}
}
