// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// SampleEvery is how often it is noted what each session uses.
const SampleEvery = 5 * time.Second

// takeSamples notes again and again what each session uses, until ctx ends. It does nothing while usage.history is 0.
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
		case <-v.resample: // it may have to keep more or less
		case <-ctx.Done():
			return
		}
		v.dropSamples()
	}
}

// HistoryKept is how long samples of what sessions use are kept; 0: there are none.
func (v *Supervisor) HistoryKept() time.Duration { return time.Duration(v.cfg.Load().Usage.History) }

// sampleAll notes what every session with a box uses.
func (v *Supervisor) sampleAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, SampleEvery) // the keeper may be asked, which may hang
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

// dropSamples forgets what is not to be kept any more.
func (v *Supervisor) dropSamples() {
	keep := v.HistoryKept()
	for _, s := range v.all() {
		s.ForgetBefore(time.Now().Add(-keep), int(keep/SampleEvery))
	}
}

// Sample is what a session uses now. It is not added to the history.
func (v *Supervisor) Sample(ctx context.Context, s *session.Session) session.Sample {
	return s.NewSample(time.Now(), s.Usage(), v.Work(ctx, s))
}
