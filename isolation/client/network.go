// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// ReadTraffic returns the traffic counters of a box. ENONET: it has no network of its own.
func (k *Keeper) ReadTraffic(ctx context.Context, key string) (*isolation.Traffic, error) {
	return request[*isolation.Traffic](ctx, k, &isolation.ReadTraffic{Key: key})
}

// ReadRefusals returns which connections of a box were refused.
func (k *Keeper) ReadRefusals(ctx context.Context, key string) (*isolation.Refusals, error) {
	return request[*isolation.Refusals](ctx, k, &isolation.ReadRefusals{Key: key})
}

// SetNetwork gives the network of a live box other rules.
func (k *Keeper) SetNetwork(ctx context.Context, key string, network *isolation.NetworkSpec) error {
	return k.command(ctx, &isolation.SetNetwork{Key: key, Network: *network})
}

// PinAddresses allows a box to connect to addresses for a limited time; at most isolation.MaxPins
// at once.
func (k *Keeper) PinAddresses(ctx context.Context, key string, pins []isolation.Pin) error {
	return k.command(ctx, &isolation.PinAddresses{Key: key, Pins: pins})
}

// OpenSockets opens the sockets on which a box with rules by host name sends its DNS queries, and
// for a strict box those that its web connections are redirected to. They are the caller's. ipv6
// says that the box has IPv6 addresses.
func (k *Keeper) OpenSockets(ctx context.Context, key string, strict bool) (files []int, ipv6 bool, err error) {
	opened, files, err := requestFiles[*isolation.SocketsOpened](ctx, k, &isolation.OpenSockets{Key: key, Strict: strict})
	if err != nil {
		return nil, false, err
	}
	if len(files) < 2 || strict != (len(files) > 2) {
		fdpass.CloseAll(files)
		return nil, false, fmt.Errorf("sockets: %w", isolation.ErrMalformed)
	}
	return files, opened.IPv6, nil
}

// Dial starts a connection out of a box. The descriptor is the caller's, and non-blocking.
func (k *Keeper) Dial(ctx context.Context, key string, to netip.AddrPort) (int, error) {
	return k.requestConn(ctx, &isolation.Dial{Key: key, To: endpoint(to)})
}

// DialLoopback starts a connection to a port of a box's own loopback. The descriptor is the
// caller's, and non-blocking.
func (k *Keeper) DialLoopback(ctx context.Context, key string, to netip.AddrPort) (int, error) {
	return k.requestConn(ctx, &isolation.DialLoopback{Key: key, To: endpoint(to)})
}

func (k *Keeper) requestConn(ctx context.Context, req isolation.KeeperRequest) (int, error) {
	_, files, err := requestFiles[*isolation.Dialed](ctx, k, req)
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
