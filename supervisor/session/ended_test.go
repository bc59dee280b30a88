// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

func TestEveryReasonHasAText(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range session.EndReasons() {
		text := r.Text()
		if text == session.EndReason("?").Text() || seen[text] || r == "" {
			t.Errorf("%s: %q", r, text)
		}
		seen[text] = true
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	var m session.EndedSessions
	now := time.Unix(1e9, 0)
	wantReason := func(key string, at time.Time, want session.EndReason) {
		t.Helper()
		if s, ok := m.Get(key, at); ok != (want != "") || s.Reason != want {
			t.Errorf("%s: %+v %v, want %q", key, s, ok, want)
		}
	}
	wantReason("a", now, "")
	m.Add("a", session.EndIdle, now)
	m.Add("b", session.EndDeleted, now.Add(time.Minute))
	m.Add("a", session.EndLost, now.Add(2*time.Minute)) // created again, and ended again
	wantReason("a", now.Add(3*time.Minute), session.EndLost)
	wantReason("b", now.Add(3*time.Minute), session.EndDeleted)
	m.Expire(now.Add(session.KeepEnded + time.Minute))
	wantReason("b", now.Add(3*time.Minute), "")
	wantReason("a", now.Add(3*time.Minute), session.EndLost)
	wantReason("a", now.Add(session.KeepEnded+2*time.Minute), "")
	m.Expire(now.Add(time.Hour))
	wantReason("a", now, "")
	for i := range session.MostEnded + 1 {
		m.Add(strconv.Itoa(i), session.EndIdle, now)
	}
	wantReason("0", now, "")
	wantReason("1", now, session.EndIdle)
	// After the clock is set back they are still remembered; their number alone limits them.
	m.Expire(now.Add(-time.Hour))
	wantReason(strconv.Itoa(session.MostEnded), now.Add(-time.Hour), session.EndIdle)
}
