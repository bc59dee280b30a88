// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Gateways know all actions of nodes, and no others.
func TestTheListOfActionsIsWhole(t *testing.T) {
	t.Parallel()
	s := &Server{}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(s.table())), slices.Sorted(maps.Keys(wire.Actions))); diff != "" {
		t.Error(diff)
	}
}
