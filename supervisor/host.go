// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"

	"github.com/boxd-dev/boxd/cgroup/usage"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/supervisor/machine"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// lookAtHost asks the keeper what can be enforced here, now.
func (v *Supervisor) lookAtHost(ctx context.Context) (policy.Host, error) {
	host := policy.Host{Layout: v.layout}
	found, err := v.boxes.Look(ctx)
	if err != nil {
		return host, fmt.Errorf("look at the host: %w", err)
	}
	host.Host = *found
	v.mu.Lock()
	v.host = host
	v.mu.Unlock()
	return host, nil
}

// enforcement says what keeps the limits of a session. Before it says that something is missing it looks
// again: the anchor of the control groups may have been started, or may be gone.
func (v *Supervisor) enforcement(ctx context.Context, cfg *policy.Config, settings *policy.Settings) (map[string]policy.Mechanism, error) {
	v.mu.Lock()
	host := v.host
	v.mu.Unlock()
	by, err := cfg.Enforcement(settings, host)
	if err == nil && (policy.Grouped(by) || v.layout != usage.Unified) {
		return by, nil
	}
	if host, err = v.lookAtHost(ctx); err != nil {
		return nil, err
	}
	return cfg.Enforcement(settings, host)
}

// reserve refuses a new session when the host has less left than the operator wants kept.
func (v *Supervisor) reserve(who Principal, id string) error {
	v.mu.Lock()
	exists, dir := v.sessions[policy.Key(who.Name, id)] != nil, v.host.Workspaces
	v.mu.Unlock()
	if exists {
		return nil
	}
	return v.room(dir)
}

// room reports whether the host has as much left as the operator wants kept; dir is where workspaces are.
func (v *Supervisor) room(dir string) error {
	keep := v.cfg.Load().Host
	free, err := machine.FreeDisk(dir)
	if err == nil && dir != v.state { // the store has room only as long as the disk below it has
		var below quantity.Size
		if below, err = machine.FreeDisk(v.state); below < free {
			free = below
		}
	}
	if err == nil && free < keep.KeepFreeDisk {
		err = shortOf("disk", free, keep.KeepFreeDisk)
	}
	if err != nil {
		return err
	}
	free, err = machine.FreeMemory()
	if err == nil && free < keep.KeepFreeMemory {
		err = shortOf("memory", free, keep.KeepFreeMemory)
	}
	return err
}

func shortOf(what string, free, keep quantity.Size) error {
	return fault.Errorf(fault.Unavailable, "the host has %d MiB of %s left, and %v are to be kept free (host.keep_free_%s)", free/quantity.MiB, what, keep, what).
		WithHint("remove sessions, or make room on the host")
}
