// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"testing"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Gateways know all actions of nodes.
func TestGatewaysKnowAllActionsOfNodes(t *testing.T) {
	t.Parallel()
	for name := range (&Server{}).table() {
		if _, ok := wire.ActionOf(name); !ok {
			t.Errorf("gateways do not know %s", name)
		}
	}
	if _, ok := wire.ActionOf("__heartbeat"); ok {
		t.Error("the list of actions has __heartbeat, which does not exist")
	}
}
