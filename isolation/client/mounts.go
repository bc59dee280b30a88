// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ChangeMount changes a mount of a live box, or removes directories made for one. ErrKeeperGone:
// the change may have been made; it is not repeated. ESRCH: there is no such box.
func (k *Keeper) ChangeMount(ctx context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	l, err := k.current(ctx)
	if err != nil {
		return nil, err
	}
	a, err := l.do(ctx, req)
	fdpass.CloseAll(a.files)
	if errors.Is(err, ErrKeeperGone) {
		<-l.done // wait until it is not the current one any more
	}
	if err != nil {
		return nil, err
	}
	mounted, ok := a.msg.(*isolation.Mounted)
	if !ok {
		return nil, fmt.Errorf("change of a mount: %w", isolation.ErrMalformed)
	}
	return mounted, nil
}
