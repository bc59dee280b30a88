// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/isolation/network"
	"github.com/boxd-dev/boxd/isolation/zygote"
)

// shared reports whether the box is to be in the network of the host.
func (l *launching) shared() bool {
	return len(l.spec.Network) > 0 && l.spec.Network[0] == isolation.HostNetwork
}

// permitNetwork refuses the network of the host where root has said of no profile that its boxes may have it.
func (l *launching) permitNetwork() (string, error) {
	if l.shared() && len(l.k.net.Shared()) == 0 {
		return "no profile of box.toml has the network of the host", unix.EPERM
	}
	return "", nil
}

// checks are what doctor says of this host, as the keeper sees it.
func (k *Keeper) checks() []isolation.Check {
	all := append(CheckHost(k.cfg.IDBase, k.cfg.IDCount), k.net.Check())
	all = append(all, k.bounds.Checks()...)
	if profiles := k.net.Shared(); len(profiles) > 0 {
		all = append(all, isolation.CheckHostNetwork(profiles))
	}
	missing, err := zygote.MissingLinks(k.cfg.Etc)
	return append(all, CheckLinks(missing, err))
}

// attachNetwork makes the box's way to other hosts. The end of a box that has one removes it.
func (l *launching) attachNetwork() (string, error) {
	if len(l.spec.Network) == 0 {
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
	if l.resolv, err = l.k.net.Attach(l.spec.Key, l.embryo.pid, l.embryo.alive, l.spec.Network); err != nil {
		return err.Error(), err
	}
	return "", nil
}

// maxResolv is how long a resolv.conf(5) may be, in bytes.
const maxResolv = 4 << 10

// network answers about the network of a living box. The files are the caller's.
func (k *Keeper) network(req *isolation.NetworkQuery) (*isolation.Listed, []int, error) {
	b, err := k.known(req.Key)
	if err != nil {
		return nil, nil, err
	}
	b.networking.Lock() // or the file could be of other rules than the kernel's
	defer b.networking.Unlock()
	words, files, err := k.net.Do(req.Key, b.pid, b.lives, req.Words)
	if err == nil && req.Words[0] == network.WordRules {
		err = SetResolvConf(b.pid, b.lives, words[0])
		words = nil
	}
	return &isolation.Listed{Keys: words}, files, err
}
