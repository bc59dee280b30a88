// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// record is what a session leaves on disk: enough for the next boxd to clean up after this one, and
// for a person to see what was running.
type record struct {
	ID       string                      `json:"id"`
	Key      string                      `json:"key"`
	Owner    string                      `json:"owner"`
	Created  time.Time                   `json:"created"`
	Settings policy.Settings             `json:"settings"`
	Enforced map[string]policy.Mechanism `json:"enforcement"`
}

const recordSuffix = ".json"

func openRecords(state string) (*os.Root, error) {
	dir := filepath.Join(state, "sessions")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("records: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	return root, nil
}

func (v *Supervisor) writeRecord(s *Session) error {
	r := record{ID: s.ID, Key: s.Key, Owner: s.Owner.Name, Created: s.Created, Settings: s.settings(), Enforced: s.enforced}
	return durable.WriteJSON(v.records, s.Key+recordSuffix, r)
}

func (v *Supervisor) removeRecord(s *Session) {
	if err := v.records.Remove(s.Key + recordSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		v.log.Error("record not removed", "session", s.ID, "error", err)
	}
}

// sweep removes what sessions of an earlier boxd have left: their boxes ended with it. A workspace
// may be there without a record, if that boxd died between the two.
func (v *Supervisor) sweep(ctx context.Context, workspaces string) error {
	names, err := durable.Names(v.records)
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
	for _, name := range names {
		key, ok := strings.CutSuffix(name, recordSuffix)
		if !ok || len(key) != isolation.KeyLen {
			return fmt.Errorf("record %s: not one of boxd's; remove it from %s", strconv.Quote(name), v.records.Name())
		}
		if err := v.boxes.End(ctx, key, true); err != nil {
			return fmt.Errorf("clean up session %s: %w", key, err)
		}
		if err := v.records.Remove(name); err != nil {
			return fmt.Errorf("record %s: %w", name, err)
		}
		v.log.Info("removed what an earlier boxd left", "key", key)
	}
	return nil
}
