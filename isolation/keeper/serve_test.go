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
}
