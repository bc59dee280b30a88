// SPDX-License-Identifier: Apache-2.0

// Package sessions_test tests sessions end to end, with a real boxd with real boxes.
package sessions_test

import (
	"os"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestMain(m *testing.M) {
	boxtest.BeCaller(map[string]func(string, []string) error{"hold": holdMany})
	os.Exit(m.Run())
}

// sessions returns the ids of all sessions.
func sessions(t *testing.T, d *boxtest.Daemon) []string {
	t.Helper()
	list, err := d.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}
