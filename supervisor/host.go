// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/cgroup/usage"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/supervisor/admission"
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

// verdict is what the host has had to say about a new session, and when.
type verdict struct {
	at  time.Time
	err error
}

// fresh is how long a verdict counts: a flood of starts need not look each for itself.
const fresh = 100 * time.Millisecond

// hostRoom is room, or what that has said just now.
func (v *Supervisor) hostRoom() error {
	if last := v.pressed.Load(); last != nil && time.Since(last.at) < fresh {
		return last.err
	}
	v.mu.Lock()
	dir := v.host.Workspaces
	v.mu.Unlock()
	err := v.room(dir)
	if _, full := errors.AsType[*admission.Full](err); err == nil || full { // to fail to look is no verdict
		v.pressed.Store(&verdict{time.Now(), err})
	}
	return err
}

// room reports whether the host has as much left as the operator wants kept, and is not busier than new
// sessions may find it; dir is where workspaces are.
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
		err = shortOf(admission.Disk, free, keep.KeepFreeDisk)
	}
	if err != nil {
		return err
	}
	free, err = machine.FreeMemory()
	if err == nil && free < keep.KeepFreeMemory {
		err = shortOf(admission.Memory, free, keep.KeepFreeMemory)
	}
	if err != nil || keep.PressureCPU+keep.PressureMemory+keep.PressureIO == 0 {
		return err
	}
	p, err := machine.LookPressure()
	if err != nil {
		return err
	}
	for _, of := range []struct {
		name       string
		is, bounds float64
	}{{"cpu", p.CPU, keep.PressureCPU}, {"memory", p.Memory, keep.PressureMemory}, {"io", p.IO, keep.PressureIO}} {
		if of.bounds > 0 && of.is > of.bounds {
			return &admission.Full{Reason: admission.Pressure, Err: fault.Errorf(fault.Unavailable, "for %g %% of the last ten seconds some task of the host waited for %s, and sessions start up to %g (host.pressure_%s)", of.is, of.name, of.bounds, of.name).
				WithHint("try again when the host is less busy")}
		}
	}
	return nil
}

func shortOf(what admission.Reason, free, keep quantity.Size) error {
	return &admission.Full{Reason: what, Err: fault.Errorf(fault.Unavailable, "the host has %d MiB of %s left, and %v are to be kept free (host.keep_free_%s)", free/quantity.MiB, what, keep, what).
		WithHint("remove sessions, or make room on the host")}
}
