// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// lookAtHost asks the keeper what can be enforced here, now.
func (v *Supervisor) lookAtHost(ctx context.Context) (policy.Host, error) {
	host := policy.Host{Layout: v.layout}
	found, err := v.boxes.ProbeHost(ctx)
	if err != nil {
		return host, fmt.Errorf("examine the host: %w", err)
	}
	host.Host = *found
	v.mu.Lock()
	v.host = host
	v.mu.Unlock()
	return host, nil
}

// enforcement says what keeps the limits of a session. Before it says that something is missing it looks
// again: the anchor of the cgroups may have been started, or may be gone.
func (v *Supervisor) enforcement(ctx context.Context, cfg *policy.Config, settings *policy.Settings) (map[string]policy.Mechanism, error) {
	by, err := cfg.Enforcement(settings, v.found())
	if err == nil && (policy.Grouped(by) || v.layout != policy.CgroupsUnified) {
		return by, nil
	}
	host, err := v.lookAtHost(ctx)
	if err != nil {
		return nil, err
	}
	return cfg.Enforcement(settings, host)
}

// found is what the last look has found.
func (v *Supervisor) found() policy.Host {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.host
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
	err := v.room(v.Workspaces())
	if _, full := errors.AsType[*quota.Full](err); err == nil || full { // to fail to look is no verdict
		v.pressed.Store(&verdict{time.Now(), err})
	}
	return err
}

// room is what CheckCapacity says of the host; dir is where workspaces are.
func (v *Supervisor) room(dir string) error { return checkCapacity(&v.cfg.Load().Host, v.state, dir) }
