// SPDX-License-Identifier: Apache-2.0

// Package driver makes boxes together with the cgroup that their limits are set on: one that the keeper makes itself (the direct
// driver), or a scope that systemd makes, shows, limits.
package driver

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"

	"github.com/boxd-dev/boxd/systemd"
)

// Driver is the keeper, with systemd where boxes run in scopes. It owns neither.
type Driver struct {
	*client.Keeper
	scopes  DialScopes // nil: the keeper makes all cgroups
	log     *slog.Logger
	names   *Resolver // nil: no names are resolved
	watched *watcher  // nil: refusals are not reported

	mu     sync.Mutex // guards the fields below
	limits map[string]applied
	left   map[string]bool // keys of scopes without a box that could not be stopped
}

// applied is the current limits of a box in a scope.
type applied struct {
	limits cgroup.Limits
	work   isolation.Quota
}

// Direct returns the driver that needs nothing but the keeper.
func Direct(k *client.Keeper) *Driver { return &Driver{Keeper: k} }

// DialScopes connects to a ScopeServer.
type DialScopes func(ctx context.Context) (*fdpass.Conn, error)

// Scoped returns the driver that puts every box into a scope of its own.
func Scoped(k *client.Keeper, scopes DialScopes, log *slog.Logger) *Driver {
	return &Driver{Keeper: k, scopes: scopes, log: log, limits: map[string]applied{}, left: map[string]bool{}}
}

// timeout bounds one conversation with systemd, which normally takes a tenth of a second. systemd does not answer while it
// reloads.
const timeout = 20 * time.Second

// Launch starts a box, as client.Keeper.Launch does, in a scope where configured. After an error neither box nor scope remains.
func (d *Driver) Launch(ctx context.Context, spec *isolation.Spec) (*client.Box, error) {
	if d.scopes == nil || !spec.Grouped {
		return d.launch(ctx, spec)
	}
	scope, err := d.start(ctx, spec.Key, &spec.Limits)
	if err != nil {
		return nil, err
	}
	defer scope.release(ctx) // PID 1 of the box holds the scope by then
	in := *spec
	in.Scope = scope.group
	box, err := d.launch(ctx, &in)
	if err != nil {
		scope.release(ctx)
		if serr := d.stop(ctx, spec.Key); serr != nil {
			d.log.Warn("cannot stop a scope", "error", serr) // it has no process, so it ends by itself
		}
		return nil, err
	}
	d.mu.Lock()
	d.limits[spec.Key] = applied{spec.Limits, spec.Work}
	d.mu.Unlock()
	return box, nil
}

// Adopt takes over a running box, as client.Keeper.Adopt does; spec is what it was made from.
func (d *Driver) Adopt(ctx context.Context, spec *isolation.Spec) (*client.Box, *client.Adopted, error) {
	box, found, err := d.Keeper.Adopt(ctx, spec.Key)
	if err == nil && d.scopes != nil && filepath.Base(box.Group) == isolation.ScopeOf(spec.Key) {
		d.mu.Lock()
		d.limits[spec.Key] = applied{spec.Limits, spec.Work}
		d.mu.Unlock()
	}
	if err == nil {
		d.resume(spec) //nolint:contextcheck // the caller does not wait for it
	}
	return box, found, err
}

// End ends a box, as client.Keeper.End does, and its scope. For a box that has already ended it removes a leftover scope.
func (d *Driver) End(ctx context.Context, key string, removeWork bool) error {
	d.unwatch(ctx, key)
	d.forget(key)
	err := d.Keeper.End(ctx, key, removeWork)
	if d.scopes == nil || err != nil && !errors.Is(err, client.ErrKeeperGone) {
		return err
	}
	if err := errors.Join(err, d.stop(ctx, key)); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.limits, key)
	d.mu.Unlock()
	return nil
}

// SetLimits changes all limits of a running box, or none. The keeper comes first: it refuses limits that the box already exceeds,
// where a lower cap on the whole box would kill.
func (d *Driver) SetLimits(ctx context.Context, key string, limits *cgroup.Limits, work isolation.Quota) error {
	d.mu.Lock()
	old, scoped := d.limits[key]
	d.mu.Unlock()
	if err := d.Keeper.SetLimits(ctx, key, limits, work); err != nil || !scoped {
		return err
	}
	if properties(limits) != properties(&old.limits) {
		ctx = context.WithoutCancel(ctx) // either completed or undone
		if err := d.set(ctx, key, limits); err != nil {
			undo := d.Keeper.SetLimits(ctx, key, &old.limits, old.work)
			if !errors.Is(err, systemd.ErrNoBus) { // the change may have been made all the same
				undo = errors.Join(undo, d.set(ctx, key, &old.limits))
			}
			return errors.Join(unavailable(err), undo)
		}
	}
	d.mu.Lock()
	d.limits[key] = applied{*limits, work}
	d.mu.Unlock()
	return nil
}

// Scopes reports whether boxes run in systemd scopes.
func (d *Driver) Scopes() bool { return d.scopes != nil }

// SetOwnerLimits changes the limits of an owner's cgroup, which all its boxes share. Boxes in scopes are in no such cgroup.
func (d *Driver) SetOwnerLimits(ctx context.Context, owner *cgroup.Owner) error {
	if d.scopes != nil {
		return syscall.ESRCH
	}
	return d.Keeper.SetOwnerLimits(ctx, owner)
}
