// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/boxd-dev/boxd/cmd/boxd/config"
)

// A unit says what its boxd must not do itself.
func TestTheKeeperIsChosenByTheUnit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		said string
		unit bool
		want string // "": refused
	}{
		{config.KeeperAuto, false, config.KeeperOwn},
		{config.KeeperOwn, false, config.KeeperOwn},
		{config.KeeperExternal, false, config.KeeperExternal},
		{config.KeeperAuto, true, config.KeeperExternal},
		{config.KeeperExternal, true, config.KeeperExternal},
		{config.KeeperOwn, true, ""},
	} {
		cfg := config.Default()
		cfg.Daemon.Keeper = c.said
		err := chooseKeeper(&cfg, c.unit)
		if (err == nil) != (c.want != "") || err == nil && cfg.Daemon.Keeper != c.want {
			t.Errorf("%q, of a unit %v: %q, %v", c.said, c.unit, cfg.Daemon.Keeper, err)
		}
	}
}
