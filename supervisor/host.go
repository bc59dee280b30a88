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

// lookAtHost asks the keeper what can be enforced on this host now.
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

// enforcement returns what enforces the limits of a session. Before it reports something as missing it probes the host again:
// the anchor of the cgroups may have been started, or may be gone.
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

// found returns the result of the last probe of the host.
func (v *Supervisor) found() policy.Host {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.host
}

// verdict is the result of a capacity check for a new session, and its time.
type verdict struct {
	at  time.Time
	err error
}

// fresh is how long a verdict is valid, so that a flood of starts does not check the host each time.
const fresh = 100 * time.Millisecond

// hostRoom is room with a result cached for that long.
func (v *Supervisor) hostRoom() error {
	if last := v.pressed.Load(); last != nil && time.Since(last.at) < fresh {
		return last.err
	}
	err := v.room(v.Workspaces())
	if _, full := errors.AsType[*quota.Full](err); err == nil || full { // a failed check is no verdict
		v.pressed.Store(&verdict{time.Now(), err})
	}
	return err
}

// room calls checkCapacity; dir is the directory of workspaces.
func (v *Supervisor) room(dir string) error { return checkCapacity(&v.cfg.Load().Host, v.state, dir) }
