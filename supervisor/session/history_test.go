// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

func TestSamplesSayWhatWasUsedSinceTheOneBefore(t *testing.T) {
	t.Parallel()
	created := time.Unix(1_800_000_000, 0)
	at := func(seconds int) time.Time { return created.Add(time.Duration(seconds) * time.Second) }
	s := &Session{Created: created, history: &history{}}
	for _, tc := range []struct {
		seconds int
		cpu     time.Duration
		want    float32
	}{
		{10, 5 * time.Second, 50}, // since the session was created
		{15, 15 * time.Second, 200},
		{20, 15 * time.Second, 0},
		{25, time.Second, 20}, // another box
		{25, 2 * time.Second, 0},
		{24, 3 * time.Second, 0}, // the clock was set back
	} {
		m := s.NewSample(at(tc.seconds), &CgroupUsage{CPU: tc.cpu, Pids: 3}, nil)
		if m.CPUPercent != tc.want || m.CPU != tc.cpu || m.Pids != 3 || !m.Counted || m.Quota {
			t.Errorf("after %d s: %+v, want %v %%", tc.seconds, m, tc.want)
		}
		s.Remember(m)
	}
	if m := s.NewSample(at(30), nil, &isolation.Disk{Used: 7, Files: 2}); m.Counted || !m.Quota || m.Used != 7 || m.Files != 2 {
		t.Errorf("without cgroups: %+v", m)
	}
	if list := s.History(at(15)); len(list) != 4 || list[0].At != at(20).UnixMilli() {
		t.Errorf("%d samples are later", len(list))
	}
}

func TestSamplesAreBounded(t *testing.T) {
	t.Parallel()
	s, now := &Session{history: &history{}}, time.Unix(1_800_000_000, 0)
	for i := range 2000 {
		s.Remember(Sample{At: now.Add(time.Duration(i) * time.Second).UnixMilli()})
		s.ForgetBefore(now.Add(time.Duration(i-100)*time.Second), 720)
	}
	if n := len(s.History(time.Time{})); n != 101 {
		t.Errorf("%d samples of the last 100 s", n)
	}
	if n := cap(s.history.list); n > 400 {
		t.Errorf("there is room for %d", n)
	}
	for range 2000 { // the clock stands still
		s.Remember(Sample{At: now.Add(time.Hour).UnixMilli()})
		s.ForgetBefore(now, 720)
	}
	if n := len(s.History(time.Time{})); n != 720 {
		t.Errorf("%d samples of one moment", n)
	}
	next := &Session{history: &history{}}
	next.TakeHistory(s)
	next.ForgetBefore(now.Add(2*time.Hour), 0)
	if len(next.History(time.Time{})) != 0 || next.history.list != nil {
		t.Error("something is left")
	}
}
