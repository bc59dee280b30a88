// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/isolation"
)

// Keep kills a box and turns its workspace into the tree of an image. It may be called again.
func (k *Keeper) Keep(ctx context.Context, key, tree string) error {
	return k.command(ctx, &isolation.KeepTree{Key: key, Tree: tree})
}

// DropTree removes the tree of an image. EBUSY: a box uses it.
func (k *Keeper) DropTree(ctx context.Context, tree string) error {
	return k.command(ctx, &isolation.RemoveTree{Tree: tree})
}
