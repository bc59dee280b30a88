// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"

	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Mounts returns the changer of a living session's mounts.
func (v *Supervisor) Mounts(s *session.Session) *MountChanger {
	return &MountChanger{Boxes: v.boxes, Held: effectivePolicy(v.cfg.Load(), s.Owner), Session: s, Keep: func() error { return v.record.Write(s) }, MountPoints: &v.record.MountPoints}
}

// Traffic returns the network traffic of a session, nil if it has no network or cannot be asked now.
func (v *Supervisor) Traffic(ctx context.Context, s *session.Session) *driver.TrafficUse {
	if i := s.Info(); i.Settings.Network != policy.NetworkEgress || i.State != session.StateReady {
		return nil
	}
	u, err := v.boxes.Traffic(ctx, s.BoxKey())
	if err != nil {
		return nil // it is ending, or there is no keeper
	}
	return u
}

// reconcile determines the outcome of changes that an earlier boxd had begun: of network rules, and of a mount. What cannot be
// determined now is determined before the next change.
func (v *Supervisor) reconcile(ctx context.Context, s *session.Session) {
	if err := v.changer(s).Reconcile(ctx); err != nil {
		v.log.Error("a change of network_rules was interrupted: the rules in force may differ from the record", "session", s.ID, "error", err)
	}
	_, change := s.Mounting()
	if change == nil {
		return
	}
	if err := v.Mounts(s).Reconcile(ctx); err != nil {
		v.log.Warn("a change of a mount was interrupted; its state is not known yet", "session", s.ID, "target", change.Target, "error", err)
	}
}

// keepKey writes the record of the session of a key that has been given something to remove.
func (v *Supervisor) keepKey(key string) error {
	s := v.known(key)
	if s == nil {
		return fmt.Errorf("no session %s", key)
	}
	return v.record.Write(s)
}
