// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/isolation"
)

// ChangeSpace makes a named workspace that boxes can mount, or removes it. Both may be repeated.
func (k *Keeper) ChangeSpace(ctx context.Context, s *isolation.ChangeSpace) error {
	return k.order(ctx, s)
}

// HostQuota returns how full the quota is on a directory of the host that is mounted in a box. ESRCH:
// there is no quota.
func (k *Keeper) HostQuota(ctx context.Context, key, source string) (*isolation.Disk, error) {
	return askPlain[*isolation.Disk](ctx, k, &isolation.ReadQuota{Key: key, Source: source})
}
