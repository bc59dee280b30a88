// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// The programs of an idle session are frozen, and the next use resumes them, also after a restart of boxd.
func TestAnIdleSessionIsFrozenUntilItsNextUse(t *testing.T) {
	d := start(t, boxtest.Kept, "[profiles.default]\nfreeze_after = \"2s\"\n")
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	counter := "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.02; done"
	d.NewProcess(t, "s1", "p", &api.ProcessRequest{Command: &counter})
	asleep := func() {
		boxtest.Eventually(t, "the idle session is frozen", func() bool {
			now, err := d.Session(t.Context(), "s1")
			return err == nil && now.State == "frozen" && strings.Contains(boxtest.GroupFile(t, s.Group, "work/cgroup.events"), "frozen 1")
		})
	}
	for range 2 {
		asleep()
		if got := d.Sh(t, "s1", "a=$(cat count); until [ \"$a\" != \"$(cat count)\" ]; do sleep 0.01; done; echo on"); got != "on\n" {
			t.Errorf(`got %q, want "on\n"`, got)
		}
		asleep()
		d.Kill()
		d.Restart()
	}
	// A session that a caller has frozen is not resumed by use.
	if _, err := d.FreezeSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	req := boxtest.Shell("true")
	_, err := d.Exec(t.Context(), "s1", &req)
	boxtest.Refused(t, err, http.StatusConflict, "")
}
