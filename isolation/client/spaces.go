// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ChangeSpace makes a workspace that boxes can be lent, or removes it. Both can be asked for again.
func (k *Keeper) ChangeSpace(ctx context.Context, s *isolation.Space) error {
	return k.ask(ctx, isolation.KeeperRequest{Space: s})
}

// Held says how full the quota is of a directory of the host that a box has a mount of. ESRCH: it has none.
func (k *Keeper) Held(ctx context.Context, key, source string) (*isolation.Disk, error) {
	a, err := k.do(ctx, isolation.KeeperRequest{Held: &isolation.Held{Key: key, Source: source}})
	fdpass.CloseAll(a.files)
	if err != nil || a.msg.Listed == nil {
		return nil, err
	}
	d := &isolation.Disk{}
	_, err = fmt.Sscan(strings.Join(a.msg.Listed.Keys, " "), &d.Used, &d.Limit, &d.Files, &d.FilesLimit)
	return d, err
}
