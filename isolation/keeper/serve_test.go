// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

func TestKeysThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	about := map[string]func(key string) *isolation.KeeperRequest{
		"end": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{End: &isolation.EndBox{Key: key}}
		},
		"limits": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{Limits: &isolation.SetLimits{Key: key}}
		},
		"adopt": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{Adopt: &isolation.Adopt{Key: key}}
		},
		"dress": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{Dress: &isolation.Dress{Key: key}}
		},
		"reclaim": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{Reclaim: &isolation.Reclaim{Key: key}}
		},
		"network": func(key string) *isolation.KeeperRequest { return &isolation.KeeperRequest{Network: []string{key}} },
		"list": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{List: &isolation.List{After: key}}
		},
		"keep": func(key string) *isolation.KeeperRequest {
			return &isolation.KeeperRequest{End: &isolation.EndBox{Key: key, Tree: "abcdefghijklmnopqrstuvwxyz"}}
		},
	}
	for name, ask := range about {
		for key, fine := range map[string]bool{
			strings.Repeat("a1", 16): true, "": name == "keep" || name == "list", // that tree is to go; from the first on
			"..": false, "/etc": false, "../../" + strings.Repeat("a", 26): false, strings.Repeat("a", 31): false, strings.Repeat("A", 32): false,
		} {
			if err := refuse(ask(key)); (err == nil) != fine {
				t.Errorf("%s %q: %v", name, key, err)
			}
		}
	}
	for key, fine := range map[string]bool{
		"owner-0": true, "owner-4294967295-0123456789abcdef": true, "owner-": false, "owner-01": false, "owner-1-": false, "owner-1-0123": false,
		"owner-4294967296": false, "owner-1-0123456789abcde/": false, "owner-1/box-a": false, "1": false, "owner-+1": false, "owner-1-0123456789abcdef-": false,
	} {
		if err := refuse(about["limits"](key)); (err == nil) != fine {
			t.Errorf("limits of owner %q: %v", key, err)
		}
		if err := refuse(about["end"](key)); err == nil {
			t.Errorf("end of owner %q", key)
		}
	}
}

// The groups of a box are where its record says, among those of its user: by themselves or by another owner's name.
func TestARecordNamesTheOwner(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]string{
		"/sys/fs/cgroup/a/owner-7/box-k": "7", "/sys/fs/cgroup/a/owner-7-0123456789abcdef/box-k": "7-0123456789abcdef",
		"/sys/fs/cgroup/a/owner-77/box-k": "7", "/sys/fs/cgroup/a/owner-8-0123456789abcdef/box-k": "7", "/sys/fs/cgroup/a/owner-7-../box-k": "7", "": "7", "/box-k": "7",
	} {
		if got := ownerName(&Record{Owner: 7, Group: group}); got != want {
			t.Errorf("%s: %s, want %s", group, got, want)
		}
	}
}
