// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ChangeSpace makes a workspace that boxes can be lent, or removes it. Both can be asked for again.
func (k *Keeper) ChangeSpace(ctx context.Context, s *isolation.Space) error {
	a, err := k.do(ctx, isolation.KeeperRequest{Space: s})
	fdpass.CloseAll(a.files)
	return err
}
