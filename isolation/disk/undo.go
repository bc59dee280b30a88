// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// undo removes the project id of an entry. What it cannot undo stays in the id table, for the
// next attempt.
func (h *HostQuotas) undo(ctx context.Context, t *Tree, e *entry) error {
	var err error
	if e.state == claiming { // the id may be another keeper's, whose limits must stay
		err = t.leave(e.id)
	} else {
		if err = h.update(func() { e.state, e.users = lifting, nil }); err == nil {
			err = t.Empty(ctx, e.id, everything())
		}
	}
	if used, ok := errors.AsType[*UsedError](err); ok {
		// Symbolic links and special files keep the id they were created with, and an owner can
		// move other files into the project. It limits nothing any more, and no directory gets it
		// as long as something has it.
		h.log.Printf("removed the quota of %s, but %[3]d files still have its project id %[2]d", e.path, e.id, used.Usage.Inodes)
		err = nil
	}
	if err != nil {
		h.log.Printf("cannot remove the quota of %s (project id %d) now: %v", e.path, e.id, err)
		return err
	}
	return h.update(func() { h.ids.drop(e) })
}

// everything is the Reach for removing quotas.
func everything() Reach {
	return Reach{Entries: 1 << 40, Depth: 1 << 10, Time: 24 * time.Hour}
}

// Release records that a box has ended. The directories that it has used keep their quotas.
func (h *HostQuotas) Release(key string) { h.keep(func(user string) bool { return user != key }) }

// keep removes dead boxes from all entries.
func (h *HostQuotas) keep(lives func(key string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == nil {
		return
	}
	changed := false
	for _, e := range h.ids.entries {
		n := len(e.users)
		e.users = slices.DeleteFunc(e.users, func(key string) bool { return !lives(key) })
		changed = changed || len(e.users) != n
	}
	if changed {
		if err := h.ids.write(); err != nil {
			h.log.Printf("cannot record the quotas of host directories: %v", err) // the next keeper will see that the box is dead
		}
	}
}

// reconcileTimeout is how long the start of a keeper may take to undo what an earlier one has begun. The
// rest is done when a box wants the directory.
const reconcileTimeout = 10 * time.Second

// Reconcile undoes what an earlier keeper has begun, and removes the boxes that have ended since.
// It runs before h is used.
func (h *HostQuotas) Reconcile(lives func(key string) bool) {
	h.keep(lives)
	if h.ids == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	for _, e := range slices.Clone(h.ids.entries) {
		if e.state != bound {
			if err := h.removeQuota(ctx, e); err != nil {
				h.log.Printf("cannot remove the quota of %s, left by an earlier keeper: %v", e.path, err)
			}
		}
	}
}

// errMoved means that the directory with the quota is not at its path any more.
var errMoved = errors.New("it was moved, or its filesystem is not mounted")

// removeQuota removes the quota of a directory, which it finds by its path.
func (h *HostQuotas) removeQuota(ctx context.Context, e *entry) error {
	fd, err := h.open(e)
	if errors.Is(err, unix.ENOENT) {
		return h.forget(e)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	t, err := openTree(fd)
	if err != nil {
		return err
	}
	defer t.Close()
	dev, _, err := t.identity()
	if err != nil {
		return err
	}
	if id, _, err := t.Project(); err != nil || dev != e.dev && id != e.id {
		return errors.Join(err, errMoved)
	}
	return h.undo(ctx, t, e)
}

// forget drops the entry of a directory that does not exist any more, unless something that was
// in it has its id elsewhere.
func (h *HostQuotas) forget(e *entry) error {
	for up := filepath.Dir(e.path); ; up = filepath.Dir(up) {
		fd, err := unix.Open(up, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && up != "/" {
			continue
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Dev != e.dev {
			err = errMoved
		}
		if err == nil && e.state != claiming {
			err = Forget(fd, e.id)
		}
		if err != nil {
			return err
		}
		return h.update(func() { h.ids.drop(e) })
	}
}

// RemoveHostQuotas removes all quotas in the id table of a state directory. No keeper may be
// running on it; the caller has ended the boxes.
func RemoveHostQuotas(state string, l *log.Logger) error {
	if _, err := os.Lstat(filepath.Join(state, idTableName)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	b, err := openIDTable(state)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s is in use by a keeper: stop boxd-keeper.service first", state)
	}
	if err != nil {
		return err
	}
	h := &HostQuotas{log: l, ids: b}
	defer h.Close()
	var errs []error
	for _, e := range slices.Clone(b.entries) {
		if err := h.removeQuota(context.Background(), e); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.path, err))
		}
	}
	return errors.Join(errs...)
}
