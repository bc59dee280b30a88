// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/isolation"
)

// boxd compares a running keeper's flags with those of its own configuration, so both must be
// equal.
func TestAKeeperReadsItsFlagsAsBoxdWritesThem(t *testing.T) {
	t.Parallel()
	want := isolation.KeeperConfig{
		RunDir: "/run/b", StateDir: "/state", BoxInit: "/boxinit", IDBase: 1 << 31, IDCount: 7, IDLock: "/lock", Ahead: 3, Store: 1 << 40, StoreFilesystem: isolation.StoreXFS, Workspaces: 9,
		Group: "/sys/fs/cgroup/x", Allow: []string{"{home}", "/srv/x=1500:1500"}, Etc: []string{"ssl/certs", "java-*"}, Network: []string{"ipv4=10.0.0.0/8"}, AIO: true, QuotaRoots: []string{"/srv/a", "/home"},
	}
	cfg, err := parse(want.Flags())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, cfg.KeeperConfig); diff != "" || cfg.Linger {
		t.Errorf("-written +read:\n%s", diff)
	}
	if diff := cmp.Diff(want.Flags(), cfg.Flags()); diff != "" {
		t.Errorf("-boxd's +keeper's:\n%s", diff)
	}
	if cfg, err = parse(append(want.Flags(), "-linger")); err != nil || !cfg.Linger {
		t.Errorf("cfg = %+v, err = %v, want no error and cfg.Linger == true", cfg, err)
	}
	for _, bad := range [][]string{{}, append(want.Flags(), "more"), append(want.Flags(), "-id-base=x"), append(want.Flags(), "-unknown")} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
