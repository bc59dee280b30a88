// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// shared reports whether the box is to use the network of the host.
func (l *launching) shared() bool {
	return l.spec.Network.Kind == isolation.NetworkHost
}

// permitNetwork refuses the network of the host unless the configuration allows it to a profile.
func (l *launching) permitNetwork() (string, error) {
	if l.shared() && len(l.k.shared) == 0 {
		return "no profile in box.toml allows the host network", unix.EPERM
	}
	return "", nil
}

// checks returns what doctor reports about this host, as far as the keeper can tell.
func (k *keeper) checks() []isolation.Check {
	all := append(checkHost(k.cfg.IDBase, k.cfg.IDCount), k.net.check(), checkFileLocks(k.cfg.FileLocks))
	all = append(all, k.hostQuotas.Checks()...)
	if c, bad := checkStore(k.work.StoreFilesystem(), k.cfg.StoreFilesystem); bad {
		all = append(all, c)
	}
	if profiles := k.shared; len(profiles) > 0 {
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
	l.box.changeMu.Lock()
	defer l.box.changeMu.Unlock()
	if l.box.released {
		return "", unix.ESRCH
	}
	space, err := openNetns(l.preforked.pid, l.preforked.alive)
	if err == nil {
		defer unix.Close(space)
		l.resolv, err = l.k.net.attach(l.spec.Key, space, &l.spec.Network)
	}
	if err != nil {
		return err.Error(), err
	}
	return "", nil
}

// maxResolv is how long a resolv.conf(5) may be, in bytes.
const maxResolv = 4 << 10

// openNetns opens the network namespace of a live box.
func openNetns(pid int, alive func() bool) (int, error) {
	space, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("network namespace of the box: %w", err)
	}
	if !alive() { // the PID may be another's
		unix.Close(space)
		return -1, unix.ESRCH
	}
	return space, nil
}

// inNetwork calls do with a live box and its network namespace, one call for each box at a time.
func (k *keeper) inNetwork(key string, do func(b *box, space int) error) *isolation.StepError {
	b, err := k.boxByKey(key)
	if err == nil {
		b.networkMu.Lock()
		defer b.networkMu.Unlock()
		var space int
		if space, err = openNetns(b.pid, b.lives); err == nil {
			defer unix.Close(space)
			err = do(b, space)
		}
	}
	if err != nil {
		return isolation.NewStepError(isolation.StepNetwork, err.Error(), err)
	}
	return nil
}

// handleNetwork is handle for requests about the network of a live box, which boxnet carries out.
func (k *keeper) handleNetwork(req isolation.KeeperRequest) (reply isolation.KeeperReply, files []int) {
	var key string
	switch m := req.(type) {
	case *isolation.SetNetwork:
		return k.answerSetNetwork(m), nil
	case *isolation.ReadTraffic:
		key = m.Key
	case *isolation.ReadRefusals:
		key = m.Key
	case *isolation.PinAddresses:
		key = m.Key
	case *isolation.OpenSockets:
		key = m.Key
	case *isolation.Dial:
		key = m.Key
	case *isolation.DialLoopback:
		key = m.Key
	default:
		return isolation.NewStepError(isolation.StepSetup, "request", unix.ENOSYS), nil // no other request reaches this
	}
	failed := k.inNetwork(key, func(_ *box, space int) (err error) {
		reply, files, err = k.net.request(req, space)
		return err
	})
	if failed != nil {
		return failed, nil
	}
	return reply, files
}

// answerSetNetwork gives a box other rules and the resolv.conf(5) for them, both under one lock:
// otherwise the file could belong to other rules than those in the kernel.
func (k *keeper) answerSetNetwork(req *isolation.SetNetwork) isolation.KeeperReply {
	failed := k.inNetwork(req.Key, func(b *box, space int) error {
		resolv, err := k.net.attached(req, space)
		if err != nil {
			return err
		}
		return setResolvConf(b.pid, b.lives, resolv)
	})
	if failed != nil {
		return failed
	}
	return &isolation.Done{}
}
