// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/isolation/network"
)

// shared reports whether the box is to use the network of the host.
func (l *launching) shared() bool {
	return l.spec.Network.Kind == isolation.NetworkHost
}

// permitNetwork refuses the network of the host unless the configuration allows it to a profile.
func (l *launching) permitNetwork() (string, error) {
	if l.shared() && len(l.k.net.Shared()) == 0 {
		return "no profile of box.toml has the network of the host", unix.EPERM
	}
	return "", nil
}

// checks returns what doctor reports about this host, as far as the keeper can tell.
func (k *keeper) checks() []isolation.Check {
	all := append(checkHost(k.cfg.IDBase, k.cfg.IDCount), k.net.Check(), checkFileLocks(k.cfg.FileLocks))
	all = append(all, k.hostQuotas.Checks()...)
	if profiles := k.net.Shared(); len(profiles) > 0 {
		all = append(all, isolation.CheckHostNetwork(profiles))
	}
	missing, err := missingLinks(k.cfg.Etc)
	return append(all, checkLinks(missing, err))
}

// attachNetwork connects the box to other hosts. When the box ends, the connection is removed.
func (l *launching) attachNetwork() (string, error) {
	if l.spec.Network.Kind == isolation.NetworkNone {
		l.resolv = "# This box has no network.\n"
		return "", nil
	}
	if l.shared() {
		text, err := os.ReadFile("/etc/resolv.conf")
		if err != nil || len(text) > maxResolv {
			text = []byte("# The host has no resolv.conf, or one too long.\n")
		}
		l.resolv = string(text)
		return "", nil
	}
	l.box.changing.Lock()
	defer l.box.changing.Unlock()
	if l.box.released {
		return "", unix.ESRCH
	}
	var err error
	if l.resolv, err = l.k.net.Attach(&network.Box{Key: l.spec.Key, PID: l.preforked.pid, Alive: l.preforked.alive}, &l.spec.Network); err != nil {
		return err.Error(), err
	}
	return "", nil
}

// maxResolv is how long a resolv.conf(5) may be, in bytes.
const maxResolv = 4 << 10

// inNetwork calls do with the network of a live box, one call at a time.
func (k *keeper) inNetwork(key string, do func(b *network.Box) error) *isolation.StepError {
	b, err := k.boxByKey(key)
	if err == nil {
		b.networking.Lock()
		defer b.networking.Unlock()
		err = do(&network.Box{Key: key, PID: b.pid, Alive: b.lives})
	}
	if err != nil {
		return stepError(isolation.StepNetwork, err.Error(), err)
	}
	return nil
}

// handleNetwork is handle for requests about the network of a live box.
func (k *keeper) handleNetwork(req isolation.KeeperRequest) (reply isolation.KeeperReply, files []int) {
	switch m := req.(type) {
	case *isolation.ReadTraffic:
		return k.answerReadTraffic(m), nil
	case *isolation.ReadRefusals:
		return k.answerReadRefusals(m), nil
	case *isolation.SetNetwork:
		return k.answerSetNetwork(m), nil
	case *isolation.PinAddresses:
		return k.answerPinAddresses(m), nil
	case *isolation.OpenSockets:
		return k.answerOpenSockets(m)
	case *isolation.Dial:
		return k.answerDial(m.Key, &m.To, k.net.Dial)
	case *isolation.DialLoopback:
		return k.answerDial(m.Key, &m.To, k.net.DialLoopback)
	}
	return stepError(isolation.StepSetup, "request", unix.ENOSYS), nil // no other request reaches this
}

// answerReadTraffic returns the traffic counters of a box.
func (k *keeper) answerReadTraffic(req *isolation.ReadTraffic) isolation.KeeperReply {
	var traffic *isolation.Traffic
	failed := k.inNetwork(req.Key, func(b *network.Box) (err error) {
		traffic, err = k.net.Traffic(b.Key)
		return err
	})
	if failed != nil {
		return failed
	}
	return traffic
}

// answerReadRefusals returns which connections of a box were refused.
func (k *keeper) answerReadRefusals(req *isolation.ReadRefusals) isolation.KeeperReply {
	var refusals *isolation.Refusals
	failed := k.inNetwork(req.Key, func(b *network.Box) (err error) {
		refusals, err = k.net.Refusals(b)
		return err
	})
	if failed != nil {
		return failed
	}
	return refusals
}

// answerSetNetwork gives a box other rules and the resolv.conf(5) for them, both under one lock:
// otherwise the file could belong to other rules than those in the kernel.
func (k *keeper) answerSetNetwork(req *isolation.SetNetwork) isolation.KeeperReply {
	failed := k.inNetwork(req.Key, func(b *network.Box) error {
		resolv, err := k.net.SetRules(b, &req.Network)
		if err != nil {
			return err
		}
		return setResolvConf(b.PID, b.Alive, resolv)
	})
	if failed != nil {
		return failed
	}
	return &isolation.Done{}
}

// answerPinAddresses allows a box to connect to addresses.
func (k *keeper) answerPinAddresses(req *isolation.PinAddresses) isolation.KeeperReply {
	failed := k.inNetwork(req.Key, func(b *network.Box) error { return k.net.Pin(b, req.Pins) })
	if failed != nil {
		return failed
	}
	return &isolation.Done{}
}

// answerOpenSockets opens the sockets for a box with rules by host name.
func (k *keeper) answerOpenSockets(req *isolation.OpenSockets) (isolation.KeeperReply, []int) {
	var files []int
	opened := &isolation.SocketsOpened{}
	failed := k.inNetwork(req.Key, func(b *network.Box) (err error) {
		files, opened.IPv6, err = k.net.OpenSockets(b, req.Strict)
		return err
	})
	if failed != nil {
		return failed, nil
	}
	return opened, files
}

// answerDial starts a connection of a box, to another host or to its loopback.
func (k *keeper) answerDial(key string, to *isolation.Endpoint, dial func(*network.Box, *isolation.Endpoint) (int, error)) (isolation.KeeperReply, []int) {
	fd := -1
	failed := k.inNetwork(key, func(b *network.Box) (err error) {
		fd, err = dial(b, to)
		return err
	})
	if failed != nil {
		return failed, nil
	}
	return &isolation.Dialed{}, []int{fd}
}
