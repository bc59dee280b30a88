// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"errors"
	"fmt"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

func TestASpanHasTheClassThatLangBotIsTold(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"":           nil,
		"ValueError": fmt.Errorf("here: %w", wire.Refusef("ValueError", "x")),
		"refused":    wire.TooManyCalls(),
		"exhausted":  fault.Errorf(fault.Exhausted, "x"),
		"internal":   errors.New("x"),
	} {
		if got := errorType(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
