// SPDX-License-Identifier: Apache-2.0

package ended_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/ended"
)

func TestEveryReasonHasAText(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range ended.Reasons() {
		text := r.Text()
		if text == ended.Reason("?").Text() || seen[text] || r == "" {
			t.Errorf("%s: %q", r, text)
		}
		seen[text] = true
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	var m ended.Memory
	now := time.Unix(1e9, 0)
	has := func(key string, at time.Time, want ended.Reason) {
		t.Helper()
		if s, ok := m.Get(key, at); ok != (want != "") || s.Reason != want {
			t.Errorf("%s: %+v %v, want %q", key, s, ok, want)
		}
	}
	has("a", now, "")
	m.Add("a", ended.Idle, now)
	m.Add("b", ended.Deleted, now.Add(time.Minute))
	m.Add("a", ended.Lost, now.Add(2*time.Minute)) // made again, and ended again
	has("a", now.Add(3*time.Minute), ended.Lost)
	has("b", now.Add(3*time.Minute), ended.Deleted)
	m.Expire(now.Add(ended.Keep + time.Minute))
	has("b", now.Add(3*time.Minute), "")
	has("a", now.Add(3*time.Minute), ended.Lost)
	has("a", now.Add(ended.Keep+2*time.Minute), "")
	m.Expire(now.Add(time.Hour))
	has("a", now, "")
	for i := range ended.Most + 1 {
		m.Add(strconv.Itoa(i), ended.Idle, now)
	}
	has("0", now, "")
	has("1", now, ended.Idle)
	// The clock was put back: they are remembered, and forgotten by their number.
	m.Expire(now.Add(-time.Hour))
	has(strconv.Itoa(ended.Most), now.Add(-time.Hour), ended.Idle)
}
