// SPDX-License-Identifier: Apache-2.0

package boxtest

import "testing"

// Suites with directories of their own for temporary files tell each other which ids they use.
func TestIDsAreReservedAmongAllSuites(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	one := takeIDs(t)
	t.Setenv("TMPDIR", t.TempDir())
	if other := takeIDs(t); other == one {
		t.Errorf("both have %+v, want other != one", one)
	}
}
