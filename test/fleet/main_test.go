// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestMain(m *testing.M) {
	boxtest.BeCaller(nil)
	m.Run()
}
