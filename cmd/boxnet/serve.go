// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network"
)

// socket is the descriptor of the keeper's socket; the program itself, by which it was executed, follows it.
const socket = 3

// maxRequests is how many requests are handled at the same time; what comes after waits in the socket.
const maxRequests = 256

// serve answers the keeper until that closes its end. All requests have been answered by then.
func serve(h *network.Host) error {
	unix.Close(socket + 1)
	conn, err := fdpass.FromFD(socket, fdpass.MaxInline)
	if err != nil {
		return err
	}
	defer conn.Close()
	var requests sync.WaitGroup
	defer requests.Wait()
	slots := make(chan struct{}, maxRequests)
	for {
		body, files, err := conn.Recv(false)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, fdpass.ErrNoRoom) { // it came without its descriptor, and is refused for that
			err = nil
		}
		if err != nil {
			return fmt.Errorf("the connection to boxkeeper failed: %w", err)
		}
		number, req, err := isolation.DecodeNetworkRequest(body)
		if err != nil {
			fdpass.CloseAll(files)
			return fmt.Errorf("a message of boxkeeper: %w", err)
		}
		slots <- struct{}{}
		requests.Go(func() {
			defer func() { <-slots }()
			reply, out := handle(h, req, files)
			_ = conn.Send(isolation.EncodeKeeperReply(number, reply), out...) // if the keeper has gone, the next one adopts what there is
			fdpass.CloseAll(out)
		})
	}
}

// handle carries out a request. It takes the descriptors over; those that it returns are the caller's.
func handle(h *network.Host, req isolation.KeeperRequest, files []int) (isolation.KeeperReply, []int) {
	var space *os.File
	if len(files) > 0 {
		space = os.NewFile(uintptr(files[0]), "network namespace")
		fdpass.CloseAll(files[1:])
		defer space.Close()
	}
	reply, out, err := answer(h, req, space)
	if err != nil {
		return isolation.NewStepError(isolation.StepNetwork, err.Error(), err), nil
	}
	return reply, out
}

// answer is handle for a request whose descriptor is known, and about errors.
func answer(h *network.Host, req isolation.KeeperRequest, space *os.File) (isolation.KeeperReply, []int, error) {
	switch m := req.(type) {
	case *isolation.AdoptNetworks:
		linked, err := h.Adopt(m.Keys)
		return &isolation.Listed{Keys: linked}, nil, err
	case *isolation.CheckNetwork:
		return &isolation.Checked{Checks: []isolation.Check{h.Check()}}, nil, nil
	case *isolation.DetachNetwork:
		h.Remove(m.Key)
		return &isolation.Done{}, nil, nil
	case *isolation.ReadTraffic:
		traffic, err := h.Traffic(m.Key)
		return traffic, nil, err
	}
	if space == nil {
		return nil, nil, unix.EBADF
	}
	switch m := req.(type) {
	case *isolation.AttachNetwork:
		resolv, err := h.Attach(&network.Box{Key: m.Key, Space: space}, &m.Network)
		return &isolation.Attached{Resolv: resolv}, nil, err
	case *isolation.SetNetwork:
		resolv, err := h.SetRules(&network.Box{Key: m.Key, Space: space}, &m.Network)
		return &isolation.Attached{Resolv: resolv}, nil, err
	case *isolation.PinAddresses:
		return &isolation.Done{}, nil, h.Pin(&network.Box{Key: m.Key, Space: space}, m.Pins)
	case *isolation.ReadRefusals:
		refusals, err := h.Refusals(&network.Box{Key: m.Key, Space: space})
		return refusals, nil, err
	case *isolation.OpenSockets:
		out, ipv6, err := h.OpenSockets(&network.Box{Key: m.Key, Space: space}, m.Strict)
		return &isolation.SocketsOpened{IPv6: ipv6}, out, err
	case *isolation.Dial:
		fd, err := h.Dial(&network.Box{Key: m.Key, Space: space}, &m.To)
		return &isolation.Dialed{}, []int{fd}, err
	case *isolation.DialLoopback:
		fd, err := h.DialLoopback(space, &m.To)
		return &isolation.Dialed{}, []int{fd}, err
	}
	return nil, nil, unix.ENOSYS // no other request is decoded
}
