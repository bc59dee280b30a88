// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
)

// The systemd unit says what its boxd must not do itself.
func TestTheKeeperIsChosenByTheUnit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		said string
		unit bool
		want string // "": refused
	}{
		{keeperAuto, false, keeperOwn},
		{keeperOwn, false, keeperOwn},
		{keeperExternal, false, keeperExternal},
		{keeperAuto, true, keeperExternal},
		{keeperExternal, true, keeperExternal},
		{keeperOwn, true, ""},
	} {
		cfg := defaultConfig()
		cfg.Daemon.Keeper = c.said
		err := chooseKeeper(&cfg, c.unit)
		if (err == nil) != (c.want != "") || err == nil && cfg.Daemon.Keeper != c.want {
			t.Errorf(`%q, of a unit %v: cfg.Daemon.Keeper = %q, err = %v, want (err == nil) == (c.want != "") and (an error or cfg.Daemon.Keeper == %q)`,
				c.said, c.unit, cfg.Daemon.Keeper, err, c.want)
		}
	}
}
