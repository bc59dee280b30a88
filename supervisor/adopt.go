// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"os"

	"github.com/boxd-dev/boxd/supervisor/records"
)

func (v *Supervisor) writeRecord(s *Session, state State) error {
	return v.records.Write(&records.Record{
		ID: s.ID, Key: s.Key, Owner: records.Owner(s.Owner), State: string(state), Created: s.Created, Settings: s.settings(), Enforced: s.enforced,
	})
}

func (v *Supervisor) removeRecord(s *Session) {
	if err := v.records.Remove(s.Key); err != nil {
		v.log.Error("record not removed", "session", s.ID, "error", err)
	}
}

// sweep removes what sessions of an earlier boxd have left: their boxes ended with it. A workspace
// may be there without a record, if that boxd died between the two.
func (v *Supervisor) sweep(ctx context.Context, workspaces string) error {
	keys, err := v.records.Keys()
	if err != nil {
		return err
	}
	orphans, err := os.ReadDir(workspaces)
	if err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	for _, o := range orphans {
		if err := v.boxes.End(ctx, o.Name(), true); err != nil {
			return fmt.Errorf("clean up workspace %s: %w", o.Name(), err)
		}
	}
	for _, key := range keys {
		if err := v.boxes.End(ctx, key, true); err != nil {
			return fmt.Errorf("clean up session %s: %w", key, err)
		}
		if err := v.records.Remove(key); err != nil {
			return fmt.Errorf("record of %s: %w", key, err)
		}
		v.log.Info("removed what an earlier boxd left", "key", key)
	}
	return nil
}
