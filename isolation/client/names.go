// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// Network asks about the network of a box, or changes it, in the words of isolation/network. The files are the caller's.
func (k *Keeper) Network(ctx context.Context, key string, words []string) (answer []string, files []int, err error) {
	a, err := k.do(ctx, isolation.KeeperRequest{Network: append([]string{key}, words...)})
	if err != nil || a.msg.Listed == nil {
		fdpass.CloseAll(a.files)
		return nil, nil, err
	}
	return a.msg.Listed.Keys, a.files, nil
}
