// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/isolation"
)

// ChangeSpace makes a workspace that boxes can be lent, or removes it. Both can be asked for again.
func (k *Keeper) ChangeSpace(ctx context.Context, s *isolation.ChangeSpace) error {
	return k.order(ctx, s)
}

// Held says how full the quota is of a directory of the host that a box has a mount of. ESRCH: it has none.
func (k *Keeper) Held(ctx context.Context, key, source string) (*isolation.Disk, error) {
	return askPlain[*isolation.Disk](ctx, k, &isolation.ReadQuota{Key: key, Source: source})
}
