// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

func TestABoxEndsAtItsEarliestDeadline(t *testing.T) {
	t.Parallel()
	const setAt, lostAt, idleAt = 100 * time.Second, 200 * time.Second, 150 * time.Second
	for name, tc := range map[string]struct {
		times        isolation.Times
		running      bool
		notAdoptable bool // not adoptable
		want         time.Duration
	}{
		"never told":            {want: lostAt},
		"not adoptable":         {times: isolation.Times{Grace: time.Hour}, notAdoptable: true, want: lostAt},
		"grace":                 {times: isolation.Times{Grace: time.Minute}, want: 260 * time.Second},
		"grace, and it runs":    {times: isolation.Times{Grace: time.Minute, Idle: time.Second}, running: true, want: 260 * time.Second},
		"idle before the grace": {times: isolation.Times{Grace: time.Minute, Idle: time.Second}, want: 201 * time.Second},
		"its end before":        {times: isolation.Times{Grace: time.Minute, End: 110 * time.Second}, want: 210 * time.Second},
		"its end is over":       {times: isolation.Times{Grace: time.Minute, End: time.Second}, want: 101 * time.Second},
		"parked":                {times: isolation.Times{Parked: true}, want: 0},
		"parked, idle":          {times: isolation.Times{Parked: true, Idle: time.Minute}, want: 260 * time.Second},
		"parked, and it runs":   {times: isolation.Times{Parked: true, Idle: time.Minute}, running: true, want: 0},
		"parked with an end":    {times: isolation.Times{Parked: true, End: time.Hour}, running: true, want: setAt + time.Hour},
	} {
		l := lifeTimer{}
		l.Set(&tc.times, setAt)
		l.Idle(idleAt)
		l.Running(tc.running)
		if at := l.End(!tc.notAdoptable); at != 0 {
			t.Errorf("%s: with boxd there it ends at %v", name, at)
		}
		l.markLost(lostAt)
		if at := l.End(!tc.notAdoptable); at != tc.want {
			t.Errorf("%s: it ends at %v, not %v", name, at, tc.want)
		}
		l.markConnected()
		if at := l.End(!tc.notAdoptable); at != 0 {
			t.Errorf("%s: with the next boxd it ends at %v", name, at)
		}
		l.markLost(lostAt)
		if at := l.End(!tc.notAdoptable); at != tc.want {
			t.Errorf("%s: when that has gone without a word it ends at %v, not %v", name, at, tc.want)
		}
		l.markConnected()
		l.Set(&isolation.Times{}, setAt)
		l.markLost(lostAt)
		if at := l.End(!tc.notAdoptable); at != lostAt {
			t.Errorf("%s: when the next boxd wants it to end with itself it ends at %v", name, at)
		}
	}
}
