// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/isolation"
)

// ChangeSpace makes a named workspace that boxes can mount, or removes it. Both may be repeated.
func (k *Keeper) ChangeSpace(ctx context.Context, s *isolation.ChangeSpace) error {
	return k.command(ctx, s)
}

// HostQuota returns how full the quota is on a directory of the host that is mounted in a box. ESRCH:
// there is no quota.
func (k *Keeper) HostQuota(ctx context.Context, key, source string) (*isolation.Disk, error) {
	return request[*isolation.Disk](ctx, k, &isolation.ReadQuota{Key: key, Source: source})
}

// Snapshots changes the snapshots of a box's files on disk, and returns those that it has afterwards. If the keeper goes
// meanwhile, the next one is asked again: EEXIST may then result from what the first one did.
func (k *Keeper) Snapshots(ctx context.Context, m *isolation.ChangeSnapshots) ([]isolation.Snapshot, error) {
	reply, err := request[*isolation.Snapshots](ctx, k, m)
	if err != nil {
		return nil, err
	}
	return reply.List, nil
}
