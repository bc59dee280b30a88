// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ReadTraffic says what has gone over the network of a box. ENONET: it has none of its own.
func (k *Keeper) ReadTraffic(ctx context.Context, key string) (*isolation.Traffic, error) {
	return askPlain[*isolation.Traffic](ctx, k, &isolation.ReadTraffic{Key: key})
}

// ReadRefusals says what a box was refused.
func (k *Keeper) ReadRefusals(ctx context.Context, key string) (*isolation.Refusals, error) {
	return askPlain[*isolation.Refusals](ctx, k, &isolation.ReadRefusals{Key: key})
}

// SetNetwork gives the network of a living box other rules.
func (k *Keeper) SetNetwork(ctx context.Context, key string, network *isolation.NetworkSpec) error {
	return k.order(ctx, &isolation.SetNetwork{Key: key, Network: *network})
}

// PinAddresses lets a box connect to addresses for a time. There are at most isolation.MaxPins.
func (k *Keeper) PinAddresses(ctx context.Context, key string, pins []isolation.Pin) error {
	return k.order(ctx, &isolation.PinAddresses{Key: key, Pins: pins})
}

// OpenSockets opens what a box with rules by name asks at, and where the connections of a strict one are looked at. The
// sockets are the caller's. six says that the box has addresses of IPv6.
func (k *Keeper) OpenSockets(ctx context.Context, key string, strict bool) (files []int, six bool, err error) {
	opened, files, err := ask[*isolation.SocketsOpened](ctx, k, &isolation.OpenSockets{Key: key, Strict: strict})
	if err != nil {
		return nil, false, err
	}
	if len(files) < 2 || strict != (len(files) > 2) {
		fdpass.CloseAll(files)
		return nil, false, fmt.Errorf("sockets: %w", isolation.ErrMalformed)
	}
	return files, opened.IPv6, nil
}

// Dial begins a connection out of a box. The descriptor is the caller's, and does not block.
func (k *Keeper) Dial(ctx context.Context, key string, to netip.AddrPort) (int, error) {
	return k.dialed(ctx, &isolation.Dial{Key: key, To: endpoint(to)})
}

// DialLoopback begins a connection to a port of a box's own loopback. The descriptor is the caller's, and does not block.
func (k *Keeper) DialLoopback(ctx context.Context, key string, to netip.AddrPort) (int, error) {
	return k.dialed(ctx, &isolation.DialLoopback{Key: key, To: endpoint(to)})
}

func (k *Keeper) dialed(ctx context.Context, req isolation.KeeperRequest) (int, error) {
	_, files, err := ask[*isolation.Dialed](ctx, k, req)
	if err != nil {
		return -1, err
	}
	if len(files) != 1 {
		fdpass.CloseAll(files)
		return -1, fmt.Errorf("connection: %w", isolation.ErrMalformed)
	}
	return files[0], nil
}

func endpoint(to netip.AddrPort) isolation.Endpoint {
	return isolation.Endpoint{Address: to.Addr().AsSlice(), Port: to.Port()}
}
