// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/isolation"
)

// Network asks about the network of a box, or changes it, in the words of isolation/network. The files are the caller's.
func (k *Keeper) Network(ctx context.Context, key string, words []string) (answer []string, files []int, err error) {
	listed, files, err := ask[*isolation.Listed](ctx, k, &isolation.NetworkQuery{Key: key, Words: words})
	if err != nil {
		return nil, nil, err
	}
	return listed.Keys, files, nil
}
