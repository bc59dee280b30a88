// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// SampleEvery is the interval between usage samples of a session.
const SampleEvery = 5 * time.Second

// takeSamples samples the usage of each session until ctx ends. It does nothing while usage.history is 0.
func (v *Supervisor) takeSamples(ctx context.Context) {
	for {
		keep := v.HistoryKept()
		var due <-chan time.Time
		if keep > 0 {
			due = time.After(SampleEvery)
		}
		select {
		case <-due:
			v.sampleAll(ctx)
		case <-v.resample: // the time to keep samples may have changed
		case <-ctx.Done():
			return
		}
		v.dropSamples()
	}
}

// HistoryKept returns how long usage samples are kept; 0: none are taken.
func (v *Supervisor) HistoryKept() time.Duration { return time.Duration(v.cfg.Load().Usage.History) }

// sampleAll samples the usage of every session with a box.
func (v *Supervisor) sampleAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, SampleEvery) // it may ask the keeper, which may hang
	defer cancel()
	for _, s := range v.all() {
		if state, lost, _ := s.State(); state != session.StateReady || lost {
			continue
		}
		if m := v.Sample(ctx, s); m.Counted || m.Quota {
			s.Remember(m)
		}
	}
}

// dropSamples drops samples that are too old.
func (v *Supervisor) dropSamples() {
	keep := v.HistoryKept()
	for _, s := range v.all() {
		s.ForgetBefore(time.Now().Add(-keep), int(keep/SampleEvery))
	}
}

// Sample returns the present usage of a session. It is not added to the history.
func (v *Supervisor) Sample(ctx context.Context, s *session.Session) session.Sample {
	return s.NewSample(time.Now(), s.Usage(), v.Work(ctx, s))
}
