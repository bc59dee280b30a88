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

// undo takes a project away. What it cannot undo stays in the id table, for the next who tries.
func (h *HostQuotas) undo(ctx context.Context, t *Tree, e *entry) error {
	var err error
	if e.state == claiming { // it may be another keeper's, whose limits are nobody else's to take
		err = t.Leave(e.id)
	} else {
		if err = h.note(func() { e.state, e.users = lifting, nil }); err == nil {
			err = t.Empty(ctx, e.id, everything())
		}
	}
	if rest, ok := errors.AsType[*UsedError](err); ok {
		// Links and special files keep the project that they were made with, and an owner can put other files into it. It
		// bounds nobody any more, and is given to nobody as long as something has it.
		h.log.Printf("quota of %s, project %d: taken away, though %d files have the number still", e.path, e.id, rest.Usage.Inodes)
		err = nil
	}
	if err != nil {
		h.log.Printf("quota of %s, project %d: it cannot be taken away now: %v", e.path, e.id, err)
		return err
	}
	return h.note(func() { h.ids.drop(e) })
}

// everything is the reach of who takes quotas away.
func everything() Reach {
	return Reach{Entries: 1 << 40, Depth: 1 << 10, Time: 24 * time.Hour}
}

// Release notes that a box has ended. The directories that it has used keep their quotas.
func (h *HostQuotas) Release(key string) { h.keep(func(user string) bool { return user != key }) }

// keep forgets the boxes that do not live.
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
			h.log.Printf("quotas of directories of the host: %v", err) // the next keeper finds that the box is dead
		}
	}
}

// settling is how long a keeper's start may take for what an earlier one had begun. The rest is done when a box wants the
// directory.
const settling = 10 * time.Second

// Reconcile undoes what an earlier keeper had begun, and forgets the boxes that have ended since. Nobody else has h yet.
func (h *HostQuotas) Reconcile(lives func(key string) bool) {
	h.keep(lives)
	if h.ids == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settling)
	defer cancel()
	for _, e := range slices.Clone(h.ids.entries) {
		if e.state != bound {
			if err := h.lift(ctx, e); err != nil {
				h.log.Printf("quota of %s, which an earlier keeper was at work on: %v", e.path, err)
			}
		}
	}
}

// errMoved means that another directory is at the path of one that was bounded, or none.
var errMoved = errors.New("it is not at its path any more, or its filesystem is not mounted")

// lift takes the quota of a directory away, which is found by its path.
func (h *HostQuotas) lift(ctx context.Context, e *entry) error {
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
	dev, _, err := t.Identity()
	if err != nil {
		return err
	}
	if id, _, err := t.Project(); err != nil || dev != e.dev && id != e.id {
		return errors.Join(err, errMoved)
	}
	return h.undo(ctx, t, e)
}

// forget forgets a directory that is not there any more, if nothing that was in it is elsewhere.
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
		return h.note(func() { h.ids.drop(e) })
	}
}

// RemoveHostQuotas takes all quotas away that the id table of a state directory knows of. No keeper may be at work there; who calls it has
// ended the boxes.
func RemoveHostQuotas(state string, l *log.Logger) error {
	if _, err := os.Lstat(filepath.Join(state, idTableName)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	b, err := openIDTable(state)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("a keeper is at work with %s: stop boxd-keeper.service first", state)
	}
	if err != nil {
		return err
	}
	h := &HostQuotas{log: l, ids: b}
	defer h.Close()
	var errs []error
	for _, e := range slices.Clone(b.entries) {
		if err := h.lift(context.Background(), e); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.path, err))
		}
	}
	return errors.Join(errs...)
}
