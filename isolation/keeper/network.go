// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/dress"
	"github.com/boxd-dev/boxd/isolation/network"
)

// attachNetwork makes the box's way to other hosts. The end of a box that has one removes it.
func (l *launching) attachNetwork() (string, error) {
	if len(l.spec.Network) == 0 {
		l.resolv = "# This box has no network.\n"
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

// network answers about the network of a living box. The files are the caller's.
func (k *Keeper) network(req []string) (*isolation.Listed, []int, error) {
	b, err := k.known(req[0])
	if err != nil {
		return nil, nil, err
	}
	b.networking.Lock() // or the file could be of other rules than the kernel's
	defer b.networking.Unlock()
	words, files, err := k.net.Do(req[0], b.pid, b.lives, req[1:])
	if err == nil && req[1] == network.WordRules {
		err = dress.Resolv(b.pid, b.lives, words[0])
		words = nil
	}
	return &isolation.Listed{Keys: words}, files, err
}
