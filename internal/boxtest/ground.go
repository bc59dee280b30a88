// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"os"
	"testing"
)

// groundVariable names the ground that tests run on: this host, or a machine. Where it is set, a test that lacks
// something here is left to another ground, and whoever has set it sees that the test runs on one; see test/run.
const groundVariable = "BOXD_TEST_GROUND"

// LeftTo begins what a test says that is left to another ground.
const LeftTo = "left to another ground, for it needs "

// Lacks begins what a test says that is left out, or fails, where there is no other ground.
const Lacks = "missing: "

// Missing says what a test lacks: it is left to another ground, if tests run on more than one. Otherwise it skips, or
// fails where skipping is not allowed.
func Missing(t testing.TB, what string) {
	t.Helper()
	switch {
	case os.Getenv(groundVariable) != "":
		t.Skip(LeftTo + what)
	case os.Getenv(strictVariable) != "":
		t.Fatal(Lacks + what)
	}
	t.Skip(Lacks + what)
}
